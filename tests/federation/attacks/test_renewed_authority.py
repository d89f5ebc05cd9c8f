"""The server's authority is renewed before the round with everybody's consent, and in no other way.

The old authority, whoever has its key, is worth nothing then. An authority for one site alone, an older one that is
sent again, and a change after the round was begun are refused, and leave everything as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fedhip.federation.agreement.credentials import make_authority, make_server_certificate, read_authority
from fedhip.federation.agreement.enrollment import (
    Enrolled,
    accept_second,
    enroll,
    fingerprint_at,
    renew_authority,
    second_parcel,
)
from fedhip.federation.agreement.parcel import Parcel
from fedhip.federation.agreement.rotation import rotate_key
from fedhip.federation.errors import SetupError
from fedhip.federation.operations import joining
from fedhip.federation.operations.paths import ServerPaths
from fedhip.federation.site.folder import open_site
from fedhip.utils import files
from fedhip.utils.files import write_private
from tests.cli.samples import done, refused
from tests.federation.attacks.coordinator import SITES, federation
from tests.federation.attacks.test_rotated_keys import accept_all
from tests.federation.operations.test_joining import listening


@pytest.fixture
def enrolled(tmp_path: Path) -> tuple[Path, dict[str, Path]]:
    """A federation whose sites have compared a fingerprint."""
    fed, sites = federation(tmp_path, "fed.example.org")
    accept_all(fed, sites)
    return fed, sites


def renewed(fed: Path) -> Enrolled:
    return renew_authority(ServerPaths.open(fed))


def texts(*folders: Path) -> dict[Path, bytes]:
    names = ("ca.crt", "ca.key", "roster.json", "server.pem", "server.key", "b-1.json", "b-2.json")
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.name in names}


def greeted(site: Path, server: Path) -> None:
    """The site looks at the certificate that a server shows."""
    opened = open_site(site)
    with listening(server) as port:
        joining.greet(replace(opened, address=f"127.0.0.1:{port}"), print)


def test_the_authority_is_renewed_with_everybody_s_consent(
    enrolled: tuple[Path, dict[str, Path]], tmp_path: Path
) -> None:
    fed, sites = enrolled
    stolen = tmp_path / "stolen"
    shutil.copytree(fed, stolen)
    before, old = fingerprint_at(fed), open_site(sites["a"])
    made = renewed(fed)
    assert made.fingerprint == fingerprint_at(fed) != before
    greeted(sites["a"], stolen)
    with pytest.raises(SetupError, match="is not trusted"):  # it takes no part until it has accepted
        greeted(sites["a"], fed)
    accept_all(fed, sites)
    make_server_certificate(stolen)  # by who has the old authority's key
    for folder in sites.values():
        opened = open_site(folder)
        assert opened.fingerprint == made.fingerprint
        assert opened.roster.digest() == old.roster.digest()
        greeted(folder, fed)
        with pytest.raises(SetupError, match="is not trusted"):
            greeted(folder, stolen)
    renewed(fed)  # and once more, within the same second
    accept_all(fed, sites)
    greeted(sites["b"], fed)
    assert not list(fed.glob(".ca*"))


def test_keys_and_authority_change_together(enrolled: tuple[Path, dict[str, Path]]) -> None:
    fed, sites = enrolled
    enroll(fed, [rotate_key(sites["b"])], replacing=True)
    made = renewed(fed)
    accept_all(fed, sites)
    assert {open_site(folder).fingerprint for folder in sites.values()} == {made.fingerprint}
    assert len(made.roster.retired) == 1


def test_the_commands_say_that_the_authority_is_another(
    enrolled: tuple[Path, dict[str, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    fed, sites = enrolled
    done("federation", "renew", fed, "--authority", "--json")
    assert fingerprint_at(fed) in capsys.readouterr().out
    done("federation", "renew", fed, "--authority")
    told = capsys.readouterr().out
    assert "parcels/a-2.json" in told
    assert f"fingerprint: {fingerprint_at(fed)}" in told
    words = ("federation", "accept", second_parcel(fed, "d"), "--out", sites["d"])
    done(*words, "--fingerprint", fingerprint_at(second_parcel(fed, "b")))
    assert "another authority of the server than before" in capsys.readouterr().out
    done("federation", "renew", fed)  # the certificate alone: sites need no change
    greeted(sites["d"], fed)


def test_an_older_authority_is_refused_even_with_its_fingerprint(enrolled: tuple[Path, dict[str, Path]]) -> None:
    fed, sites = enrolled
    older = {site: Parcel.read(second_parcel(fed, site)) for site in SITES}
    renewed(fed)
    accept_all(fed, sites)
    before = texts(*sites.values())
    for site, parcel in older.items():
        with pytest.raises(SetupError, match="has an older authority of the server than"):
            accept_second(parcel, sites[site], lambda parcel=parcel: parcel.fingerprint)  # type: ignore[misc]
    same = Parcel.read(second_parcel(fed, "a"))
    with pytest.raises(SetupError, match="has accepted a roster already"):
        accept_second(same, sites["a"], lambda: same.fingerprint)
    assert texts(*sites.values()) == before
    enroll(fed, [rotate_key(sites["b"])], replacing=True)
    mixed = replace(Parcel.read(second_parcel(fed, "a")), authority=older["a"].authority)
    with pytest.raises(SetupError, match="has an older authority of the server than"):
        accept_second(mixed, sites["a"], lambda: mixed.fingerprint)
    accept_all(fed, sites)
    renewed(fed)
    forgetful = replace(Parcel.read(second_parcel(fed, "a")), roster=older["a"].roster)
    with pytest.raises(SetupError, match="has an older roster than"):
        accept_second(forgetful, sites["a"], lambda: forgetful.fingerprint)
    assert open_site(sites["a"]).roster.retired


def test_an_authority_for_one_site_alone_is_noticed(enrolled: tuple[Path, dict[str, Path]], tmp_path: Path) -> None:
    fed, sites = enrolled
    make_authority(tmp_path, "study", after=read_authority(ServerPaths.open(fed).authority))
    false = replace(Parcel.read(second_parcel(fed, "a")), authority=read_authority(tmp_path / "ca" / "ca.crt"))
    before = texts(*sites.values())
    with pytest.raises(SetupError, match=r"agreements, keys or authorities\. Take no part"):
        accept_second(false, sites["a"], lambda: fingerprint_at(sites["b"]))  # as b reads it aloud
    assert texts(*sites.values()) == before


@pytest.mark.parametrize("by", ["session.bin", "finished.json", "ready.json"])
def test_no_site_takes_another_authority_once_a_round_was_begun(
    by: str, enrolled: tuple[Path, dict[str, Path]]
) -> None:
    fed, sites = enrolled
    renewed(fed)
    (sites["a"] / "state").mkdir(mode=0o700, exist_ok=True)
    (sites["a"] / "state" / by).touch()
    parcel, before = Parcel.read(second_parcel(fed, "a")), texts(sites["a"])
    with pytest.raises(SetupError, match=r"the site runs; end it|a round of this agreement was begun at this site"):
        accept_second(parcel, sites["a"], lambda: parcel.fingerprint)
    assert texts(sites["a"]) == before


def test_the_coordinator_renews_nothing_of_a_round_or_without_parcels(
    enrolled: tuple[Path, dict[str, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fed, _ = enrolled
    before, paths = texts(fed), ServerPaths.open(fed)
    paths.state.path.mkdir(mode=0o700, exist_ok=True)
    for place, why in ((paths.state.ready, "the server runs"), (paths.progress, "a round was begun")):
        place.write_text("{}")
        assert why in refused(capsys, "federation", "renew", fed, "--authority")
        place.unlink()
    assert texts(fed) == before
    here, _ = federation(tmp_path / "here")  # whose keys the coordinator made
    assert "the sites' keys were made here" in refused(capsys, "federation", "renew", here, "--authority")
    done("federation", "init", tmp_path / "new", "--name", "n", "--site", "a", "--site", "b", "--site", "c",
         "--classes", "x,y", "--width", 4, "--no-make-keys")  # fmt: skip
    assert "has no keys of the sites yet" in refused(capsys, "federation", "renew", tmp_path / "new", "--authority")


@contextmanager
def failing(after: int) -> Iterator[None]:
    """Writing breaks off after so many files."""
    left = [after]

    def write(path: Path, data: bytes, **more: bool) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        write_private(path, data, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_private", write)
        yield


@pytest.mark.parametrize("after", [0, 1, 3, 4, 5, 11])  # keys, certificates, and eight parcels
def test_a_change_that_was_broken_off_is_made_again(after: int, enrolled: tuple[Path, dict[str, Path]]) -> None:
    fed, sites = enrolled
    with failing(after), pytest.raises(KeyboardInterrupt):
        renewed(fed)
    greeted(sites["a"], fed)  # what the server has goes together, and is what it was
    renewed(fed)
    accept_all(fed, sites)
    greeted(sites["a"], fed)


def test_a_site_that_broke_off_accepts_again(enrolled: tuple[Path, dict[str, Path]]) -> None:
    fed, sites = enrolled
    enroll(fed, [rotate_key(sites["b"])], replacing=True)
    made = renewed(fed)
    parcel = Parcel.read(second_parcel(fed, "a"))
    with failing(1), pytest.raises(KeyboardInterrupt):
        accept_second(parcel, sites["a"], lambda: made.fingerprint)
    assert open_site(sites["a"]).fingerprint != made.fingerprint
    accept_all(fed, sites)
    assert open_site(sites["a"]).fingerprint == made.fingerprint
