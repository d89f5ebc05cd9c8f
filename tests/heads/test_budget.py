"""A budget: sizes in words, what fits, and that what is counted as sent stays within it at every door."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedhip
from fedhip.cli.main import main
from fedhip.core.exact.columns import Survey
from fedhip.errors import InputError
from fedhip.features.lifts.budget import packed_bits, upload_bytes
from fedhip.heads.auto import choosing_bytes
from fedhip.heads.budget import bytes_of, within
from fedhip.simulation.federation import SCORES_BYTES
from fedhip.sklearn import FedHiPClassifier
from fedhip.utils.candidates import CANDIDATES

CLASSES, CLIENTS = 4, 5


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
    choosing = SCORES_BYTES + choosing_bytes(CANDIDATES, prior=True)
    bits = packed_bits(1000)

    def taken(directions: int) -> int:
        # What tells the rows' lengths, or their columns, and two numbers that tell each direction's units.
        first = 8 * Survey.size(width if width <= 256 else 1) + 16 * directions
        return first + upload_bytes(directions, CLASSES, bits) + choosing

    plain = 8 * Survey.size(width) + upload_bytes(width, CLASSES) + choosing
    assert within(plain, width, CLASSES, 1000, prior=True).lift is None
    # All directions take a fraction of the bytes of the features as they are.
    assert taken(width) - taken(0) < (plain - choosing) / 2
    for budget in (plain - 1, taken(width), taken(width) - 1, (taken(width) + taken(0)) // 2):
        lift = within(budget, width, CLASSES, 1000, prior=True).lift
        assert lift is not None
        assert lift.kind == "project"
        assert lift.width is not None
        assert (lift.width == width) == (budget >= taken(width))
        assert taken(lift.width) <= budget
        assert lift.width == width or taken(lift.width + 1) > budget


def test_a_budget_that_nothing_fits_says_what_does() -> None:
    with pytest.raises(
        InputError, match=r"a budget of 100 bytes holds no upload .* the smallest is ([\d,]+)"
    ) as caught:
        within(100, 300, CLASSES, 1000, prior=True)
    least = int(str(caught.value).rsplit(" ", 1)[1].replace(",", ""))
    lift = within(least, 300, CLASSES, 1000, prior=True).lift
    assert lift is not None
    assert lift.width == 1
    with pytest.raises(InputError, match=f"{least:,}"):
        within(least - 1, 300, CLASSES, 1000, prior=True)


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
        bits = packed_bits(results["choice"]["rows"])
        assert sent + 16 + upload_bytes(wide + 1, CLASSES, bits) - upload_bytes(wide, CLASSES, bits) > most
        assert results["feature_dim"] == wide < width
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
    expected = within(80_000, 300, CLASSES, len(y), prior=True).lift
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
