"""The coordinator made every site's private key: it could act as any of them, and unmask any of them.

It plays all sites but one in a secure sum, with vectors of zeros; the sum is then that one site's vector.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedhip.federation.agreement.credentials import sign, verify
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.secure_sum import SecureSumError
from tests.federation.attacks.coordinator import SITES, VICTIM, federation, keys_of_sites, unmask

ELSEWHERE = "fed.example.org"


def test_whoever_has_the_keys_unmasks_a_site(tmp_path: Path) -> None:
    """The attack itself, on one machine, where all keys are made by one hand."""
    fed, sites = federation(tmp_path)
    roster = Roster.read(fed / "roster.json")
    keys = keys_of_sites(fed, roster)
    assert set(keys) == set(SITES)
    secret, found = unmask(sites[VICTIM], roster, keys)
    np.testing.assert_array_equal(found, secret)


def test_no_site_s_key_went_through_the_coordinator_s_hands(tmp_path: Path) -> None:
    fed, _ = federation(tmp_path, ELSEWHERE)
    assert keys_of_sites(fed, Roster.read(fed / "roster.json")) == {}


def test_the_coordinator_can_neither_act_as_a_site_nor_unmask_one(tmp_path: Path) -> None:
    fed, sites = federation(tmp_path, ELSEWHERE)
    roster = Roster.read(fed / "roster.json")
    own = {site: ec.generate_private_key(ec.SECP384R1()) for site in SITES}
    keys = {**own, **keys_of_sites(fed, roster)}
    assert not any(verify(roster.keys[site], sign(key, b"hello"), b"hello") for site, key in keys.items())
    with pytest.raises(SecureSumError):
        unmask(sites[VICTIM], roster, keys)
