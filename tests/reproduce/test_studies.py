"""The tables' numbers are the cells', and those of the closed forms are those of the library."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedhip
from fedhip.errors import InputError
from fedhip.heads.round import simulate
from fedhip.methods.engine.protocol import Evaluation, MethodRun
from fedhip.reproduce import Source, paper, reproduce
from fedhip.reproduce.bench import plain
from fedhip.reproduce.divisions import divide, divide_around
from fedhip.reproduce.studies import efficiency, invariance, sensitivity, table1
from fedhip.reproduce.studies.closed_form import curve
from fedhip.reproduce.tables import Table, to_markdown
from fedhip.simulation.options import PAPER
from tests.reproduce import fakes
from tests.reproduce.fakes import bench_of, pretend, rows


def records(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_table_1_holds_the_means_of_its_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    bench = bench_of(tmp_path)
    (table,), files = reproduce(bench, ("table1",), tmp_path / "out")
    assert [row.label for row in table.rows] == [
        "FedAvg", "Ditto", "Global ridge", "FedHiP", "Improvement ↑", "FedHiP, α by hindsight",
    ]  # fmt: skip
    assert {path.suffix for path in files} == {".csv", ".json", ".md", ".tex", ".svg", ".pdf"}
    stored = [json.loads(path.read_text()) for path in (tmp_path / "cells").glob("*.json")]
    lines = [line for line in records(tmp_path / "out" / "table1-paper.csv") if line["method"] != "fedhip-hindsight"]
    assert len(lines) == 4 * 4
    for line in lines:
        found = [
            cell for cell in stored
            if cell["key"]["method"] == line["method"]
            and cell["key"]["division"]["clients"] == int(line["clients"])
            and cell["key"]["division"]["concentration"] == float(line["concentration"])
        ]  # fmt: skip
        assert sorted(cell["key"]["division"]["seed"] for cell in found) == [0, 1]
        means = [np.mean([a for a in cell["result"]["accuracy"] if a is not None]) for cell in found]
        pairs = [list(zip(cell["result"]["accuracy"], cell["result"]["test"], strict=True)) for cell in found]
        weighted = [sum(a * n for a, n in p if a is not None) / sum(n for a, n in p if a is not None) for p in pairs]
        assert float(line["mean"]) == pytest.approx(np.mean(means), abs=1e-12)
        assert float(line["std"]) == pytest.approx(np.std(means, ddof=1), abs=1e-12)
        assert float(line["weighted_mean"]) == pytest.approx(np.mean(weighted), abs=1e-12)
        shown = f"{100 * np.mean(means):.2f}"
        row = next(r for r in table.rows if r.label == {"fedavg": "FedAvg", "ditto": "Ditto", "global": "Global ridge",
                                                        "fedhip": "FedHiP"}[line["method"]])  # fmt: skip
        place = table.columns.index(("mine", f"{line['clients']} clients", f"λ = {float(line['concentration']):g}"))
        assert row.entries[place].shown_mean == shown


def test_tables_say_how_methods_differ_from_their_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    told = {"ditto": "weighs by rows.", "fedavg": "Nothing known."}
    known = {name: replace(info, differs=told.get(name, "")) for name, info in fakes.METHODS.items()}
    monkeypatch.setattr("fedhip.methods.METHODS", known)
    bench = bench_of(tmp_path, seeds=(3,), clients=(4,), concentrations=(0.1,))
    (table,), _ = reproduce(bench, ("table1",), tmp_path / "out")
    assert table.footnotes == ("Ditto differs from its paper: weighs by rows.",)
    assert {row.label: row.footnotes for row in table.rows if row.footnotes} == {"Ditto": (0,)}


def test_fedhip_in_the_table_is_that_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    bench = bench_of(tmp_path, seeds=(3,), clients=(4,), concentrations=(0.1,))
    (table,), _ = reproduce(bench, ("table1",), tmp_path / "out")
    clients = divide(bench.sources[0], 4, 0.1, 3)
    expected = simulate(clients, 5, methods=("fedhip",), beta="gcv", **vars(PAPER)).summary("fedhip")["mean"]
    assert table.rows[3].entries[0].mean == expected
    best = max(table.rows[i].entries[0].mean or 0 for i in range(3))
    assert expected is not None
    assert float((table.rows[4].entries[0].text or "").replace("−", "-")) == pytest.approx(
        100 * (expected - best), abs=0.006
    )


def test_divergence_and_degeneration_are_footnotes_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(
        monkeypatch,
        diverge=lambda name, protocol: name == "ditto" and protocol.seed == 1,
        notes={"fedavg": "is something else here"},
    )
    tables, _ = reproduce(bench_of(tmp_path), ("table1", "efficiency", "invariance"), tmp_path / "out")
    ditto = next(row for row in tables[0].rows if row.label == "Ditto")
    assert {entry.shown_mean for entry in ditto.entries} == {"div."}
    notes = [tables[0].footnotes[number] for number in ditto.footnotes]
    assert "Ditto, 4 clients λ = 0.1, seed 1: diverged: round 3, learning rate 0.005." in notes
    fedavg = next(row for row in tables[0].rows if row.label == "FedAvg")
    assert [tables[0].footnotes[number] for number in fedavg.footnotes] == ["FedAvg: is something else here."]
    assert all(row.entries[0].mean is not None for row in tables[0].rows if row.label in ("FedAvg", "FedHiP"))
    assert "<sup>" in to_markdown(tables[0])


def brute_force(data: Source, clients: int, seed: int, alpha: float, beta: float) -> float:
    """Every client's model by the normal equations, in numpy."""
    parts = divide(data, clients, 0.1, seed)
    F = np.concatenate([client.train[0] for client in parts])
    Y = np.eye(5)[np.concatenate([client.train[1] for client in parts])]
    accuracies = []
    for client in parts:
        own, labels = client.train[0], np.eye(5)[client.train[1]]
        left = F.T @ F + alpha * own.T @ own + beta * np.eye(8)
        weights = np.linalg.solve(left, F.T @ Y + alpha * own.T @ labels)
        if len(client.test[1]):
            accuracies.append(((client.test[0] @ weights).argmax(1) == client.test[1]).mean())
    return float(np.mean(accuracies))


