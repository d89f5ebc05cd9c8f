"""What clients find of a sum: against refits, sums that must be 0, and lies that must be seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from benchmarks.lies import LIES, Sites, federation_of, is_noticed, round_of, verdict_of
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import StatisticsError
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import RidgeOptions
from fedhip.simulation.personalization import common_scores
from fedhip.simulation.trust.doubt import BINS, VERDICT_LENGTH, Verdict, doubt_of

#: Of ten clients and four classes, most have one or two.
SKEWED = Sites(concentration=0.1)


def test_rows_right_are_those_of_refits() -> None:
    clients = [
        Client(str(k), (part.train[0][:12], part.train[1][:12]), part.test)
        for k, part in enumerate(federation_of(5, 0, "")[:3])
    ]
    federation = federate(clients, 4, 2.0, ridge=RidgeOptions(standardize=False, intercept=True))
    F = np.concatenate([client.train[0] for client in clients])
    Y = np.eye(4)[np.concatenate([client.train[1] for client in clients])]
    client, hits = clients[1], []
    scores = common_scores(federation, client)
    for row in range(12):
        others = np.arange(len(F)) != 12 + row
        model = Ridge(alpha=2.0).fit(F[others], Y[others])
        assert scores[row].numpy() == pytest.approx(
            model.predict(F[12 + row : 13 + row])[0], abs=1e-5
        )  # rows are rounded
        hits.append(int(model.predict(F[12 + row : 13 + row])[0].argmax() == client.train[1][row]))
    doubt = doubt_of(federation, client)
    assert (doubt.rows, doubt.right) == (12, sum(hits))


def test_over_all_rows_both_measures_are_nothing() -> None:
    """Residuals are at right angles to predictions but for β, and leverages are degrees of freedom."""
    clients = federation_of(7, 0, "", SKEWED)
    for beta in (1e-3, 1.0, 300.0):
        federation = federate(clients, 4, beta)
        together = Client(
            "all",
            tuple(np.concatenate([client.train[part] for client in clients]) for part in (0, 1)),  # type: ignore[arg-type]
            clients[0].test,
        )
        found = doubt_of(federation, together)
        assert found.calibration == pytest.approx(0.0, abs=1e-4)
        assert found.leverage == pytest.approx(0.0, abs=1e-4)
        assert found.shape < 0.0


def test_measures_are_those_of_rows_by_brute_force() -> None:
    """What a client's classes alone would make of it, by means of classes and rows around them, is taken off."""
    clients, d = federation_of(5, 0, "", SKEWED), 4
    federation = federate(clients, d, 1.0)
    parts = [federation.rows(client) for client in clients]
    F, y = (np.concatenate([part[at].numpy() for part in parts]) for at in (0, 1))
    penalty, Y, N = np.diag(federation.total.penalty(1.0).numpy()), np.eye(d)[y], len(y)
    root = np.linalg.cholesky(F.T @ F + penalty)
    W, prior = np.linalg.solve(root, F.T).T * math.sqrt(N), Y.mean(axis=0)
    U = np.linalg.solve(root, F.T @ Y) / math.sqrt(N)
    means = np.array([W[y == c].mean(axis=0) for c in range(d)])
    V = (W - means[y]).T @ (W - means[y]) / N
    scores = means @ U
    at_means = ((scores - prior) * (np.eye(d) - scores)).sum(axis=1) - np.trace(U.T @ V @ U)
    start = 0
    for client in clients:
        own = slice(start, start := start + len(client.train[1]))
        n, of = len(y[own]), y[own]
        P = W[own] @ U
        agreed = ((P - prior) * (Y[own] - P)).sum(axis=1) - at_means[of]
        lengths = (W[own] ** 2).sum(axis=1) - np.trace(V) - (means[of] ** 2).sum(axis=1)
        sideways = np.mean([means[c] @ V @ means[c] for c in of])
        sizes = np.mean([means[c] @ means[c] for c in of])
        apart = W[own].T @ W[own] / n - V - np.mean([np.outer(means[c], means[c]) for c in of], axis=0)
        chance = (np.trace(V) ** 2 + np.sum(V**2) + 2.0 * (sizes * np.trace(V) + sideways)) / n
        expected = (
            math.sqrt(n) * agreed.mean() / agreed.std(),
            math.sqrt(n) * lengths.mean() / math.sqrt(2.0 * np.sum(V**2) + 4.0 * sideways),
            (math.sqrt(np.sum(apart**2) / chance) - 1.0) * (np.trace(V) + sizes + 1.0),
        )
        doubt = doubt_of(federation, client)
        assert (doubt.calibration, doubt.leverage, doubt.shape) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("liars", [1, 2])
@pytest.mark.parametrize("lie", LIES)
def test_a_round_with_liars_is_noticed(lie: str, liars: int) -> None:
    noticed = []
    for seed in (70_001, 70_002, 70_003):
        federation, clients, _ = round_of(seed, liars, lie)
        noticed.append(is_noticed(verdict_of([doubt_of(federation, client) for client in clients])))
    assert sum(noticed) >= 2


def test_liars_that_hide_leave_the_others_askew() -> None:
    federation, clients, _ = round_of(70_010, 1, "flipped labels")
    doubts = [doubt_of(federation, client) for client in clients]
    assert verdict_of(doubts, hidden=1).askew
    assert not verdict_of(doubts, hidden=1).odd


def test_honest_rounds_raise_no_alarm() -> None:
    for seed in range(70_020, 70_030):
        federation, clients, _ = round_of(seed)
        verdict = verdict_of([doubt_of(federation, client) for client in clients])
        assert not is_noticed(verdict), verdict


def test_a_sum_with_counts_that_no_rows_have_is_doubted_like_others() -> None:
    """Of a class with one row, and the sum of 150: rows around its mean then have products below 0."""
    federation, clients, _ = round_of(70_045)
    grid = federation.grid
    counts = torch.cat((torch.ones(1, dtype=torch.int64), grid.counts[1:]))
    false = Federation(GridStatistics(grid.gram, grid.cross, counts, grid.fraction_bits), 1.0, federation.encoding)
    doubts = [doubt_of(false, client) for client in clients]
    assert is_noticed(verdict_of(doubts))


def test_honest_clients_of_few_classes_each_raise_few_alarms() -> None:
    """Where classes differ by client, the sum is worse than being alone, over all classes: no lie, and no veto."""
    alarms = 0
    for seed in range(70_020, 70_040):
        federation, clients, _ = round_of(seed, sites=SKEWED)
        verdict = verdict_of([doubt_of(federation, client) for client in clients])
        assert not verdict.stops()
        alarms += is_noticed(verdict)
    assert alarms <= 3


@pytest.mark.parametrize("lie", LIES)
def test_lies_of_a_client_of_few_classes_are_noticed(lie: str) -> None:
    noticed = []
    for seed in range(70_050, 70_056):
        federation, clients, _ = round_of(seed, 1, lie, Sites(1.0))
        noticed.append(is_noticed(verdict_of([doubt_of(federation, client) for client in clients])))
    assert sum(noticed) >= 4


def test_a_sum_of_no_clients_is_refused() -> None:
    federation, clients, _ = round_of(70_040)
    total = np.sum([doubt_of(federation, client).to_vector() for client in clients], axis=0)
    assert len(total) == VERDICT_LENGTH
    assert Verdict.of(total).clients == 10
    for at, value in ((0, 11), (0, -1), (1, total[1] - 1), (1 + BINS, total[1 + BINS] + 1)):
        changed = total.copy()
        changed[at] = value
        with pytest.raises(StatisticsError, match="no clients"):
            Verdict.of(changed)
