"""What sites and coordinator of an earlier version hold: read, made again, and with the same fingerprints, exactly.

No private key is stored. The authority of `files/federation` is that of nobody, and nothing listens at its address.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedhip.federation.agreement.policy import Policy
from tests.compatibility.stored import COMMANDS, FILES, moved, run_command

STORED = FILES / "federation"


def fingerprint(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    run_command(["federation", "fingerprint", str(path)])
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    "part", ["coordinator", "site-a", "coordinator/parcels/a-2.json", "coordinator/parcels/d-2.json"]
)
def test_the_fingerprint_is_the_one_that_sites_compared(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fingerprint(STORED / part, capsys) == COMMANDS["federation"]["fingerprint"]


@pytest.mark.parametrize("name", COMMANDS["agreements"])
def test_an_agreement_has_the_digest_it_had(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The fingerprint is of the agreement's digest, and here of nothing else that changes."""
    coordinator = folder / "federation" / "coordinator"
    shutil.copy(FILES / "agreements" / f"{name}.toml", coordinator / "federation.toml")
    assert fingerprint(coordinator, capsys) == COMMANDS["federation"]["fingerprints"][name]


def test_agreements_are_told_apart() -> None:
    assert len(set(COMMANDS["federation"]["fingerprints"].values())) == len(COMMANDS["agreements"])


@pytest.mark.parametrize("name", COMMANDS["agreements"])
def test_an_agreement_is_made_again_the_same(folder: Path, name: str) -> None:
    """An agreement of before there was a choice is one on a ridge, unless it names a head."""
    words = moved(COMMANDS["agreements"][name], folder)
    run_command(words if "--head" in words else [*words, "--head", "ridge"])
    made = Path(words[2]) / "federation.toml"
    assert made.read_bytes() == (FILES / "agreements" / f"{name}.toml").read_bytes()


def test_replies_make_the_same_roster_and_parcels(folder: Path) -> None:
    before = folder / "federation" / "before"
    run_command(["federation", "enroll", str(before), *map(str, sorted((STORED / "replies").iterdir()))])
    for path in (STORED / "coordinator").rglob("*"):
        if path.is_file():
            assert (before / path.relative_to(STORED / "coordinator")).read_bytes() == path.read_bytes()


def test_a_parcel_makes_the_same_site(tmp_path: Path) -> None:
    """But for its key, which it makes itself."""
    site = tmp_path / "site-a"
    run_command(["federation", "accept", str(STORED / "coordinator" / "parcels" / "a-1.json"), "--out", str(site)])
    for name in ("federation.toml", "connection.toml", "ca.crt"):
        assert (site / name).read_bytes() == (STORED / "site-a" / name).read_bytes()
    # A policy has had new keys since, between the old ones: each old one is there with its reason, and means the same.
    old, new = ((folder / "site.toml").read_text("utf-8").split("\n\n") for folder in (STORED / "site-a", site))
    assert [part for part in new if part in old] == old
    assert Policy.read(site / "site.toml") == Policy.read(STORED / "site-a" / "site.toml")
    assert (site / "key").is_file()
    assert (site / "key.pub").read_bytes() != (STORED / "site-a" / "key.pub").read_bytes()


def test_no_private_key_is_stored() -> None:
    for path in FILES.rglob("*"):
        assert path.suffix != ".key"
        assert not path.is_file() or b"PRIVATE KEY" not in path.read_bytes()
