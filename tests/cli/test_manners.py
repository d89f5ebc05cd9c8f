"""What every command has: --json of a documented shape, --quiet, --verbose, short forms, and nothing overwritten."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedhip.cli.common.exit_codes import USAGE
from fedhip.cli.common.parser import Parser, commands_of, subparser
from fedhip.cli.main import build_parser, main
from tests.cli.samples import done, refused

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"


def shapes() -> dict[str, list[str]]:
    """Of each command the keys that docs/cli.md promises; of a list, those of its items."""
    table = PAGE.read_text(encoding="utf-8").split("## What `--json` prints")[1].split("\n## ")[0]
    found = {}
    for commands, keys in re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.MULTILINE):
        group = ""
        for name in re.findall(r"`([^`]*)`", commands):
            group = "federation " if name.startswith("federation ") else group
            found[name if name.startswith(group) else f"{group}{name}"] = re.findall(r"`([a-z_]+)`", keys)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manners")
    rng = np.random.default_rng(0)
    labels = np.arange(30) % 2
    features = rng.normal(size=(30, 3)) + labels[:, None]
    clients = np.array(["north", "south", "west"])[np.arange(30) // 10]
    np.savez(folder / "f.npz", features=features, labels=labels, clients=clients)
    np.savez(folder / "new.npz", features=features[:8] + 0.1, labels=labels[:8])
    ages = rng.integers(20, 80, 30).tolist()
    (folder / "t.csv").write_text("\n".join(("age,sick", *(f"{age},{age % 2}" for age in ages))))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("fedhip.runs.report.render_report", lambda _: "<html></html>")
        done("run", "--features", "f.npz", "--out", "run", "--quiet")
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))


def test_every_command_has_json_and_its_shape_is_documented() -> None:
    documented = shapes()
    for parser in commands_of(build_parser()):
        name = parser.prog.removeprefix("fedhip ")
        assert {"--json", "--quiet", "--verbose"} <= set(parser._option_string_actions), name
        assert documented[name], name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "words",
    [
        "describe t.csv --label sick",
        "report run",
        "predict run --features new.npz",
        "predict --csv|predict run --features new.npz --csv answers.csv --force",
        "join run --client east --features new.npz",
        "personalize run",
        "forget run --client east",
        "verify run",
        "audit --features new.npz --seconds 1",
        "partition --features f.npz",
        "list datasets",
        "cache list",
        "cache clear",
        "doctor",
        "completion bash",
        "federation init fed --name demo --site a --site b --site c --classes x,y --width 4",
        "federation fingerprint fed",
        "federation status fed",
        "federation renew fed",
        "federation stop fed",
    ],
)
def test_json_is_one_document_with_these_keys(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, _, typed = words.rpartition("|")
    documented = shapes()
    name = name or max((name for name in documented if f"{typed} ".startswith(f"{name} ")), key=len)
    done(*typed.split(), "--json")
    shown = json.loads(capsys.readouterr().out)
    item = shown[0] if isinstance(shown, list) else shown
    nested = {"runs": "report", "rows": "predict"}
    keys = set(item)
    for key, command in nested.items():
        if command == name and isinstance(item[key], list):
            keys |= set(item[key][0])
    alternatives = (
        {"task", "targets", "connected", "processes", "site"} if name in ("predict", "federation status") else set()
    )
    assert set(documented[name]) - alternatives <= keys


def test_quiet_says_nothing_on_success_and_what_was_asked_for_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done("run", "--features", "f.npz", "--head", "ridge", "-o", tmp_path / "run", "-s", "1", "-q")
    assert capsys.readouterr() == ("", "")
    done("show", tmp_path / "run", "--quiet")
    assert "mean over clients" in capsys.readouterr().out
    done("predict", tmp_path / "run", "--features", "new.npz", "-q", "--json")
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 8
    line = refused(capsys, "run", "--features", "f.npz", "-o", tmp_path / "run", "-q")
    assert str(tmp_path / "run") in line


def test_show_is_the_table_that_run_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done("run", "--features", "f.npz", "--out", tmp_path / "run")
    ran = capsys.readouterr().out
    done("show", tmp_path / "run")
    assert capsys.readouterr().out == ran
    done("show", tmp_path / "run", "--json")
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "run" / "results.json").read_text())


def test_verbose_shows_where_an_error_was_raised(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nothing", "-v"]) == 3
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.splitlines()[-1].startswith("fedhip: there is no run folder nothing")


def test_short_help_has_a_dozen_options_and_help_all_every_one(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stop:
            main(["run", option])
        assert stop.value.code == 0
        shown[option] = re.findall(r"^  (?:-\w [A-Z]*, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    parser = subparser(build_parser(["run"]), "run")
    assert isinstance(parser, Parser)
    told = {option: a for option, a in parser._option_string_actions.items() if a.help != argparse.SUPPRESS}
    everything = {option for option in told if option.startswith("--")}
    common = set(shown["--help"]) - {"--help-all", "--json"}
    assert len(common) == 12
    assert common < set(shown["--help-all"])
    assert {option for option in everything if not option.startswith("--no-")} - {
        "--help",
        "--quiet",
        "--verbose",
    } <= set(shown["--help-all"])


def test_an_option_has_one_meaning() -> None:
    """The same name is the same thing for every command: of one kind, and of one word for its value."""
    kinds: dict[str, set[object]] = {}
    for parser in commands_of(build_parser()):
        for option, action in parser._option_string_actions.items():
            kinds.setdefault(option, set()).add(action.type if action.nargs != 0 else bool)
    assert len(kinds["--head"]) == len(kinds["--weights"]) == len(kinds["--top"]) == 1
    assert {parser.prog for parser in commands_of(build_parser()) if "--head" in parser._option_string_actions} <= {
        "fedhip run",
        "fedhip federation init",
    }


@pytest.mark.parametrize("short", ["-o", "-k", "-s", "-q", "-v"])
def test_short_forms_are_the_same_everywhere(short: str) -> None:
    long = {"-o": "--out", "-k": "--clients", "-s": "--seed", "-q": "--quiet", "-v": "--verbose"}[short]
    for parser in commands_of(build_parser()):
        actions = parser._option_string_actions
        assert actions.get(short) is actions.get(long), parser.prog


def test_out_is_a_folder_and_csv_a_file_wherever_help_shows_them() -> None:
    shown = {
        (option, parser.prog): action.metavar
        for parser in commands_of(build_parser())
        for option, action in parser._option_string_actions.items()
        if action.help != argparse.SUPPRESS
    }
    assert {metavar for (option, _), metavar in shown.items() if option in ("-o", "--out")} == {"DIR"}
    assert {metavar for (option, _), metavar in shown.items() if option in ("--csv", "--html")} == {"FILE"}


@pytest.mark.parametrize(
    ("now", "once"),
    [
        ("describe t.csv {}/c.toml --label sick", "describe t.csv --label sick --out {}/c.toml"),
        ("describe t.csv --label sick {}/c.toml", "describe t.csv --label sick -o {}/c.toml"),
        ("report run --html {}/r.html", "report run --out {}/r.html"),
        ("report run --html {}/r.html --tables {}/t", "report run --html {}/r.html --csv {}/t"),
        ("predict run --features new.npz --csv {}/a.csv", "predict run --features new.npz --out {}/a.csv"),
        ("audit --features new.npz --seconds 1 {}/p.html", "audit --features new.npz --seconds 1 -o {}/p.html"),
        ("extract {}/f.npz --data images.npz --backbone fedhip-vit", "extract --data images.npz --out {}/f.npz"),
    ],
)  # fmt: skip
def test_old_spellings_do_the_same_with_a_note(
    now: str, once: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(
        place / "images.npz", images=np.arange(4 * 8 * 8 * 3, dtype=np.uint8).reshape(4, 8, 8, 3), labels=[0, 1] * 2
    )
    wrote = []
    for folder, typed in (("now", now), ("once", once)):
        (tmp_path / folder).mkdir()
        done(*typed.replace("{}", str(tmp_path / folder)).split())
        told = [line for line in capsys.readouterr().err.splitlines() if "old spelling" in line]
        assert len(told) == (folder == "once"), typed
        wrote.append({p.relative_to(tmp_path / folder) for p in (tmp_path / folder).rglob("*") if p.is_file()})
    assert wrote[0] == wrote[1] != set()
    (tmp_path / "quiet").mkdir()
    done(*once.replace("{}", str(tmp_path / "quiet")).split(), "--quiet")
    assert capsys.readouterr().err == ""


def test_a_file_that_is_given_twice_is_not_understood(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["describe", "t.csv", "a.toml", "--out", "b.toml"])
    assert stop.value.code == USAGE
    assert "a.toml and --out b.toml are two names for one thing; leave --out out" in capsys.readouterr().err


def test_what_is_there_is_written_over_with_force_alone(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {
        "page.html": ["report", "run", "--html"],
        "answers.csv": ["predict", "run", "--features", "new.npz", "--csv"],
        "influence.csv": ["influence", "run", "--csv"],
        "columns.toml": ["describe", "t.csv", "--label", "sick"],
        "audit.html": ["audit", "--features", "new.npz", "--client", "x", "--seconds", "1"],
    }
    for name, words in kept.items():
        path = tmp_path / name
        path.write_text("precious")
        assert "write over it with --force" in refused(capsys, *words, path)
        assert path.read_text() == "precious"
        done(*words, path, "--force")
        assert path.read_text() != "precious"
    for name in ("answers.csv", "influence.csv"):  # in a folder that is not there yet
        done(*kept[name], tmp_path / "new" / name)
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / name).read_bytes()
    (tmp_path / "partition.svg").write_text("precious")
    assert "partition.svg is there already" in refused(capsys, "partition", "--features", "f.npz", "--out", tmp_path)
    done("partition", "--features", "f.npz", "--out", tmp_path, "--force")
