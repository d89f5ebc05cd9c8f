"""Lifts in use: the run, what comes after it, exported models and the estimator; all from raw features."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from fedhip.core.exact.fixedpoint import GridStatistics, round_features
from fedhip.data import make_partition
from fedhip.errors import InputError
from fedhip.export import export_onnx
from fedhip.features.lifts.budget import exchange_bytes, upload_bytes
from fedhip.features.lifts.kinds import KINDS, LANDMARKS, LiftKind
from fedhip.features.lifts.lift import Lift
from fedhip.heads.model import Model
from fedhip.reproduce import Bench, Settings, Source, Store
from fedhip.reproduce.bench import method_cell
from fedhip.runs import Run, life, verify
from fedhip.simulation import lifting
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.lifting import LiftSettings, lift_clients
from fedhip.sklearn import FedHiPClassifier
from tests.cli.samples import done, refused
from tests.core.problems import Array, relative_error
from tests.runs.samples import (
    CLASSES,
    EXACT,
    NAMES,
    WIDTH,
    contents,
    feature_file,
    feature_set,
    make_run,
)
from tests.runs.samples import the_client as raw_client

pytestmark = pytest.mark.usefixtures("no_report")

kinds = pytest.mark.parametrize("kind", KINDS)
both = pytest.mark.parametrize("paper", [False, True])
LIFTED = 20


def settings(kind: LiftKind, **options: Any) -> LiftSettings:
    return LiftSettings(kind, LIFTED, seed=3, **options)


def all_training_rows(clients: tuple[str, ...] = NAMES) -> tuple[Array, Array, Array]:
    """Features, labels and whose they are."""
    parts = [raw_client(name).train for name in clients]
    whose = np.repeat(clients, [len(y) for _, y in parts])
    return np.concatenate([F for F, _ in parts]), np.concatenate([y for _, y in parts]), whose


def by_hand(lift: Lift, F: Array) -> Array:
    """The formulas of `fedhip.features.lifts.lift` in numpy, from the mean and deviation of the training rows."""
    train = all_training_rows()[0]
    U = (F - train.mean(axis=0)) / train.std(axis=0) / np.sqrt(F.shape[1])
    if lift.kind in LANDMARKS:
        Z, whitening = (values.numpy() for values in lift.landmarks)
        return np.asarray(np.exp(-np.square(U[:, None] - Z).sum(axis=2) / 2 / lift.bandwidth**2) @ whitening)
    Omega, b = (values.numpy() for values in lift.projection)
    if lift.kind == "relu":
        return np.asarray(np.sqrt(2 / LIFTED) * np.maximum(0, U @ Omega + b))
    return np.asarray(np.sqrt(2 / LIFTED) * np.cos(U @ Omega / lift.bandwidth + b))


def ridge_of_lifted(
    lift: Lift, weights: Array, new: Array, *, standardize: bool = True, fit_intercept: bool = True
) -> Array:
    """Scores of new rows by scikit-learn's ridge of all lifted training rows."""
    F, y, _ = all_training_rows()
    scaler = StandardScaler(with_mean=standardize, with_std=standardize)
    ridge = Ridge(0.5, fit_intercept=fit_intercept, solver="svd")
    ridge.fit(scaler.fit_transform(by_hand(lift, F)), np.eye(len(CLASSES))[y], sample_weight=weights)
    return np.asarray(ridge.predict(scaler.transform(by_hand(lift, new))))


@both
@kinds
def test_models_of_a_lifted_run_are_ridges_of_the_lifted_rows(tmp_path: Path, kind: LiftKind, paper: bool) -> None:
    told: dict[str, Any] = {"standardize": False, "intercept": False} if paper else {}
    run = make_run(tmp_path / "run", alpha=7.5, beta=0.5, lift=settings(kind), **told)
    assert run.lift is not None
    whose = all_training_rows()[2]
    new = np.random.default_rng(5).normal(size=(9, WIDTH))
    for client in (None, *NAMES):
        weights = np.where(whose == client, 8.5, 1.0)
        expected = ridge_of_lifted(run.lift, weights, new, standardize=not paper, fit_intercept=not paper)
        assert relative_error(run.model(client).scores(new), expected) < 1e-3
    assert all(check.problem is None for check in verify(run))


@kinds
def test_the_lift_is_the_same_bits_for_any_division_and_sees_no_test_row(kind: LiftKind) -> None:
    data = feature_set()
    train = clients_of(data, make_partition(data.labels, "natural", clients=data.clients))
    F, y, _ = all_training_rows()
    order = np.random.default_rng(0).permutation(len(y))
    others = [
        Client(str(k), (F[rows], y[rows]), (np.full((2, WIDTH), 1e6), np.zeros(2, np.int64)))
        for k, rows in enumerate(np.array_split(order, 7))
    ]
    plan = settings(kind).plan(WIDTH, len(CLASSES))
    one, other = plan.draw(train), plan.draw(others)
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    lifted = np.concatenate([client.train[0] for client in lift_clients(other, others)])
    assert np.array_equal(lifted, np.concatenate([c.train[0] for c in lift_clients(one, train)])[order])


