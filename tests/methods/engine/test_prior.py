"""Every method with the client's prior: no test row decides, rows do not score themselves, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.naive_bayes import GaussianNB
from torch import Tensor

from fedhip.core.choice.prior import NO_CHOICE, NO_PRIOR, Prior, PriorLosses, choose_priors, scale_of
from fedhip.errors import InputError
from fedhip.heads.task import Task
from fedhip.methods import METHODS, run_method
from fedhip.methods.engine import laboratory as engine
from fedhip.methods.engine.laboratory import Laboratory
from fedhip.methods.engine.prior import WithPrior
from fedhip.methods.engine.training import flat
from fedhip.methods.trained.fedavg import FedAvg
from fedhip.simulation.client import Client
from fedhip.simulation.hold_out import hold_out
from fedhip.simulation.options import PAPER, STANDARD, RidgeOptions
from fedhip.simulation.priors import PRIOR_ALPHAS, left_out_classes, losses_bytes, prior_bytes
from tests.methods.one_round.rounds import SMALL
from tests.methods.problems import CLASSES, PROTOCOL, federation

WITH = replace(PROTOCOL, prior="client")
SIZES = (30, 45, 20, 1)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.sampled(3)
def test_no_prior_sees_a_test_row(name: str) -> None:
    clients, rng = federation(SIZES), np.random.default_rng(3)
    noise = [Client(c.name, c.train, (rng.normal(size=c.test[0].shape), rng.permutation(c.test[1]))) for c in clients]
    before, after = (run_method(name, given, CLASSES, WITH, options=SMALL.get(name)) for given in (clients, noise))
    assert before.priors is not None
    assert before.priors == after.priors
    assert before.alphas == after.alphas
    assert all(isinstance(found, Prior) for found in before.priors)
    assert before.accuracy != after.accuracy


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.sampled(3)
def test_the_models_are_those_without_a_prior(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no client takes one, accuracies are the same; α stays where it is given."""
    clients = federation(SIZES)
    options = {"alpha": 3.0} if name == "fedhip" else SMALL.get(name)
    plain = run_method(name, clients, CLASSES, PROTOCOL, options=options)
    monkeypatch.setattr("fedhip.simulation.priors.choose_priors", lambda losses: [(0, NO_PRIOR)] * len(losses))
    monkeypatch.setattr("fedhip.simulation.priors.choose_every", lambda losses: [NO_CHOICE] * len(losses))
    monkeypatch.setattr("fedhip.heads.auto.choose_nested", lambda own, everybody: NO_CHOICE)
    found = run_method(name, clients, CLASSES, WITH, options=options)
    assert found.accuracy == plain.accuracy
    assert found.priors == [NO_PRIOR] * len(clients)
    assert plain.priors is None
    assert found.upload_bytes_per_client > plain.upload_bytes_per_client


def test_skewed_clients_gain() -> None:
    """Classes overlap and every client lacks one: the prior is worth several points to a global model."""
    clients = federation((120, 130, 140, 150), test=400)
    for name in ("fedavg", "global", "fedncm"):
        plain, found = (
            np.mean(np.array(run_method(name, clients, CLASSES, p).accuracy, np.float64)) for p in (PROTOCOL, WITH)
        )
        assert found - plain > 0.03


def refit(clients: list[Client], k: int, row: int, alpha: float, beta: float, ridge: RidgeOptions) -> Tensor:
    """Scores of a row by the ridge without it; mean and deviation are those of all rows."""
    x = np.concatenate([c.train[0] for c in clients])
    if ridge.standardize:
        x = (x - x.mean(axis=0)) / x.std(axis=0)
    if ridge.intercept:
        x = np.column_stack((x, np.ones(len(x))))
    y = np.eye(CLASSES)[np.concatenate([c.train[1] for c in clients])]
    sizes = [len(c.train[1]) for c in clients]
    weights = 1 + alpha * (np.repeat(range(len(clients)), sizes) == k)
    at = sum(sizes[:k]) + row
    weights[at] = 0
    penalty = np.full(x.shape[1], beta)
    if ridge.intercept:
        penalty[-1] = 0.0
    gram = (x * weights[:, None]).T @ x + np.diag(penalty)
    return torch.from_numpy(x[at] @ np.linalg.solve(gram, (x * weights[:, None]).T @ y))


