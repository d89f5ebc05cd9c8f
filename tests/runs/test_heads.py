"""Runs whose models are of another head: their files, their life, and what they never look at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.preprocessing import StandardScaler

from fedhip.core.logistic.fit import LogisticFit
from fedhip.core.statistics import Statistics
from fedhip.data import FeatureSet, make_partition
from fedhip.errors import FileError, InputError
from fedhip.heads import HEADS
from fedhip.heads.model import Model
from fedhip.runs import Change, Run, life, verify
from fedhip.runs.round.settings import RoundSettings
from fedhip.runs.run import run_round
from fedhip.simulation.client import Client
from tests.core.problems import Array
from tests.runs.samples import CLASSES, EXACT, NAMES, contents, feature_set, one_grid, rows_of, the_client

ROWS = 30
BEYOND = ("lda", "logistic")
heads = pytest.mark.parametrize("head", HEADS)
beyond = pytest.mark.parametrize("head", BEYOND)
priors = pytest.mark.parametrize("prior", ["none", "client"])


def make(
    path: Path,
    data: FeatureSet | tuple[str, ...] = NAMES,
    *,
    head: str,
    prior: Any = "none",
    only_local_classes: bool = False,
    beta: Any = "auto",
    paper: bool = False,
    **options: Any,
) -> Run:
    data = data if isinstance(data, FeatureSet) else feature_set(data, ROWS)
    settings = RoundSettings(
        head=head, prior=prior, only_local_classes=only_local_classes, head_options=options, ridge=one_grid(),
        methods=("local", "global", "fedhip"), beta=beta,
    )  # fmt: skip
    if paper:
        settings = replace(settings, ridge=replace(settings.ridge, standardize=False, intercept=False))
    config: dict[str, Any] = {"alpha": "loo", "beta": beta, "seed": 0, "prior": prior}
    config |= {"only_local_classes": only_local_classes, "head_options": [f"{k}={v!r}" for k, v in options.items()]}
    partition = make_partition(data.labels, "natural", clients=data.clients)
    return run_round(path, data, partition, settings, title="sites", config=config)[0]


def everyone(*names: str) -> dict[str, Client]:
    return {name: the_client(name, ROWS) for name in names}


def rows_for(head: str, *names: str) -> dict[str, Client]:
    """What a change of the sum needs."""
    return everyone(*names) if HEADS[head].needs_rows else {}


def forget(path: Path, client: str, rows: Mapping[str, Client]) -> Change:
    return life.forget(Run.open(path), client, rows=rows)


def personalize(path: Path, *names: str) -> Change:
    return life.personalize(Run.open(path), everyone(*names))


def problems(path: Path) -> list[str]:
    return [check.problem for check in verify(Run.open(path)) if check.problem is not None]


def pooled(*names: str) -> tuple[Array, Array]:
    parts = [the_client(name, ROWS).train for name in names]
    return np.concatenate([F for F, _ in parts]), np.concatenate([y for _, y in parts])


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_global_model_of_lda_is_scikit_learns_on_raw_features(tmp_path: Path) -> None:
    run = make(tmp_path / "run", head="lda", shrinkage=0.1)
    F, y = pooled(*NAMES)
    scaler = StandardScaler().fit(F)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1).fit(scaler.transform(F), y)
    expected = theirs.decision_function(scaler.transform(F))
    model = run.model(None)
    assert np.abs(model.scores(F).numpy() - expected).max() <= 1e-4 * np.abs(expected).max()  # features are rounded
    assert (model.head, model.beta, dict(model.settings)) == ("lda", None, {"shrinkage": 0.1})


@beyond
def test_a_model_says_its_head_and_reads_back(tmp_path: Path, head: str) -> None:
    run = make(tmp_path / "run", head=head)
    assert run.results["head"] == head
    assert run.results["settings"] == dict(run.model(None).settings)
    for client in (None, *run.clients):
        model = run.model(client)
        assert model.head == head
        assert model.intercept is not None
        model.to_file(tmp_path / "again.safetensors")
        again = Model.from_file(tmp_path / "again.safetensors")
        assert again.digest() == model.digest()
        F = rows_of("somebody")[0]
        assert torch.equal(again.affine.scores(F), model.affine.scores(F))
    with safe_open(str(tmp_path / "again.safetensors"), framework="pt") as file:
        assert file.metadata()["schema"] == "2"


def test_the_file_of_a_ridge_is_of_the_first_schema_and_names_no_head(tmp_path: Path) -> None:
    run = make(tmp_path / "run", head="ridge", paper=True)
    with safe_open(str(run.path / "models" / "north.safetensors"), framework="pt") as file:
        metadata = file.metadata()
        assert metadata["schema"] == "1"
        assert set(file.keys()) == {"weights", "local_classes"}
    with_intercept = make(tmp_path / "other", head="ridge")
    with safe_open(str(with_intercept.path / "models" / "north.safetensors"), framework="pt") as file:
        assert file.metadata()["schema"] == "2"
        assert set(file.keys()) == {"weights", "local_classes", "intercept"}
    assert not {"head", "settings"} & json.loads(metadata["model"]).keys()
    assert not {"head", "settings"} & run.results.keys()


def test_an_intercept_is_part_of_the_digest(tmp_path: Path) -> None:
    model = make(tmp_path / "run", head="lda").model(None)
    assert model.intercept is not None
    assert replace(model, intercept=model.intercept + 1.0).digest() != model.digest()


@beyond
def test_models_of_another_head_are_refused(tmp_path: Path, head: str) -> None:
    run, ridge = make(tmp_path / "run", head=head), make(tmp_path / "ridge", head="ridge")
    (run.path / "global.safetensors").write_bytes((ridge.path / "global.safetensors").read_bytes())
    with pytest.raises(FileError, match=f"is of the head 'ridge', and the run's is '{head}'; restore it"):
        Run.open(run.path).model(None)


def test_a_head_that_nobody_knows_is_of_another_version(tmp_path: Path) -> None:
    run = make(tmp_path / "run", head="lda")
    (run.path / "results.json").write_text(json.dumps({**run.results, "head": "oracle"}))
    with pytest.raises(FileError, match=r"a head 'oracle'.*knows ridge, lda, logistic"):
        Run.open(run.path)


@heads
@priors
@pytest.mark.sampled(4)
def test_models_answer_as_they_were_tested(tmp_path: Path, head: str, prior: str) -> None:
    run = make(tmp_path / "run", head=head, prior=prior)
    entries = run.results["methods"][HEADS[head].method]["per_client"]
    for entry in entries:
        F, y = the_client(entry["client"], ROWS).test
        scores = run.model(entry["client"]).scores(F).numpy()
        assert (scores.argmax(axis=1) == y).mean() == pytest.approx(entry["accuracy"], abs=1e-12)
        chances = run.model(entry["client"]).probabilities(F).numpy()
        np.testing.assert_allclose(chances.sum(axis=1), 1.0)
        assert entry["alpha"] == run.model(entry["client"]).alpha


# --- no test row ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [*HEADS])
@priors
@pytest.mark.sampled(4)
def test_other_test_labels_change_no_model_file_and_nothing_that_was_chosen(
    tmp_path: Path, head: str, prior: str
) -> None:
    data = feature_set(NAMES, ROWS)
    split = np.tile(np.arange(ROWS) % 5 == 4, len(NAMES)).astype(np.int8)
    shuffled = np.where(split == 1, np.roll(data.labels, 7), data.labels)
    assert (shuffled != data.labels).any()
    one = make(tmp_path / "one", replace(data, split=split), head=head, prior=prior)
    other = make(tmp_path / "other", replace(data, labels=shuffled, split=split), head=head, prior=prior)
    assert contents(one.path, EXACT) == contents(other.path, EXACT)
    assert one.details["temperature"] == other.details["temperature"]
    assert one.results.get("choice") == other.results.get("choice")
    assert ("choice" in one.results) == (head == "auto")
    for name in NAMES:
        first, second = (run.details["clients"][name] for run in (one, other))
        for key in ("alpha", "priors", "loo_accuracy", "loo_chosen", "log_losses", "global_log_losses"):
            assert first[key] == second[key], key
    assert one.results["methods"] != other.results["methods"]


# --- life -------------------------------------------------------------------------------------------------------------


def test_forgetting_leaves_the_lda_of_a_run_without_the_client(tmp_path: Path) -> None:
    """Sums to the bit; models, of the α that everybody has, to rounding, and here to the bit too."""
    make(tmp_path / "run", head="lda")
    never = make(tmp_path / "never", NAMES[:2], head="lda")
    change = forget(tmp_path / "run", "west", {})
    run = Run.open(tmp_path / "run")
    assert change.stale is not None
    assert run.total().digest() == never.total().digest()
    assert run.model_digest(None) == never.model_digest(None)
    for name in NAMES[:2]:
        assert run.statistics(name).digest() == never.statistics(name).digest()
        if run.model(name).alpha == never.model(name).alpha:
            mine, theirs = run.model(name).affine, never.model(name).affine
            assert float((mine.weights - theirs.weights).abs().max()) <= 1e-9 * float(theirs.weights.abs().max())
    assert problems(run.path) == []


@heads
@pytest.mark.parametrize("only_local", [False, True], ids=["all classes", "only local classes"])
@priors
@pytest.mark.sampled(4)
def test_forget_then_personalize_equals_never_joined_bit_exact(
    tmp_path: Path, head: str, only_local: bool, prior: str
) -> None:
    options: dict[str, Any] = {"head": head, "only_local_classes": only_local, "prior": prior}
    make(tmp_path / "run", **options)
    never = make(tmp_path / "never", NAMES[:2], **options)
    forget(tmp_path / "run", "west", rows_for(head, *NAMES))
    change = personalize(tmp_path / "run", *NAMES[:2])
    again = Run.open(tmp_path / "run")
    assert contents(again.path, EXACT) == contents(never.path, EXACT)
    for name in NAMES[:2]:
        mine, theirs = (run.details["clients"][name] for run in (again, never))
        kept = ("fedhip",) if head != "ridge" else ()  # a row of the table that nobody ran again
        for each in (mine, theirs):
            each["priors"] = {method: prior for method, prior in each["priors"].items() if method not in kept}
        assert mine == theirs
    assert again.details["temperature"] == never.details["temperature"]
    method = HEADS[head].method
    for name in ("local", "global", method):
        mine, theirs = (run.results["methods"][name]["per_client"] for run in (again, never))
        assert mine == theirs
    assert change.stale is None
    assert problems(again.path) == []


@pytest.mark.parametrize("event", ["forget", "join", "personalize"])
@pytest.mark.sampled(3)
def test_what_candidates_reached_goes_with_the_rows_it_counts(tmp_path: Path, event: str) -> None:
    run = make(tmp_path / "run", head="auto")
    assert run.results["choice"]["rows"] == 72
    chosen = run.results["choice"]["model"]
    if event == "forget":
        forget(run.path, "west", {})
    elif event == "join":
        life.join(run, the_client("east", ROWS), rows={})
    else:
        personalize(run.path, *NAMES)
    assert Run.open(run.path).results["choice"] == {"features": "as they are", "model": chosen, "head": "auto"}


@heads
@pytest.mark.sampled(2)
def test_join_then_forget_restores_the_sum_and_the_models(tmp_path: Path, head: str) -> None:
    run = make(tmp_path / "run", head=head)
    before, models = run.total().digest(), [run.model(name) for name in (None, *NAMES)]
    east = the_client("east", ROWS)
    change = life.join(run, east, rows=rows_for(head, *NAMES))
    joined = Run.open(run.path)
    assert joined.clients == [*NAMES, "east"]
    assert problems(run.path) == []
    assert (change.rounds > 0) == HEADS[head].needs_rows
    forget(run.path, "east", rows_for(head, *NAMES, "east"))
    restored = Run.open(run.path)
    assert restored.total().digest() == before
    for name, model in zip((None, *NAMES), models, strict=True):
        close = 1e-9 if not HEADS[head].needs_rows else 0.1  # five gradients before, and the optimum now
        mine = restored.model(name)
        if mine.alpha == model.alpha:
            assert float((mine.weights - model.weights).norm()) <= close * float(model.weights.norm())


@heads
@pytest.mark.sampled(2)
def test_update_equals_a_run_with_all_rows(tmp_path: Path, head: str) -> None:
    F, y = rows_of("north", 8, 5)
    more = Client("north", (F, y), (F[:0], y[:0]))
    run = make(tmp_path / "run", head=head, beta="gcv")  # from the sum, so that it follows
    life.update(run, more, rows=rows_for(head, *NAMES))
    data = feature_set(NAMES, ROWS)
    split = np.concatenate([_split(name) for name in NAMES])
    names = np.array([*np.repeat(NAMES, ROWS).tolist(), *["north"] * 8])
    together = FeatureSet(
        np.concatenate((data.features, F)), np.concatenate((data.labels, y)), CLASSES, clients=names,
        split=np.concatenate((split, np.zeros(8, dtype=np.int64))),
    )  # fmt: skip
    kept = Run.open(run.path).model(None).settings if head == "logistic" else {}
    fixed: dict[str, Any] = {name: kept[name] for name in ("penalty", "temperature") if name in kept}
    if fixed:
        fixed["gradient_rounds"] = 60
    always = make(tmp_path / "always", together, head=head, beta="gcv", **fixed)
    if head == "auto":  # what everybody takes stays until everybody chooses again
        before = run.model(None).settings
        assert {name: Run.open(run.path).model(None).settings[name] for name in ("global", "lda")} == {
            name: before[name] for name in ("global", "lda")
        }
        rows = everyone(*NAMES)
        north = rows["north"]
        train = np.concatenate((north.train[0], F)), np.concatenate((north.train[1], y))
        life.personalize(Run.open(run.path), {**rows, "north": replace(north, train=train)})
    updated = Run.open(run.path)
    assert updated.total().digest() == always.total().digest()
    mine, theirs = updated.model(None), always.model(None)
    tolerance = 1e-4 if head == "logistic" else 1e-12
    assert float((mine.weights - theirs.weights).norm()) <= tolerance * float(theirs.weights.norm())
    assert problems(run.path) == []


def _split(name: str) -> Array:
    """Which rows the run tests on, as it would say itself."""
    data, client = feature_set([name], ROWS), the_client(name, ROWS)
    test = {row.tobytes() for row in client.test[0]}
    return np.array([int(row.tobytes() in test) for row in data.features])


# --- the logistic head's rounds ---------------------------------------------------------------------------------------


def objective(model: Model, names: tuple[str, ...]) -> float:
    """Cross-entropy of all rows and the penalty, of a model on raw features: computed in NumPy, without rounding."""
    F, y = pooled(*names)
    fit = LogisticFit.of(Statistics.from_data(F, y, len(CLASSES)), temperature=model.settings["temperature"])
    scores = model.affine.scores(F).numpy()
    scores -= scores.max(axis=1, keepdims=True)
    loss = float((np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]).sum())
    away = (model.affine.on_standardized(fit.standardization) - fit.centre).numpy()
    metric = np.eye(len(away)) * 0.01
    metric[:-1, :-1] = fit.discriminant.covariance.numpy()
    return loss + 0.5 * model.settings["penalty"] * float((away * (metric @ away)).sum())


@pytest.mark.parametrize("event", ["forget", "join"])
@pytest.mark.parametrize("penalty", [2.0, 40.0])
@pytest.mark.sampled(4)
def test_a_warm_restart_reaches_the_optimum_of_those_present(tmp_path: Path, event: str, penalty: float) -> None:
    """The same objective, within 1e-6, as rounds from scratch over those who are present."""
    fixed: dict[str, Any] = {"penalty": penalty, "temperature": 2.0}
    run = make(tmp_path / "run", head="logistic", **fixed)
    before = run.model(None)
    if event == "forget":
        forget(run.path, "west", everyone(*NAMES))
        present: tuple[str, ...] = NAMES[:2]
    else:
        life.join(run, the_client("east", ROWS), rows=everyone(*NAMES))
        present = (*NAMES, "east")
    fresh = make(tmp_path / "fresh", present, head="logistic", gradient_rounds=60, **fixed)
    changed = Run.open(run.path)
    assert changed.total().digest() == fresh.total().digest()
    mine, theirs = objective(changed.model(None), present), objective(fresh.model(None), present)
    assert mine == pytest.approx(theirs, rel=1e-6)
    assert objective(before, present) > theirs * (1 + 1e-6)  # the head that was there was not it


def test_a_warm_restart_keeps_penalty_and_temperature(tmp_path: Path) -> None:
    run = make(tmp_path / "run", head="logistic")
    before = run.model(None).settings
    forget(run.path, "west", everyone(*NAMES))
    after = Run.open(run.path).model(None).settings
    assert {name: before[name] for name in ("penalty", "temperature")} == {
        name: after[name] for name in ("penalty", "temperature")
    }


@pytest.mark.parametrize("without", [(), ("south",)], ids=["nobody's rows", "one client's missing"])
def test_rounds_without_somebodys_rows_are_refused_with_the_remedy(tmp_path: Path, without: tuple[str, ...]) -> None:
    run = make(tmp_path / "run", head="logistic")
    before = contents(run.path)
    rows = {} if not without else everyone(*(name for name in NAMES if name not in without))
    who = "'south'" if without else "'north', 'south'"
    with pytest.raises(InputError, match=f"rows of {who} are not in the run's own data; give them with --rows"):
        forget(run.path, "west", rows)
    assert contents(run.path) == before


def test_rows_that_are_not_the_clients_count_as_missing(tmp_path: Path) -> None:
    run = make(tmp_path / "run", head="logistic")
    wrong = everyone(*NAMES)
    F, y = wrong["south"].train
    wrong["south"] = replace(wrong["south"], train=(F + 1.0, y))
    with pytest.raises(InputError, match="'south'"):
        forget(run.path, "west", wrong)


def test_one_client_of_a_logistic_run_chooses_again_and_the_others_keep_their_bytes(tmp_path: Path) -> None:
    run = make(tmp_path / "run", head="logistic", prior="client")
    before = contents(run.path, EXACT)
    change = personalize(run.path, "south")
    assert change.rounds == 0
    assert contents(run.path, EXACT) == before
    assert problems(run.path) == []


def test_verify_finds_a_logistic_model_that_is_not_the_federations(tmp_path: Path) -> None:
    """Of a client with α = 0; one with a step of its own is held to the ledger's digest alone."""
    run = make(tmp_path / "run", head="logistic", alpha=0.0)
    model = Model.from_file(run.path / "models" / "north.safetensors")
    replace(model, weights=model.weights * 1.001).to_file(run.path / "models" / "north.safetensors")
    assert any("is not the solution of its equations" in problem for problem in problems(run.path))


