"""What a run says of itself: rows are counted by what was chosen without them, whatever there was to choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.core.choice.prior import NO_PRIOR, Prior, PriorChoice, PriorLosses, choose_prior
from fedhip.heads import HEADS, Auto
from fedhip.heads import choice as choice_module
from fedhip.heads.choice import Choice, choose
from fedhip.heads.members import Part
from fedhip.heads.options import options_of
from fedhip.heads.round import run_head, simulate
from fedhip.heads.task import Task
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.personalization import Personalization
from fedhip.simulation.priors import PRIOR_ALPHAS, ridge_scale
from tests.methods.problems import CLASSES, federation

#: Federations, as many as make the old estimates stand out: they said up to .31.
SEEDS = 8


def noise(rows: int, seed: int) -> list[Client]:
    """Four classes, and labels that follow from nothing."""
    rng = np.random.default_rng([rows, seed])
    clients = []
    for k in range(max(200 // rows, 6)):
        F, y = rng.normal(size=(rows, 12)), rng.integers(0, 4, rows)
        clients.append(Client(f"{k:02}", (F, y), (F[:0], y[:0])))
    return clients


def estimates_of(clients: list[Client], head: str, prior: Any, alpha: Any = "loo", **options: Any) -> list[float]:
    kind = HEADS[head]
    task = Task(clients, 4, {**options_of(kind, alpha, {}), **options}, prior=prior)
    found = [result.personal for result in run_head(kind, task).clients]
    assert all(own is not None and own.estimate is not None for own in found)
    return [own.estimate for own in found if own is not None and own.estimate is not None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "prior"), [("ridge", "client"), ("lda", "client"), ("logistic", "client"), ("lda", "none")]
)
def test_on_noise_every_head_expects_what_chance_gives(head: str, prior: str) -> None:
    """Chance is .25. By the rows that everything was chosen on, with 10 rows: ridge .30, LDA .27, logistic .31.

    Of sixteen means one beyond two standard errors is to be expected: each is held to three, those of a head to two.
    """
    means, errors = [], []
    for rows in (10, 20, 50, 200):
        # Clients of one federation share their sum: only means of federations are independent of one another.
        found = [np.mean(estimates_of(noise(rows, seed), head, prior)) for seed in range(SEEDS)]
        means.append(np.mean(found))
        errors.append(np.std(found, ddof=1) / SEEDS**0.5)
    assert (np.abs(np.subtract(means, 0.25)) <= 3.0 * np.array(errors)).all(), means
    assert abs(np.mean(means) - 0.25) <= 2.0 * np.linalg.norm(errors) / len(errors), means


@pytest.mark.slow
def test_on_noise_no_candidate_is_ahead_for_what_it_may_choose() -> None:
    """The ridge chooses among 29 α and 130 priors, the ridge alone among 15 penalties, the global one its prior."""
    shares = []
    for seed in range(10):
        clients = noise(20, seed)
        task = Task(clients, 4, prior="client")
        head = Auto.fit(Auto.federate(task), task)
        head.personalize()
        assert head.held_out is not None
        shares.append(head.held_out.means.numpy())
    errors = np.std(shares, axis=0, ddof=1) / len(shares) ** 0.5
    assert (np.abs(np.mean(shares, axis=0) - 0.25) <= 3.0 * errors).all(), np.mean(shares, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [10, 20])
def test_on_noise_nobody_alone_is_ahead_by_its_penalty(rows: int) -> None:
    """By rows left out one by one, the penalty of a row is chosen by models that know it: .301 and .273, by folds."""
    shares = []
    for seed in range(12):
        task = Task(noise(rows, seed), 4)
        part = Part(Auto.federate(task), task)
        found = [part._alone(client).judged.argmax(dim=1).numpy() == client.train[1] for client in task.clients]
        shares.append(np.mean(found))
    error = np.std(shares, ddof=1) / len(shares) ** 0.5
    assert abs(np.mean(shares) - 0.25) <= 2.5 * error, (np.mean(shares), error)


@pytest.mark.slow
def test_on_noise_a_run_without_options_expects_what_chance_gives() -> None:
    """Chance is .25; by what all rows chose it said .308 ± .013, and .286 where other clients did."""
    found = []
    for seed in range(20):
        owns = choose(Task(noise(20, seed), 4, options_of(Auto, "loo", {}), prior="client")).best.owns
        found.append(np.mean([own.estimate for own, _ in owns.values() if own.estimate is not None]))
    error = np.std(found, ddof=1) / len(found) ** 0.5
    assert abs(np.mean(found) - 0.25) <= 2.5 * error, (np.mean(found), error)


def test_what_is_expected_of_a_choice_is_what_the_other_half_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the labels of the rows that are counted: they have no part in what they are counted by."""
    asked: list[list[Client]] = []
    real = choice_module._in_one_round

    def watched(task: Task, *rest: Any) -> Any:
        asked.append(list(task.clients))
        return real(task, *rest)

    monkeypatch.setattr(choice_module, "_in_one_round", watched)
    clients = noise(20, 3)[:4]
    task = Task(clients, 4, options_of(Auto, "loo", {}), prior="client")
    found = choose(task)
    whole, *halves = asked
    assert [len(client.train[1]) for client in whole] == [20] * 4
    for half, parts in enumerate(halves):
        for client, part in zip(clients, parts, strict=True):
            assert np.array_equal(part.train[0], client.train[0][half::2])
    right = dict.fromkeys((client.name for client in clients), 0)
    for half, parts in enumerate(halves):
        best = Choice(real(replace(task, clients=parts), None, True)).best
        of = found.tried[0].head  # with a lift, it has the candidates of the features alone too
        assert isinstance(best.head, Auto)
        assert isinstance(of, Auto)
        for name in right:
            right[name] += int(of.right(name, best.head.taken(name))[1 - half :: 2].sum())
    assert {name: own.estimate for name, (own, _) in found.best.owns.items()} == {n: r / 20 for n, r in right.items()}
    monkeypatch.setattr(choice_module, "HALVED", 79)
    assert [own.estimate for own, _ in choose(task).best.owns.values()] == found.best.shares.tolist()


