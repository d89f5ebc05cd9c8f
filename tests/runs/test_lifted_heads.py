"""Any head behind any lift: a lifted run is the run of lifted rows, all its life long."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fedhip.core.tensor_file import TensorFile
from fedhip.data import FeatureSet, make_partition
from fedhip.errors import FileError
from fedhip.export import export_onnx
from fedhip.features.lifts.budget import exchange_bytes
from fedhip.features.lifts.kinds import KINDS, LiftKind
from fedhip.features.lifts.lift import Lift
from fedhip.heads import HEADS
from fedhip.heads.model import Model
from fedhip.runs import Run, life, verify
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.lifting import LiftSettings, lift_clients, lifted_grid
from fedhip.sklearn import FedHiPClassifier
from tests.cli.samples import done
from tests.core.problems import Array, relative_error
from tests.runs.samples import (
    EXACT,
    NAMES,
    WIDTH,
    contents,
    feature_file,
    feature_set,
    make_run,
    rows_of,
    the_client,
)

LIFTED = 20
heads = pytest.mark.parametrize("head", HEADS)
beyond = pytest.mark.parametrize("head", ["lda", "logistic"])
kinds = pytest.mark.parametrize("kind", KINDS)


def settings(kind: LiftKind = "relu") -> LiftSettings:
    return LiftSettings(kind, LIFTED, seed=3)


def lift_of(run: Run) -> Lift:
    assert run.lift is not None
    return run.lift


def pair(path: Path, head: str, kind: LiftKind = "relu") -> tuple[Run, Run]:
    """A run with a lift, and a run without one of the rows that it lifts."""
    lifted = make_run(path / "lifted", head=head, lift=settings(kind))
    data = feature_set()
    rows = lift_of(lifted)(data.features.copy()).numpy()
    return lifted, make_run(path / "plain", data=replace(data, features=rows), head=head)


def require_same(lifted: Run, plain: Run) -> None:
    """The same sums and models to the last bit, but for the lift, and the same answers; nothing wrong with either."""
    lifted, plain = (Run.open(run.path) for run in (lifted, plain))
    assert lifted.clients == plain.clients
    F = rows_of("somebody")[0]
    sums = ("statistics", "total.safetensors")
    assert contents(lifted.path, sums) == contents(plain.path, sums)
    for client in (None, *lifted.clients):
        mine, theirs = lifted.model(client), plain.model(client)
        assert replace(mine, lift=None).digest() == theirs.digest()
        assert torch.equal(mine.scores(F), theirs.scores(lift_of(lifted)(F)))
    for run in (lifted, plain):
        assert [check.problem for check in verify(run) if check.problem is not None] == []


def rows_for(head: str, *names: str) -> dict[str, Client]:
    """What a change of the sum needs, before any lift."""
    return {name: the_client(name) for name in names} if HEADS[head].needs_rows else {}


def accuracies(head: str, run: Run) -> list[tuple[float, float]]:
    """Of each client the accuracy of its model on raw features, and that of the table."""
    found = []
    for entry in run.results["methods"][HEADS[head].method]["per_client"]:
        F, y = the_client(entry["client"]).test
        answers = run.model(entry["client"]).scores(F).argmax(dim=1).numpy()
        found.append((float((answers == y).mean()), entry["accuracy"]))
    return found


@heads
@kinds
@pytest.mark.sampled(4)
def test_a_lifted_run_is_the_run_of_lifted_rows(tmp_path: Path, head: str, kind: LiftKind) -> None:
    lifted, plain = pair(tmp_path, head, kind)
    require_same(lifted, plain)
    method = HEADS[head].method
    mine, theirs = (run.results["methods"][method] for run in (lifted, plain))
    assert mine["per_client"] == theirs["per_client"]
    sent = mine["upload_bytes_per_client"] - theirs["upload_bytes_per_client"]
    assert sent == exchange_bytes(kind, WIDTH)
    for reached, told in accuracies(head, lifted):
        assert reached == told


@heads
@pytest.mark.sampled(3)
def test_who_comes_and_goes_is_lifted_for_every_head(tmp_path: Path, head: str) -> None:
    """Rows of new clients, more rows of old ones, and the rows of everybody that a head in rounds goes over."""
    runs = pair(tmp_path, head)
    lift = lift_of(runs[0])
    F, y = rows_of("north", 8, 5)
    more = Client("north", (F, y), (F[:0], y[:0]))

    def both(change: Any, client: Client | str, *others: str) -> None:
        for run, through in zip(runs, (None, lift), strict=True):
            rows = rows_for(head, *others)
            given = client
            if through is not None:
                rows = {c.name: c for c in lift_clients(through, rows.values())}
                given = client if isinstance(client, str) else lift_clients(through, [client])[0]
            change(Run.open(run.path), given, rows=rows)
        require_same(*runs)

    both(life.join, the_client("east"), *NAMES)
    both(life.forget, "west", *NAMES, "east")
    both(life.update, more, "north", "south", "east")


@heads
@pytest.mark.sampled(3)
def test_who_leaves_again_leaves_no_trace(tmp_path: Path, head: str) -> None:
    run = make_run(tmp_path / "run", head=head, lift=settings())
    before = contents(run.path, EXACT)
    life.join(run, the_client("east"), rows=rows_for(head, *NAMES))
    life.forget(Run.open(run.path), "east", rows=rows_for(head, *NAMES, "east"))
    life.personalize(Run.open(run.path), {name: the_client(name) for name in NAMES})
    assert contents(run.path, EXACT) == before


@heads
def test_a_file_with_a_lift_is_of_the_second_schema(tmp_path: Path, head: str) -> None:
    run = make_run(tmp_path / "run", head=head, lift=settings("nystroem"))
    path = run.path / "models" / "south.safetensors"
    with safe_open(str(path), framework="pt") as file:
        assert file.metadata()["schema"] == "2"
        assert "intercept" in file.keys()  # noqa: SIM118
    again, F = Model.from_file(path), rows_of("somebody")[0]
    again.to_file(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    assert torch.equal(again.scores(F), replace(again, lift=None).scores(lift_of(run)(F)))
    before_it = TensorFile("fedhip.model", 1, "model", {"weights": torch.float64, "local_classes": torch.bool})
    with pytest.raises(FileError, match="schema version 2; this fedhip reads up to 1: upgrade fedhip"):
        before_it.read(path)


@beyond
@kinds
def test_an_exported_model_lifts_and_adds_its_intercept(tmp_path: Path, head: str, kind: LiftKind) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = make_run(tmp_path / "run", head=head, lift=settings(kind)).model("south")
    assert export_onnx(model, tmp_path / "m.onnx", head_only=True).input_shape == (WIDTH,)
    new = np.random.default_rng(5).normal(size=(9, WIDTH)).astype(np.float32)
    scores = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(["scores"], {"features": new})[0]
    assert relative_error(scores, model.scores(new)) < 1e-5


@beyond
@pytest.mark.sampled(3)
def test_the_commands_lift_rows_for_every_head(tmp_path: Path, head: str, capsys: pytest.CaptureFixture[str]) -> None:
    file, run = feature_file(tmp_path / "f.npz"), tmp_path / "run"
    lift = ("--lift", "relu", "--lift-width", LIFTED)
    done("run", "--features", file, "--head", head, *lift, "--out", run)
    told = capsys.readouterr().out
    assert f"lift: relu, 8 → {LIFTED} wide" in told
    assert f"models: FedHiP-{'LDA' if head == 'lda' else head}" in told
    done("run", run / "config.toml", "--out", tmp_path / "again")
    assert contents(tmp_path / "again", EXACT) == contents(run, EXACT)
    capsys.readouterr()
    done("predict", run, "--features", file, "--client", "north", "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["scores"] for row in rows] == Run.open(run).model("north").scores(feature_set().features).tolist()
    done("join", run, "--client", "east", "--features", feature_file(tmp_path / "east.npz", ["east"]))
    more = () if head == "lda" else ("--rows", tmp_path / "east.npz")
    done("forget", run, "--client", "south", *more)
    assert "the lift was drawn by a sum with its rows in it" in capsys.readouterr().out
    done("verify", run)
    done("export", run, tmp_path / "east.onnx", "--client", "east", "--head-only")


@pytest.mark.parametrize(
    "options", [{"head": "lda", "fit_intercept": True}, {"head": "logistic"}, {"prior": "client"}], ids=str
)
@pytest.mark.sampled(3)
def test_the_estimator_fits_any_head_to_lifted_rows(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {name: rows_of(name, 20) for name in NAMES}
    X, y = (np.concatenate([part[i] for part in parts.values()]) for i in (0, 1))
    whose, new = np.repeat(NAMES, 20), rows_of("somebody")[0]

    def fresh() -> FedHiPClassifier:
        return FedHiPClassifier(lift="relu", lift_width=LIFTED, lift_seed=3, **options)

    fitted = fresh().fit(X, y, groups=whose)
    lift = fitted.lift_
    assert lift is not None

    def lifted(rows: Array) -> Array:
        return np.asarray(lift(rows).numpy())

    # Lifted rows have one grid for all columns, and rows that came so have units of their own for each.
    grid = lifted_grid([Client("all", (lifted(X), y), (X[:0], y[:0]))])
    monkeypatch.setattr(FedHiPClassifier, "_ridge", lambda *_: grid)
    expected = FedHiPClassifier(**options, lift="none").fit(lifted(X), y, groups=whose)
    assert fitted.alphas_ == expected.alphas_
    for client in (*NAMES, "nobody"):
        groups = [client] * len(new)
        for answer in ("decision_function", "predict_proba"):
            mine, theirs = getattr(fitted, answer), getattr(expected, answer)
            np.testing.assert_array_equal(mine(new, groups=groups), theirs(lifted(new), groups=groups))
    first = whose != "west"
    without = fresh().fit(X[first], y[first], groups=whose[first])
    in_parts = fresh().fit(X[first], y[first], groups=whose[first]).partial_fit(X[~first], y[~first], whose[~first])
    assert np.array_equal(in_parts.decision_function(new), fitted.decision_function(new))
    assert np.array_equal(fitted.forget("west").decision_function(new), without.decision_function(new))


def ring(name: str, rows: int = 60) -> tuple[Array, Array]:
    """Rows of a client whose two classes no line parts."""
    F = np.random.default_rng([*name.encode()]).normal(size=(rows, 2))
    return F, (np.hypot(*F.T) > 1.2).astype(np.int64)


def rings(*names: str) -> FeatureSet:
    parts = [ring(name) for name in names]
    features, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    return FeatureSet(features, labels, ("near", "far"), clients=np.repeat(np.array(names), 60))


def ring_client(name: str) -> Client:
    data = rings(name)
    return clients_of(data, make_partition(data.labels, "natural", clients=data.clients))[0]


def test_a_chosen_lift_keeps_the_features_all_a_runs_life_long(tmp_path: Path) -> None:
    """Members on both, solved anew from one sum when somebody comes and goes; exported as one model."""
    run = make_run(tmp_path / "run", data=rings(*NAMES), head="auto", columns=None, fraction_bits=None)
    lift = lift_of(run)
    assert (lift.keeps, lift.drawn, lift.kept) == (True, 144, 2)
    assert run.results["lift"]["keeps"] is True
    assert run.results["choice"]["features"] == "nystroem-axes 144"
    auto, ridge = (
        np.mean([entry["accuracy"] for entry in run.results["methods"][method]["per_client"]])
        for method in ("auto", "fedhip")
    )
    assert auto > 0.8 > ridge
    assert {"plain_beta", "wide_lda_temperature"} <= set(run.results["settings"])
    assert [check.problem for check in verify(run) if check.problem is not None] == []
    before = contents(run.path, EXACT)
    life.join(run, ring_client("east"))
    joined = Run.open(run.path)
    F, y = ring_client("east").test
    assert float((joined.model("east").scores(F).argmax(dim=1).numpy() == y).mean()) > 0.7
    assert [check.problem for check in verify(joined) if check.problem is not None] == []
    life.forget(joined, "east")
    life.personalize(Run.open(run.path), {name: ring_client(name) for name in NAMES})
    assert contents(run.path, EXACT) == before


def test_an_exported_model_of_a_lift_that_keeps_the_features(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = make_run(tmp_path / "run", data=rings(*NAMES), head="auto", columns=None, fraction_bits=None).model("south")
    assert export_onnx(model, tmp_path / "m.onnx", head_only=True).input_shape == (2,)
    new = np.random.default_rng(5).normal(size=(9, 2)).astype(np.float32)
    scores = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(["scores"], {"features": new})[0]
    assert relative_error(scores, model.scores(new)) < 1e-5
