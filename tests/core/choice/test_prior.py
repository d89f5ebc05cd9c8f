"""The client's prior against brute force, refits, and a federation whose best classifier is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedhip.core.choice.prior import (
    NO_CHOICE,
    NO_PRIOR,
    SMOOTHINGS,
    TEMPERATURES,
    FoldLosses,
    Prior,
    PriorChoice,
    PriorLosses,
    _lifted,
    choose_nested,
    choose_prior,
    choose_priors,
    scale_of,
)
from fedhip.errors import InputError


def counts_of(labels: Tensor, classes: int) -> Tensor:
    return torch.bincount(labels, minlength=classes)


def log_posterior(scores: Tensor, own: Tensor, everybody: Tensor, temperature: float, smoothing: float) -> Tensor:
    """The formula, written out in probabilities."""
    federation = (everybody.double() + 1) / (everybody.sum() + len(everybody))
    lent = 1e15 if math.isinf(smoothing) else smoothing
    client = (own.double() + lent * federation) / (own.sum() + lent)
    weighed = torch.softmax(scores.double() / temperature, dim=-1) * client / federation
    return (weighed / weighed.sum(dim=-1, keepdim=True)).log()


def problem(seed: int = 0, rows: int = 12, classes: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes - 1, (rows,), generator=generator)
    others = torch.randint(0, classes, (40,), generator=generator)
    scores = torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    scores += 1.5 * torch.nn.functional.one_hot(labels, classes)
    own = counts_of(labels, classes)
    return scores, labels, own, own + counts_of(others, classes)


def test_losses_are_those_of_counting_again_without_each_row() -> None:
    scores, labels, own, everybody = problem()
    found = PriorLosses.of([scores], labels, own, everybody, scale=0.7)
    assert found.losses.shape == (1, len(TEMPERATURES), len(SMOOTHINGS))
    for t, temperature in enumerate(TEMPERATURES[4:], start=4):
        for a, smoothing in enumerate(SMOOTHINGS):
            expected, right = 0.0, 0
            for row, label in zip(scores, labels, strict=True):
                less = torch.nn.functional.one_hot(label, 4)
                logs = log_posterior(row, own - less, everybody - less, 0.7 * temperature, smoothing)
                expected -= float(logs[label])
                right += int(logs.argmax() == label)
            assert float(found.right[0, t, a]) == right
            assert float(found.losses[0, t, a]) == pytest.approx(expected, rel=1e-9)


def test_scores_with_a_prior_are_the_posterior() -> None:
    scores, _, own, everybody = problem()
    for prior in (Prior(0.3, 5.0), Prior(2.0, 0.1)):
        found = torch.log_softmax(prior.apply(scores, own, everybody), dim=1)
        expected = log_posterior(scores, own, everybody, prior.temperature, prior.smoothing)
        torch.testing.assert_close(found, expected)
        assert float(
            ((everybody + 1) / (everybody + 1).sum() * prior.shift(own, everybody).exp()).sum()
        ) == pytest.approx(1)


def test_smoothings_are_the_numbers_of_the_grid_to_the_last_bit() -> None:
    """√10 and its like are not float32's: a class that the client has no rows of is lent a of n + a rows."""
    everybody = torch.tensor([7, 20, 13])
    lent = _lifted(torch.zeros(3, dtype=torch.float64), torch.full((3,), 1 / 3, dtype=torch.float64))
    assert [tuple(row) for row in lent[:, :-1].tolist()] == [SMOOTHINGS[:-1]] * 3
    for place, smoothing in enumerate(SMOOTHINGS[:-1]):
        shift = Prior(1.0, smoothing).shift(torch.tensor([2, 9, 0]), everybody)
        assert float(shift[2]) == pytest.approx(math.log(smoothing / (11 + smoothing)), rel=1e-15)
        losses = PriorLosses(table((0, 3, place), 0.0, 9.0), table(None, 0.0, 0.0), 11, 1.0)
        stored = json.loads(json.dumps(choose_prior(losses, losses)[1].smoothing))
        assert stored == smoothing


def test_no_prior_leaves_scores_alone() -> None:
    scores, _, own, everybody = problem()
    assert NO_PRIOR.apply(scores, own, everybody) is scores
    assert not NO_PRIOR.shift(own, everybody).any()