def test_a_prior_that_was_kept_has_no_estimate() -> None:
    """Its rows had a part in it, and what everybody's losses were then is not known any more."""
    clients = federation((40, 50, 30))
    task = Task(clients, CLASSES, prior="client")
    for kind in HEADS.values():
        if kind is Auto:  # what a client had before it was measured again is not kept either
            continue
        given = Task(clients, CLASSES, options_of(kind, "loo", {}), prior="client")
        head = kind.fit(kind.federate(given), given)
        names = [client.name for client in task.training]
        kept = {names[0]: PriorChoice(0, Prior(1.0, 10.0)), names[1]: PriorChoice(0, NO_PRIOR)}
        owns = head.personalize(kept)
        assert owns[names[0]][0].estimate is None
        assert owns[names[1]][0].estimate is not None
        assert owns[names[2]][0].estimate is not None


@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_with_alpha_given_a_fold_is_judged_at_the_beta_that_the_others_choose(alpha: float) -> None:
    """Refits without each row, at the β of its fold."""
    client, *others = federation((23, 40), test=2)
    summed = federate([client, *others], CLASSES, 0.5)
    betas = (0.5, 8e4, 0.5, 4e5, 8e4)
    found = Personalization.of(summed.with_beta(0.5, betas), client, alpha)
    y = client.train[1]
    right = 0
    for row, label in enumerate(y):
        at = summed.with_beta(betas[row % 5])
        scores = at.path(client).loo_scores(alpha)[row]
        right += int(scores.argmax()) == label
    assert found.estimate == right / len(y)
    assert found.estimate != Personalization.of(summed.with_beta(0.5), client, alpha).estimate


def by_hand(clients: list[Client], k: int, fold_betas: tuple[float, ...], beta: float) -> int:
    """Rows right of a ridge with a prior, from the definitions: everything again for each fold."""
    summed = federate(clients, CLASSES, beta)
    everybody, scale = summed.grid.counts, ridge_scale(CLASSES)

    def scores_of(client: Client, at: float) -> list[torch.Tensor]:
        path = summed.with_beta(at).path(client)
        return [path.loo_scores(alpha) for alpha in PRIOR_ALPHAS]

    labels = [torch.tensor(client.train[1]) for client in clients]
    counts = [torch.bincount(y, minlength=CLASSES) for y in labels]
    others = [
        PriorLosses.of(scores_of(client, beta), labels[i], counts[i], everybody, scale)
        for i, client in enumerate(clients)
        if i != k
    ]
    y, right = labels[k], 0
    for fold, at in enumerate(fold_betas):
        scores, inside = scores_of(clients[k], at), torch.arange(len(y)) % 5 == fold
        own = PriorLosses.of([part[~inside] for part in scores], y[~inside], counts[k], everybody, scale)
        total = own
        for part in others:
            total = total + part
        model, prior = choose_prior(own, total)
        judged = scores[model][inside]
        if not prior.is_none:
            judged = judged / prior.temperature + prior.left_out_shifts(y[inside], counts[k], everybody)
        right += int((judged.argmax(dim=1) == y[inside]).sum())
    return right


@pytest.mark.parametrize("auto", [True, False])
def test_with_priors_the_estimate_is_that_of_choices_without_the_fold(auto: bool) -> None:
    """More than 256 rows: a row's scores are those of leave-one-out, whichever fold is judged."""
    clients = federation((290, 270, 280), seed=3)
    outcome = simulate(clients, CLASSES, prior=True, beta="auto" if auto else 5.0)
    fold_betas = outcome.federation.fold_betas or (outcome.beta,) * 5
    for k, (client, result) in enumerate(zip(clients, outcome.clients, strict=True)):
        assert result.personal is not None
        assert result.personal.estimate == by_hand(clients, k, fold_betas, outcome.beta) / len(client.train[1])