@pytest.mark.parametrize("study", ["alpha", "beta"])
def test_the_sensitivity_tables_are_those_of_the_normal_equations(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    bench = bench_of(tmp_path, concentrations=(0.1,))
    (table,), _ = reproduce(bench, (study,), tmp_path / "out")
    (row,) = table.rows
    for place, value in enumerate(paper.GRID):
        alpha, beta = (value, 0.0) if study == "alpha" else (20.0, value)
        expected = [brute_force(bench.sources[0], 4, seed, alpha, beta) for seed in (0, 1)]
        assert row.entries[place].values == pytest.approx(expected, abs=1e-12)
    fixed = [float(entry.shown_mean) for entry in row.entries[:13]]
    assert [entry.mark == "best" for entry in row.entries[:13]] == [value == max(fixed) for value in fixed]
    assert {entry.mark for entry in row.entries[13:]} == {""}
    words = " ".join(table.notes)
    assert ("picks α on the test rows" in words) == (study == "alpha")


def test_leave_one_out_in_the_alpha_table_is_that_of_a_run() -> None:
    clients = divide(Source("mine", rows()), 4, 0.1, 0)
    for only in (False, True):
        found = curve(clients, 5, [(None, 0.0), (None, None)], only, "cpu", lambda *_: None)["points"]
        for point, beta in zip(found, (0.0, "gcv"), strict=True):
            run = simulate(clients, 5, beta=beta, methods=("fedhip",), only_local_classes=only, **vars(PAPER))  # type: ignore[arg-type]
            assert point["mean"] == run.summary("fedhip")["mean"]
            assert point["median_alpha"] == np.median([r.alpha for r in run.clients if r.test and r.alpha is not None])


def test_efficiency_reuses_the_cells_of_table_1_and_follows_its_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = pretend(monkeypatch)
    bench = bench_of(tmp_path)
    reproduce(bench, ("table1",), tmp_path / "out")
    before = len(methods.calls)
    (table,), _ = reproduce(bench, ("efficiency",), tmp_path / "out")
    assert len(methods.calls) == before
    fedavg = next(record for record in table.records if record["method"] == "fedavg")
    # 10 rounds of 2 × 4000 bytes and 0.1 s against 2 × 1000 bytes and 0.5 s.
    assert fedavg["bytes_per_client"] == 80_000
    assert fedavg["saved_bytes"] == pytest.approx(1 - 2000 / 80_000)
    assert fedavg["saved_time"] == pytest.approx(1 - 0.5 / 1.0)
    assert fedavg["arrived_round"] == 10
    assert any("the paper: as much as 95%" in note and "97.5 %" in note for note in table.notes)


def test_arrival_is_the_first_evaluation_near_the_last() -> None:
    history = [[r, a, float(r), r, r] for r, a in ((1, 0.2), (2, 0.595), (3, 0.5), (4, 0.6))]
    result: dict[str, Any] = {"history": history, "rounds": 4, "mean": 0.6, "seconds": 4.0, "upload": 4, "download": 4,
                              "diverged": None}  # fmt: skip
    course = efficiency.training_curve("x", "X", True, [result])
    assert course.arrived.round == 2
    assert course.last.bytes == 8


def test_theorem_3_on_rows_the_fixed_clients_model_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    bench = bench_of(tmp_path, regimes=("paper", "tuned"), seeds=(0, 1))
    for regime, limit in (("paper", 0.0), ("tuned", 1e-9)):
        for seed in (0, 1):
            points = bench.result(invariance.solved_cell(bench, bench.sources[0], regime, seed))["points"]  # type: ignore[arg-type]
            assert len({point["alpha"] for point in points}) == 1
            assert len({point["accuracy_fedhip"] for point in points}) == 1
            assert all(point["change_fedhip"] <= limit for point in points)
            assert all(point["change_global"] <= limit for point in points)


def test_the_change_is_measured_and_not_assumed(tmp_path: Path) -> None:
    """With one row of another client taken away, the model does move."""
    fixed, others = divide_around(Source("mine", rows()), 4, 0.1, 0, 1.0)
    less = replace(others[0], train=(others[0].train[0][1:], others[0].train[1][1:]))
    before = invariance.solve([fixed, *others], 5, {}, False, False, "cpu").models
    after = invariance.solve([fixed, less, *others[1:]], 5, {}, False, False, "cpu").models
    assert invariance.change(after["global"].weights, before["global"].weights) > 1e-4
    assert invariance.change(after["local"].weights, before["local"].weights) == 0.0


def test_the_models_of_rivals_are_compared_too(tmp_path: Path) -> None:
    """A client alone stays where it is; what is averaged or mixed moves; one global closed form does not."""
    methods = ("fedavg", "ditto", "fedpcl", "local-sgd", "fedas", "fedncm", "global-oll", "fedhip")
    bench = bench_of(tmp_path, methods=methods, rounds=4, seeds=(0,), moved_concentrations=(0.1, 100.0))
    found: dict[str, float] = {}
    for method in methods:
        _, (moved,), _ = invariance.accuracies(bench, bench.sources[0], "paper", method)
        assert moved is not None
        found[method] = moved
    assert found["local-sgd"] == found["fedas"] == found["fedhip"] == 0.0
    assert found["fedncm"] <= 1e-8
    assert found["global-oll"] <= 1e-8
    assert all(found[method] > 1e-6 for method in ("fedavg", "ditto", "fedpcl"))
    cell = invariance.trained_cell(bench, bench.sources[0], "paper", 0, 0.1, "fedavg")
    kept = bench.result(cell)["probe"]
    assert 0 < len(kept) <= invariance.PROBE
    (table,) = invariance.tables(bench)
    shown = {row.label: row.entries[-1].text for row in table.rows}
    assert shown["FedHiP"] == shown["Local SGD"] == "0"
    assert str(shown["FedAvg"]).endswith(" %")


def test_scores_are_compared_where_there_are_any() -> None:
    assert invariance.change_of_scores([{"probe": [3.0, 4.0]}, {"probe": [3.0, 4.0]}, {"probe": [0.0, 4.0]}]) == 0.6
    assert invariance.change_of_scores([{"probe": [3.0]}, {"probe": None}]) is None
    assert invariance.change_of_scores([{"probe": [0.0]}, {"probe": [0.0]}]) == 0.0
    assert [invariance.shown_change(v) for v in (None, 0.0, 3e-12, 0.1234)] == ["–", "0", "3.0e−12", "12.3 %"]


def test_a_prior_reaches_every_method_and_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = pretend(monkeypatch)
    plain, prior = (bench_of(tmp_path, seeds=(0,), prior=option) for option in ("none", "client"))
    for bench in (plain, prior):
        reproduce(bench, ["table1", "invariance"], tmp_path / bench.settings.prior)
    told = [call["protocol"].prior for call in methods.calls]
    assert told == sorted(told, reverse=True)
    assert set(told) == {"none", "client"}
    text = (tmp_path / "client" / "table1-paper.md").read_text()
    assert "with the client's prior" in text
    assert "the paper's protocol, with clients' priors" in text
    assert "prior" not in (tmp_path / "none" / "table1-paper.md").read_text()
    assert '"prior": "client"' in (tmp_path / "client" / "table1-paper.json").read_text()


def test_the_others_hold_the_same_rows_divided_anew() -> None:
    source = Source("mine", rows())
    divisions = [divide_around(source, 6, 0.1, 0, moved) for moved in (0.05, 100.0)]
    (fixed, skewed), (again, even) = divisions
    assert np.array_equal(fixed.train[0], again.train[0])
    assert np.array_equal(fixed.test[0], again.test[0])
    pooled = [sorted(map(tuple, np.concatenate([c.train[0] for c in clients]))) for clients in (skewed, even)]
    assert pooled[0] == pooled[1]
    counts = [np.array([np.bincount(c.train[1], minlength=5) for c in clients]) for clients in (skewed, even)]
    assert not np.array_equal(counts[0], counts[1])
    tests = {row.tobytes() for row in fixed.test[0]}
    assert not tests & {row.tobytes() for client in skewed for row in client.train[0]}


def test_the_range_is_that_of_each_seed() -> None:
    assert invariance.spread([[0.1, 0.9], [0.3, 0.5], [0.2, 0.8]]) == pytest.approx((0.2 + 0.4) / 2)
    assert invariance.spread([[0.1, None]]) is None


def test_no_client_to_fix_is_an_error() -> None:
    data = rows(6)
    with pytest.raises(InputError, match="none of the 6 clients"):
        divide_around(Source("mine", data), 6, 0.1, 0, 1.0)


def test_what_is_no_number_is_nothing() -> None:
    run = MethodRun("x", [float("nan"), 0.5], 1, 1.0, 0, 0, history=[Evaluation(1, float("nan"), 1.0, 0, 0)])
    found = plain(run, [3, 3])
    assert found["accuracy"] == [None, 0.5]
    assert found["history"][0][1] is None
    assert found["mean"] == 0.5


def test_published_figures_stand_beside_ours_in_the_papers_setting_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)

    def made(name: str, backbone: str | None, **options: Any) -> Table:
        bench = bench_of(tmp_path, seeds=(0,), clients=(50,), concentrations=(0.1,), **options)
        bench = replace(bench, sources=(Source(name, rows(400), backbone),))
        bench.store.perform(table1.steps(bench))
        (table,) = table1.tables(bench)
        return table

    theirs = made("cifar100", "vit-mae-base", rounds=200)
    assert theirs.rows[0].entries[0].paper == 0.4353
    assert "(43.53)" in to_markdown(theirs)
    assert theirs.columns[0][0] == "CIFAR-100"
    for table in (
        made("cifar100", "fedhip-vit", rounds=200),
        made("cifar100", "vit-mae-base", rounds=10),
        made("cifar100", "vit-mae-base", rounds=200, only_local_classes=True),
        made("mine", "vit-mae-base", rounds=200),
    ):
        assert all(entry.paper is None for row in table.rows for entry in row.entries)
    notes = " ".join(made("cifar100", "fedhip-vit", rounds=200).notes)
    assert "The backbone differs from the paper's (vit-mae-base)" in notes


def test_only_local_classes_reaches_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = pretend(monkeypatch)
    bench = bench_of(tmp_path, only_local_classes=True, regimes=("paper", "tuned"), seeds=(0,))
    reproduce(bench, ("table1", "alpha", "invariance"), tmp_path / "out")
    assert {call["protocol"].only_local_classes for call in methods.calls} == {True}
    alpha = bench.result(sensitivity.cell(bench, "alpha", bench.sources[0], 0.1, 0))
    other = bench_of(tmp_path, seeds=(0,))
    assert alpha != other.result(sensitivity.cell(other, "alpha", other.sources[0], 0.1, 0))


def test_cells_say_which_version_made_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    bench = bench_of(tmp_path, seeds=(0,))
    bench.store.perform(sensitivity.steps(bench, "beta"))
    cells = [json.loads(path.read_text()) for path in (tmp_path / "cells").glob("*.json")]
    assert cells
    assert {cell["key"]["fedhip"] for cell in cells} == {fedhip.__version__}
