"""Every one-round method on rows that are hard on it: it runs and gives numbers, or says in one line why it cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedhip.methods import METHODS, Protocol, run_method
from fedhip.methods.engine.one_round import OneRound
from fedhip.methods.engine.protocol import DIFFERS
from fedhip.simulation.client import Client, LabelledRows
from tests.methods.one_round.rounds import SMALL, fitted
from tests.methods.problems import CLASSES, WIDTH, federation

RIVALS = [name for name, info in METHODS.items() if isinstance(info, OneRound)]
#: These, our own heads, the ridges and pFedFDA.
every = pytest.mark.parametrize("name", [name for name, info in METHODS.items() if not info.gradient])


def labelled(x: np.ndarray, y: np.ndarray) -> Client:
    return Client("more", (x, y.astype(np.int64)), (x, y.astype(np.int64)))


def run(name: str, clients: list[Client], num_classes: int, protocol: Protocol = Protocol()) -> list[float]:  # noqa: B008
    found = run_method(name, clients, num_classes, protocol, options=SMALL.get(name))
    assert all(value is not None and 0 <= value <= 1 for value in found.accuracy)
    return [value for value in found.accuracy if value is not None]


@every
@pytest.mark.parametrize("prior", ["none", "client"])
@pytest.mark.sampled(3)
def test_a_class_nobody_has_is_never_chosen(name: str, prior: str) -> None:
    """Under a name that sorts first and last: scores of the others are as without it."""
    clients = federation((40, 50), test=60)
    more = [Client(c.name, (c.train[0], c.train[1] + 1), (c.test[0], c.test[1] + 1)) for c in clients]
    protocol = Protocol(prior=prior)  # type: ignore[arg-type]
    plain = run(name, clients, CLASSES, protocol)
    if name != "fedpft":  # its head starts anew with each number of classes
        assert run(name, more, CLASSES + 2, protocol) == pytest.approx(plain, abs=0.06)
    for tested in run_method(name, more, CLASSES + 2, protocol, options=SMALL.get(name)).tested:
        assert tested is not None
        assert set(tested.predicted.tolist()) <= set(range(1, CLASSES + 1))


@every
@pytest.mark.sampled(3)
def test_a_class_of_one_row_in_all(name: str) -> None:
    clients = federation((40, 50))
    lone = labelled(clients[0].train[0][:1] + 5, np.array([CLASSES]))
    run(name, [*clients, lone], CLASSES + 1)
    run(name, [*clients, lone], CLASSES + 1, Protocol(prior="client", only_local_classes=True))


@every
def test_fewer_rows_than_features_and_rows_all_alike(name: str) -> None:
    rng = np.random.default_rng(0)
    few = labelled(rng.normal(size=(6, 30)), np.array([0, 0, 0, 1, 1, 1]))
    run(name, [few], 2)
    alike = labelled(np.ones((6, 4)), np.array([0, 0, 0, 0, 1, 1]))
    run(name, [alike], 2)


@every
def test_two_classes_of_one_feature(name: str) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 80)
    x = (4.0 * y + rng.normal(size=80))[:, None]
    clients = [Client(str(k), (x[k::2], y[k::2]), (x[k::2], y[k::2])) for k in range(2)]
    if name != "fedncm" and name != "fedcof":  # directions of one number are its sign
        assert np.mean(run(name, clients, 2)) > 0.9
    else:
        run(name, clients, 2)


@every
def test_a_column_that_is_a_copy_and_one_that_never_moves(name: str) -> None:
    clients = federation((40, 50))

    def wider(rows: LabelledRows) -> LabelledRows:
        return np.column_stack((rows[0], rows[0][:, 0], np.full(len(rows[1]), 3.0))), rows[1]

    odd = [Client(c.name, wider(c.train), wider(c.test)) for c in clients]
    run(name, odd, CLASSES)


@pytest.mark.parametrize("name", RIVALS)
def test_scores_are_numbers(name: str) -> None:
    found = fitted(name, federation((40, 50)), CLASSES, **SMALL.get(name, {}))
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(5, WIDTH)))
    for scores in (found.scores, *found.own.values()):
        assert bool(torch.isfinite(scores(x)).all())
        assert scores(x).dtype == torch.float64


def test_every_rival_says_how_it_differs_from_its_paper() -> None:
    for name, info in METHODS.items():
        ours = name in ("fedhip-lda", "fedhip-logistic", "auto", "local", "local-sgd")
        assert bool(info.differs) != ours, name
        assert DIFFERS not in info.differs
        assert info.differs == info.differs.strip()
    assert METHODS["fedavg"].differs == "Nothing known."
    assert all("reconstruction" in METHODS[name].differs for name in ("apfl", "safle"))
