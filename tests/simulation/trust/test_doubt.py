"""What clients find of a sum: against refits, sums that must be 0, and lies that must be seen."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from benchmarks.lies import LIES, federation_of, is_noticed, round_of, verdict_of
from fedhip.errors import StatisticsError
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.options import RidgeOptions
from fedhip.simulation.personalization import common_scores
from fedhip.simulation.trust.doubt import BINS, VERDICT_LENGTH, Verdict, doubt_of


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
    clients = federation_of(7, 0, "")
    for beta in (1e-3, 1.0, 300.0):
        federation = federate(clients, 4, beta)
        doubts = [doubt_of(federation, client) for client in clients]
        assert sum(doubt.leverage for doubt in doubts) == pytest.approx(0.0, abs=1e-6)
        together = Client(
            "all",
            tuple(np.concatenate([client.train[part] for client in clients]) for part in (0, 1)),  # type: ignore[arg-type]
            clients[0].test,
        )
        assert doubt_of(federation, together).calibration == pytest.approx(0.0, abs=1e-4)


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
