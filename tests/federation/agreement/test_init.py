"""A federation's folder: whole or not there, for its owner alone; and a site's folder, checked against itself."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from fedhip import FedHiPError
from fedhip.errors import FileError
from fedhip.features.reference import BackboneReference
from fedhip.federation.agreement import init as setup
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.credentials import make_site_key, public_key_of, site_key_of
from fedhip.federation.agreement.init import InitSummary, draft, init
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.errors import (
    FederationError,
    PolicyError,
    SetupError,
)
from fedhip.federation.operations import paths
from fedhip.federation.site.folder import format_address, open_site, parse_address

SITE_FILES = ["ca.crt", "connection.toml", "federation.toml", "key", "key.pub", "roster.json", "site.toml"]


def settings(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"name": "study", "sites": ["a", "b", "c", "d"], "classes": ["x", "y"], "width": 8}
    return values | changes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> InitSummary:
    folder = tmp_path_factory.mktemp("init")
    before = os.umask(0)  # nothing may depend on it
    try:
        return init(folder / "study", **settings(hosts=["Server.example.org"], port=9443, make_keys=True))
    finally:
        os.umask(before)


@pytest.fixture
def site(made: InitSummary, tmp_path: Path) -> Path:
    """A copy of what the site `a` got."""
    return Path(shutil.copytree(made.directory / "site-a", tmp_path / "mine"))


def test_what_is_made(made: InitSummary) -> None:
    directory = made.directory
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        ["ca", "federation.toml", "roster.json", "server", "state", *(f"site-{name}" for name in "abcd")]
    )
    agreement, roster = Agreement.read(directory / "federation.toml"), Roster.read(directory / "roster.json")
    assert (agreement, roster) == (made.agreement, made.roster)
    assert made.address == "server.example.org:9443"
    (warning,) = made.warnings
    assert "the private keys of all sites were made here" in warning
    for name, folder in made.for_sites.items():
        assert sorted(path.name for path in folder.iterdir()) == SITE_FILES
        for file in ("federation.toml", "roster.json"):
            assert (folder / file).read_bytes() == (directory / file).read_bytes()
        assert (folder / "ca.crt").read_bytes() == (directory / "ca/ca.crt").read_bytes()
        opened = open_site(folder)
        assert (opened.name, opened.address) == (name, made.address)
        assert (opened.agreement, opened.roster) == (agreement, roster)
        assert public_key_of(opened.key) == roster.keys[name]
        assert opened.fingerprint == made.fingerprint
        assert opened.key_path == folder / "key"
        assert opened.ca == folder / "ca.crt"
    assert any(str(directory) in command for _, command in made.next_commands)


def test_the_owner_alone_can_read_it(made: InitSummary) -> None:
    for path in (made.directory, *made.directory.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_derived_values() -> None:
    agreement = draft(**settings())
    assert (agreement.quorum, agreement.threshold) == (3, 3)
    assert (agreement.fraction_bits, agreement.largest_feature, agreement.max_rows) == (32, 16.0, 100_000)
    assert (agreement.columns, agreement.standardize, agreement.intercept) == ("sum", True, True)
    assert draft(**settings(largest_feature=200)).fraction_bits == 32  # columns have units of their own
    assert draft(**settings(columns="plain", largest_feature=1)).fraction_bits == 40
    assert draft(**settings(columns="plain", largest_feature=200)).fraction_bits == 24
    assert draft(**settings(threshold=4)).quorum == 4
    eight = draft(**settings(sites=[f"s{i}" for i in range(8)], quorum=5, dishonest_sites=1))
    assert (eight.quorum, eight.threshold, eight.dishonest_sites) == (5, 5, 1)
    many = [draft(**settings(sites=[f"s{i}" for i in range(100)], columns=c)) for c in ("sum", "plain")]
    assert [agreed.max_rows for agreed in many] == [100_000, 83_886]  # as many as fit
    given = draft(**settings(columns="given", column_offsets=[0] * 8, column_exponents=[1] * 8))
    assert (given.fraction_bits, given.column_offsets, given.column_exponents) == (32, (0.0,) * 8, (1,) * 8)
    nystroem = draft(**settings(lift="nystroem", lift_width=9, lift_seed=0, lift_bandwidth=1.0))
    assert nystroem.columns == "plain"
    assert draft(**settings(fraction_bits=20)).fraction_bits == 20
    reference = BackboneReference("fedhip-vit", "ab" * 32, "float32")
    assert draft(**settings(backbone=reference.to_dict())).backbone == reference
    assert draft(**settings(classes=["cafe\u0301", "y"])).classes == ("caf\u00e9", "y")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"sites": ["a"]}, "at least two"),
        ({"sites": ["a", "A"]}, "differ only in case"),
        ({"sites": ["a", ".."]}, "cannot be called '..'"),
        ({"classes": ["x", "x"]}, "'x' is there twice"),
        ({"classes": ["x", None]}, "cannot be called None"),
        ({"width": -1}, "width is -1"),
        ({"hosts": ["http://x"]}, "host is 'http://x'"),
        ({"port": 0}, "port is 0; give a whole number from 1 to 65535"),
        ({"port": "80"}, "port is '80'"),
        ({"days": 0}, "days is 0"),
        ({"backbone": {"name": "x"}}, "backbone: precision is missing"),
        ({"encoder_digest": "x"}, "encoder_digest is 'x'"),
        ({"largest_feature": "16"}, "largest_feature is '16'"),
        ({"largest_feature": -1.0}, "largest_feature is -1.0"),
        ({"fraction_bits": 99}, "fraction_bits is 99"),
        ({"fraction_bits": 62}, "overflow the grid at fraction_bits=62; give at most 33"),
        ({"fraction_bits": 62, "columns": "plain"}, "overflow the grid at fraction_bits=62"),
        ({"columns": "some"}, "columns is 'some'; give sum, given or plain"),
        ({"columns": "given"}, "column_offsets is missing"),
        ({"column_offsets": [0.0] * 8}, "columns is 'sum', and column_offsets is given"),
        ({"quorum": 5}, "quorum is 5"),
        ({"quorum": "3"}, "quorum is '3'"),
        ({"threshold": 5}, "threshold is 5"),
        ({"threshold": 2}, "threshold is 2"),
        ({"quorum": 3, "threshold": 4}, "threshold is 4, and the quorum is 3"),
        ({"deadline": 0}, "deadline is 0"),
        ({"max_rows": 10**8, "columns": "plain"}, "max_rows is 100000000: a sum of 4 sites"),
        ({"max_rows": 1 << 31}, "max_rows is 2147483648: a survey of 4 sites has room for 2147483647 each"),
    ],
)
def test_wrong_settings_are_named_and_nothing_is_left(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FederationError) as error:
        init(tmp_path / "new" / "study", **settings(**changes))
    assert message in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_two_sites_are_warned_and_can_take_part(tmp_path: Path) -> None:
    summary = init(tmp_path / "pair", **settings(sites=["a", "b"]))
    assert "each can infer the other's" in summary.warnings[0]
    opened = open_site(tmp_path / "pair/site-b")
    assert opened.policy.minimum_cohort == 2
    assert opened.warnings == summary.warnings


def test_a_plain_sum_needs_each_sites_word(tmp_path: Path) -> None:
    summary = init(tmp_path / "plain", **settings(secure_sum=False))
    assert "the server sees" in summary.warnings[0]
    with pytest.raises(PolicyError, match="set require_secure_sum = false"):
        open_site(tmp_path / "plain/site-a")


@pytest.mark.parametrize(
    ("changes", "made_here"),
    [
        ({}, True),
        ({"hosts": ["localhost", "127.0.0.1", "::1"]}, True),
        ({"hosts": ["localhost", "fed.example.org"]}, False),
        ({"hosts": ["192.0.2.7"]}, False),
        ({"hosts": ["192.0.2.7"], "make_keys": True}, True),
        ({"make_keys": False}, False),
    ],
)
def test_keys_are_made_for_others_only_on_this_machine(
    tmp_path: Path, changes: dict[str, Any], made_here: bool
) -> None:
    summary = init(tmp_path / "study", **settings(**changes))
    names = {path.name for path in (tmp_path / "study").rglob("*")}
    assert {"key", "key.pub", "roster.json", "site-a"} & names == (
        {"key", "key.pub", "roster.json", "site-a"} if made_here else set()
    )
    assert ("a-1.json" in names) is not made_here
    assert (summary.roster is not None) is (summary.fingerprint is not None) is made_here
    assert all(path.exists() for path in summary.for_sites.values())


def test_what_is_there_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "folder", "link"):
        with pytest.raises(SetupError, match=f"{name} exists; choose another folder"):
            init(tmp_path / name, **settings())
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(FedHiPError, match="is a file, not a folder"):
        init(tmp_path / "file" / "study", **settings())
    assert len(list(tmp_path.iterdir())) == 3


def test_somebody_faster_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = paths.take_free_place

    def meanwhile(draft: Path, directory: Path) -> None:
        directory.mkdir()
        (directory / "theirs").write_text("kept")
        last(draft, directory)

    monkeypatch.setattr(setup, "take_free_place", meanwhile)
    with pytest.raises(SetupError, match="study exists"):
        init(tmp_path / "study", **settings())
    assert [path.name for path in tmp_path.rglob("*")] == ["study", "theirs"]


@pytest.mark.parametrize("after", [0, 1, 4, 9, 20])
def test_a_failure_at_any_file_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    real = os.fsync
    count = 0

    def full(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count > after:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="no space left to write"):
        init(tmp_path / "new" / "study", **settings())
    assert list(tmp_path.iterdir()) == []


# A site's folder


@pytest.mark.parametrize("name", [name for name in SITE_FILES if name != "key.pub"])
def test_a_missing_file_is_named(site: Path, name: str) -> None:
    (site / name).unlink()
    with pytest.raises(SetupError, match=f"lacks {name}"):
        open_site(site)


def test_all_missing_files_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as error:
        open_site(tmp_path)
    for name in ("federation.toml", "roster.json", "ca.crt", "connection.toml", "site.toml", "key"):
        assert name in str(error.value)
    with pytest.raises(SetupError, match="there is no folder"):
        open_site(tmp_path / "none")


def test_the_public_half_is_not_needed(site: Path) -> None:
    (site / "key.pub").unlink()
    assert open_site(site).name == "a"


def test_the_folder_may_lie_anywhere(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site.parent)
    opened = open_site("mine")
    assert opened.ca == site / "ca.crt"  # absolute, as the engine needs it


def test_a_key_of_somebody_else(site: Path, made: InitSummary, tmp_path: Path) -> None:
    shutil.copy(made.directory / "site-b/key", site / "key")
    with pytest.raises(SetupError, match="is that of the site 'b', and this folder is that of the site 'a'"):
        open_site(site)
    (site / "key").unlink()
    (site / "key.pub").unlink()
    make_site_key(site / "key")
    with pytest.raises(SetupError, match="is not in the roster, and this folder is that of the site 'a'"):
        open_site(site)


def test_a_key_that_others_can_read(site: Path) -> None:
    (site / "key").chmod(0o644)
    with pytest.raises(SetupError, match="chmod 600"):
        open_site(site)


def test_files_of_another_federation(site: Path, tmp_path: Path) -> None:
    init(tmp_path / "other", **settings(name="other"))
    init(tmp_path / "larger", **settings(sites=list("abcde")))
    shutil.copy(site / "roster.json", tmp_path / "kept")
    for source, message in (("other", "federation 'other'"), ("larger", "site 'e' that nobody agreed on")):
        shutil.copy(tmp_path / source / "roster.json", site / "roster.json")
        with pytest.raises(SetupError, match=message):
            open_site(site)
    # The same names with other keys: this site's own key tells.
    init(tmp_path / "twin", **settings())
    shutil.copy(tmp_path / "twin/roster.json", site / "roster.json")
    with pytest.raises(SetupError, match="is not in the roster"):
        open_site(site)


@pytest.mark.parametrize(
    ("name", "old", "new", "error", "message"),
    [
        ("connection.toml", 'site = "a"', 'site = "e"', SetupError, "has no site 'e'"),
        ("connection.toml", 'site = "a"', "site = 1", SetupError, "site is 1"),
        ("connection.toml", 'site = "a"', "", SetupError, "site is None"),
        ("connection.toml", ":9443", "", SetupError, "it has no port"),
        ("connection.toml", ":9443", ":99999", SetupError, "port is 99999"),
        ("connection.toml", "server.", "ser ver.", SetupError, "host is 'ser ver"),
        ("connection.toml", "address", "adress", SetupError, "did you mean 'address'"),
        ("site.toml", "minimum_cohort = 3", "minimum_cohort = 5", PolicyError, "the federation has 4 sites"),
        ("site.toml", "[class_names]", '[class_names]\nz = "q"', PolicyError, "maps 'z' to 'q'"),
        ("ca.crt", "BEGIN", "BEGUN", SetupError, "ca.crt is not a certificate"),
        ("roster.json", "study", "st udy", SetupError, "name is 'st udy'"),
    ],
)
def test_a_changed_file_is_named(
    site: Path, name: str, old: str, new: str, error: type[Exception], message: str
) -> None:
    text = (site / name).read_text()
    assert old in text
    (site / name).write_text(text.replace(old, new, 1))
    with pytest.raises(error) as raised:
        open_site(site)
    assert message in str(raised.value)


def test_no_key_in_what_is_shown(site: Path, made: InitSummary) -> None:
    opened = open_site(site)
    secret = site_key_of(site).private_numbers().private_value
    assert str(secret) not in repr(opened)
    assert "key=<" not in repr(opened)
    assert "PRIVATE" not in repr(made)


def test_addresses() -> None:
    for host, port, text in (
        ("127.0.0.1", 80, "127.0.0.1:80"),
        ("2001:db8::1", 443, "[2001:db8::1]:443"),
        ("Host.org", 65_535, "host.org:65535"),
    ):
        assert format_address(host, port) == text
        assert parse_address(text) == (host.lower(), port)
    for text in ("", "host", "host:", ":80", "host:0", "host:-1", "host:٣", "2001:db8::1:80", "[x]:80", "host:8 0"):
        with pytest.raises(SetupError):
            parse_address(text)


def test_init_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    init(tmp_path / "pair", **settings(sites=["a", "b"]))
    assert capfd.readouterr() == ("", "")
