"""Python is a door like the others: what `fedhip.run` makes and does is what the commands make and do."""

from __future__ import annotations

import argparse
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedhip
from fedhip.cli.main import build_parser, main
from fedhip.data import read_features
from fedhip.errors import InputError, RunExistsError
from tests.runs.samples import NAMES, contents, feature_file

#: A run's options, as Python and the command line have them.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"head": "lda", "prior": "client"},
    {"standardize": False, "intercept": False, "alpha": 5.0, "beta": 1.0},
    {"lift": "relu", "seed": 3},
    {"balance": True, "methods": ("local", "global", "fedhip")},
    {"head": "logistic", "head_options": {"gradient_rounds": 2.0}},
]


def words(options: dict[str, Any]) -> list[str]:
    """The same on the command line."""
    found = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, dict):
            found.append(f"--{option}={','.join(f'{key}={number}' for key, number in value.items())}")
        else:
            found.append(f"--{option}={','.join(value) if isinstance(value, tuple) else value}")
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(words(options)) or "default")
@pytest.mark.sampled(3)
def test_the_same_run_as_by_command(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhip.simulation.lifting.DEFAULT_WIDTH", 32)  # for both, and 50 times as fast
    path = feature_file(tmp_path / "sites.npz", NAMES)
    assert main(["run", "--features", str(path), "--out", str(tmp_path / "command"), *words(options)]) == 0
    rows = read_features(path)
    by_file = fedhip.run(path, out=tmp_path / "file", **options)
    given = np.array(rows.class_names)[rows.labels]
    by_array = fedhip.run(rows.features, given, rows.clients, split=rows.split, out=tmp_path / "array", **options)
    command = fedhip.open_run(tmp_path / "command")
    for run in (by_file, by_array):
        assert run.ledger.entries[0]["models"] == command.ledger.entries[0]["models"]
        assert run.ledger.entries[0]["total"] == command.ledger.entries[0]["total"]
        assert run.details == command.details
        assert all(check.problem is None for check in run.verify())
    # What repeats the run, if its rows are in a file; the command also says where it looked for a backbone.
    shared = by_file.config.keys() & command.config.keys()
    assert {name: by_file.config[name] for name in shared} == {name: command.config[name] for name in shared}
    assert by_file.config.keys() <= command.config.keys()


def test_the_defaults_are_those_of_the_command() -> None:
    parser = next(
        action.choices["run"] for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    command = {action.dest: action.default for action in parser._actions}
    # The command has them differently: an array of owners, words with numbers, and no callback.
    ours = {"features", "labels", "clients", "split", "class_names", "groups", "weights", "report", "balance"}
    for name, parameter in inspect.signature(fedhip.run).parameters.items():
        if name not in ours:
            assert command[name] == parameter.default, name


def test_a_life_in_python(tmp_path: Path) -> None:
    """Joined, given more rows, forgotten, personalized: the same files as by command."""
    sites, east = feature_file(tmp_path / "sites.npz", NAMES), feature_file(tmp_path / "east.npz", ["east"])
    more = feature_file(tmp_path / "more.npz", ["west"])
    python, command = (tmp_path / name / "run" for name in ("python", "command"))
    run = fedhip.run(sites, out=python)
    assert main(["run", "--features", str(sites), "--out", str(command)]) == 0
    rows = read_features(east)
    names = np.array(rows.class_names)
    change = run.join("east", rows.features, names[rows.labels], split=rows.split)
    assert (change.event, run.clients) == ("join", [*NAMES, "east"])
    assert main(["join", str(command), "--features", str(east)]) == 0
    extra = read_features(more)
    run.update("west", 2 * extra.features, np.array(extra.class_names)[extra.labels])
    np.savez(tmp_path / "twice.npz", features=2 * extra.features, labels=np.array(extra.class_names)[extra.labels])
    assert main(["update", str(command), "--client", "west", "--features", str(tmp_path / "twice.npz")]) == 0
    run.forget(NAMES[0])
    assert main(["forget", str(command), "--client", NAMES[0]]) == 0
    assert run.personalize(rows).measured == 1
    assert main(["personalize", str(command), "--features", str(east), "--client", "east"]) == 0
    assert [entry["models"] for entry in run.ledger.entries] == [
        entry["models"] for entry in fedhip.open_run(command).ledger.entries
    ]
    assert contents(python).keys() == contents(command).keys()
    with pytest.raises(InputError, match=NAMES[0]):
        run.model(NAMES[0])


def test_predictions_are_those_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = feature_file(tmp_path / "sites.npz", NAMES)
    run, rows = fedhip.run(path, out=tmp_path / "run"), read_features(path)
    capsys.readouterr()
    for client in (None, "west"):
        whose = [] if client is None else ["--client", client]
        assert main(["predict", str(run.path), "--features", str(path), "--json", *whose]) == 0
        told = json.loads(capsys.readouterr().out)["rows"]
        assert run.predict(rows.features, client).tolist() == [row["class"] for row in told]
        assert run.proba(rows.features, client).tolist() == [row["probabilities"] for row in told]


def test_whole_numbers_come_back_as_such(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(7, 10, 90)
    features = rng.normal(size=(90, 4)) + 9 * np.eye(4)[labels - 7]
    run = fedhip.run(features, labels, np.repeat([1, 2, 3], 30), out=tmp_path / "run")
    assert run.clients == ["1", "2", "3"]
    assert (run.predict(features, "2") == labels).mean() > 0.9
    run.join("4", features[:20] + 1, labels[:20])
    assert run.predict(features, "4").dtype == np.int64


def test_rows_are_divided_among_so_many_clients(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    run = fedhip.run(
        rng.normal(size=(60, 4)), rng.integers(0, 3, 60), 5, partition="iid", head="ridge", out=tmp_path / "run"
    )
    assert len(run.clients) == 5


def test_what_is_refused(tmp_path: Path) -> None:
    path = feature_file(tmp_path / "sites.npz", NAMES)
    with pytest.raises(InputError, match="give labels"):
        fedhip.run(np.eye(3), out=tmp_path / "run")
    with pytest.raises(InputError, match="of their own; leave them out"):
        fedhip.run(path, np.zeros(3), out=tmp_path / "run")
    fedhip.run(path, out=tmp_path / "run", head="ridge")
    with pytest.raises(RunExistsError, match="exists"):
        fedhip.run(path, out=tmp_path / "run")
    run = fedhip.run(path, out=tmp_path / "run", head="ridge", force=True)
    with pytest.raises(InputError, match="no client 'nobody'"):
        run.forget("nobody")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prior": "clients"}, "prior is 'clients'; give 'client' or 'none'"),
        ({"methods": ()}, "no method given"),
        ({"methods": ("fedhpi",)}, "did you mean 'fedhip'"),
        ({"alpha": "lo"}, "alpha is 'lo'; give 'loo', or a number"),
        ({"beta": "best"}, "beta is 'best'; give 'auto' or 'gcv', or a number"),
        ({"head": "ldaa"}, "did you mean 'lda'"),
        ({"head_options": {"shrinkage": 0.1}}, "are of --head lda and --head logistic"),
        ({"lift": "relu", "head": "auto", "head_options": {"penalty": 1.0}}, "finds its own"),
    ],
)
def test_options_are_checked_as_on_the_command_line(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = feature_file(tmp_path / "sites.npz", NAMES)
    with pytest.raises(fedhip.FedHiPError, match=says):
        fedhip.run(path, out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_methods_stand_in_the_order_of_tables(tmp_path: Path) -> None:
    path = feature_file(tmp_path / "sites.npz", NAMES)
    run = fedhip.run(path, out=tmp_path / "run", methods=["fedncm", "fedhip", "local"])
    assert list(run.results["methods"]) == run.config["methods"] == ["local", "fedhip", "fedncm"]


def test_a_lift_that_does_not_fit_in_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = feature_file(tmp_path / "sites.npz", NAMES)
    monkeypatch.setattr("fedhip.simulation.lifting.memory_available", lambda _: 1000)
    with pytest.raises(fedhip.FedHiPError, match="memory"):
        fedhip.run(path, out=tmp_path / "run", lift="relu")


def test_a_command_says_that_rows_were_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    fedhip.run(rng.normal(size=(60, 4)), rng.integers(0, 3, 60), 3, partition="iid", head="ridge", out=tmp_path / "run")
    assert main(["personalize", str(tmp_path / "run")]) == 3
    assert "was made in Python" in capsys.readouterr().err


@pytest.mark.usefixtures("drawn")
def test_the_report_is_drawn_again(tmp_path: Path) -> None:
    run = fedhip.run(feature_file(tmp_path / "sites.npz", NAMES), head="ridge", out=tmp_path / "run")
    before = (run.path / "report.html").read_bytes()
    assert run.report().read_bytes() == before
    assert run.report(tmp_path / "copy" / "page.html").read_bytes() == before


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that tells runs apart."""
    monkeypatch.setattr(
        "fedhip.runs.report.render_report", lambda runs: f"<html>{runs[0].name} {runs[0].ledger}</html>"
    )
