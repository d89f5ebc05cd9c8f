"""A budget: sizes in words, what fits, and that what is counted as sent stays within it at every door."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
import torch

import fedhip
from fedhip.cli.main import main
from fedhip.core.exact.columns import Survey
from fedhip.core.exact.root import MOST_BITS, root_bytes, root_statistics
from fedhip.data import feature_set
from fedhip.errors import InputError
from fedhip.features.lifts.budget import upload_bytes
from fedhip.heads.auto import choosing_bytes
from fedhip.heads.budget import LEAST_BITS, bytes_of, within
from fedhip.simulation.federation import SCORES_BYTES
from fedhip.sklearn import FedHiPClassifier
from fedhip.utils.candidates import CANDIDATES

CLASSES, CLIENTS = 4, 5
#: Training rows of each client.
SIZES = [150, 500, 350]


def rows(width: int, number: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    means = rng.normal(size=(CLASSES, width)) * 0.7
    labels = rng.integers(0, CLASSES, number)
    return means[labels] + rng.normal(size=(number, width)) + 5.0, labels, rng.integers(0, CLIENTS, number)


@pytest.mark.parametrize(
    ("size", "expected"),
    [("5MB", 5_000_000), ("500kB", 500_000), ("1.5 MiB", 1_572_864), ("1234", 1234), (1234, 1234), (".5kb", 500)],
)
def test_sizes(size: str | int, expected: int) -> None:
    assert bytes_of(size) == expected


@pytest.mark.parametrize("size", ["", "much", "5 parsecs", "-3MB", 0, "0kB", float("nan"), "1e400MB"])
def test_sizes_that_are_none(size: str | float) -> None:
    with pytest.raises(InputError, match="such as 5MB"):
        bytes_of(size)


@pytest.mark.parametrize("width", [40, 300])
def test_the_widest_that_fits(width: int) -> None:
    """By counting: one direction more is over, and the features as they are take the place of all directions."""
    choosing, most = SCORES_BYTES + choosing_bytes(CANDIDATES, prior=True), max(SIZES)

    def beside(directions: int) -> int:
        # What tells the rows' lengths, or their columns, and two numbers that tell each direction's units.
        return 8 * Survey.size(width if width <= 256 else 1) + 16 * directions + choosing

    def taken(directions: int) -> int:
        return beside(directions) + root_bytes(most, directions, CLASSES, LEAST_BITS)

    plain = 8 * Survey.size(width) + upload_bytes(width, CLASSES) + choosing
    found = within(plain, width, CLASSES, SIZES, prior=True)
    assert (found.lift, found.room) == (None, None)
    # All directions take a fraction of the bytes of the features as they are.
    assert taken(width) - taken(0) < (plain - choosing) / 2
    for budget in (plain - 1, taken(width), taken(width) - 1, (taken(width) + taken(0)) // 2):
        found = within(budget, width, CLASSES, SIZES, prior=True)
        lift, room = found.lift, found.room
        assert lift is not None
        assert lift.kind == "project"
        assert lift.width is not None
        assert room is not None
        assert (lift.width == width) == (budget >= taken(width))
        assert beside(lift.width) + room <= budget
        # Every byte is used, or numbers are as precise as they can be.
        assert beside(lift.width) + room == budget or room == root_bytes(most, lift.width, CLASSES, MOST_BITS)
        assert lift.width == width or taken(lift.width + 1) > budget


def test_a_budget_that_nothing_fits_says_what_does() -> None:
    with pytest.raises(
        InputError, match=r"a budget of 100 bytes holds no upload .* the smallest is ([\d,]+)"
    ) as caught:
        within(100, 300, CLASSES, SIZES, prior=True)
    least = int(str(caught.value).rsplit(" ", 1)[1].replace(",", ""))
    lift = within(least, 300, CLASSES, SIZES, prior=True).lift
    assert lift is not None
    assert lift.width == 1
    with pytest.raises(InputError, match=f"{least:,}"):
        within(least - 1, 300, CLASSES, SIZES, prior=True)


@pytest.mark.parametrize(("width", "budget"), [(300, "80kB"), (40, 34_000), (300, "1MB")])
def test_what_a_client_sends_stays_within(width: int, budget: str | int, tmp_path: Path) -> None:
    """Counted from what was sent; the choice has the bytes that were planned for it, none to spare for a direction."""
    X, y, clients = rows(width)
    run = fedhip.run(X, y, clients, budget=budget, out=tmp_path / "run")
    results = run.results
    sent, most = results["methods"]["auto"]["upload_bytes_per_client"], bytes_of(budget)
    assert sent <= most
    chosen = results["choice"]["budget"]
    assert chosen["bytes"] == most
    if "lift" in results:
        wide = results["lift"]["width"]
        assert chosen["upload"] == f"project {wide}"
        room = chosen["statistics_bytes"]
        most_rows = max(run.statistics(client).num_samples for client in run.clients)
        assert room >= root_bytes(most_rows, wide, CLASSES, LEAST_BITS)
        # The sum comes back whole.
        assert results["methods"]["auto"]["download_bytes_per_client"] > upload_bytes(wide, CLASSES) > room
        assert results["feature_dim"] == wide <= width
    else:
        assert chosen["upload"] == "as they are"
    # Predictions take features as they came, and after somebody has left, too.
    name = run.clients[0]
    before = run.predict(X[:20], client=name)
    assert before.shape == (20,)
    assert float((run.predict(X[clients == 0], client=name) == y[clients == 0]).mean()) > 0.6
    run.forget(run.clients[-1])
    assert run.predict(X[:20], client=name).shape == (20,)


def test_the_estimator_and_the_command_keep_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y, clients = rows(300)
    found = FedHiPClassifier(budget="80kB").fit(X, y, groups=clients)
    assert found.lift_ is not None
    sizes = np.unique(clients, return_counts=True)[1].tolist()
    expected = within(80_000, 300, CLASSES, sizes, prior=True).lift
    assert expected is not None
    assert found.lift_.width == expected.width
    assert found.score(X, y, clients) > 0.6
    np.savez(tmp_path / "rows.npz", features=X, labels=y, clients=clients)
    told = ["run", "--features", str(tmp_path / "rows.npz"), "--out", str(tmp_path / "run")]
    assert main([*told, "--budget", "100"]) == 3
    assert "the smallest is" in capsys.readouterr().err
    assert main([*told, "--budget", "80kB", "--lift", "relu"]) == 3
    assert "leave out --lift" in capsys.readouterr().err
    assert main([*told, "--budget", "80kB"]) == 0
    assert fedhip.open_run(tmp_path / "run").results["lift"]["width"] == expected.width


def test_every_door_has_the_same_models(tmp_path: Path) -> None:
    """Twice the same bits; and the estimator answers as the run does."""
    X, y, clients = rows(300)
    split = np.zeros(len(y), np.int64)
    runs = [fedhip.run(X, y, clients, budget="80kB", split=split, out=tmp_path / name) for name in "ab"]
    assert runs[0].total() == runs[1].total()
    found = FedHiPClassifier(budget="80kB").fit(X, y, groups=clients)
    for client in np.unique(clients):
        at = clients == client
        assert (found.predict(X[at], groups=clients[at]) == runs[0].predict(X[at], client=str(client))).all()


def test_who_comes_and_goes(tmp_path: Path) -> None:
    """Forgetting gives the sum of the others to the bit, and who joins sends no more than they did."""
    X, y, clients = rows(300)
    run = fedhip.run(X, y, clients, budget="60kB", out=tmp_path / "run")
    room = run.results["choice"]["budget"]["statistics_bytes"]
    assert run.encoding.room == room
    name = run.clients[-1]
    before, own = run.total(), run.statistics(name)
    never = reduce(add, (run.statistics(client) for client in run.clients if client != name))
    run.forget(name)
    assert run.total() == never == before - own
    assert not [check for check in run.verify() if check.problem]
    run.join("late", X[:40], y[:40], split=np.zeros(40, np.int64))
    labels = torch.from_numpy(y[:40])
    assert run.lift is not None
    lifted = run.encoding.rounded((run.lift(X[:40]).numpy(), y[:40]))
    sent = root_statistics(lifted, labels, CLASSES, room, fraction_bits=run.encoding.fraction_bits)
    assert run.statistics("late") == sent
    assert run.total() == never + sent
    assert not [check for check in run.verify() if check.problem]
    with pytest.raises(InputError, match="client 'large': statistics of 300 training rows need"):
        run.join("large", X, y, split=np.zeros(len(y), np.int64))
    # What came in parts was rounded in parts.
    run.update("late", X[40:60], y[40:60])
    assert not [check for check in run.verify() if check.problem]
    together = feature_set(X[:60], y[:60], np.full(60, "late"), split=np.zeros(60, np.int64))
    with pytest.raises(InputError, match="came in parts, each rounded for the budget"):
        run.personalize(together)


@pytest.mark.slow
def test_less_than_a_tenth_of_the_bytes_costs_next_to_nothing(tmp_path: Path) -> None:
    """Fewer rows than half the columns: a root of the statistics is smaller than they are."""
    X, y, clients = rows(300, 600)
    accuracy, sent = [], []
    for budget in (None, "80kB"):
        found = fedhip.run(X, y, clients, budget=budget, out=tmp_path / str(budget)).results["methods"]["auto"]
        accuracy.append(found["accuracy"]["mean"])
        sent.append(found["upload_bytes_per_client"])
    assert sent[1] < sent[0] / 4
    assert accuracy[1] > accuracy[0] - 0.03
