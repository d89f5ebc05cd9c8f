"""What a dealer signs of its shares, and the proof that it has cheated.

A dealer commits to every share it deals, also to its own, and signs these commitments together with what it announced
in stage 1. Any `threshold` shares of an honest dealer yield what it announced. So shares that open its commitments and
yield something else are a proof: anybody who knows the terms can check it, and nobody can make one against an honest
dealer, however many sites help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedhip.federation.secure_sum.encoding import pack, pack_mapping, unpack, unpack_mapping
from fedhip.federation.secure_sum.errors import Reason, require
from fedhip.federation.secure_sum.messages import (
    DEAL,
    DIGEST_BYTES,
    Keys,
    head_of,
    read_message,
    seed_commitment,
    share_commitment,
)
from fedhip.federation.secure_sum.primitives import KEY_BYTES, public_of, statement
from fedhip.federation.secure_sum.shamir import combine, weights_at_zero
from fedhip.federation.secure_sum.terms import Terms


@dataclass(frozen=True)
class Deal:
    """Stage 2, signed: what the dealer announced, and commitments to both shares of each site, in the roster's order.

    Who is not in the cohort has zeros, which nothing opens.
    """

    dealer: str
    mask: bytes
    commitment: bytes
    shares: bytes
    signature: bytes = b""

    @classmethod
    def of(cls, terms: Terms, keys: Keys, commitments: Mapping[str, tuple[bytes, bytes]]) -> Deal:
        """A deal without its signature."""
        nothing = (bytes(DIGEST_BYTES),) * 2
        joined = b"".join(half for name in terms.names for half in commitments.get(name, nothing))
        return cls(keys.site, keys.mask, keys.commitment, joined)

    def body(self, terms: Terms) -> tuple[bytes, ...]:
        """All but the signature."""
        return (*head_of(DEAL, terms, self.dealer), self.mask, self.commitment, self.shares)

    def signed(self, terms: Terms) -> bytes:
        """What the signature is made over."""
        return statement(b"sign deal", *self.body(terms))

    def encode(self, terms: Terms) -> bytes:
        """The message."""
        return pack((*self.body(terms), self.signature))

    @classmethod
    def decode(cls, data: bytes, terms: Terms, dealer: str) -> Deal:
        """The message of `dealer`, its signature checked."""
        deal = cls.restore(data, terms, dealer)
        terms.verify(dealer, deal.signature, deal.signed(terms))
        return deal

    @classmethod
    def restore(cls, data: bytes, terms: Terms, dealer: str) -> Deal:
        """A message that was checked before it was stored."""
        sizes = (KEY_BYTES, DIGEST_BYTES, 2 * DIGEST_BYTES * len(terms.names), None)
        return cls(dealer, *read_message(data, DEAL, terms, dealer, *sizes))

    def commitments(self, terms: Terms, receiver: str) -> tuple[bytes, bytes]:
        """To the receiver's share of the seed, and to that of the key."""
        start = 2 * DIGEST_BYTES * (terms.index[receiver] - 1)
        middle = start + DIGEST_BYTES
        return self.shares[start:middle], self.shares[middle : middle + DIGEST_BYTES]

    def opens(self, terms: Terms, receiver: str, kind: bytes, share: bytes) -> bool:
        """Whether this is the share that was dealt."""
        of_seed, of_key = self.commitments(terms, receiver)
        return share_commitment(terms, self.dealer, receiver, kind, share) == (of_seed if kind == b"seed" else of_key)

    def recover(self, terms: Terms, kind: bytes, shares: Mapping[str, bytes]) -> bytes | None:
        """What `threshold` shares yield; nothing where it is not what the dealer announced."""
        index = terms.index
        weights = weights_at_zero(tuple(index[site] for site in shares))
        secret = combine(weights, {index[site]: share for site, share in shares.items()})
        if secret is None:
            return None
        announced = (
            seed_commitment(terms, self.dealer, secret) == self.commitment
            if kind == b"seed"
            else public_of(secret) == self.mask
        )
        return secret if announced else None


def encode_proof(terms: Terms, deal: Deal, kind: bytes, shares: Mapping[str, bytes]) -> bytes:
    """A deal, and shares of one kind that open its commitments and do not yield what it announced."""
    return pack((deal.encode(terms), kind, pack_mapping(shares)))


def check_proof(data: bytes, terms: Terms, dealer: str) -> None:
    """Require proof that `dealer` has cheated under these terms."""
    parts = unpack(data)
    require(len(parts) == 3 and parts[1] in (b"seed", b"key"), Reason.MALFORMED)
    deal, kind, shares = Deal.decode(parts[0], terms, dealer), parts[1], unpack_mapping(parts[2])
    require(len(shares) == terms.threshold and shares.keys() <= terms.points.keys(), Reason.NO_PROOF)
    require(all(deal.opens(terms, site, kind, share) for site, share in shares.items()), Reason.NO_PROOF)
    require(deal.recover(terms, kind, shares) is None, Reason.NO_PROOF)
