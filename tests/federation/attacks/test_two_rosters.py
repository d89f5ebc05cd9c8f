"""The coordinator gives one site a roster in which it holds the keys of all others, and the others the true one.

Who makes both rosters needs two of one fingerprint, not one of a given fingerprint: half the bits count.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedhip.federation.agreement.credentials import PrivateKey, public_key_of
from fedhip.federation.agreement.init import init
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.errors import FederationError
from fedhip.federation.site.folder import open_site
from tests.federation.attacks.coordinator import SITES, VICTIM, federation, unmask


def forged(roster: Roster) -> tuple[Roster, dict[str, PrivateKey]]:
    """A roster with the victim's own key, and everybody else's of the coordinator's making."""
    keys = {site: ec.generate_private_key(ec.SECP384R1()) for site in SITES if site != VICTIM}
    publics = {site: public_key_of(key) for site, key in keys.items()}
    return Roster(roster.federation, {**publics, VICTIM: roster.keys[VICTIM]}), keys


def hand_over(fed: Path, folder: Path, roster: Roster) -> None:
    """The victim gets this roster, and asks the site `a`, which has the true one."""
    if folder.is_relative_to(fed):  # the coordinator made the folder: nobody is asked for anything
        (folder / "roster.json").write_text(roster.to_text())
        return
    from fedhip.federation.agreement.enrollment import accept_second, fingerprint_at, second_parcel
    from fedhip.federation.agreement.parcel import Parcel
    from fedhip.federation.errors import SetupError

    parcel = replace(Parcel.read(second_parcel(fed, VICTIM)), roster=roster)
    with pytest.raises(SetupError, match="Take no part"):
        accept_second(parcel, folder, lambda: fingerprint_at(second_parcel(fed, "a")))


def test_a_forged_roster_is_taken_where_nothing_is_compared(tmp_path: Path) -> None:
    """The attack itself: in the folder that a coordinator made, the victim is alone among its inventions."""
    fed, sites = federation(tmp_path)
    false, keys = forged(Roster.read(fed / "roster.json"))
    hand_over(fed, sites[VICTIM], false)
    secret, found = unmask(sites[VICTIM], open_site(sites[VICTIM]).roster, keys)
    assert (found == secret).all()


def test_two_rosters_are_noticed_by_the_fingerprint(tmp_path: Path) -> None:
    fed, sites = federation(tmp_path, "fed.example.org")
    false, _ = forged(Roster.read(fed / "roster.json"))
    hand_over(fed, sites[VICTIM], false)
    with pytest.raises(FederationError, match=r"lacks roster\.json"):
        open_site(sites[VICTIM])


def test_a_collision_of_fingerprints_is_out_of_reach(tmp_path: Path) -> None:
    made = init(tmp_path / "fed", name="study", sites=SITES, classes=["x", "y"], width=4)
    digits = (made.fingerprint or "").replace(" ", "")
    bits = len(digits) * math.log2(10 if digits.isdigit() else 16)
    assert bits >= 160