def test_the_choice_is_that_of_brute_force() -> None:
    clients = [problem(seed, rows) for seed, rows in enumerate((3, 8, 25))]
    everybody = torch.stack([own for _, _, own, _ in clients]).sum(dim=0)
    losses = [PriorLosses.of([s, 2 * s - 1], y, own, everybody, 1.0) for s, y, own, _ in clients]

    def loss(scores: Tensor, labels: Tensor, own: Tensor, temperature: float, smoothing: float) -> float:
        total = 0.0
        for row, label in zip(scores, labels, strict=True):
            less = torch.nn.functional.one_hot(label, 4)
            total -= float(log_posterior(row, own - less, everybody - less, temperature, smoothing)[label])
        return total

    def pooled(model: int, temperature: float, smoothing: float) -> float:
        parts = [loss((s, 2 * s - 1)[model], y, own, temperature, smoothing) for s, y, own, _ in clients]
        return 20 * sum(parts) / sum(len(y) for _, y, _, _ in clients)

    total = losses[0] + losses[1] + losses[2]
    none_right = torch.zeros_like(total.right)  # so that losses alone decide
    total = replace(total, right=none_right)
    chosen = [choose_prior(replace(own, right=none_right), total, pooled_rows=20) for own in losses]
    # Every other value: the choice must be no worse than any of these, and is itself weighed by the formula.
    grid = [(m, t, a) for m in (0, 1) for t in TEMPERATURES[6::2] for a in SMOOTHINGS[1::2]]
    everybodys = {point: pooled(*point) for point in grid}
    for (s, y, own, _), (model, prior) in zip(clients, chosen, strict=True):
        taken = (model, prior.temperature, prior.smoothing)

        def criterion(point: tuple[int, float, float], s: Tensor = s, y: Tensor = y, own: Tensor = own) -> float:
            everybodys.setdefault(point, pooled(*point))
            return loss((s, 2 * s - 1)[point[0]], y, own, *point[1:]) + everybodys[point]

        assert criterion(taken) <= min(map(criterion, grid)) + 1e-9


def table(place: tuple[int, int, int] | None, here: float, elsewhere: float) -> Tensor:
    """Losses or rows right of two models over the grid: one number at a place, another everywhere else."""
    values = torch.full((2, len(TEMPERATURES), len(SMOOTHINGS)), elsewhere, dtype=torch.float64)
    if place is not None:
        values[place] = here
    return values


def test_own_losses_are_weighed_against_the_mean_of_everybodys() -> None:
    """Own rows lose 10 by everybody's choice, everybody 1 a row by the client's."""
    right = table(None, 0.0, 0.0)
    own = PriorLosses(table((1, 3, 2), 0.0, 10.0), right, 7, 2.0)
    everybody = PriorLosses(table((0, 5, 4), 0.0, 100.0), right, 100, 2.0)
    mine, theirs = Prior(2.0 * TEMPERATURES[3], SMOOTHINGS[2]), Prior(2.0 * TEMPERATURES[5], SMOOTHINGS[4])
    assert choose_prior(own, everybody, pooled_rows=9.0) == (1, mine)
    assert choose_prior(own, everybody, pooled_rows=11.0) == (0, theirs)
    assert choose_prior(None, everybody) == (0, theirs)


def test_own_rows_right_are_weighed_against_everybodys_share() -> None:
    """The prior gets three more of the client's rows right, and of a hundred of everybody's one less."""
    losses, place = table((1, 3, 2), 0.0, 10.0), (1, 3, 2)
    own = PriorLosses(losses, table(place, 5.0, 2.0), 7, 2.0)
    everybody = PriorLosses(losses, table(place, 50.0, 51.0), 100, 2.0)
    prior = Prior(2.0 * TEMPERATURES[3], SMOOTHINGS[2])
    assert choose_prior(own, everybody, pooled_hits=299.0) == (1, prior)
    assert choose_prior(own, everybody, pooled_hits=301.0) == (0, NO_PRIOR)
    assert own.right_with(1, prior) == 5.0
    assert own.right_with(0, prior) == own.right_with(1, NO_PRIOR) == 2.0


def test_a_known_shift_is_found_and_is_worth_what_bayes_says() -> None:
    """Gaussians of known means; clients differ in their priors alone, so that the best classifier is known."""
    rng, classes, mean = np.random.default_rng(0), 8, 1.2
    means = mean * np.eye(classes)

    def draw(prior: np.ndarray, rows: int) -> tuple[Tensor, Tensor]:
        labels = rng.choice(classes, rows, p=prior)
        x = means[labels] + rng.normal(size=(rows, classes))
        # The posterior under even classes, at a temperature of 3, which the choice has to find.
        return torch.from_numpy(3 * (x @ means.T)), torch.from_numpy(labels)

    priors = rng.dirichlet(np.full(classes, 0.3), 20)
    train, test = ([draw(prior, rows) for prior in priors] for rows in (400, 2000))
    own = [counts_of(labels, classes) for _, labels in train]
    everybody = torch.full((classes,), 1000)
    chosen = choose_priors([PriorLosses.of([s], y, n, everybody, 1.0) for (s, y), n in zip(train, own, strict=True)])
    without, found, best = [], [], []
    for prior, (_, taken), n, (s, y) in zip(priors, chosen, own, test, strict=True):
        assert not taken.is_none
        assert 1.5 <= taken.temperature <= 6.5
        found.append(float((taken.apply(s, n, everybody).argmax(1) == y).double().mean()))
        without.append(float((s.argmax(1) == y).double().mean()))
        bayes = s / 3 + torch.from_numpy(np.log(prior * classes + 1e-300))
        best.append(float((bayes.argmax(1) == y).double().mean()))
    assert np.mean(best) - np.mean(without) > 0.1
    assert np.mean(best) - np.mean(found) < 0.005


