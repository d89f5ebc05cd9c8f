"""Models chosen on training rows: what they are made of, what is said of them, and who takes which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as TheirRidge
from sklearn.preprocessing import StandardScaler

from fedhip.core.choice.prior import NO_CHOICE
from fedhip.errors import ColumnWarning
from fedhip.features.lifts.kinds import COMPETING_BITS, NARROW
from fedhip.heads import Auto, Lda
from fedhip.heads.choice import PLAIN, choose, describe, in_words
from fedhip.heads.lda import LdaFit
from fedhip.heads.model import Model
from fedhip.heads.round import run_head
from fedhip.heads.task import Task
from fedhip.runs.models import global_model
from fedhip.simulation.client import Client
from fedhip.simulation.lifting import LiftSettings, lift_clients, lifted_grid
from fedhip.simulation.personalization import Personalization
from fedhip.utils.candidates import (
    CANDIDATES,
    KNOWN,
    WIDE,
    WIDE_CANDIDATES,
    corners,
    for_anybody,
    name_of,
    presumed,
    widened,
)
from tests.core.problems import Array
from tests.methods.problems import CLASSES, federation


def personal(clients: list[Client], classes: int = CLASSES, **asked: Any) -> dict[str, Personalization]:
    """Every client's model, chosen."""
    found = run_head(Auto, Task(clients, classes, prior="client", **asked))
    return {result.client: result.personal for result in found.clients if result.personal is not None}


def client_of(name: str, F: Array, y: Array, test: int = 40) -> Client:
    return Client(name, (F[test:], y[test:]), (F[:test], y[:test]))


def test_a_model_is_the_sum_of_its_members_over_their_temperatures() -> None:
    """The ridges by scikit-learn, of all rows with the client's weighed 1 + α, and of its rows alone."""
    clients = federation((40, 50, 30, 60))
    task = Task(clients, CLASSES, prior="client")
    head = Auto.fit(Auto.federate(task), task)
    owns = head.personalize()
    F, y = (np.concatenate([client.train[part] for client in clients]) for part in (0, 1))
    Y = np.eye(CLASSES)[y]
    names = np.repeat([client.name for client in clients], [len(client.train[1]) for client in clients])
    fit = LdaFit(head.federation)
    for client in clients:
        statistics = head.statistics(client)
        X, own = client.test[0], client.train
        scaler, mine = StandardScaler().fit(F), StandardScaler().fit(own[0])
        weights = np.where(names == client.name, 4.0, 1.0)
        ridge = TheirRidge(head.federation.beta).fit(scaler.transform(F), Y, weights)
        common = TheirRidge(head.federation.beta).fit(scaler.transform(F), Y)
        alone = TheirRidge(7.0).fit(mine.transform(own[0]), np.eye(CLASSES)[own[1]])
        members = {
            "ridge": ridge.predict(scaler.transform(X)),
            "global": common.predict(scaler.transform(X)),
            "lda": fit.personal_affine(statistics).scores(X).numpy(),
            "alone": alone.predict(mine.transform(X)),
        }
        for at, of in enumerate(CANDIDATES[:-1]):
            made = {name: float(name in of) for name in ("ridge", "global", "lda", "alone", "majority")}
            settings = {**owns[client.name][0].choice.settings, **made, "means": 1.0, "penalty": 7.0}  # type: ignore[union-attr]
            model = head.refit(client.name, statistics, 3.0, lambda s=settings: _Holds(s))  # type: ignore[misc, arg-type]
            expected = sum(members[name] / settings[f"{name}_temperature"] for name in of)
            found = model.scores(X).numpy()
            assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max(), name_of(at)


class _Holds:
    """A model of which nothing but what it is made of is asked."""

    def __init__(self, settings: dict[str, float]) -> None:
        self.settings = settings


def test_the_most_frequent_class_is_a_model_too() -> None:
    clients = federation((40, 50))
    task = Task(clients, CLASSES)
    head = Auto.fit(Auto.federate(task), task)
    head.personalize()
    for client in clients:
        model = head.refit(client.name, head.statistics(client), 0.0, lambda: _Holds({"majority": 1.0}))  # type: ignore[arg-type, return-value]
        counts = np.bincount(client.train[1], minlength=CLASSES)
        assert (model.scores(client.test[0]).argmax(dim=1).numpy() == counts.argmax()).all()


