"""The messages, and the three digests in which all sites must agree.

    cohort    H(terms, the keys of every site in stage 1)
    view      H(cohort, the sites that dealt shares)
    outcome   H(view, the survivors)

A message is [version and kind, digest of the terms, the site that made it, …]; a message of another session, agreement,
roster or threshold is told apart before anything else of it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedhip.federation.secure_sum.encoding import pack, pack_names, unpack
from fedhip.federation.secure_sum.errors import Reason, SecureSumError, require
from fedhip.federation.secure_sum.primitives import (
    KEY_BYTES,
    LONGEST_SIGNATURE,
    NONCE_BYTES,
    TAG_BYTES,
    derive,
    digest,
    require_usable,
    seal,
    statement,
    unseal,
)
from fedhip.federation.secure_sum.shamir import PRIME, SHARE_BYTES, element
from fedhip.federation.secure_sum.terms import Terms

VERSION = 2
DIGEST_BYTES = 32
LONGEST_MESSAGE = 1 << 17  # the shares of 1024 sites, or commitments to them, and room

_KEYS, _SHARES, _AGREEMENT, _ANSWER, _VECTOR, DEAL = b"\1", b"\2", b"\3", b"\4", b"\5", b"\6"
_SEALED_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + TAG_BYTES


@dataclass(frozen=True)
class Keys:
    """Stage 1, signed: a key to seal shares, a key to make masks, and a commitment to the seed of the self-mask."""

    site: str
    channel: bytes
    mask: bytes
    commitment: bytes
    signature: bytes = b""

    def body(self, terms: Terms) -> tuple[bytes, ...]:
        """All but the signature."""
        return (*head_of(_KEYS, terms, self.site), self.channel, self.mask, self.commitment)

    def signed(self, terms: Terms) -> bytes:
        """What the signature is made over."""
        return statement(b"sign keys", *self.body(terms))

    def encode(self, terms: Terms) -> bytes:
        """The message."""
        return pack((*self.body(terms), self.signature))

    @classmethod
    def decode(cls, data: bytes, terms: Terms, site: str) -> Keys:
        """The message of `site`, its signature and keys checked."""
        keys = cls.restore(data, terms, site)
        terms.verify(site, keys.signature, keys.signed(terms))
        require_usable(keys.channel)
        require_usable(keys.mask)
        return keys

    @classmethod
    def restore(cls, data: bytes, terms: Terms, site: str) -> Keys:
        """A message that was checked before it was stored."""
        return cls(site, *read_message(data, _KEYS, terms, site, KEY_BYTES, KEY_BYTES, DIGEST_BYTES, None))


def require_distinct(cohort: Iterable[Keys]) -> None:
    """Require that no two keys are the same."""
    public = [key for keys in cohort for key in (keys.channel, keys.mask)]
    require(len(set(public)) == len(public), Reason.SAME_KEYS)


def seed_commitment(terms: Terms, site: str, seed: bytes) -> bytes:
    """What ties a site to its seed; a seed is 32 random bytes, so that the digest hides it."""
    return digest(b"commit to seed", terms.digest, site.encode(), seed)


def cohort_digest(terms: Terms, cohort: Mapping[str, Keys]) -> bytes:
    """Who takes part with which keys. Signatures stay out: one statement can have many."""
    return digest(b"cohort", terms.digest, *(pack(cohort[name].body(terms)) for name in sorted(cohort)))


def seal_key(common: bytes, cohort: bytes, dealer: str, receiver: str) -> bytes:
    """The key from one dealer to one receiver; the way back has another, so that nothing can be reflected."""
    return derive(common, b"seal shares", cohort, dealer.encode(), receiver.encode())


@dataclass(frozen=True)
class Shares:
    """Stage 2, from one dealer to one receiver: its shares of the dealer's seed and of the dealer's mask key."""

    seed: bytes = field(repr=False)
    key: bytes = field(repr=False)

    def seal(self, terms: Terms, dealer: str, receiver: str, key: bytes) -> bytes:
        """The message: commitments for the server, who must know a false share, and the shares for the receiver."""
        header = (*head_of(_SHARES, terms, dealer), receiver.encode(), *self.commitments(terms, dealer, receiver))
        return pack((*header, seal(key, self.seed + self.key, pack(header))))

    def commitments(self, terms: Terms, dealer: str, receiver: str) -> tuple[bytes, bytes]:
        """To the share of the seed, and to that of the key."""
        return (
            share_commitment(terms, dealer, receiver, b"seed", self.seed),
            share_commitment(terms, dealer, receiver, b"key", self.key),
        )

    @classmethod
    def open(cls, data: bytes, terms: Terms, dealer: str, receiver: str, key: bytes) -> Shares:
        """The shares in the message, which are those committed to."""
        header, commitments, sealed = _read_sealed(data, terms, dealer, receiver)
        plain = unseal(key, sealed, header)
        shares = cls(plain[:SHARE_BYTES], plain[SHARE_BYTES:])
        require(shares.commitments(terms, dealer, receiver) == commitments, Reason.NOT_OPENED)
        require(all(int.from_bytes(share, "little") < PRIME for share in (shares.seed, shares.key)), Reason.NOT_OPENED)
        return shares


def sealed_commitments(data: bytes, terms: Terms, dealer: str, receiver: str) -> tuple[bytes, bytes]:
    """What the server can read of stage 2: the commitments to the share of the seed and to that of the key."""
    return _read_sealed(data, terms, dealer, receiver)[1]


def share_commitment(terms: Terms, dealer: str, receiver: str, kind: bytes, share: bytes) -> bytes:
    """What ties a dealer to a share; a share is a random field element, so that the digest hides it."""
    return digest(b"commit to share", terms.digest, dealer.encode(), receiver.encode(), kind, share)


def view_digest(cohort: bytes, dealers: Iterable[str]) -> bytes:
    """Whose masks are in the vectors. It is in every mask: those of sites with different views never cancel."""
    return digest(b"view", cohort, pack_names(sorted(dealers)))


def outcome_digest(view: bytes, survivors: Iterable[str]) -> bytes:
    """Whose vectors are in the sum."""
    return digest(b"outcome", view, pack_names(sorted(survivors)))


def vector_statement(terms: Terms, site: str, view: bytes, masked: NDArray[np.uint64]) -> bytes:
    """What a site signs with its masked vector."""
    return masked_statement(terms, site, view, masked_digest(masked))


def masked_statement(terms: Terms, site: str, view: bytes, masked: bytes) -> bytes:
    """The same, of the vector's digest."""
    return statement(b"sign vector", *head_of(_VECTOR, terms, site), view, masked)


