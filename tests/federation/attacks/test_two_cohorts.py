"""A server that shows different sites different cohorts, or splits the sites in two: each site refuses, and says why.

Two sums that differ by a few sites are those sites' own. Any two cohorts have an honest site in common, and that site
takes part in one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest

from fedhip.federation.agreement.limits import least_threshold
from fedhip.federation.secure_sum import Reason, SecureSumError
from fedhip.federation.secure_sum.terms import Terms
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.transport.wire import RoundStep, by_site
from tests.federation.samples import FOUR, ONE_SUM
from tests.federation.secure_sum.party import CONTEXT, SESSION, roster_of
from tests.federation.table import Table, ThreeSums


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Four sites, of which three take masks off."""
    return Table(tmp_path, quorum=3, threshold=3, **ONE_SUM)


def refuses(table: Table, site: str, step: RoundStep, body: object, code: SiteCode, sentence: str) -> None:
    assert table.code(site, step, body) is code
    assert f"{step}: refused ({code}): {sentence}" in table.trial.log(site).splitlines()[-1]


def keys_of(table: Table, sites: Iterable[str]) -> dict[str, bytes]:
    cohort = table.collector.cohort()
    return {site: cohort[site] for site in sites}


def test_keys_that_are_swapped(table: Table) -> None:
    table.until(RoundStep.KEYS)
    keys = keys_of(table, FOUR)
    swapped = by_site("keys", {**keys, "b": keys["c"], "c": keys["b"]})
    for site in FOUR:
        refuses(table, site, RoundStep.SHARE, swapped, SiteCode.SECURE_SUM, "site 'b': the message was made by or for")
    refuses(table, "a", RoundStep.SHARE, by_site("keys", {**keys, "a": keys["b"]}), SiteCode.SECURE_SUM, "site 'a': ")


def test_keys_of_an_older_session(table: Table) -> None:
    """Whose secrets the server may have got since."""
    table.until(RoundStep.KEYS)
    old = keys_of(table, FOUR)
    table.begin(b"t" * 32)
    table.until(RoundStep.KEYS)
    sentence = "site 'b': the message belongs to another question, session"
    for site in "acd":
        replayed = by_site("keys", {**keys_of(table, FOUR), "b": old["b"]})
        refuses(table, site, RoundStep.SHARE, replayed, SiteCode.SECURE_SUM, sentence)


def test_a_cohort_that_is_too_small_or_too_large(table: Table) -> None:
    table.until(RoundStep.KEYS)
    few = by_site("keys", keys_of(table, "ab"))
    refuses(table, "a", RoundStep.SHARE, few, SiteCode.COHORT, "fewer sites than the threshold")
    refuses(table, "b", RoundStep.SHARE, by_site("keys", keys_of(table, "bcd") | {"e": keys_of(table, "a")["a"]}),
            SiteCode.SECURE_SUM, "site 'e': the roster has no such site")  # fmt: skip
    refuses(table, "c", RoundStep.SHARE, by_site("keys", keys_of(table, "abd")), SiteCode.SECURE_SUM, "the server did")


def test_a_cohort_of_its_own_for_one_site(table: Table) -> None:
    """Shares are sealed for one cohort: neither the one opens what the others dealt, nor they what it did."""
    table.until(RoundStep.KEYS)
    dealt = {}
    for site in FOUR:
        told = by_site("keys", keys_of(table, "abc" if site == "a" else FOUR))
        dealt[site] = table.ask(site, RoundStep.SHARE, told).mapping("shares")
    for site in "abc":
        shares = {other: dealt[other][site] for other in "abc" if other != site}
        answer = table.ask(site, RoundStep.MASK, {"secure": True, **by_site("shares", shares)})
        dealer = "b" if site == "a" else "a"
        assert (answer.code, answer.body, answer.arrays) == (SiteCode.SHARES, {"dealer": dealer}, {})
        assert f"site '{dealer}': the sealed shares do not open" in table.trial.log(site)