def test_counts_that_are_noise_do_no_harm() -> None:
    """Clients whose rows are drawn alike, few of many classes: a fixed smoothing costs dearly, the choice does not."""
    rng, classes, rows = np.random.default_rng(1), 200, 96
    everybody = torch.full((classes,), 24)

    def draw(number: int) -> tuple[Tensor, Tensor]:
        labels = torch.from_numpy(rng.integers(0, classes, number))
        signal = 2.5 * torch.nn.functional.one_hot(labels, classes)
        return torch.from_numpy(rng.normal(size=(number, classes))) + signal, labels

    train, test = [draw(rows) for _ in range(50)], [draw(400) for _ in range(50)]
    own = [counts_of(labels, classes) for _, labels in train]
    chosen = choose_priors([PriorLosses.of([s], y, n, everybody, 1.0) for (s, y), n in zip(train, own, strict=True)])

    def accuracy(priors: list[Prior]) -> float:
        right = [(p.apply(s, n, everybody).argmax(1) == y) for p, n, (s, y) in zip(priors, own, test, strict=True)]
        return float(torch.cat(right).double().mean())

    none = accuracy([NO_PRIOR] * 50)
    assert none - accuracy([Prior(0.4, 0.05 * classes)] * 50) > 0.05
    assert none - accuracy([prior for _, prior in chosen]) < 0.005


def test_a_model_that_knows_its_client_is_left_alone_where_fewer_rows_are_right() -> None:
    """The posterior of each client with its own prior, but too flat: likelier with a prior, and no better."""
    rng, classes = np.random.default_rng(2), 6
    clients, everybody = [], torch.full((classes,), 400)
    for prior in rng.dirichlet(np.full(classes, 0.5), 12):
        labels = rng.choice(classes, 200, p=prior)
        x = 1.2 * np.eye(classes)[labels] + rng.normal(size=(200, classes))
        posterior = 1.2 * x + np.log(prior + 1e-9)
        clients.append((torch.from_numpy(posterior), torch.from_numpy(labels)))
    own = [counts_of(y, classes) for _, y in clients]
    # Clipped, so that no temperature makes the best of them.
    losses = [PriorLosses.of([s.clamp(-3, 0)], y, n, everybody, 1.0) for (s, y), n in zip(clients, own, strict=True)]
    total = losses[0]
    for part in losses[1:]:
        total = total + part
    for (model, found), part in zip(choose_priors(losses), losses, strict=True):
        place = SMOOTHINGS.index(found.smoothing)
        weighed = part.right + total.right * 500 / total.rows
        at = 0 if found.is_none else TEMPERATURES.index(found.temperature)
        assert weighed[model, at, place] >= weighed[0, 0, -1]


def test_a_row_whose_class_is_left_out_does_not_judge() -> None:
    scores, labels, own, everybody = problem()
    scores = scores.clone()
    scores[3, labels[3]] = -torch.inf
    scores[5, (labels[5] + 1) % 4] = -torch.inf  # another class left out is no matter
    found = PriorLosses.of([scores], labels, own, everybody, 1.0)
    kept = torch.arange(len(labels)) != 3
    expected = PriorLosses.of([scores[kept]], labels[kept], own, everybody, 1.0)
    assert found.rows == len(labels) - 1
    assert torch.equal(found.losses, expected.losses)
    assert bool(torch.isfinite(found.losses).all())


def test_without_anybody_to_judge_there_is_no_prior() -> None:
    scores, labels, own, everybody = problem()
    nobody = PriorLosses.of([torch.full_like(scores, -torch.inf)], labels, own, everybody, 1.0)
    assert choose_prior(None, nobody) == (0, NO_PRIOR)
    assert choose_priors([None, None]) == [(0, NO_PRIOR)] * 2


def test_a_client_without_rows_does_as_the_others() -> None:
    scores, labels, own, everybody = problem(rows=60)
    losses = PriorLosses.of([scores], labels, own, everybody, 1.0)
    (_, alone), (_, absent) = choose_priors([losses, None])
    assert absent == alone


