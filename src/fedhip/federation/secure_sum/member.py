"""A site's side: keys → share → mask → [agree] → unmask, each step once (Bonawitz et al. 2017, active adversaries).

The server is not trusted: it may pass on other keys, leave sites out, or tell different sites different things. What a
site reveals in the end are shares, for each other site of one kind only, and for one list of survivors only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from secrets import token_bytes

import numpy as np
from numpy.typing import NDArray

from fedhip.federation.secure_sum.commitment import Commitment, Opening
from fedhip.federation.secure_sum.deal import Deal, check_proof
from fedhip.federation.secure_sum.encoding import number, pack, pack_mapping, text, unpack, unpack_mapping, whole
from fedhip.federation.secure_sum.errors import Reason, SecureSumError, blaming, require, restoring
from fedhip.federation.secure_sum.masks import apply_masks, is_vector, pair_mask_key, self_mask_key
from fedhip.federation.secure_sum.messages import (
    Keys,
    Shares,
    agreement_statement,
    check_agreement,
    cohort_digest,
    encode_agreement,
    encode_answer,
    encode_signature,
    masked_digest,
    outcome_digest,
    pack_state,
    require_distinct,
    seal_key,
    seed_commitment,
    unpack_state,
    vector_statement,
    view_digest,
)
from fedhip.federation.secure_sum.primitives import KEY_BYTES, exchange, public_of
from fedhip.federation.secure_sum.shamir import SHARE_BYTES, split
from fedhip.federation.secure_sum.terms import Terms

_STATE = b"\x10"

Sign = Callable[[bytes], bytes]


class MemberStep(IntEnum):
    """What a member does next."""

    KEYS = 1
    SHARE = 2
    MASK = 3
    UNMASK = 4
    NOTHING = 5


@dataclass(frozen=True)
class Secrets:
    """What a site makes up for one session, and forgets once its vector is masked."""

    channel: bytes = field(repr=False)
    mask: bytes = field(repr=False)
    seed: bytes = field(repr=False)


class Member:
    """One site in one session; it holds secrets until `unmask`.

    A step that is refused changes nothing. Keep `to_bytes` before an answer leaves: a member restored from an older
    state would do a step again.
    """

    def __init__(self, terms: Terms, site: str, minimum: int, sign: Sign) -> None:
        self._terms, self._site, self._minimum, self._sign = terms, site, minimum, sign
        self._next = MemberStep.KEYS
        self._secrets: Secrets | None = Secrets(*(token_bytes(KEY_BYTES) for _ in range(3)))
        self._cohort: dict[str, Keys] = {}
        self._shares: dict[str, Shares] = {}  # mine from each dealer, myself included
        self._agreed = b""
        #: What was masked, and by which masks: for the caller of `mask` alone, who may keep it. It is in no state.
        self.opening: Opening | None = None

    @classmethod
    def begin(
        cls,
        *,
        site: str,
        roster: Mapping[str, bytes],
        sign: Sign,
        session: bytes,
        context: bytes,
        minimum: int,
        threshold: int,
    ) -> Member:
        """A member with fresh secrets.

        roster: each site's P-384 public key, PEM or OpenSSH, that this site got by a safe way.
        sign: ECDSA with SHA-384 by this site's key, in DER.
        context: what else all must agree in, as the digest of the agreement.
        minimum: the fewest sites, this one included, whose sum this site takes part in.
        """
        terms = Terms.of(roster, session, context, threshold)
        require(minimum >= 2, Reason.MINIMUM)
        with blaming(site):
            terms.require_site(site)
        return cls(terms, site, minimum, sign)

    def keys(self) -> bytes:
        """Stage 1: this site's ephemeral public keys and commitment, signed."""
        secrets = self._turn(MemberStep.KEYS)
        unsigned = Keys(
            self._site,
            public_of(secrets.channel),
            public_of(secrets.mask),
            seed_commitment(self._terms, self._site, secrets.seed),
        )
        mine = replace(unsigned, signature=self._sign(unsigned.signed(self._terms)))
        with blaming(self._site):
            self._terms.verify(self._site, mine.signature, mine.signed(self._terms))
        self._cohort = {self._site: mine}
        self._next = MemberStep.SHARE
        return mine.encode(self._terms)

    def share(self, keys: Mapping[str, bytes]) -> dict[str, bytes]:
        """Stage 2: from the cohort's keys, shares of this site's seed and mask key, sealed for each other site.

        Under its own name is the signed deal, for the server.
        """
        secrets = self._turn(MemberStep.SHARE)
        terms, me = self._terms, self._site
        self._require_enough(keys)
        require(me in keys, Reason.OWN_KEYS)
        cohort = {site: self._checked_keys(site, keys[site]) for site in sorted(keys)}
        require(cohort[me].body(terms) == self._cohort[me].body(terms), Reason.OWN_KEYS)
        require_distinct(cohort.values())

        points = [terms.index[site] for site in cohort]
        seeds = split(secrets.seed, terms.threshold, points)
        masks = split(secrets.mask, terms.threshold, points)
        dealt = {site: Shares(seeds[terms.index[site]], masks[terms.index[site]]) for site in cohort}
        transcript = cohort_digest(terms, cohort)
        deal = Deal.of(terms, cohort[me], {site: dealt[site].commitments(terms, me, site) for site in cohort})
        sealed = {me: replace(deal, signature=self._sign(deal.signed(terms))).encode(terms)}
        for site in cohort.keys() - {me}:
            common = exchange(secrets.channel, cohort[site].channel)
            sealed[site] = dealt[site].seal(terms, me, site, seal_key(common, transcript, me, site))
        self._cohort, self._shares = cohort, {me: dealt[me]}
        self._next = MemberStep.MASK
        return sealed

    def mask(self, vector: NDArray[np.uint64], sealed: Mapping[str, bytes]) -> tuple[NDArray[np.uint64], bytes]:
        """Stage 3: vector + own mask + Σ masks with later sites − Σ masks with earlier sites, mod 2^64; signed.

        sealed: what each other site dealt to this one; sites that dealt nothing are left out of the sum.
        """
        secrets = self._turn(MemberStep.MASK)
        terms, me = self._terms, self._site
        require(is_vector(vector), Reason.VECTOR)
        require(me not in sealed and sealed.keys() <= self._cohort.keys(), Reason.COHORT)
        self._require_enough([me, *sealed])

        transcript = cohort_digest(terms, self._cohort)
        shares = dict(self._shares)
        for dealer, data in sealed.items():
            with blaming(dealer):
                common = exchange(secrets.channel, self._cohort[dealer].channel)
                shares[dealer] = Shares.open(data, terms, dealer, me, seal_key(common, transcript, dealer, me))

        view = view_digest(transcript, shares)
        pairs = {
            site: pair_mask_key(exchange(secrets.mask, self._cohort[site].mask), view, me, site) for site in sealed
        }
        masked = vector.copy()
        apply_masks(
            masked,
            added=[self_mask_key(secrets.seed, view, me), *(key for site, key in pairs.items() if site > me)],
            removed=[key for site, key in pairs.items() if site < me],
        )
        message = encode_signature(terms, me, self._sign(vector_statement(terms, me, view, masked)))
        cohort = {site: keys.encode(terms) for site, keys in self._cohort.items()}
        signed = Commitment(terms, me, cohort, sorted(shares), masked_digest(masked), message)
        self.opening = Opening(signed, vector, secrets.seed, secrets.mask)
        self._shares, self._secrets = shares, None
        self._next = MemberStep.UNMASK
        return masked, message

    def agree(self, survivors: Sequence[str]) -> bytes:
        """The site's signature that the sum is that of the survivors; from now on it knows no other list."""
        outcome = self._outcome(survivors)
        require(not self._agreed, Reason.ORDER)
        signature = self._sign(agreement_statement(self._terms, self._site, outcome))
        self._agreed = outcome
        return encode_agreement(self._terms, self._site, signature)

    def unmask(self, survivors: Sequence[str], signatures: Mapping[str, bytes]) -> bytes:
        """Stage 4: shares of the survivors' seeds and of the other dealers' mask keys.

        signatures: what at least `threshold` survivors got from `agree`; none are needed where every dealer survived,
        for then no mask key is asked for.
        """
        outcome = self._outcome(survivors)
        self._require_agreement(outcome, survivors, signatures)
        revealed = [
            self._shares[dealer].seed if dealer in survivors else self._shares[dealer].key
            for dealer in sorted(self._shares)
        ]
        answer = encode_answer(self._terms, self._site, outcome, revealed)
        self._shares, self._cohort = {}, {}
        self._next = MemberStep.NOTHING
        return answer

    def require_proof(self, dealer: str, proof: bytes) -> None:
        """Require proof that a dealer of this sum has cheated; also after `unmask`, when all else is forgotten."""
        with blaming(dealer):
            self._terms.require_site(dealer)
            check_proof(proof, self._terms, dealer)

    def _turn(self, step: MemberStep) -> Secrets:
        """The secrets, if it is this step's turn."""
        if self._next is not step or self._secrets is None:
            raise SecureSumError(None, Reason.ORDER)
        return self._secrets

    def _require_enough(self, sites: Sequence[str] | Mapping[str, bytes]) -> None:
        require(len(sites) >= max(self._minimum, self._terms.threshold), Reason.TOO_FEW)

    def _checked_keys(self, site: str, data: bytes) -> Keys:
        with blaming(site):
            self._terms.require_site(site)
            return Keys.decode(data, self._terms, site)

    def _outcome(self, survivors: Sequence[str]) -> bytes:
        """The digest of a list of survivors that this site can accept."""
        require(self._next is MemberStep.UNMASK, Reason.ORDER)
        named = set(survivors)
        require(len(named) == len(survivors) and named <= self._shares.keys(), Reason.SURVIVORS)
        require(self._site in named, Reason.SURVIVORS)
        self._require_enough(survivors)
        outcome = outcome_digest(view_digest(cohort_digest(self._terms, self._cohort), self._shares), survivors)
        require(self._agreed in (b"", outcome), Reason.OTHER_LIST)
        return outcome

    def _require_agreement(self, outcome: bytes, survivors: Sequence[str], signatures: Mapping[str, bytes]) -> None:
        """Require that enough survivors know the same list, so that the server cannot tell another one to each."""
        for site, data in signatures.items():
            with blaming(site):
                require(site in survivors, Reason.SURVIVORS)
                check_agreement(data, self._terms, site, outcome)
        all_survive = len(survivors) == len(self._shares)
        require(
            len(signatures) >= self._terms.threshold or (all_survive and not signatures),
            Reason.NOT_AGREED,
        )

    def to_bytes(self) -> bytes:
        """All of the member but the way to sign, secrets included: for a file that only this site can read."""
        secrets = self._secrets
        return pack_state(
            _STATE,
            self._terms.to_bytes(),
            self._site.encode(),
            number(self._minimum),
            number(self._next),
            b"" if secrets is None else pack((secrets.channel, secrets.mask, secrets.seed)),
            pack_mapping({site: keys.encode(self._terms) for site, keys in self._cohort.items()}),
            pack_mapping({site: shares.seed + shares.key for site, shares in self._shares.items()}),
            self._agreed,
        )

    @classmethod
    def from_bytes(cls, data: bytes, sign: Sign) -> Member:
        """The member that `to_bytes` wrote, at the step where it was."""
        with restoring():
            terms, site, minimum, step, secrets, cohort, shares, agreed = unpack_state(data, _STATE, 8)
            member = cls(Terms.from_bytes(terms), text(site), whole(minimum), sign)
            member._next = MemberStep(whole(step))
            member._secrets = Secrets(*unpack(secrets)) if secrets else None
            member._cohort = {
                name: Keys.restore(message, member._terms, name) for name, message in unpack_mapping(cohort).items()
            }
            member._shares = {
                name: Shares(pair[:SHARE_BYTES], pair[SHARE_BYTES:]) for name, pair in unpack_mapping(shares).items()
            }
            member._agreed = agreed
            return member