@pytest.mark.parametrize("ridge", [STANDARD, PAPER], ids=["standard", "paper"])
@pytest.mark.parametrize("name", ["fedhip", "global"])
def test_ridges_choose_as_refits_without_each_row_do(name: str, ridge: RidgeOptions) -> None:
    clients, beta = federation((12, 15, 20)), 3.0
    alphas = PRIOR_ALPHAS if name == "fedhip" else (0.0,)
    counts = [torch.bincount(torch.from_numpy(c.train[1]), minlength=CLASSES) for c in clients]
    everybody, losses = torch.stack(counts).sum(dim=0), []
    for k, client in enumerate(clients):
        rows = range(len(client.train[1]))
        scores = [torch.stack([refit(clients, k, row, alpha, beta, ridge) for row in rows]) for alpha in alphas]
        losses.append(PriorLosses.of(scores, torch.from_numpy(client.train[1]), counts[k], everybody, CLASSES**-0.5))
    expected = choose_priors(losses)
    found = run_method(name, clients, CLASSES, WITH, options={"beta": beta}, ridge=ridge)
    assert found.priors == [prior for _, prior in expected]
    if name == "fedhip":
        assert found.alphas == [alphas[model] for model, _ in expected]


def test_fedncm_chooses_as_means_without_each_row_do(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = federation((12, 15, 1))
    seen: list[Tensor] = []

    def priors(self: Task, scored: object) -> dict[str, Prior]:
        seen.extend(scored(client) for client in self.training)  # type: ignore[operator]
        return {}

    monkeypatch.setattr(Task, "priors", priors)
    run_method("fedncm", clients, CLASSES, WITH)
    x = np.concatenate([c.train[0] for c in clients])
    y = np.concatenate([c.train[1] for c in clients])
    for row, scores in enumerate(torch.cat(seen)):
        kept = np.arange(len(y)) != row
        for label in range(CLASSES):
            rows = x[kept & (y == label)]
            mean = rows.mean(axis=0) if len(rows) else None
            expected = -np.inf if mean is None else x[row] @ mean / np.linalg.norm(mean)
            assert float(scores[label]) == pytest.approx(expected)


def test_a_gradient_method_chooses_by_rows_its_shadow_has_not_seen() -> None:
    """By hand: FedAvg on four fifths of the rows scores the last fifth; FedAvg on all rows is tested with that."""
    clients = federation((60, 80, 45), test=200)
    apart = hold_out(clients, WITH.seed)
    for whole, part in zip(clients, apart, strict=True):
        rows = np.concatenate((part.train[0], part.test[0]))
        assert len(part.test[1]) == round(0.2 * len(whole.train[1]))
        assert np.array_equal(rows[np.lexsort(rows.T)], whole.train[0][np.lexsort(whole.train[0].T)])

    def trained(given: list[Client]) -> tuple[Laboratory, engine.Models]:
        lab = Laboratory(given, CLASSES, PROTOCOL)
        method = FedAvg(lab, {})
        state = method.start()
        for number in range(PROTOCOL.rounds):
            state, _ = method.round(state, number, range(lab.size))
        return lab, method.models(state, PROTOCOL.rounds)

    shadow, scorers = trained(apart)
    scores = [part for part in shadow.test_scores(scorers) if part is not None]
    lab, models = trained(clients)
    everybody = lab.class_counts.sum(dim=0)
    scale = scale_of(scores)
    losses = [
        PriorLosses.of([part], torch.from_numpy(client.test[1]), own, everybody, scale)
        for part, client, own in zip(scores, apart, lab.class_counts, strict=True)
    ]
    priors = [found for _, found in choose_priors(losses)]
    run = run_method("fedavg", clients, CLASSES, WITH)
    assert run.priors == priors
    assert run.accuracy == lab.accuracies(replace(models, priors=priors))


def test_a_run_with_a_prior_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    clients = federation(SIZES)
    whole = run_method("ditto", clients, CLASSES, WITH)

    def stop(phase: str, done: int, total: int) -> None:
        assert phase == "Ditto"
        if done == 2:
            raise KeyboardInterrupt

    path = tmp_path / "half.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run_method("ditto", clients, CLASSES, WITH, report=stop, checkpoint=path)
    again = run_method("ditto", clients, CLASSES, WITH, checkpoint=path)
    assert (again.accuracy, again.priors) == (whole.accuracy, whole.priors)
    assert again.upload_bytes_per_client == whole.upload_bytes_per_client


def test_the_shadow_has_the_clients_of_the_method() -> None:
    """A client with one row has it in both, so that the same clients can be drawn in a round."""
    lab = Laboratory(federation((1, 2, 9)), CLASSES, WITH)
    both = WithPrior.around(FedAvg, lab, federation((1, 2, 9)), {})
    assert both.shadow.lab.place == lab.place
    assert both.shadow.lab.rows == [1, 2, 7]
    assert len(flat(both.start())) == 4


def test_a_class_of_one_row_cannot_be_named_without_it() -> None:
    labels = torch.tensor([0, 0, 1])
    scores = left_out_classes(torch.ones(3, 4), labels, torch.tensor([2, 1, 0, 0]))
    assert scores.isneginf().tolist() == [[False, False, True, True]] * 2 + [[False, True, True, True]]


def test_only_local_classes_holds_with_a_prior() -> None:
    clients = federation((60, 80, 45), test=60)
    both = replace(WITH, only_local_classes=True)
    for name in ("fedavg", "fedhip", "local"):
        run = run_method(name, clients, CLASSES, both)
        assert all(0 <= value <= 1 for value in run.accuracy if value is not None)


def test_there_are_two_priors() -> None:
    with pytest.raises(InputError, match="'client' or 'none'"):
        run_method("fedavg", federation(SIZES), CLASSES, replace(PROTOCOL, prior="mine"))  # type: ignore[arg-type]
    assert "prior" not in PROTOCOL.to_dict()
    assert WITH.to_dict()["prior"] == "client"
    assert prior_bytes(10) - losses_bytes([1]) == 80


def test_a_one_round_rival_chooses_by_rows_its_shadow_has_not_seen() -> None:
    """By hand: naive Bayes of four fifths of the rows scores the last fifth; its sums are sent twice."""
    clients = federation((60, 80, 45), test=200)
    apart = hold_out(clients, WITH.seed)
    x, y = (np.concatenate([c.train[i] for c in apart]) for i in (0, 1))
    theirs = GaussianNB(var_smoothing=0.0).fit(x, y)
    scores = [torch.from_numpy(theirs.predict_joint_log_proba(c.test[0])) for c in apart]
    own = [torch.bincount(torch.from_numpy(c.train[1]), minlength=CLASSES) for c in clients]
    everybody, scale = torch.stack(own).sum(dim=0), scale_of(scores)
    losses = [
        PriorLosses.of([part], torch.from_numpy(client.test[1]), counts, everybody, scale)
        for part, client, counts in zip(scores, apart, own, strict=True)
    ]
    plain, found = (run_method("gh-nb", clients, CLASSES, protocol) for protocol in (PROTOCOL, WITH))
    assert found.priors is not None
    for prior, (_, expected) in zip(found.priors, choose_priors(losses), strict=True):
        assert prior is not None
        assert prior.smoothing == expected.smoothing
        assert prior.temperature == pytest.approx(expected.temperature)
    more = found.upload_bytes_per_client - plain.upload_bytes_per_client
    assert more == plain.upload_bytes_per_client + losses_bytes([1])