def test_grids_that_differ_do_not_add() -> None:
    scores, labels, own, everybody = problem()
    one = PriorLosses.of([scores], labels, own, everybody, 1.0)
    with pytest.raises(InputError, match="same models"):
        one + PriorLosses.of([scores], labels, own, everybody, 2.0)
    with pytest.raises(InputError, match="same models"):
        one + PriorLosses.of([scores, scores], labels, own, everybody, 1.0)
    with pytest.raises(InputError, match=r"give \(12, 4\)"):
        PriorLosses.of([scores[:, :3]], labels, own, everybody, 1.0)


def test_the_scale_is_the_deviation_within_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(n, 6, generator=generator) + 100 for n in (5, 9)]
    joined = torch.cat(parts).double().numpy()
    assert scale_of(parts) == pytest.approx(float(np.sqrt(joined.var(axis=1).mean())))
    assert scale_of([part / 64 for part in parts]) == pytest.approx(scale_of(parts) / 64)
    parts[0][:, 2] = -torch.inf
    assert math.isfinite(scale_of(parts))
    assert scale_of([]) == scale_of([torch.ones(3, 4)]) == 1.0


@given(st.integers(0, 10**6), st.floats(0.1, 10))
def test_a_scale_of_scores_does_not_matter(seed: int, factor: float) -> None:
    scores, labels, own, everybody = problem(seed)
    scale = scale_of([scores])
    _, plain = choose_prior(None, PriorLosses.of([scores], labels, own, everybody, scale))
    _, scaled = choose_prior(None, PriorLosses.of([factor * scores + 3], labels, own, everybody, factor * scale))
    assert scaled.smoothing == plain.smoothing
    assert scaled.is_none or scaled.temperature == pytest.approx(factor * plain.temperature)


def test_shifts_without_a_row_are_those_of_counts_without_it() -> None:
    own, everybody, labels = torch.tensor([3, 1, 0]), torch.tensor([9, 5, 2]), torch.tensor([0, 1, 0])
    found = Prior(2.0, 3.0).left_out_shifts(labels, own, everybody)
    expected = []
    for label in labels:
        n, N = (counts.double() - torch.eye(3).double()[label] for counts in (own, everybody))
        pi = (N + 1) / (N.sum() + 3)
        expected.append(((n + 3.0 * pi) / (n.sum() + 3.0) / pi).log())
    assert torch.allclose(found, torch.stack(expected), rtol=0, atol=1e-12)
    assert bool((NO_PRIOR.left_out_shifts(labels, own, everybody) == 0).all())


def test_losses_by_fold_are_those_of_the_rows_alone() -> None:
    scores, labels, own, everybody = problem(rows=23)
    models = [scores, 2 * scores - 1]
    found = FoldLosses.of(models, labels, own, everybody, 0.7)
    fold = torch.arange(23) % 5
    for number in range(5):
        for part, at in ((found.inside[number], fold == number), (found.others[number], fold != number)):
            expected = PriorLosses.of([s[at] for s in models], labels[at], own, everybody, 0.7)
            torch.testing.assert_close(part.losses, expected.losses)
            assert torch.equal(part.right, expected.right)
            assert part.rows == expected.rows == int(at.sum())


def test_the_choice_for_a_fold_has_not_seen_it() -> None:
    """Given scores of the other rows without the fold, and counts less its rows: nothing of its labels is left."""
    scores, labels, own, everybody = problem(rows=23)
    fold = torch.arange(23) % 5
    moved = torch.where(fold == 2, (labels + 1) % 4, labels)
    chosen = []
    for y in (labels, moved):
        counts = everybody - own + counts_of(y, 4)

        def without(number: int, y: Tensor = y) -> list[Tensor]:
            return [scores[fold != number]]

        found = FoldLosses.of([scores], y, counts_of(y, 4), counts, 0.7, without)
        rest = PriorLosses.of([scores], labels, own, everybody, 0.7)  # of other clients
        chosen.append(choose_nested(found, found.every + rest))
        assert found.others[2].rows == int((fold != 2).sum())
    assert chosen[0].folds[2] == chosen[1].folds[2]


def test_rows_right_are_counted_by_the_choice_of_the_others() -> None:
    """Two models, of which one is right on the rows of a fold alone, and one on all the others."""
    _, labels, own, everybody = problem(rows=40)
    good, bad = (torch.nn.functional.one_hot(y, 4).double() * 9 for y in (labels, (labels + 1) % 4))
    at = (torch.arange(40) % 5 == 3)[:, None]
    one, other = torch.where(at, good, bad), torch.where(at, bad, good)
    found = FoldLosses.of([one, other], labels, own, everybody, 1.0)
    choice = choose_nested(found, found.every)
    assert choice.model == 1
    assert choice.right == 32  # of fold 3 the others choose the model that is wrong on it
    assert choice.fold_priors is not None
    assert NO_CHOICE.fold_priors == (NO_PRIOR,) * 5
    assert PriorChoice(0, Prior(1.0, 5.0)).fold_priors is None