@kinds
def test_a_client_that_joins_uses_the_lift_of_the_run_and_can_leave_without_trace(
    tmp_path: Path, kind: LiftKind
) -> None:
    run = make_run(tmp_path / "run", alpha=7.5, beta=2.0, lift=settings(kind))
    before, lift = contents(run.path, EXACT), run.lift
    assert lift is not None
    east = raw_client("east")
    change = life.join(run, east)
    run = Run.open(run.path)
    assert change.result is not None
    assert change.result.accuracy["fedhip"] == float(
        (run.model("east").scores(east.test[0]).argmax(dim=1).numpy() == east.test[1]).mean()
    )
    bits = run.total().fraction_bits
    assert run.statistics("east") == GridStatistics.from_data(lift(east.train[0]), east.train[1], 3, fraction_bits=bits)
    assert all(check.problem is None for check in verify(run))
    life.personalize(run, {"east": east})
    life.forget(Run.open(run.path), "east")
    assert contents(run.path, EXACT) == before


def test_rows_of_another_width_are_refused_by_name(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", lift=settings("relu"))
    narrow = Client("east", (np.ones((3, 5)), np.zeros(3, np.int64)), (np.ones((0, 5)), np.zeros(0, np.int64)))
    with pytest.raises(InputError, match=r"client 'east': features have shape \(3, 5\).*backbone of the run"):
        life.join(run, narrow)


@kinds
def test_the_exchange_is_counted_for_every_method(tmp_path: Path, kind: LiftKind) -> None:
    methods = ("local", "global", "fedhip", "fedncm")
    lifted, plain = (
        make_run(tmp_path / name, methods=methods, lift=lift).results
        for name, lift in (("lifted", settings(kind)), ("plain", None))
    )
    first = exchange_bytes(kind, WIDTH)
    assert lifted["methods"]["fedhip"]["upload_bytes_per_client"] == first + upload_bytes(LIFTED, 3) + 8 * 48
    assert lifted["methods"]["local"]["upload_bytes_per_client"] == first
    assert lifted["lift"] == {
        "kind": kind, "width": LIFTED, "seed": 3, "bandwidth": 1.0, "from": WIDTH,
        "upload_bytes_per_client": first, "download_bytes_per_client": first,
    }  # fmt: skip
    assert "lift" not in plain
    assert lifted["feature_dim"] == LIFTED
    for method in methods:
        assert lifted["methods"][method]["rounds"] == plain["methods"][method]["rounds"]


@kinds
def test_a_file_gives_the_lift_back_and_every_part_of_it_is_in_the_digest(tmp_path: Path, kind: LiftKind) -> None:
    model = make_run(tmp_path / "run", lift=settings(kind)).model("north")
    model.to_file(tmp_path / "m.safetensors")
    again, lift = Model.from_file(tmp_path / "m.safetensors"), model.lift
    new = np.random.default_rng(5).normal(size=(9, WIDTH))
    assert lift is not None
    assert torch.equal(model.scores(new), again.scores(new))
    size = (tmp_path / "m.safetensors").stat().st_size
    assert size < 8 * (LIFTED * 3 + 2 * WIDTH + (WIDTH * (WIDTH + 1) // 2)) + 2500  # no projection, no landmarks
    moved = replace(lift.standardization, mean=lift.standardization.mean + 1e-9)
    changes: list[dict[str, Any]] = [{"seed": 4}, {"bandwidth": 2.0}, {"standardization": moved}]
    if lift.covariance is not None:
        changes.append({"covariance": lift.covariance + 1e-9})
    others = [replace(model, lift=replace(lift, **change)) for change in changes]
    assert len({other.digest() for other in (model, *others, replace(model, lift=None))}) == len(changes) + 2


@kinds
def test_an_exported_model_takes_raw_features(tmp_path: Path, kind: LiftKind) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = {} if kind == "relu" else {"bandwidth": 0.7}
    model = make_run(tmp_path / "run", lift=settings(kind, **options)).model("south")
    exported = export_onnx(model, tmp_path / "m.onnx", head_only=True)
    assert exported.input_shape == (WIDTH,)
    new = np.random.default_rng(5).normal(size=(9, WIDTH)).astype(np.float32)
    scores = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(["scores"], {"features": new})[0]
    assert relative_error(scores, model.scores(new)) < 1e-5


def test_the_command_says_what_it_costs_and_repeats_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = feature_file(tmp_path / "f.npz")
    done("run", "--features", file, "--lift", "fourier", "--lift-budget", "0.01", "--out", tmp_path / "run")
    told = capsys.readouterr()
    run = Run.open(tmp_path / "run")
    sent, width = run.results["methods"]["fedhip"]["upload_bytes_per_client"], run.results["lift"]["width"]
    assert sent <= 10_000 < exchange_bytes("fourier", WIDTH) + upload_bytes(width + 1, 3) + 8 * 48
    assert f"from 8 features to {width}: one exchange more, in which each client sends 0.00334 MB" in told.err
    assert "its first sum takes one more exchange" in told.out
    done("run", tmp_path / "run" / "config.toml", "--out", tmp_path / "again")
    assert contents(tmp_path / "again", EXACT) == contents(tmp_path / "run", EXACT)
    capsys.readouterr()
    done("predict", tmp_path / "run", "--features", file, "--client", "north", "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    expected = run.model("north").scores(feature_set().features)
    assert [row["scores"] for row in rows] == expected.tolist()
    done("forget", tmp_path / "run", "--client", "south")
    assert "the lift was drawn by a sum with its rows in it" in capsys.readouterr().out


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("run", "--features", feature_file(tmp_path / "f.npz"), "--out", tmp_path / "run")
    assert "--lift-seed needs a lift" in refused(capsys, *command, "--lift-seed", "1")
    lifted = (*command, "--lift", "relu")
    assert "give one of them" in refused(capsys, *lifted, "--lift-width", "9", "--lift-budget", "1")
    assert "no bandwidth" in refused(capsys, *lifted, "--lift-bandwidth", "1")
    assert "width is 0" in refused(capsys, *lifted, "--lift-width", "0")
    assert "seed is -1" in refused(capsys, *lifted, "--lift-seed", "-1")
    assert "hold the first sum" in refused(capsys, *lifted, "--lift-budget", "0.0001")
    assert "bandwidth is 0.0" in refused(capsys, *command, "--lift", "fourier", "--lift-bandwidth", "0")
    (tmp_path / "meminfo").write_text("MemAvailable: 1024 kB\n")
    monkeypatch.setattr(lifting, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(lifting, "available_cores", lambda: 1)
    assert "width 126 fits" in refused(capsys, *lifted, "--lift-width", "4096")
    assert not (tmp_path / "run").exists()


def test_a_cell_of_a_lift_is_another_and_counts_its_exchange(tmp_path: Path) -> None:
    plain = Source("sites", feature_set())
    lifted = replace(plain, lift=settings("relu").plan(WIDTH, len(CLASSES)))
    bench = Bench((plain, lifted), Settings(("fedhip",)), Store(tmp_path))
    one, other = (method_cell(bench, source, "fedhip", "paper", 3, 1.0, 0) for source in (plain, lifted))
    assert set(other.full_key) - set(one.full_key) == {"lift"}
    assert one.stem != other.stem
    found = bench.result(other)
    survey = 8 * (52 * LIFTED + 1)  # studies survey lifted columns as they do all others
    sent = exchange_bytes("relu", WIDTH) + survey + upload_bytes(LIFTED, 3)
    assert found["upload"] == found["history"][0][3] == sent


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
@kinds
def test_the_estimator_lifts_all_rows_by_the_sum_over_its_clients(
    kind: LiftKind, standardize: bool, intercept: bool
) -> None:
    F, y, whose = all_training_rows()
    new = np.random.default_rng(5).normal(size=(9, WIDTH))
    options: dict[str, Any] = {"standardize": standardize, "fit_intercept": intercept}

    def fresh() -> FedHiPClassifier:
        return FedHiPClassifier(alpha=2.0, beta=0.5, lift=kind, lift_width=LIFTED, lift_seed=3, **options)

    fitted = fresh().fit(F, y, groups=whose)
    assert fitted.lift_ is not None
    expected = ridge_of_lifted(fitted.lift_, np.where(whose == "west", 3.0, 1.0), new, **options)
    assert relative_error(fitted.decision_function(new, groups=["west"] * 9), expected) < 1e-3
    first = whose != "west"
    in_parts = fresh().fit(F[first], y[first], groups=whose[first]).partial_fit(F[~first], y[~first], whose[~first])
    assert np.array_equal(in_parts.decision_function(new), fitted.decision_function(new))
    without = fresh().fit(F[first], y[first], groups=whose[first])
    assert np.array_equal(fitted.forget("west").decision_function(new), without.decision_function(new))


def test_lifted_rows_lie_on_the_grid_as_they_are_summed(tmp_path: Path) -> None:
    """What the server sums are the rounded lifted rows, exactly."""
    run = make_run(tmp_path / "run", lift=settings("relu"))
    assert run.lift is not None
    total = run.total()
    bits = total.fraction_bits
    rounded = round_features(run.lift(all_training_rows()[0]), bits).numpy()
    assert np.array_equal(total.gram.numpy() * 2.0**-bits, rounded.T @ rounded)
