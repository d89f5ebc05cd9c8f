"""kNN-Per: the hand example, brute force over rows left out, and what its ends are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedhip.methods.one_round.knn_per import Memory, NeighbourChoice, choose, mean_nearest, mixture
from fedhip.simulation.client import Client
from tests.methods.one_round.rounds import fitted
from tests.methods.problems import CLASSES, federation

LINE = Memory(torch.tensor([[0.0], [1.0], [3.0]]).double(), torch.tensor([0, 0, 1]), 2)
HALF = NeighbourChoice(3, 1.0, 0.5, torch.zeros(0))


def test_by_hand() -> None:
    at = torch.tensor([[2.0]]).double()
    near = LINE.shares(LINE.squared_distances(at), 3, 1.0)
    assert near[0, 0].item() == pytest.approx(0.512144, abs=1e-6)
    found = mixture(LINE, HALF, lambda x: torch.tensor([[0.2, 0.8]]).double())(at).exp()
    assert found[0, 0].item() == pytest.approx(0.356072, abs=1e-6)


def test_weights_do_not_underflow_and_k_is_no_more_than_there_are() -> None:
    far = torch.tensor([[1e9]]).double()
    near = LINE.shares(LINE.squared_distances(far), 50, 1.0)
    assert near.sum().item() == pytest.approx(1)
    frequencies = LINE.shares(LINE.squared_distances(far), 50, 1e30)
    assert frequencies[0].tolist() == pytest.approx([2 / 3, 1 / 3])


def test_the_choice_is_the_best_of_refits() -> None:
    """Every k, length and mix, each row by a memory without it."""
    (own,) = federation((25,), seed=4)
    x, y = own.train
    rng = np.random.default_rng(0)
    common = rng.dirichlet(np.ones(CLASSES), size=25) * 0.7 + 0.3 * np.eye(CLASSES)[y]
    found = choose(Memory(torch.from_numpy(x), torch.from_numpy(y), CLASSES), torch.from_numpy(common), None)
    distances = np.square(x[:, None] - x[None]).sum(axis=2)
    best, highest = None, -math.inf
    for k in (3, 10, 30):
        near = [np.delete(distances[i], i) for i in range(25)]
        r = np.mean([np.sort(row)[:k].mean() for row in near])
        for s in (0.1, 0.3, 1.0, 3.0):
            shares = []
            for i in range(25):
                labels, row = np.delete(y, i), near[i]
                at = np.argsort(row)[:k]
                w = np.exp(-row[at] / (s * r) + row[at[0]] / (s * r))
                shares.append(np.bincount(labels[at], w, CLASSES) / w.sum())
            for step in range(11):
                mixed = (1 - step / 10) * common + step / 10 * np.stack(shares)
                with np.errstate(divide="ignore"):
                    likelihood = np.log(mixed[range(25), y]).sum()
                if likelihood > highest:
                    best, highest = (k, s * r, step / 10), likelihood
    assert best is not None
    assert (found.neighbours, found.mix) == (best[0], best[2])
    assert found.length == pytest.approx(best[1])
    chosen = found.left_out.gather(1, torch.from_numpy(y)[:, None]).sum().item()
    assert chosen == pytest.approx(highest)


def test_the_ends() -> None:
    clients, x = federation((60, 70)), torch.from_numpy(federation((20,), seed=8)[0].train[0])
    first = clients[0]
    without = fitted("knn-per", clients, CLASSES, mix=0.0)
    assert without.own[first.name](x).numpy() == pytest.approx(without.scores(x).numpy())
    prior = fitted("knn-per", clients, CLASSES, mix=1.0, neighbours=1000, length=1e12)
    expected = np.bincount(first.train[1], minlength=CLASSES) / len(first.train[1])
    assert prior.own[first.name](x).exp().numpy() == pytest.approx(np.tile(expected, (20, 1)), abs=1e-6)


@pytest.mark.parametrize("name", ["knn-per", "knn-per-lda"])
def test_nothing_more_is_sent_than_the_base_and_losses(name: str) -> None:
    clients = federation((60, 70))
    few, many = (fitted(name, clients, CLASSES, neighbours=k) for k in (1, 30))
    assert (few.up, few.down) == (many.up, many.down)
    assert few.own.keys() == {c.name for c in clients}


def test_rows_of_one_group_are_no_neighbours() -> None:
    memory = Memory(torch.tensor([[0.0], [0.1], [5.0]]).double(), torch.tensor([0, 1, 1]), 2)
    plain, grouped = (memory.distances_left_out(g) for g in (None, torch.tensor([0, 0, 1])))
    assert plain[0, 1].item() == pytest.approx(0.01)
    assert grouped[0].isinf().tolist() == [True, True, False]
    assert mean_nearest(torch.full((1, 1), torch.inf), 3) == 1.0


def test_copies_in_a_group_do_not_vote_for_themselves() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.integers(0, 2, 20)
    twice = np.concatenate((x, x)), np.concatenate((y, y))
    test = (x[:1], y[:1])
    blind = Client("copies", twice, test)
    grouped = Client("copies", twice, test, np.tile(np.arange(20), 2), np.arange(1))
    found = [fitted("knn-per-lda", [c], 2, mix=0.9, neighbours=1).left_out for c in (blind, grouped)]
    right = [(f(c).argmax(1).numpy() == c.train[1]).mean() for f, c in zip(found, (blind, grouped), strict=True) if f]
    assert right[0] > 0.95 > right[1]