def test_the_sites_in_two_halves_at_once(table: Table) -> None:
    table.until(RoundStep.KEYS)
    for half in ("ab", "cd"):
        for site in half:
            told = by_site("keys", keys_of(table, half))
            refuses(table, site, RoundStep.SHARE, told, SiteCode.COHORT, "fewer sites than the threshold")


def test_the_sites_in_two_halves_one_after_the_other(table: Table) -> None:
    """One half unmasks a first sum, the other is to make a second one; neither gets as many shares as it takes."""
    table.until(RoundStep.MASK)
    for site in "ab":
        assert table.ask(site, RoundStep.UNMASK, table.unmask(*FOUR)).code is SiteCode.OK
    table.begin(b"t" * 32)
    for site in "ab":
        refuses(table, site, RoundStep.HELLO, {}, SiteCode.SECOND_SUM, "a sum of this agreement was finished")
    for site in "cd":
        assert table.ask(site, RoundStep.HELLO).code is SiteCode.OK
    keys = {site: table.ask(site, RoundStep.KEYS).data("keys") for site in "cd"}
    for site in "cd":
        refuses(table, site, RoundStep.SHARE, by_site("keys", keys), SiteCode.COHORT, "fewer sites than the threshold")


def test_two_lists_of_survivors_for_two_halves(table: Table) -> None:
    """Each half signs another list, and is shown the signatures of the other half."""
    table.until(RoundStep.MASK)
    lists = {"a": "abc", "b": "abd", "c": "abc", "d": "abd"}
    signed = {s: table.ask(s, RoundStep.AGREE, {"survivors": list(lists[s])}).data("signature") for s in FOUR}
    for site in FOUR:
        own = lists[site]
        shown = {other: signed[other] for other in own if lists[other] == own}
        body = table.unmask(*own, signatures=shown)
        refuses(table, site, RoundStep.UNMASK, body, SiteCode.SECURE_SUM, "fewer sites than the threshold have signed")
        refuses(table, site, RoundStep.UNMASK, table.unmask(*FOUR), SiteCode.SECURE_SUM, "this site has agreed to")


def test_a_site_comes_into_a_later_sum_that_was_not_in_the_one_before(tmp_path: Path) -> None:
    table = ThreeSums(tmp_path)
    table.until(RoundStep.MASK)
    three = ["a", "b", "c"]
    signed = {site: table.ask(site, RoundStep.AGREE, {"survivors": three}).data("signature") for site in three}
    for site in three:
        assert table.ask(site, RoundStep.UNMASK, table.unmask(*three, signatures=signed)).code is SiteCode.OK
    of_sum = {"round": 2, "attempt": 2}
    keys = {site: table.ask(site, RoundStep.KEYS, *table.for_statistics(), **of_sum) for site in FOUR}
    told = by_site("keys", {site: keys[site].data("keys") for site in FOUR})
    for site in three:
        assert table.code(site, RoundStep.SHARE, told, **of_sum) is SiteCode.COHORT
        assert "a site is to be in this sum that was not in the one before" in table.trial.log(site)


@pytest.mark.parametrize("sites", range(2, 9))
def test_any_two_cohorts_have_an_honest_site_in_common(sites: int) -> None:
    """By trying all: at the least threshold, whichever sites are dishonest; and with one site fewer there are two."""
    for dishonest in range(sites - 1):
        least = least_threshold(sites, dishonest)
        for threshold, safe in ((least, True), (least - 1, False)):
            cohorts = [set(cohort) for cohort in combinations(range(sites), min(threshold, sites))]
            bad = set(range(dishonest))
            found = any((one & other) <= bad for one in cohorts for other in cohorts)
            assert (not found) is (safe or threshold > sites)


def test_no_session_has_a_threshold_that_two_disjoint_cohorts_reach() -> None:
    for sites in range(2, 12):
        roster = roster_of("abcdefghijkl"[:sites])
        for threshold in range(1, sites + 1):
            if 2 * threshold > sites:
                assert Terms.of(roster, SESSION, CONTEXT, threshold).threshold == threshold
                continue
            with pytest.raises(SecureSumError) as refused:
                Terms.of(roster, SESSION, CONTEXT, threshold)
            assert refused.value.reason is Reason.THRESHOLD