def test_rows_right_are_those_of_refits_without_the_row_and_its_folds_choices() -> None:
    """LDA without priors: its means are chosen by the rows of other folds, and the row is in nothing."""
    clients = federation((25, 40))
    task = Task(clients, CLASSES, prior="none")
    head = Auto.fit(Auto.federate(task), task)
    owns = head.personalize()
    lda = Lda.fit(head.federation, replace(task, options={}))
    for client in clients:
        choice = lda._choices(clients)[client.name]
        y = torch.tensor(client.train[1])
        right = sum(int(choice.fold_scores[row % 5][row].argmax() == y[row]) for row in range(len(y)))
        made = owns[client.name][0].choice
        assert made is not None
        assert made.right["lda"] == right
        left = [np.delete(client.train[1], row) for row in range(len(y))]
        counts = [np.bincount(rest, minlength=CLASSES).argmax() for rest in left]
        assert made.right["majority"] == int((np.array(counts) == client.train[1]).sum())


@pytest.mark.slow
def test_on_noise_nothing_is_expected_beyond_chance() -> None:
    """Eight candidates, 130 priors of each, 29 α, 15 penalties: against the mean of all candidates, up to 3 points.

    By the rows that everything was chosen on, it would be six; those that decide have seen the row in their models.
    """
    gaps = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        clients = []
        for k in range(8):
            F, y = rng.normal(size=(25, 6)), rng.integers(0, 4, 25)
            clients.append(Client(f"{k}", (F, y), (F[:0], y[:0])))
        found = personal(clients, 4).values()
        plain = np.mean([list(own.choice.right.values()) for own in found if own.choice is not None]) / 25
        gaps.append(float(np.mean([own.estimate or 0.0 for own in found])) - float(plain))
    assert abs(np.mean(gaps)) <= 0.03, gaps


def sees_otherwise(seed: int = 0) -> list[Client]:
    """Five clients that agree, and one for which every class looks like the next one."""
    rng = np.random.default_rng(seed)
    means = 3.0 * rng.normal(size=(4, 6))
    clients = []
    for k in range(6):
        y = rng.integers(0, 4, 200)
        seen = (y + 1) % 4 if k == 5 else y
        clients.append(client_of(f"client-{k}", means[seen] + rng.normal(size=(200, 6)), y))
    return clients


def test_a_client_that_is_like_nobody_is_not_worse_than_alone() -> None:
    found = run_head(Auto, Task(sees_otherwise(), 4, prior="client"))
    other = found.clients[-1]
    assert other.personal is not None
    assert other.personal.choice is not None
    assert {"alone", "ridge"} & set(other.personal.choice.name.split("+")), "the global ridge is no help to it"
    assert other.accuracy["auto"] is not None
    assert other.accuracy["auto"] > 0.95
    assert min(result.accuracy["auto"] or 0.0 for result in found.clients) > 0.9


def test_a_client_of_one_row_takes_the_federations_model() -> None:
    clients = federation((1, 50, 60))
    task = Task(clients, CLASSES, prior="none")
    head = Auto.fit(Auto.federate(task), task)
    own, _ = head.personalize()["client-0"]
    assert own.choice is not None
    assert set(own.choice.name.split("+")) <= {"global", "lda"}
    if own.choice.settings.get("means", 0.0) == 0.0:
        assert torch.equal(own.model.weights, head.common.weights)
    assert head.unjudged == ["client-0"]
    told = choose(task, wider=False).to_dict()
    assert told["unjudged"] == ["client-0"]
    assert "Client client-0 with a single training row got the federation's model" in describe(told)
    assert "unjudged" not in choose(Task(clients[1:], CLASSES), wider=False).to_dict()


def test_rows_of_one_group_are_nothing_to_judge_by() -> None:
    first, *others = federation((6, 50, 60))
    task = Task([replace(first, groups=np.zeros(6, np.int64)), *others], CLASSES)
    head = Auto.fit(Auto.federate(task), task)
    own, _ = head.personalize()["client-0"]
    assert own.choice is not None
    assert set(own.choice.name.split("+")) <= {"global", "lda"}
    assert head.unjudged == ["client-0"]


@pytest.mark.filterwarnings("ignore:the equations are singular:fedhip.errors.NumericalWarning")
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.sampled(3)
def test_features_that_say_nothing_are_no_error(width: int) -> None:
    """Members are singular, of which one line may warn: all rows are the same point, or copies of one column."""
    rng = np.random.default_rng(0)
    for column in (np.ones((30, 1)), rng.normal(size=(30, 1))):
        F, clients = np.repeat(column, width, axis=1), []
        for k in range(3):
            y = rng.permutation(np.arange(30) % 3)
            clients.append(Client(f"{k}", (F, y), (F[:3], y[:3])))
        found = choose(Task(clients, 3, prior="client"))
        for own, _ in found.best.owns.values():
            assert bool(torch.isfinite(own.model.weights).all())
            assert bool(torch.isfinite(own.model.bias).all())
        assert describe(found.to_dict()).endswith(".")


