"""What ties a site to the vector that it masked, and how it is opened to an auditor.

A site signs its masked vector, in a view of whose masks are in it. Beforehand it has signed a digest of the seed of its
own mask, and the public half of the key that its masks with others are made of. So masked vector, seed and key leave
one vector only: what is signed is a *commitment* to it, salted by the seed. Nobody can read the vector from it. The
*opening* is vector, seed and key: whoever has both makes the masks again, and sees whether vector and masks are what
the site signed. A site cannot open another vector than the one it masked, and nobody can make a commitment that a site
did not sign.

An opening tells all of the site's vector. Of other sites it tells the masks that they have with this one, as a site
would that works together with the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedhip.federation.secure_sum.encoding import pack_mapping, pack_names, text, unpack, unpack_mapping
from fedhip.federation.secure_sum.errors import Reason, require, restoring
from fedhip.federation.secure_sum.masks import apply_masks, is_vector, pair_mask_key, self_mask_key
from fedhip.federation.secure_sum.messages import (
    Keys,
    check_masked,
    cohort_digest,
    masked_digest,
    pack_state,
    seed_commitment,
    unpack_state,
    view_digest,
)
from fedhip.federation.secure_sum.primitives import exchange, public_of
from fedhip.federation.secure_sum.terms import Terms

_COMMITMENT, _OPENING = b"\x12", b"\x13"


@dataclass(frozen=True)
class Commitment:
    """What a site signed in one sum: the digest of its masked vector, and all that says which masks are in it."""

    terms: Terms
    site: str
    cohort: Mapping[str, bytes]
    dealers: Sequence[str]
    masked: bytes
    signature: bytes

    @property
    def keys(self) -> dict[str, Keys]:
        """What the cohort announced, each signed."""
        return {name: Keys.decode(data, self.terms, name) for name, data in self.cohort.items()}

    @property
    def view(self) -> bytes:
        """Whose masks are in the vector."""
        return view_digest(cohort_digest(self.terms, self.keys), self.dealers)

    def require_signed(self) -> None:
        """Require that the site signed it, in a cohort of sites that signed their keys."""
        self.terms.require_site(self.site)
        require(self.site in self.dealers and set(self.dealers) <= self.cohort.keys(), Reason.COHORT)
        check_masked(self.signature, self.terms, self.site, self.view, self.masked)

    def to_bytes(self) -> bytes:
        """For a file; nothing in it is secret."""
        parts = self.terms.to_bytes(), self.site.encode(), pack_mapping(self.cohort), pack_names(self.dealers)
        return pack_state(_COMMITMENT, *parts, self.masked, self.signature)

    @classmethod
    def from_bytes(cls, data: bytes) -> Commitment:
        """What `to_bytes` wrote."""
        with restoring():
            terms, site, cohort, dealers, masked, signature = unpack_state(data, _COMMITMENT, 6)
            names = [text(name) for name in unpack(dealers)]
            return cls(Terms.from_bytes(terms), text(site), unpack_mapping(cohort), names, masked, signature)


@dataclass(frozen=True)
class Opening:
    """The vector, and what its masks are made of. Secret: it tells the site's own numbers."""

    commitment: Commitment
    vector: NDArray[np.uint64] = field(repr=False)
    seed: bytes = field(repr=False)
    mask: bytes = field(repr=False)

    def require_fits(self, signed: Commitment) -> None:
        """Require that vector and masks are what the site signed and the server got."""
        signed.require_signed()
        require(is_vector(self.vector), Reason.VECTOR)
        terms, me, keys, view = signed.terms, signed.site, signed.keys, signed.view
        require(seed_commitment(terms, me, self.seed) == keys[me].commitment, Reason.NOT_COMMITTED)
        require(public_of(self.mask) == keys[me].mask, Reason.NOT_COMMITTED)
        pairs = {
            site: pair_mask_key(exchange(self.mask, keys[site].mask), view, me, site)
            for site in signed.dealers
            if site != me
        }
        masked = self.vector.copy()
        apply_masks(
            masked,
            added=[self_mask_key(self.seed, view, me), *(key for site, key in pairs.items() if site > me)],
            removed=[key for site, key in pairs.items() if site < me],
        )
        require(masked_digest(masked) == signed.masked, Reason.NOT_COMMITTED)

    def to_bytes(self) -> bytes:
        """For a file that only its owner reads."""
        words = self.vector.astype("<u8", copy=False).tobytes()
        return pack_state(_OPENING, self.commitment.to_bytes(), words, self.seed, self.mask)

    @classmethod
    def from_bytes(cls, data: bytes) -> Opening:
        """What `to_bytes` wrote."""
        with restoring():
            commitment, words, seed, mask = unpack_state(data, _OPENING, 4)
            require(len(words) % 8 == 0, Reason.MALFORMED)
            vector = np.frombuffer(words, "<u8").astype(np.uint64)
            return cls(Commitment.from_bytes(commitment), vector, seed, mask)