def test_verify_finds_an_lda_with_another_intercept(tmp_path: Path) -> None:
    run = make(tmp_path / "run", head="lda")
    model = Model.from_file(run.path / "global.safetensors")
    assert model.intercept is not None
    moved = model.intercept + torch.tensor([0.0, 1e-6, 0.0])
    replace(model, intercept=moved).to_file(run.path / "global.safetensors")
    assert any("is not the solution of its equations" in problem for problem in problems(run.path))


# --- bad input --------------------------------------------------------------------------------------------------------


def with_odd_clients() -> FeatureSet:
    """One client of a single row, one of a single class, and a class that nobody has."""
    data = feature_set(NAMES, ROWS)
    F, y = rows_of("odd", 12, 3)
    names = np.array(["single"] + ["one class"] * 11)
    labels = np.where(names == "single", y, 1)
    split = np.concatenate((np.tile(np.arange(ROWS) % 5 == 4, len(NAMES)), np.zeros(12))).astype(np.int64)
    return FeatureSet(
        np.concatenate((data.features, F)), np.concatenate((data.labels, labels)), (*CLASSES, "dodo"),
        clients=np.concatenate((data.clients, names)), split=split,  # type: ignore[arg-type]
    )  # fmt: skip


@heads
@priors
@pytest.mark.sampled(4)
def test_clients_of_one_row_or_one_class_and_a_class_that_nobody_has(tmp_path: Path, head: str, prior: str) -> None:
    run = make(tmp_path / "run", with_odd_clients(), head=head, prior=prior)
    F = rows_of("somebody", 50)[0]
    for client in (None, *run.clients):
        scores, chances = run.model(client).scores(F), run.model(client).probabilities(F)
        assert not bool(scores.isnan().any())
        assert bool(chances.isfinite().all())
        if head != "ridge":  # whose score of it is 0, which may be the highest
            assert not bool((scores.argmax(dim=1) == 3).any())  # nobody has seen a dodo
    assert problems(run.path) == []
    if not HEADS[head].needs_rows:
        forget(run.path, "single", {})
        assert problems(run.path) == []


def test_separable_rows_without_a_penalty_are_refused_with_the_remedy(tmp_path: Path) -> None:
    data = feature_set(NAMES, ROWS)
    far = replace(data, features=data.features + 20.0 * np.eye(len(CLASSES), data.features.shape[1])[data.labels])
    with pytest.raises(InputError, match="without a penalty the weights grow for ever; give a penalty above 0"):
        make(tmp_path / "run", far, head="logistic", penalty=0.0, gradient_rounds=40)
    assert not (tmp_path / "run").exists()