@pytest.mark.parametrize(("groups", "kept"), [(False, 0), (True, 0), (False, 4)])
def test_however_the_others_are_divided_a_client_has_the_same_bits(groups: bool, kept: int) -> None:
    """Theorem 3, for given choices of the federation: the sum and a client's own rows decide its model."""
    first, *others = federation((40, 50, 30, 60))
    if groups:
        first = replace(first, groups=np.arange(40) // 2)
    F, y = (np.concatenate([client.train[part] for client in others]) for part in (0, 1))
    order = np.random.default_rng(0).permutation(len(y))
    parts = np.array_split(order, 7)
    again = [Client(f"other-{k}", (F[at], y[at]), (F[:0], y[:0])) for k, at in enumerate(parts)]
    # The last columns may be features that a lift keeps: here all are, and no lift is needed to say so.
    one, two = Task([first, *others], CLASSES, kept=kept), Task([first, *again], CLASSES, kept=kept)
    federation_of_one = Auto.federate(one)
    chosen = Auto.fit(federation_of_one, one)
    chosen.personalize()
    held = global_model(federation_of_one, tuple("abcd"), None, head=chosen)
    models = []
    for task in (one, two):
        # β is one of the federation's choices, too.
        summed = Auto.federate(replace(task, options={"beta": federation_of_one.beta}))
        head = Auto.fit(summed, replace(task, clients=[first]), held)
        own, _ = head.personalize({})[first.name]
        models.append((own, head))
    (a, head_a), (b, head_b) = models
    assert head_a.federation.digest == head_b.federation.digest
    assert a.choice == b.choice
    assert a.alpha == b.alpha
    assert torch.equal(a.model.weights, b.model.weights)
    assert torch.equal(a.model.bias, b.model.bias)
    assert torch.equal(head_a.common.weights, head_b.common.weights)


def test_alpha_that_is_given_is_used() -> None:
    task = Task(federation((40, 50)), CLASSES, {"alpha": 2.5})
    head = Auto.fit(Auto.federate(task), task)
    for own, _ in head.personalize().values():
        assert own.choice is not None
        assert own.alpha == (2.5 if "ridge" in own.choice.name.split("+") else 0.0)


# --- features, rounds -------------------------------------------------------------------------------------------------


def rings(clients: int = 4, rows: int = 120) -> list[Client]:
    """Two classes that no line parts: near the middle, and around it."""
    rng = np.random.default_rng(3)
    found = []
    for k in range(clients):
        y = rng.integers(0, 2, rows)
        angle, radius = rng.uniform(0, 2 * np.pi, rows), np.where(y == 1, 3.0, 1.0) + 0.3 * rng.normal(size=rows)
        F = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
        found.append(client_of(f"ring-{k}", F, y))
    return found


def test_where_no_line_parts_the_classes_a_lift_is_taken_and_said() -> None:
    found = choose(Task(rings(), 2, prior="client"))
    assert found.best.lift is not None
    assert found.best.plan is not None
    assert found.best.plan.width == 322, "no wider than there are training rows, and the two features beside it"
    stored = found.to_dict()
    assert stored["features"] == "nystroem-axes 320"
    assert "widened by nystroem-axes 320" in describe(stored)
    held_out = {entry["model"]: entry["held_out"] for entry in stored["candidates"]}
    assert held_out["lda+wide_lda"] > 0.95 > 0.8 > held_out["lda"]
    assert WIDE in stored["model"]
    assert found.traffic[1] == sum(each.traffic[1] for each in found.tried)
    assert choose(Task(rings(), 2, prior="client"), wider=False).best.lift is None


def test_a_row_far_out_changes_no_scale_and_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid's scale is known before the rows are: by how large they are it would be 2^-32 here."""
    monkeypatch.setattr("fedhip.heads.choice.COMPETING_WIDTH", 20)
    clients = rings()
    clients[0].train[0][0] = (2000.0, -3000.0)
    with pytest.warns(ColumnWarning, match="column 0 goes to 2000"):
        first = choose(Task(clients, 2, prior="client")).tried[0]
    assert first.head.task.clients[0].train[0].max() > 10.0
    grid = first.head.federation.grid
    assert grid.fraction_bits == COMPETING_BITS
    assert grid.num_samples == 320
    squares = grid.gram.diagonal()[-2:].double() * 2.0**-COMPETING_BITS
    torch.testing.assert_close(squares, torch.full_like(squares, 320 / 2), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("rows", [320, 319])
def test_a_lift_competes_up_to_as_many_rows_as_its_grid_has_room_for(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr("fedhip.heads.choice.COMPETING_ROWS", rows)
    assert (choose(Task(rings(), 2)).tried[0].lift is not None) == (rows == 320)


def test_where_a_line_parts_them_nobody_has_a_lift() -> None:
    """Candidates of the features alone were ahead: the models are of them as they came."""
    rng = np.random.default_rng(5)
    clients = []
    for k in range(3):
        F = rng.normal(size=(160, 12))
        clients.append(client_of(f"{k}", F, (F.sum(axis=1) > 0).astype(np.int64)))
    found = choose(Task(clients, 2, prior="client"))
    if found.best.lift is None:
        assert [each.features for each in found.tried] == ["nystroem-axes 360", PLAIN]
        assert found.best.head.federation.grid.num_features == 12
        assert found.to_dict()["features"] == PLAIN
        assert found.to_dict()["upload_bytes_per_client"] == found.tried[0].traffic[1]
    else:
        assert len(found.tried) == 1


def lifted(clients: list[Client], width: int = 20) -> Task:
    """A lift beside the features of these clients."""
    features = clients[0].train[0].shape[1]
    lift = LiftSettings("nystroem", width, keeps=True).plan(features, CLASSES).draw(clients)
    wide = lift_clients(lift, clients)
    return Task(wide, CLASSES, prior="client", ridge=lifted_grid(wide), kept=features)


def test_members_beside_a_lift_are_those_of_the_features_and_those_of_all_columns() -> None:
    """The same scores as two heads have, one of each; α, β, means and penalties given, units decide nothing."""
    clients = federation((40, 50, 30, 60))
    task = lifted(clients)
    head = Auto.fit(Auto.federate(task), task)
    head.personalize()
    plain = Task(clients, CLASSES, {"beta": head.settings["plain_beta"]})
    alone = Auto.fit(Auto.federate(plain), plain)
    wide = replace(task, kept=0, options={"beta": head.federation.beta}, uploads={})
    every = Auto.fit(Auto.federate(wide), wide)
    for client, came in zip(task.clients, clients, strict=True):
        statistics = head.statistics(client)
        for name in ("ridge", "global", "lda", "alone"):
            for prefix, other, of in (("", alone, came), (WIDE, every, client)):
                made = {"means": 1.0, "penalty": 7.0, "wide_means": 1.0, "wide_penalty": 7.0, "wide_alpha": 3.0}
                ones = {f"{each}_temperature": 1.0 for each in (name, WIDE + name)}
                found = head._solved(client.name, statistics, 3.0, {**ones, **made, prefix + name: 1.0})
                expected = other._solved(came.name, other.statistics(of), 3.0, {**ones, **made, name: 1.0})
                scores = expected.scores(of.test[0])
                gap = (found.scores(client.test[0]) - scores).abs().max()
                assert gap <= 2e-3 * scores.abs().max(), (name, prefix, float(gap))


def test_candidates_beside_a_lift() -> None:
    assert len(set(WIDE_CANDIDATES)) == len(WIDE_CANDIDATES) == 2 * len(CANDIDATES) - 1
    places = list(range(len(WIDE_CANDIDATES)))
    wide = "ridge+global+lda+wide_ridge+wide_global+wide_lda"
    assert name_of(presumed(WIDE_CANDIDATES, places), WIDE_CANDIDATES) == wide
    anybody = for_anybody(WIDE_CANDIDATES)
    assert name_of(presumed(WIDE_CANDIDATES, anybody), WIDE_CANDIDATES) == "global+lda+wide_global+wide_lda"
    assert name_of(presumed(CANDIDATES, range(len(CANDIDATES)))) == "ridge+global+lda"
    assert {name_of(at, WIDE_CANDIDATES) for at in corners(WIDE_CANDIDATES)} == {"ridge", "global", "alone", "majority"}
    assert in_words("ridge+lda+wide_ridge+wide_lda").endswith("LDA, on features and lift")


def test_what_earlier_versions_agreed_on_is_chosen_by_their_rule() -> None:
    """Their candidates are known, in their order; there the ridge and LDA together are presumed."""
    averages = ["ridge+lda", "global+lda", "ridge+alone", "global+alone", "lda+alone", "ridge+lda+alone"]
    names = ["ridge", "global", "lda", "alone", *averages, "global+lda+alone", "majority"]
    before = [tuple(name.split("+")) for name in names]
    assert [members for members in KNOWN if members in before] == before
    assert [members for members in KNOWN if members in CANDIDATES] == list(CANDIDATES)
    assert name_of(presumed(before, range(len(before))), before) == "ridge+lda"
    wide = widened(before)
    assert name_of(presumed(wide, range(len(wide))), wide) == "ridge+lda+wide_ridge+wide_lda"


def test_a_client_keeps_what_an_earlier_version_chose() -> None:
    clients = federation((40, 50))
    task = Task(clients, CLASSES, prior="client")
    head = Auto.fit(Auto.federate(task), task)
    head.personalize()
    later = Auto(head.federation, task, head.settings)
    kept = {c.name: later.kept({"choice": {"model": "ridge+lda+alone"}}, NO_CHOICE) for c in clients}
    owns = later.personalize(kept)
    assert {own.choice.name for own, _ in owns.values() if own.choice} == {"ridge+lda+alone"}
    assert later.personalize({}).keys() == owns.keys()


def test_wide_features_are_not_lifted() -> None:
    rng = np.random.default_rng(0)
    F, y = rng.normal(size=(12, NARROW + 1)), rng.integers(0, 2, 12)
    found = choose(Task([Client("a", (F, y), (F[:0], y[:0]))], 2))
    assert [each.features for each in found.tried] == [PLAIN]


@pytest.mark.slow
def test_the_logistic_head_competes_from_eight_rounds_on() -> None:
    task = Task(federation((40, 50, 60)), CLASSES, prior="client")
    assert {each.head.name for each in choose(task, max_rounds=7).tried} == {"auto"}
    found = choose(task, max_rounds=8)
    assert [each.head.name for each in found.tried][-1] == "logistic"
    one, logistic = found.tried[-2], found.tried[-1]
    judged = [each.judged for each in found.tried if each.judged is not None]
    assert len(judged) == 2
    gaps = judged[1] - judged[0]
    ahead = gaps.mean() > gaps.std(ddof=1) / len(gaps) ** 0.5
    assert (found.best is logistic) == ahead
    assert one.lift is logistic.lift or found.best is not logistic
    stored = found.to_dict()
    assert stored["candidates"][-1]["model"] == "logistic"
    assert stored["rounds"] == found.best.head.traffic[0]
    assert describe(stored).endswith(".")


def test_candidates_are_said_in_words() -> None:
    assert in_words("alone") == "its own ridge alone"
    assert in_words("global+lda+alone") == "the average of the global ridge, LDA and its own ridge alone"
    found = choose(Task(federation((40, 50)), CLASSES), wider=False)
    stored = found.to_dict()
    assert [entry["model"] for entry in stored["candidates"]] == [name_of(at) for at in range(len(CANDIDATES))]
    assert sum(entry["clients"] for entry in stored["candidates"]) == 2
    (usual,) = [entry for entry in stored["candidates"] if entry.get("usual")]
    (presumed_one,) = [entry for entry in stored["candidates"] if entry["model"] == "ridge+global+lda"]
    best = max(stored["candidates"], key=lambda entry: entry["held_out"])
    lead = best["held_out"] - presumed_one["held_out"]
    assert stored["model"] == usual["model"] == (best if lead > 0.3 / stored["rows"] ** 0.5 else presumed_one)["model"]


@pytest.mark.parametrize(
    "labels",
    [[0], [0, 0, 0], [0, 1], [0, 1, 2, 3], [0, 0, 1]],
    ids=["one row", "one class", "two rows", "a row of each class", "a class of one row"],
)
def test_next_to_nothing_to_learn_from_is_no_error(labels: list[int]) -> None:
    y = np.array(labels, dtype=np.int64)
    F = np.random.default_rng(0).normal(size=(len(y), 3))
    found = choose(Task([Client("a", (F, y), (F, y))], 4, prior="client"))
    model = found.best.owns["a"][0].model
    assert bool(torch.isfinite(model.weights).all())
    assert describe(found.to_dict())


def test_a_stored_model_says_what_it_is_made_of(tmp_path: Any) -> None:
    task = Task(federation((40, 50)), CLASSES)
    head = Auto.fit(Auto.federate(task), task)
    head.personalize()
    model = global_model(head.federation, tuple("abcd"), None, head=head)
    model.to_file(tmp_path / "model.safetensors")
    again = Model.from_file(tmp_path / "model.safetensors")
    assert again.settings == model.settings
    assert {"global", "lda", "ridge_temperature", "alone_temperature", "shrinkage"} <= set(again.settings)
    assert torch.equal(Auto.fit(head.federation, task, again).common.weights, model.weights)