def masked_digest(masked: NDArray[np.uint64]) -> bytes:
    """Which masked vector it is."""
    return digest(b"masked vector", np.ascontiguousarray(masked, "<u8").view(np.uint8).data)


def encode_signature(terms: Terms, site: str, signature: bytes) -> bytes:
    """The message that goes with a masked vector."""
    return pack((*head_of(_VECTOR, terms, site), signature))


def check_vector(data: bytes, terms: Terms, site: str, view: bytes, masked: NDArray[np.uint64]) -> None:
    """Require that `site` made this masked vector in this view."""
    check_masked(data, terms, site, view, masked_digest(masked))


def check_masked(data: bytes, terms: Terms, site: str, view: bytes, masked: bytes) -> None:
    """The same, of the vector's digest."""
    (signature,) = read_message(data, _VECTOR, terms, site, None)
    terms.verify(site, signature, masked_statement(terms, site, view, masked))


def agreement_statement(terms: Terms, site: str, outcome: bytes) -> bytes:
    """What a site signs when it agrees to the survivors."""
    return statement(b"sign survivors", *head_of(_AGREEMENT, terms, site), outcome)


def encode_agreement(terms: Terms, site: str, signature: bytes) -> bytes:
    """The message that a site agrees."""
    return pack((*head_of(_AGREEMENT, terms, site), signature))


def check_agreement(data: bytes, terms: Terms, site: str, outcome: bytes) -> None:
    """Require that `site` agrees to this outcome."""
    (signature,) = read_message(data, _AGREEMENT, terms, site, None)
    terms.verify(site, signature, agreement_statement(terms, site, outcome))


def encode_answer(terms: Terms, site: str, outcome: bytes, shares: Iterable[bytes]) -> bytes:
    """Stage 4: one share for each dealer in the order of their names; the outcome says of which kind each one is."""
    return pack((*head_of(_ANSWER, terms, site), outcome, b"".join(shares)))


def decode_answer(data: bytes, terms: Terms, site: str, outcome: bytes, dealers: list[str]) -> dict[str, bytes]:
    """The share of each dealer's secret that `site` reveals for this outcome."""
    theirs, joined = read_message(data, _ANSWER, terms, site, DIGEST_BYTES, SHARE_BYTES * len(dealers))
    require(theirs == outcome, Reason.OTHER_LIST)
    starts = range(0, len(joined), SHARE_BYTES)
    shares = {dealer: joined[start : start + SHARE_BYTES] for dealer, start in zip(dealers, starts, strict=True)}
    for share in shares.values():
        element(share)
    return shares


def pack_state(kind: bytes, *parts: bytes) -> bytes:
    """A state to keep, with a digest against damage."""
    content = (bytes([VERSION]) + kind, *parts)
    return pack((*content, digest(b"state", *content)))


def unpack_state(data: bytes, kind: bytes, count: int) -> list[bytes]:
    """The parts of a state that is whole and of this version."""
    content = unpack(data)
    require(len(content) == count + 2 and content[0] == bytes([VERSION]) + kind, Reason.MALFORMED)
    require(content[-1] == digest(b"state", *content[:-1]), Reason.MALFORMED)
    return content[1:-1]


def head_of(kind: bytes, terms: Terms, site: str) -> tuple[bytes, bytes, bytes]:
    """What every message begins with."""
    return bytes([VERSION]) + kind, terms.digest, site.encode()


def read_message(data: object, kind: bytes, terms: Terms, site: str, *sizes: int | None) -> list[bytes]:
    """What follows the head; each part has its size; a signature or a name (None) is at most as long as a signature."""
    if not isinstance(data, bytes) or len(data) > LONGEST_MESSAGE:
        raise SecureSumError(None, Reason.MALFORMED)
    parts = unpack(data)
    head, rest = parts[:3], parts[3:]
    kind_and_version, terms_digest, name = head_of(kind, terms, site)
    require(len(head) == 3 and head[0] == kind_and_version, Reason.MALFORMED)
    require(head[1] == terms_digest, Reason.OTHER_SESSION)
    require(head[2] == name, Reason.OTHER_SITE)
    require(len(rest) == len(sizes), Reason.MALFORMED)
    for part, size in zip(rest, sizes, strict=True):
        require(len(part) <= LONGEST_SIGNATURE if size is None else len(part) == size, Reason.MALFORMED)
    return rest


def _read_sealed(data: bytes, terms: Terms, dealer: str, receiver: str) -> tuple[bytes, tuple[bytes, bytes], bytes]:
    """Header, commitments and sealed shares of a message between these two."""
    addressed, seed, key, sealed = read_message(
        data, _SHARES, terms, dealer, None, DIGEST_BYTES, DIGEST_BYTES, _SEALED_BYTES
    )
    require(addressed == receiver.encode(), Reason.OTHER_SITE)
    return pack((*head_of(_SHARES, terms, dealer), addressed, seed, key)), (seed, key), sealed
