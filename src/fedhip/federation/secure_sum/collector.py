"""The server's side: keys → shares → masked vectors → [signatures] → unmask, for the sum and nothing else.

The server passes messages on and adds up. It also finds out who is wrong: a site that reveals a share other than it was
dealt, and a site that dealt shares which do not yield the seed or the key it announced.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fedhip.federation.secure_sum.commitment import Commitment
from fedhip.federation.secure_sum.deal import Deal, encode_proof
from fedhip.federation.secure_sum.encoding import number, pack_mapping, unpack_mapping, whole
from fedhip.federation.secure_sum.errors import (
    Reason,
    SecureSumError,
    blaming,
    require,
    restoring,
)
from fedhip.federation.secure_sum.masks import apply_masks, is_vector, pair_mask_key, self_mask_key
from fedhip.federation.secure_sum.messages import (
    Keys,
    check_agreement,
    check_vector,
    cohort_digest,
    decode_answer,
    encode_answer,
    masked_digest,
    outcome_digest,
    pack_state,
    require_distinct,
    sealed_commitments,
    unpack_state,
    view_digest,
)
from fedhip.federation.secure_sum.primitives import exchange
from fedhip.federation.secure_sum.terms import Terms

_STATE = b"\x11"


class CollectorStage(IntEnum):
    """What the collector takes."""

    KEYS = 1
    SHARES = 2
    VECTORS = 3
    ANSWERS = 4
    NOTHING = 5


class Collector:
    """One session at the server. Its memory is one vector and the sites' small messages.

    Asking for what a stage yields (`cohort`, `dealt_to`, `survivors`, `result`) ends it: all sites must be told the
    same. What comes late, twice or wrong raises `SecureSumError` with the site's name and changes nothing. The first
    vector sets the length, so the caller checks it beforehand.
    """

    def __init__(self, roster: Mapping[str, bytes], session: bytes, context: bytes, threshold: int) -> None:
        self._start(Terms.of(roster, session, context, threshold))

    def _start(self, terms: Terms) -> None:
        self._terms = terms
        self._stage = CollectorStage.KEYS
        self._keys: dict[str, Keys] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}  # by dealer, then by receiver; its own is the deal
        self._added: set[str] = set()
        self._sum: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self._signatures: dict[str, bytes] = {}
        self._answers: dict[str, dict[str, bytes]] = {}  # by who answers, then by dealer

    def keys(self, site: str, data: bytes) -> None:
        """CollectorStage 1: what `Member.keys` returned."""
        with blaming(site):
            self._terms.require_site(site)
            require(self._stage is CollectorStage.KEYS and site not in self._keys, Reason.ORDER)
            keys = Keys.decode(data, self._terms, site)
            require_distinct([*self._keys.values(), keys])
        self._keys[site] = keys

    def cohort(self) -> dict[str, bytes]:
        """The keys of all, for `Member.share` of each."""
        self._end(CollectorStage.KEYS, len(self._keys))
        return {site: self._keys[site].encode(self._terms) for site in sorted(self._keys)}

    def shares(self, site: str, sealed: Mapping[str, bytes]) -> None:
        """CollectorStage 2: what `Member.share` returned."""
        with blaming(site):
            require(self._stage is CollectorStage.SHARES and site not in self._sealed, Reason.ORDER)
            require(site in self._keys and sealed.keys() == self._keys.keys(), Reason.COHORT)
            deal, keys = Deal.decode(sealed[site], self._terms, site), self._keys[site]
            commitments = {site: deal.commitments(self._terms, site)}  # its own share is not sealed
            for receiver in sealed.keys() - {site}:
                commitments[receiver] = sealed_commitments(sealed[receiver], self._terms, site, receiver)
            expected = Deal.of(self._terms, keys, commitments)
            require(deal.body(self._terms) == expected.body(self._terms), Reason.OTHER_DEAL)
        self._sealed[site] = dict(sealed)

    def dealt_to(self, site: str) -> dict[str, bytes]:
        """What the others dealt to a site, for its `Member.mask`."""
        self._end(CollectorStage.SHARES, len(self._sealed))
        with blaming(site):
            require(site in self._sealed, Reason.COHORT)
        return {dealer: self._sealed[dealer][site] for dealer in sorted(self._sealed) if dealer != site}

    def add(self, site: str, vector: NDArray[np.uint64], signature: bytes) -> None:
        """CollectorStage 3: fold a masked vector, with its signature, into the sum; the vector is not kept."""
        with blaming(site):
            require(self._stage is CollectorStage.VECTORS and site not in self._added, Reason.ORDER)
            require(site in self._sealed, Reason.COHORT)
            require(is_vector(vector) and (not self._added or vector.shape == self._sum.shape), Reason.VECTOR)
            check_vector(signature, self._terms, site, self._view(), vector)
        if self._added:
            np.add(self._sum, vector, out=self._sum)
        else:
            self._sum = vector.copy()
        self._added.add(site)

    def commitment(self, site: str, vector: NDArray[np.uint64], signature: bytes) -> Commitment:
        """What a site whose vector was added has signed: for an auditor."""
        cohort = {name: keys.encode(self._terms) for name, keys in self._keys.items()}
        return Commitment(self._terms, site, cohort, sorted(self._sealed), masked_digest(vector), signature)

    def survivors(self) -> list[str]:
        """The sites whose vectors are in the sum, for `agree` and `unmask` of each."""
        self._end(CollectorStage.VECTORS, len(self._added))
        return sorted(self._added)

    def signature(self, site: str, data: bytes) -> None:
        """What `Member.agree` returned."""
        with blaming(site):
            require(self._stage is CollectorStage.ANSWERS and site not in self._signatures, Reason.ORDER)
            require(site in self._added, Reason.COHORT)
            check_agreement(data, self._terms, site, self._outcome())
        self._signatures[site] = data

    def signatures(self) -> dict[str, bytes]:
        """The signatures for `Member.unmask`; none are needed where every dealer survived."""
        if self.survivors() == sorted(self._sealed):
            return {}
        require(len(self._signatures) >= self._terms.threshold, Reason.NOT_AGREED)
        return dict(self._signatures)

    def unmask(self, site: str, data: bytes) -> None:
        """CollectorStage 4: what `Member.unmask` returned; each share must be the one that was dealt."""
        with blaming(site):
            require(self._stage is CollectorStage.ANSWERS and site not in self._answers, Reason.ORDER)
            require(site in self._added, Reason.COHORT)
            shares = decode_answer(data, self._terms, site, self._outcome(), sorted(self._sealed))
            for dealer, share in shares.items():
                deal, kind = self._deal(dealer)
                require(deal.opens(self._terms, site, kind, share), Reason.WRONG_SHARE)
        self._answers[site] = shares

    def result(self) -> NDArray[np.uint64]:
        """The sum of the survivors' vectors mod 2^64: the masks that did not cancel are made again and taken out."""
        if self._stage is not CollectorStage.NOTHING:
            require(self._stage is CollectorStage.ANSWERS, Reason.ORDER)
            require(len(self._answers) >= self._terms.threshold, Reason.TOO_FEW)
            added, removed = self._masks_left()
            apply_masks(self._sum, added=removed, removed=added)
            self._stage = CollectorStage.NOTHING
        return self._sum

    def _masks_left(self) -> tuple[list[bytes], list[bytes]]:
        """Keys of the masks that were added to the sum, and of those that were subtracted."""
        view = self._view()
        recovered = {dealer: self._recover(dealer) for dealer in sorted(self._sealed)}
        added = [self_mask_key(recovered[site], view, site) for site in sorted(self._added)]
        removed: list[bytes] = []
        for gone in self._sealed.keys() - self._added:
            for site in self._added:
                key = pair_mask_key(exchange(recovered[gone], self._keys[site].mask), view, site, gone)
                (added if gone > site else removed).append(key)
        return added, removed

    def _recover(self, dealer: str) -> bytes:
        """A survivor's seed, or the mask key of a site that is gone; it must be the one announced in stage 1."""
        deal, kind = self._deal(dealer)
        if (secret := deal.recover(self._terms, kind, self._revealed(dealer))) is None:
            raise SecureSumError(dealer, Reason.WRONG_DEAL)
        return secret

    def proof(self, dealer: str) -> bytes:
        """The proof, for `Member.require_proof`, that a dealer has cheated; after `result` has named it."""
        return encode_proof(self._terms, *self._deal(dealer), self._revealed(dealer))

    def _revealed(self, dealer: str) -> dict[str, bytes]:
        """Shares of a dealer's secret, as many as it takes."""
        return {site: self._answers[site][dealer] for site in sorted(self._answers)[: self._terms.threshold]}

    def _deal(self, dealer: str) -> tuple[Deal, bytes]:
        """What a dealer signed, and of which kind the shares are that are revealed."""
        deal = Deal.restore(self._sealed[dealer][dealer], self._terms, dealer)
        return deal, b"seed" if dealer in self._added else b"key"

    def _view(self) -> bytes:
        return view_digest(cohort_digest(self._terms, self._keys), self._sealed)

    def _outcome(self) -> bytes:
        return outcome_digest(self._view(), self._added)

    def _end(self, stage: CollectorStage, sites: int) -> None:
        """End a stage, if it has not ended before and enough sites have come."""
        require(self._stage >= stage, Reason.ORDER)
        require(sites >= self._terms.threshold, Reason.TOO_FEW)
        self._stage = max(self._stage, CollectorStage(stage + 1))

    def to_bytes(self) -> bytes:
        """All of the collector, for a checkpoint; no site's vector is in it, and no secret that was not revealed."""
        terms = self._terms
        answers = {
            site: encode_answer(terms, site, self._outcome(), (shares[dealer] for dealer in sorted(shares)))
            for site, shares in self._answers.items()
        }
        return pack_state(
            _STATE,
            terms.to_bytes(),
            number(self._stage),
            pack_mapping({site: keys.encode(terms) for site, keys in self._keys.items()}),
            pack_mapping({dealer: pack_mapping(sealed) for dealer, sealed in self._sealed.items()}),
            pack_mapping(dict.fromkeys(self._added, b"")),
            self._sum.astype("<u8", copy=False).tobytes(),
            pack_mapping(self._signatures),
            pack_mapping(answers),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Collector:
        """The collector that `to_bytes` wrote, at the stage where it was."""
        with restoring():
            terms, stage, keys, sealed, added, words, signatures, answers = unpack_state(data, _STATE, 8)
            collector = cls.__new__(cls)
            collector._start(Terms.from_bytes(terms))
            collector._stage = CollectorStage(whole(stage))
            collector._keys = {
                site: Keys.restore(message, collector._terms, site) for site, message in unpack_mapping(keys).items()
            }
            collector._sealed = {
                dealer: unpack_mapping(messages) for dealer, messages in unpack_mapping(sealed).items()
            }
            collector._added = set(unpack_mapping(added))
            collector._sum = np.frombuffer(words, dtype="<u8").astype(np.uint64)
            collector._signatures = unpack_mapping(signatures)
            outcome, dealers = collector._outcome(), sorted(collector._sealed)
            collector._answers = {
                site: decode_answer(message, collector._terms, site, outcome, dealers)
                for site, message in unpack_mapping(answers).items()
            }
            return collector
