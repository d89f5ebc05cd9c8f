"""Deployment files: their commands are ours, and nothing runs with more rights than it needs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from fedhip.cli.main import main, parse
from tests.cli.samples import done

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "howto" / "deploy.md").read_text(encoding="utf-8")


def instruction(name: str) -> str:
    (found,) = re.findall(rf"^{name} (.*)$", CONTAINERFILE, flags=re.MULTILINE)
    return str(found)


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_runs_a_command_of_ours_without_rights(name: str) -> None:
    service = COMPOSE["services"][name]
    args = parse([*json.loads(instruction("ENTRYPOINT"))[1:], *service["command"]])
    assert (args.directory if name == "server" else args.folder) == Path("/folder")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["user"] == instruction("USER")
    assert "no-new-privileges:true" in service["security_opt"]
    places = {volume.split(":")[1] for volume in service["volumes"]}
    assert set(json.loads(instruction("VOLUME"))) <= places, "what is written outside of a volume is lost"
    assert all(volume.endswith(":ro") for volume in service["volumes"] if ":/rows" in volume)


def test_every_state_is_a_volume_of_one_service() -> None:
    """A ledger of sums that two sites share would refuse the second; one that is nobody's is lost."""
    states = [v.split(":")[0] for s in COMPOSE["services"].values() for v in s["volumes"] if v.endswith(":/state")]
    assert sorted(states) == sorted(COMPOSE["volumes"])


def test_the_health_check_is_a_command_of_ours() -> None:
    words = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    args = parse(words[1:])
    assert args.check
    assert args.directory == Path("/folder")


def test_the_image_is_made_of_what_is_there() -> None:
    assert "-c /src/constraints.txt" in CONTAINERFILE
    extras = re.search(r'"/src\[([a-z,]+)\]"', CONTAINERFILE)
    assert extras is not None
    known = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{extra} = [" in known for extra in extras[1].split(","))


def test_the_folders_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Set up as the page types it; then every service's folder is there."""
    monkeypatch.chdir(tmp_path)
    sites = [name for name in COMPOSE["services"] if name != "server"]
    (init,) = re.findall(r"^    fedhip (federation init fed .*)$", PAGE, flags=re.MULTILINE)
    done(*init.replace("--columns columns.toml", "--classes x,y --width 4").split())
    for name in sites:
        done("federation", "accept", f"fed/parcels/{name}-1.json")
    done("federation", "enroll", "fed", *(f"site-{name}/reply-{name}.json" for name in sites))
    capsys.readouterr()
    for name, other in zip(sites, (*sites[1:], sites[0]), strict=True):
        done("federation", "fingerprint", f"fed/parcels/{other}-2.json", "--json")
        read_aloud = json.loads(capsys.readouterr().out)["fingerprint"]
        done("federation", "accept", f"fed/parcels/{name}-2.json", "--fingerprint", read_aloud)
        capsys.readouterr()
    for name, service in COMPOSE["services"].items():
        folder = next(v.split(":")[0] for v in service["volumes"] if v.endswith(":/folder"))
        assert Path(folder).is_dir(), folder
        if name != "server":
            assert "server:8443" in (Path(folder) / "connection.toml").read_text(encoding="utf-8")


def test_health_of_what_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fed = tmp_path / "fed"
    done("federation", "init", fed, "--name", "demo", "--site", "a", "--site", "b", "--site", "c",
         "--classes", "x,y", "--width", "4")  # fmt: skip
    for folder in (fed, fed / "site-a"):
        assert main(["federation", "status", str(folder)]) == 0
        assert main(["federation", "status", str(folder), "--check"]) == 1
        capsys.readouterr()
        assert main(["federation", "status", str(folder), "--check", "--json"]) == 1
        assert isinstance(json.loads(capsys.readouterr().out), dict)
