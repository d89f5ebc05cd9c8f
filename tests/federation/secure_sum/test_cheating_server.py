"""A server that does not keep to the protocol gets nothing; where a check is taken away, the attack is carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from fedhip.federation.secure_sum import Member, Reason, SecureSumError
from fedhip.federation.secure_sum.masks import apply_masks, pair_mask_key, self_mask_key
from fedhip.federation.secure_sum.messages import Keys, cohort_digest, decode_answer, outcome_digest, view_digest
from fedhip.federation.secure_sum.primitives import exchange
from fedhip.federation.secure_sum.shamir import combine, weights_at_zero
from fedhip.federation.secure_sum.terms import Terms
from tests.federation.secure_sum.party import CONTEXT, SESSION, Party, Vector, roster_of, signer, total, vectors_of

FIVE = list("abcde")


def refused(reason: Reason, action: Callable[..., object], *arguments: object, site: str | None = None) -> None:
    with pytest.raises(SecureSumError) as caught:
        action(*arguments)
    assert (caught.value.reason, caught.value.site) == (reason, site)


class Thief:
    """A server that keeps all it is sent, and combines whatever shares it has."""

    def __init__(self, party: Party, threshold: int) -> None:
        self.terms = Terms.of(roster_of(party.names), SESSION, CONTEXT, threshold)
        cohort = party.collector.cohort()
        self.keys = {site: Keys.decode(data, self.terms, site) for site, data in cohort.items()}
        self.view = view_digest(cohort_digest(self.terms, self.keys), self.keys)
        self.seeds: dict[str, dict[int, bytes]] = {site: {} for site in self.keys}
        self.mask_keys: dict[str, dict[int, bytes]] = {site: {} for site in self.keys}

    def take(self, site: str, survivors: list[str], answer: bytes) -> None:
        outcome = outcome_digest(self.view, survivors)
        for dealer, share in decode_answer(answer, self.terms, site, outcome, sorted(self.keys)).items():
            kind = self.seeds if dealer in survivors else self.mask_keys
            kind[dealer][self.terms.index[site]] = share

    def combine(self, shares: Mapping[int, bytes]) -> bytes | None:
        chosen = tuple(sorted(shares)[: self.terms.threshold])
        return combine(weights_at_zero(chosen), shares) if len(chosen) == self.terms.threshold else None

    def strip(self, masked: Mapping[str, Vector]) -> Vector | None:
        """The sum of these vectors, if the shares suffice to take every mask out that does not cancel."""
        result = total(masked.values())
        for site in masked:
            if (seed := self.combine(self.seeds[site])) is None:
                return None
            apply_masks(result, added=[], removed=[self_mask_key(seed, self.view, site)])
            for other in self.keys.keys() - masked.keys():
                if (key := self.combine(self.mask_keys[other])) is None:
                    return None
                mask = pair_mask_key(exchange(key, self.keys[site].mask), self.view, site, other)
                apply_masks(result, *(([], [mask]) if other > site else ([mask], [])))
        return result


def masked_party(vectors: Mapping[str, Vector], minimum: int = 3) -> tuple[Party, dict[str, Vector]]:
    party = Party(FIVE, threshold=3, minimum=minimum)
    party.until_shares()
    return party, {name: party.mask(name, vectors[name], party.collector.dealt_to(name))[0] for name in FIVE}


#: Each list is long enough for its site, but together they say that a, b and c are gone, and only d and e survive.
LISTS = {"a": "ade", "b": "bde", "c": "cde", "d": "cde", "e": "ade"}


def tell_each_another_list(party: Party, thief: Thief) -> list[Reason]:
    """Ask every site for shares by a list of its own, with every signature that fits it."""
    lists = {site: list(named) for site, named in LISTS.items()}
    signed = {site: party.agree(site, lists[site]) for site in FIVE}
    refusals = []
    for site in FIVE:
        fitting = {other: signed[other] for other in FIVE if lists[other] == lists[site]}
        try:
            thief.take(site, lists[site], party.unmask(site, lists[site], fitting))
        except SecureSumError as error:
            refusals.append(error.reason)
    return refusals


def test_different_survivors_for_different_sites_yield_nothing() -> None:
    party, _ = masked_party(vectors_of(FIVE))
    thief = Thief(party, 3)
    assert tell_each_another_list(party, thief) == [Reason.NOT_AGREED] * 5
    assert not any(thief.seeds.values())
    assert not any(thief.mask_keys.values())


def test_without_the_agreement_the_same_server_and_one_site_learn_another_sites_vector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Member, "_require_agreement", lambda *_: None)
    vectors = vectors_of(FIVE)
    party, masked = masked_party(vectors)
    thief = Thief(party, 3)
    assert tell_each_another_list(party, thief) == []
    both = thief.strip({site: masked[site] for site in "de"})
    assert both is not None
    assert np.array_equal(both - vectors["e"], vectors["d"])  # e tells the server its own vector


def test_a_member_that_forgot_its_step_gives_its_vector_away_and_one_that_did_not_refuses() -> None:
    vectors = vectors_of(FIVE)
    party, masked = masked_party(vectors)
    thief = Thief(party, 3)
    before = dict(party.states)
    without_a = list("bcde")
    for site in "bcd":
        thief.take(site, FIVE, party.unmask(site, FIVE, {}))
        refused(Reason.ORDER, party.member(site).agree, without_a)
        refused(Reason.ORDER, party.member(site).unmask, FIVE, {})
    assert thief.combine(thief.mask_keys["a"]) is None
    party.states = before  # what a site must never let happen
    signatures = {site: party.agree(site, without_a) for site in "bcd"}
    for site in "bcd":
        thief.take(site, without_a, party.unmask(site, without_a, signatures))
    key, seed = thief.combine(thief.mask_keys["a"]), thief.combine(thief.seeds["a"])
    assert key is not None
    assert seed is not None
    stripped = masked["a"].copy()
    pairs = [pair_mask_key(exchange(key, thief.keys[site].mask), thief.view, "a", site) for site in without_a]
    apply_masks(stripped, added=[], removed=[self_mask_key(seed, thief.view, "a"), *pairs])
    assert np.array_equal(stripped, vectors["a"])


def test_shares_of_one_kind_only_do_not_open_a_vector() -> None:
    party, masked = masked_party(vectors_of(FIVE))
    thief = Thief(party, 3)
    for site in FIVE:
        thief.take(site, FIVE, party.unmask(site, FIVE, {}))
    assert thief.strip(masked) is not None
    assert all(thief.strip({site: masked[site]}) is None for site in FIVE)


def test_after_agreeing_to_one_list_there_is_no_other() -> None:
    party, _ = masked_party(vectors_of(FIVE))
    party.agree("a", list("abc"))
    refused(Reason.ORDER, party.member("a").agree, list("abc"))
    refused(Reason.OTHER_LIST, party.member("a").agree, list("abd"))
    refused(Reason.OTHER_LIST, party.member("a").unmask, FIVE, {})
    refused(Reason.NOT_AGREED, party.member("a").unmask, list("abc"), {})


@pytest.mark.parametrize(
    ("survivors", "reason"),
    [
        ("bcde", Reason.SURVIVORS),  # without the site itself
        ("abcz", Reason.SURVIVORS),
        ("abcc", Reason.SURVIVORS),
        ("abca", Reason.SURVIVORS),
        ("ab", Reason.TOO_FEW),
        ("abc", Reason.TOO_FEW),  # enough for the threshold, not for the site's minimum
        ("", Reason.SURVIVORS),
    ],
)
def test_lists_that_no_site_accepts(survivors: str, reason: Reason) -> None:
    party, _ = masked_party(vectors_of(FIVE), minimum=4)
    refused(reason, party.member("a").agree, list(survivors))
    refused(reason, party.member("a").unmask, list(survivors), {})


def test_signatures_on_another_list_of_others_or_forged_do_not_count() -> None:
    party, _ = masked_party(vectors_of(FIVE))
    right, other = list("abcd"), list("abce")
    signatures = {"b": party.agree("b", right), "c": party.agree("c", other), "d": party.agree("d", right)}
    a = party.member("a")
    refused(Reason.SIGNATURE, a.unmask, right, signatures, site="c")
    refused(Reason.NOT_AGREED, a.unmask, right, {site: signatures[site] for site in "bd"})
    refused(Reason.OTHER_SITE, a.unmask, right, {"b": signatures["d"], "d": signatures["d"]}, site="b")
    refused(Reason.SURVIVORS, a.unmask, right, {"e": party.agree("e", other)}, site="e")
    refused(Reason.NOT_AGREED, a.unmask, FIVE, {"a": party.agree("a", FIVE)})
    refused(Reason.MALFORMED, a.unmask, right, {"b": signatures["b"][:-1]}, site="b")


def test_fewer_keys_than_the_minimum_or_the_threshold() -> None:
    party = Party(FIVE, threshold=3, minimum=4)
    party.until_keys()
    cohort = party.collector.cohort()
    refused(Reason.TOO_FEW, party.member("a").share, {site: cohort[site] for site in "abc"})
    party = Party(FIVE, threshold=4, minimum=2)
    party.until_keys()
    cohort = party.collector.cohort()
    refused(Reason.TOO_FEW, party.member("a").share, {site: cohort[site] for site in "abc"})


def test_fewer_dealers_than_the_minimum() -> None:
    party = Party(FIVE, threshold=3, minimum=4)
    party.until_shares()
    dealt = party.collector.dealt_to("a")
    refused(Reason.TOO_FEW, party.member("a").mask, vectors_of("a")["a"], {site: dealt[site] for site in "bc"})


def test_keys_that_the_server_made_left_out_or_swapped() -> None:
    party = Party(FIVE)
    party.until_keys()
    cohort = party.collector.cohort()
    a = party.member("a")
    refused(Reason.OWN_KEYS, a.share, {site: cohort[site] for site in "bcde"})
    refused(Reason.OTHER_SITE, a.share, cohort | {"b": cohort["c"]}, site="b")
    refused(Reason.OTHER_SITE, a.share, cohort | {"b": cohort["a"]}, site="b")  # reflected
    refused(Reason.UNKNOWN_SITE, a.share, cohort | {"z": cohort["b"]}, site="z")

    twin = Party(FIVE)  # the same site once more in the same session: signed, but other keys
    twin.until_keys()
    refused(Reason.OWN_KEYS, a.share, cohort | {"a": twin.collector.cohort()["a"]})

    terms = Terms.of(roster_of(FIVE), SESSION, CONTEXT, 3)
    b = Keys.decode(cohort["b"], terms, "b")
    forged = Keys("b", b.channel, Keys.decode(cohort["c"], terms, "c").mask, b.commitment, b.signature)
    refused(Reason.SIGNATURE, a.share, cohort | {"b": forged.encode(terms)}, site="b")
    by_another = Keys("b", b.channel, b.mask, b.commitment)
    by_another = Keys("b", b.channel, b.mask, b.commitment, signer("c")(by_another.signed(terms)))
    refused(Reason.SIGNATURE, a.share, cohort | {"b": by_another.encode(terms)}, site="b")
    a.share(cohort)  # nothing was lost by refusing


@pytest.mark.parametrize(
    "other",
    [
        {"session": bytes(32)},
        {"context": b"another agreement"},
        {"threshold": 4},
        {"names": "abcd"},
    ],
)
def test_messages_of_another_session_agreement_threshold_or_roster(other: dict[str, object]) -> None:
    party, foreign = Party(FIVE), Party(**({"names": FIVE} | other))  # type: ignore[arg-type]
    for each in (party, foreign):
        each.until_shares()
    fresh = Party(FIVE)
    fresh.until_keys()
    cohort = fresh.collector.cohort()
    refused(Reason.OTHER_SESSION, fresh.member("a").share, cohort | {"b": foreign.collector.cohort()["b"]}, site="b")
    dealt = party.collector.dealt_to("a")
    vector = vectors_of("a")["a"]
    refused(
        Reason.OTHER_SESSION,
        party.member("a").mask,
        vector,
        dealt | {"b": foreign.collector.dealt_to("a")["b"]},
        site="b",
    )


def test_shares_reflected_redirected_or_replayed() -> None:
    party = Party(FIVE)
    party.until_keys()
    cohort = party.collector.cohort()
    dealt = {site: party.share(site, cohort) for site in FIVE}
    right = {site: dealt[site]["a"] for site in "bcde"}
    a, vector = party.member("a"), vectors_of("a")["a"]
    refused(Reason.OTHER_SITE, a.mask, vector, right | {"b": dealt["a"]["b"]}, site="b")
    refused(Reason.OTHER_SITE, a.mask, vector, right | {"b": dealt["b"]["c"]}, site="b")
    refused(Reason.COHORT, a.mask, vector, right | {"a": dealt["b"]["a"]})
    refused(Reason.COHORT, a.mask, vector, right | {"z": dealt["b"]["a"]})

    twin = Party(FIVE)  # same session, other keys
    twin.until_shares()
    refused(Reason.NOT_OPENED, a.mask, vector, right | {"b": twin.collector.dealt_to("a")["b"]}, site="b")
    flipped = dealt["b"]["a"][:-1] + bytes([dealt["b"]["a"][-1] ^ 1])
    refused(Reason.NOT_OPENED, a.mask, vector, right | {"b": flipped}, site="b")
    a.mask(vector, right)


def test_different_cohorts_for_different_sites_end_at_the_shares() -> None:
    party = Party(FIVE)
    party.until_keys()
    cohort = party.collector.cohort()
    dealt = {site: party.share(site, cohort) for site in "bcde"}
    party.share("a", {site: cohort[site] for site in "abcd"})
    refused(
        Reason.NOT_OPENED, party.member("a").mask, vectors_of("a")["a"], {s: dealt[s]["a"] for s in "bcd"}, site="b"
    )


def test_masks_of_sites_with_different_views_never_cancel() -> None:
    vectors = vectors_of(FIVE)
    party = Party(FIVE)
    party.until_shares()
    dealt = {site: party.collector.dealt_to(site) for site in FIVE}
    dealt["a"].pop("e")
    masked = {site: party.mask(site, vectors[site], dealt[site])[0] for site in FIVE}
    refused(Reason.SURVIVORS, party.member("a").unmask, FIVE, {})
    thief = Thief(party, 3)
    four = list("abcd")
    signatures = {site: party.agree(site, four) for site in four}
    refused(Reason.SIGNATURE, party.member("b").unmask, four, signatures, site="a")
    del signatures["a"]
    for site in "bcd":
        thief.take(site, four, party.unmask(site, four, signatures))
    stripped = thief.strip({site: masked[site] for site in four})
    assert stripped is not None  # b, c and d did agree, but what a sent fits none of it
    assert not np.isin(stripped, total(vectors[site] for site in four)).any()


def test_each_step_once_and_in_order() -> None:
    party, vectors = Party(FIVE), vectors_of(FIVE)
    a = party.member("a")
    for early in (
        lambda: a.share({}),
        lambda: a.mask(vectors["a"], {}),
        lambda: a.agree(FIVE),
        lambda: a.unmask(FIVE, {}),
    ):
        refused(Reason.ORDER, early)
    party.until_keys()
    cohort = party.collector.cohort()
    refused(Reason.ORDER, party.member("a").keys)
    for site in FIVE:
        party.collector.shares(site, party.share(site, cohort))
    refused(Reason.ORDER, party.member("a").share, cohort)
    dealt = party.collector.dealt_to("a")
    party.mask("a", vectors["a"], dealt)
    refused(Reason.ORDER, party.member("a").mask, vectors["a"], dealt)
    party.unmask("a", FIVE, {})
    refused(Reason.ORDER, party.member("a").unmask, FIVE, {})
    refused(Reason.ORDER, party.member("a").agree, FIVE)
