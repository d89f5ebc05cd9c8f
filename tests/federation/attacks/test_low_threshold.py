"""A server and one of five sites read another's vector where three of five unmask; such an agreement is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedhip.federation.agreement.limits import least_threshold
from fedhip.federation.agreement.policy import Policy
from fedhip.federation.errors import PolicyError, SetupError
from fedhip.federation.secure_sum import Reason, SecureSumError
from fedhip.federation.secure_sum.masks import apply_masks, pair_mask_key, self_mask_key
from fedhip.federation.secure_sum.primitives import exchange
from tests.federation.agreement.test_agreement import AGREEMENT
from tests.federation.secure_sum.party import Party, Vector, vectors_of
from tests.federation.secure_sum.test_cheating_server import FIVE, Thief

#: Two halves of the honest sites; the server tells each that it and e are the only survivors.
HALVES = (list("abe"), list("cde"))


def steal(threshold: int, halves: tuple[list[str], list[str]] = HALVES) -> tuple[Vector, Vector | None]:
    """The vector of a, and what a server with the help of e finds of it."""
    vectors, party = vectors_of(FIVE), Party(FIVE, threshold=threshold)
    party.until_shares()
    masked = {name: party.mask(name, vectors[name], party.collector.dealt_to(name))[0] for name in FIVE}
    thief, of_e = Thief(party, threshold), party.states["e"]
    for half in halves:
        party.states["e"] = of_e  # e signs both lists, and reveals for both
        signatures = {site: party.agree(site, half) for site in half}
        for site in half:
            thief.take(site, half, party.unmask(site, half, signatures))
    key, seed = thief.combine(thief.mask_keys["a"]), thief.combine(thief.seeds["a"])
    if key is None or seed is None:
        return vectors["a"], None
    found = masked["a"].copy()
    pairs = [pair_mask_key(exchange(key, thief.keys[site].mask), thief.view, "a", site) for site in FIVE[1:]]
    apply_masks(found, added=[], removed=[self_mask_key(seed, thief.view, "a"), *pairs])
    return vectors["a"], found


def test_three_of_five_let_a_server_and_one_site_read_another() -> None:
    """It is no fault of the secure sum: so few are too few, and nobody can agree on them unawares."""
    own, found = steal(3)
    assert found is not None
    np.testing.assert_array_equal(found, own)
    sites = tuple(FIVE)
    with pytest.raises(SetupError, match=r"3: with fewer than 4 of 5 sites .*state in dishonest_sites"):
        replace(AGREEMENT, sites=sites, quorum=3, threshold=3)
    with pytest.raises(SetupError, match=r"with fewer than 4 of 5 sites a dishonest server with 1 of them"):
        replace(AGREEMENT, sites=sites, quorum=4, threshold=3, dishonest_sites=1)


def test_a_site_has_a_floor_of_its_own() -> None:
    trusting = replace(AGREEMENT, sites=tuple(FIVE), quorum=3, threshold=3, dishonest_sites=0)
    with pytest.raises(PolicyError, match="threshold is 3 of 5 sites, and against a server with 1 dishonest sites"):
        Policy().require_agreement(trusting)
    Policy(dishonest_sites=0).require_agreement(trusting)
    usual = replace(AGREEMENT, sites=tuple(FIVE), quorum=4, threshold=4)
    Policy().require_agreement(usual)
    with pytest.raises(PolicyError, match="5 are needed"):
        Policy(dishonest_sites=3).require_agreement(usual)


def test_at_the_least_threshold_the_same_server_gets_nothing() -> None:
    assert least_threshold(5, 1) == least_threshold(5) == 4
    with pytest.raises(SecureSumError) as refused:
        steal(4)
    assert refused.value.reason is Reason.TOO_FEW
    with pytest.raises(SecureSumError) as refused:  # nor with lists that are long enough: nobody signs two
        steal(4, (list("abce"), list("bcde")))
    assert refused.value.reason is Reason.ORDER
