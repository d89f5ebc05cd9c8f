"""A site's key is changed before the round with everybody's consent, and in no other way.

A server that changes a key by itself, an older roster that is sent again, a retired key that comes back, and a change
after the round was begun are refused, and leave everything as it was.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedhip.federation.agreement.credentials import public_key_of, site_key_of
from fedhip.federation.agreement.enrollment import accept_second, enroll, fingerprint_at, second_parcel
from fedhip.federation.agreement.parcel import Parcel
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.agreement.rotation import rotate_key
from fedhip.federation.errors import FederationError, SetupError
from fedhip.federation.operations.paths import ServerPaths
from fedhip.federation.operations.revocation import revoke
from fedhip.federation.site.folder import open_site
from fedhip.federation.site.ledger import Fingerprint, SumLedger, SumRequest
from tests.cli.samples import done, refused
from tests.federation.attacks.coordinator import SITES, federation

ROTATED = "b"


@pytest.fixture
def enrolled(tmp_path: Path) -> tuple[Path, dict[str, Path]]:
    """A federation whose sites have compared a fingerprint."""
    fed, sites = federation(tmp_path, "fed.example.org")
    accept_all(fed, sites)
    return fed, sites


def accept_all(fed: Path, sites: dict[str, Path]) -> None:
    told = fingerprint_at(second_parcel(fed, "a"))
    for site, folder in sites.items():
        accept_second(Parcel.read(second_parcel(fed, site)), folder, lambda: told)


def rotated(fed: Path, sites: dict[str, Path]) -> None:
    enroll(fed, [rotate_key(sites[ROTATED])], replacing=True)


def texts(*folders: Path) -> dict[Path, bytes]:
    names = ("key", "key.pub", "roster.json", "b-2.json")
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.name in names}


def with_key(parcel: Parcel, site: str, key: bytes, *, retire: bool = True) -> Parcel:
    """What a server would send that changes a key by itself."""
    roster = parcel.roster
    assert roster is not None
    retired = (*roster.retired, roster.keys[site]) if retire else roster.retired
    return replace(parcel, roster=replace(roster, keys={**roster.keys, site: key}, retired=retired))


def invented() -> bytes:
    return public_key_of(ec.generate_private_key(ec.SECP384R1()))


def test_a_key_is_changed_with_everybody_s_consent(enrolled: tuple[Path, dict[str, Path]]) -> None:
    fed, sites = enrolled
    old, before = open_site(sites[ROTATED]), fingerprint_at(fed)
    reply = rotate_key(sites[ROTATED])
    with pytest.raises(FederationError, match=r"is not in the roster"):
        open_site(sites[ROTATED])  # it takes no part until its new key is everybody's
    made = enroll(fed, [reply], replacing=True)
    assert made.fingerprint != before
    accept_all(fed, sites)
    for site, folder in sites.items():
        opened = open_site(folder)
        assert opened.fingerprint == made.fingerprint
        assert opened.roster.keys[ROTATED] == public_key_of(site_key_of(sites[ROTATED])) != old.roster.keys[ROTATED]
        assert opened.roster.retired == (old.roster.keys[ROTATED],)
        assert (site == ROTATED) or opened.key.private_numbers() == site_key_of(folder).private_numbers()
    rotated(fed, sites)  # and once more: the list grows
    accept_all(fed, sites)
    assert len(open_site(sites["a"]).roster.retired) == 2


def test_the_commands_say_whose_key_is_another(
    enrolled: tuple[Path, dict[str, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    fed, sites = enrolled
    done("federation", "rotate-key", sites[ROTATED])
    assert "for the coordinator: " in capsys.readouterr().out
    done("federation", "enroll", fed, sites[ROTATED] / "reply-b.json", "--replace")
    words = ("federation", "accept", second_parcel(fed, "d"), "--out", sites["d"])
    assert "the fingerprint is needed, as the site 'b' tells it" in refused(capsys, *words)
    done(*words, "--fingerprint", fingerprint_at(second_parcel(fed, "b")))
    assert "another key than before: b; ask them whether they changed it" in capsys.readouterr().out


def test_a_server_that_changes_a_key_by_itself_is_noticed(enrolled: tuple[Path, dict[str, Path]]) -> None:
    fed, sites = enrolled
    before, key = texts(*sites.values()), invented()
    false = with_key(Parcel.read(second_parcel(fed, ROTATED)), ROTATED, key)
    with pytest.raises(
        SetupError, match=r"has another key of the site 'b' than the one in .*: somebody else would act"
    ):
        accept_second(false, sites[ROTATED], lambda: false.fingerprint)
    for_a = with_key(Parcel.read(second_parcel(fed, "a")), ROTATED, key)
    with pytest.raises(SetupError, match="Take no part"):
        accept_second(for_a, sites["a"], lambda: fingerprint_at(sites[ROTATED]))  # as b reads it aloud
    assert texts(*sites.values()) == before


def test_an_older_roster_is_refused_even_with_its_fingerprint(enrolled: tuple[Path, dict[str, Path]]) -> None:
    fed, sites = enrolled
    older = {site: Parcel.read(second_parcel(fed, site)) for site in SITES}
    rotated(fed, sites)
    accept_all(fed, sites)
    before = texts(*sites.values())
    for site in ("a", "c", "d"):
        with pytest.raises(SetupError, match="the parcel has an older roster than"):
            accept_second(older[site], sites[site], lambda site=site: older[site].fingerprint)  # type: ignore[misc]
    same = Parcel.read(second_parcel(fed, "a"))
    with pytest.raises(SetupError, match="has accepted a roster already"):
        accept_second(same, sites["a"], lambda: same.fingerprint)
    assert texts(*sites.values()) == before


def test_a_retired_key_does_not_come_back(enrolled: tuple[Path, dict[str, Path]]) -> None:
    fed, sites = enrolled
    old = open_site(sites[ROTATED]).roster.keys[ROTATED]
    first = Path(fed / "reply-b.json")  # as the site sent it when it was enrolled
    rotated(fed, sites)
    accept_all(fed, sites)
    parcel = Parcel.read(second_parcel(fed, "a"))
    assert parcel.roster is not None
    with pytest.raises(SetupError, match="the key of the site 'b' was retired"):
        with_key(parcel, ROTATED, old)
    with pytest.raises(SetupError, match="the key of the site 'b' was retired"):
        enroll(fed, [first], replacing=True)
    with pytest.raises(SetupError, match="the key of the site 'a' was retired"):  # at no other site either
        Roster(parcel.roster.federation, {**parcel.roster.keys, "a": old}, parcel.roster.retired)
    forgetful = replace(parcel, roster=Roster(parcel.roster.federation, {**parcel.roster.keys, ROTATED: old}))
    with pytest.raises(SetupError, match="an older roster"):
        accept_second(forgetful, sites["a"], lambda: forgetful.fingerprint)
    unretired = with_key(parcel, ROTATED, invented(), retire=False)
    with pytest.raises(SetupError, match="or one that replaces a key without retiring it"):
        accept_second(unretired, sites["a"], lambda: unretired.fingerprint)


@pytest.mark.parametrize("by", ["session.bin", "finished.json", "ledger", "ready.json"])
def test_no_key_is_changed_once_a_round_was_begun(by: str, enrolled: tuple[Path, dict[str, Path]]) -> None:
    fed, sites = enrolled
    begun, other = sites[ROTATED], sites["a"]
    rotated(fed, sites)
    for folder in (begun, other):
        state = folder / "state"
        state.mkdir(mode=0o700, exist_ok=True)
        if by != "ledger":
            (state / by).touch()
    if by == "ledger":
        site, data = open_site(other), Fingerprint("features", "0" * 64, 20, np.arange(20, dtype=np.uint64))
        with SumLedger.open() as sums:
            question = SumRequest("a", site.roster.keys, site.agreement.digest(), site.roster.digest(), bytes(32))
            sums.keep_data(data)
            sums.took_part(question, "masked", SITES, data)
    before = texts(*sites.values())
    why = "the site runs; end it" if by == "ready.json" else "a round of this agreement was begun at this site"
    with pytest.raises(SetupError, match=why):
        rotate_key(begun)
    parcel = Parcel.read(second_parcel(fed, "a"))
    with pytest.raises(SetupError, match=why):
        accept_second(parcel, other, lambda: parcel.fingerprint)
    assert texts(*sites.values()) == before


def test_the_coordinator_changes_no_key_of_a_round_or_of_a_revoked_site(
    enrolled: tuple[Path, dict[str, Path]],
) -> None:
    fed, sites = enrolled
    before, paths = texts(fed), ServerPaths.open(fed)
    with pytest.raises(SetupError, match="the site 'b' has this key in the roster already"):
        enroll(fed, [fed / "reply-b.json"], replacing=True)
    reply = rotate_key(sites[ROTATED])
    paths.state.path.mkdir(mode=0o700, exist_ok=True)
    for place, why in ((paths.state.ready, "the server runs"), (paths.progress, "a round was begun")):
        place.write_text("{}")
        with pytest.raises(SetupError, match=why):
            enroll(fed, [reply], replacing=True)
        place.unlink()
    revoke(paths, ROTATED)
    with pytest.raises(SetupError, match="the site 'b' was revoked, for good"):
        enroll(fed, [reply], replacing=True)
    assert texts(fed) == before


def test_a_change_that_was_broken_off_is_made_again(enrolled: tuple[Path, dict[str, Path]]) -> None:
    fed, sites = enrolled
    (sites[ROTATED] / "key.new").write_text("half")
    rotated(fed, sites)
    accept_all(fed, sites)
    assert open_site(sites[ROTATED]).roster.retired
    assert not list(sites[ROTATED].glob("key.new*"))
    with pytest.raises(SetupError, match="with a site's key; give the folder that accept made"):
        rotate_key(fed)
