"""The logistic head over the network: the same sums as `fedhip run` to the last bit, whoever is missing or killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from fedhip.core.exact.columns import Columns
from fedhip.core.logistic.fit import LogisticFit, LogisticHead
from fedhip.errors import LossError
from fedhip.federation.errors import RoundError
from fedhip.federation.server.logistic import LogisticSums
from fedhip.federation.sums.vector import Vector
from fedhip.federation.transport.wire import from_records, to_records
from fedhip.heads.logistic import LogisticRun
from fedhip.heads.task import Task
from fedhip.simulation.driver import federate
from fedhip.simulation.options import STANDARD, RidgeOptions
from tests.federation.grid import ServerKilled
from tests.federation.samples import CLASSES, FOUR, WIDTH, Trial, clients, sum_of

pytestmark = pytest.mark.usefixtures("sums_only")


#: Columns as they are, on the grid of the agreements here.
PLAIN = RidgeOptions(fraction_bits=32, columns=Columns.plain(WIDTH))


def run_of(sites: Sequence[str], ridge: RidgeOptions = PLAIN) -> LogisticRun:
    task = Task(clients(sites), len(CLASSES))
    return LogisticRun(task, federate(task.training, len(CLASSES), ridge=ridge))


def in_one_process(sites: Sequence[str], gradients: int = 5, ridge: RidgeOptions = PLAIN) -> LogisticFit:
    """The fit of `fedhip run` on these sites' rows."""
    run = run_of(sites, ridge)
    fit = run.statistics()
    run.temperature(fit)
    run.gradients(fit, gradients)
    return fit


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[LogisticFit]:
    """The fits that servers made."""
    found: list[LogisticFit] = []
    run = LogisticSums.run

    def kept(self: LogisticSums) -> LogisticHead:
        found.append(self.fit)
        return run(self)

    monkeypatch.setattr(LogisticSums, "run", kept)
    return found


def assert_same(fit: LogisticFit, other: LogisticFit) -> None:
    assert [model.bits for model, _ in fit._terms] == [model.bits for model, _ in other._terms]
    for (model, term), (their_model, their_term) in zip(fit._terms, other._terms, strict=True):
        assert torch.equal(model.steps, their_model.steps)
        assert term == their_term
    assert (fit.temperature, fit.penalty) == (other.temperature, other.penalty)
    torch.testing.assert_close(fit.head().weights, other.head().weights, rtol=0.0, atol=1e-12)


def logistic(tmp_path: Path, sites: Sequence[str] = FOUR, **settings: Any) -> Trial:
    """Of columns that are known, so that the statistics are the first sum."""
    return Trial.make(tmp_path, sites, head="logistic", **{"columns": "plain", **settings})


@pytest.mark.parametrize(("columns", "ridge"), [("sum", STANDARD), ("plain", PLAIN)])
@pytest.mark.sampled(2)
def test_masked_and_plain_sums_are_those_of_fedhip_run(
    tmp_path: Path, fits: list[LogisticFit], columns: str, ridge: RidgeOptions
) -> None:
    masked = logistic(tmp_path / "masked", columns=columns)
    plain = logistic(tmp_path / "plain", columns=columns, secure_sum=False)
    masked.grid.carry = True
    for site in FOUR:
        plain.policy(site, "require_secure_sum = false")
    expected, first = in_one_process(FOUR, ridge=ridge), ["moments"] * (columns == "sum")
    for trial in (masked, plain):
        result = trial.run()
        assert result.total() == sum_of(FOUR, trial.agreement)
        assert [s["ask"] for s in result.results["sums"]] == [
            *(*first, "statistics", "temperature", "gradient", "gradient", "penalty", *["gradient"] * 3)
        ]
        assert all(s["sites"] == list(FOUR) for s in result.results["sums"])
        assert_same(fits[-1], expected)
    assert masked.grid.asked.count((101, "unmask")) == 8 + len(first)


#: Statistics, temperature, two gradients, penalty.
SHORT: Any = {"gradient_rounds": 2}


def permit_leavers(trial: Trial) -> None:
    for site in trial.sites:
        trial.policy(site, "allow_leavers = true")


def with_leaver(leaver: str, number: int, gradients: int) -> LogisticFit:
    """The fit in one process, of sums that from this one on are without a site's rows."""
    runs = {there: run_of(sites) for there, sites in ((True, FOUR), (False, tuple(s for s in FOUR if s != leaver)))}
    fit = runs[True].statistics()
    runs[number > 2].temperature(fit)
    at = 3
    for _ in range(gradients):
        model = fit.ask()
        fit.tell(model, runs[at < number]._answers(fit, model))
        at += 1
        if fit.evaluations == 2 and fit.penalty is None:
            fit.choose_penalty(runs[at < number]._sum("penalty", fit.penalty_losses))
            at += 1
    return fit


@pytest.mark.parametrize(
    ("step", "kind", "first"),
    [("keys", "silent", 4), ("share", "lost", 4), ("mask", "silent", 4), ("mask", "lost", 4), ("unmask", "silent", 5)],
)
@pytest.mark.sampled(3)
def test_a_leaver_with_consent_the_objective_is_that_of_those_present(
    tmp_path: Path, step: str, kind: str, first: int, fits: list[LogisticFit]
) -> None:
    trial = logistic(tmp_path, quorum=3, threshold=3, gradient_rounds=3)
    permit_leavers(trial)
    trial.fault(kind, "c", step, round=4)
    result = trial.run()
    present = [s["sites"] for s in result.results["sums"]]
    assert present == [list(FOUR) if number < first else ["a", "b", "d"] for number in range(1, len(present) + 1)]
    assert result.results["sites"] == list(FOUR)
    assert_same(fits[-1], with_leaver("c", first, 3))
    assert "those present" in result.results["notes"][0]
    assert any("site 'c' has left" in line["text"] for line in trial.events())
    assert f"left before sum {first}: c" in trial.log("a")
    assert set(trial.codes()) == {"c"}


def test_a_leaver_that_is_back_at_the_end_gets_its_model(tmp_path: Path) -> None:
    trial = logistic(tmp_path, quorum=3, threshold=3, **SHORT)
    permit_leavers(trial)
    trial.fault("late", "c", "mask", round=4)
    result = trial.run()
    assert [s["sites"] for s in result.results["sums"]] == [list(FOUR)] * 3 + [["a", "b", "d"]]
    assert [step for node, step in trial.grid.asked if node == trial.node("c")][-2:] == ["mask", "personalize"]
    assert (trial.site_folder("c") / "result").exists()


@pytest.mark.parametrize(
    ("sum_number", "step", "kind"),
    [(2, "keys", "silent"), (2, "mask", "lost"), (4, "keys", "lost"), (4, "share", "silent"), (4, "mask", "silent")],
)
@pytest.mark.sampled(3)
def test_without_consent_nobody_goes_on_and_nothing_is_lost(
    tmp_path: Path, sum_number: int, step: str, kind: str, fits: list[LogisticFit]
) -> None:
    trial = logistic(tmp_path, quorum=3, threshold=3, **SHORT)
    trial.fault(kind, "c", step, round=sum_number)
    with pytest.raises(RoundError, match="when the sites are back, and it goes on from here"):
        trial.run()
    assert not trial.result.exists()
    assert "c was in the sum before and is not in this one" in trial.log("a")
    asked = [asked for asked in trial.grid.asked if asked[1] == "unmask"]
    assert len(asked) == 4 * (sum_number - 1)
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert_same(fits[-1], in_one_process(FOUR, 2))
    assert trial.codes() == {}


@pytest.mark.parametrize("step", ["unmask", "personalize"])
@pytest.mark.sampled(2)
def test_a_site_that_misses_the_end_of_a_sum_is_asked_again_in_the_next(
    tmp_path: Path, step: str, fits: list[LogisticFit]
) -> None:
    trial = logistic(tmp_path, quorum=3, threshold=3, **SHORT)
    trial.fault("late", "c", step, round=3)
    trial.run()
    assert_same(fits[-1], in_one_process(FOUR, 2))
    assert trial.codes() == {}


def test_a_quorum_in_every_sum(tmp_path: Path) -> None:
    trial = logistic(tmp_path, quorum=3, threshold=3, **SHORT)
    permit_leavers(trial)
    for site in "bc":
        trial.fault("silent", site, "mask", round=3)
    with pytest.raises(RoundError, match=r"in sum 3, after mask, 2 of 4 sites .*b: late, c: late.*goes on from here"):
        trial.run()


@pytest.mark.parametrize(
    ("sum_number", "step", "number"),
    [
        *((2, "keys", 1), (2, "unmask", 4), (3, "keys", 4), (3, "share", 1), (3, "mask", 1), (3, "mask", 4)),
        *((3, "unmask", 1), (4, "unmask", 4), (5, "keys", 4), (5, "unmask", 1)),
    ],
)
@pytest.mark.sampled(3)
def test_killed_in_any_step_of_any_sum(
    tmp_path: Path, sum_number: int, step: str, number: int, fits: list[LogisticFit]
) -> None:
    trial = logistic(tmp_path, **SHORT)
    trial.grid.stop_at = (step, 4 * (sum_number - 1) + number)
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert_same(fits[-1], in_one_process(FOUR, 2))
    assert trial.codes() == {}
    sums = 5 - sum_number + (0 if step == "unmask" else 1)
    assert [asked for _, asked in trial.grid.asked].count("keys") == 4 * sums
    assert not (trial.folder / "state" / "checkpoint").exists()


def test_killed_again_and_again_in_one_sum(tmp_path: Path, fits: list[LogisticFit]) -> None:
    """Each time the sites must be asked in a new attempt, which a server that was killed may not forget."""
    trial = logistic(tmp_path, gradient_rounds=1)
    for number in (4 * 2 + 4, 4, 3, 4):
        trial.grid.stop_at = ("keys", number)
        with pytest.raises(ServerKilled):
            trial.run()
        trial.again()
    trial.run()
    assert_same(fits[-1], in_one_process(FOUR, 1))


def no_loss(monkeypatch: pytest.MonkeyPatch, site: str, times: int, first: int = 1) -> list[float]:
    """A site without a finite loss from its first-th gradient on, for so many times; the sizes of the weights asked."""
    import fedhip.core.logistic.sums as module

    asked: list[float] = []
    term = module.logistic_term

    def failing(*args: Any, client: str, **more: Any) -> Any:
        if client == site:
            asked.append(float(args[2].weights.abs().max()))
            if first <= len(asked) < first + times:
                raise LossError("the loss of a row is 1e9")
        return term(*args, client=client, **more)

    monkeypatch.setattr(module, "logistic_term", failing)
    return asked


def test_a_step_without_a_finite_loss_is_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: list[LogisticFit]
) -> None:
    trial = logistic(tmp_path, quorum=3, threshold=3, **SHORT)
    no_loss(monkeypatch, "c", times=2, first=2)
    result = trial.run()
    (first, _), (second, _) = fits[-1]._terms
    expected = in_one_process(FOUR, 1)
    full = expected.ask().weights
    torch.testing.assert_close(second.weights - first.weights, (full - first.weights) / 4, rtol=1e-4, atol=1e-5)
    assert [s["sites"] for s in result.results["sums"]] == [list(FOUR)] * 5
    assert sum("half the step" in line["text"] for line in trial.events()) == 2


@pytest.mark.parametrize(("first", "times"), [(1, 1), (2, 6)])
def test_a_site_that_never_has_a_finite_loss_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, times: int
) -> None:
    trial = logistic(tmp_path, quorum=3, threshold=3, **SHORT)
    asked = no_loss(monkeypatch, "c", times, first)
    with pytest.raises(RoundError, match=r"site 'c' \(loss\) has no finite loss"):
        trial.run()
    assert len(asked) == first - 1 + times
    assert not trial.result.exists()


def test_wrong_numbers_under_a_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site whose rows have changed since its statistics were summed, or that lies."""
    trial = logistic(tmp_path, **SHORT)

    def more(vector: Vector) -> None:
        vector[-1] += np.uint64(1)

    trial.lie(monkeypatch, "c", more, round=3)
    with pytest.raises(RoundError, match="under its mask: the class counts of a gradient"):
        trial.run()


@pytest.mark.parametrize("size", [0, 3, 10_000])
def test_a_vector_of_another_length(tmp_path: Path, size: int) -> None:
    trial = logistic(tmp_path, quorum=3, threshold=3, **SHORT)

    def other(records: RecordDict) -> RecordDict:
        letter = from_records(records)
        return to_records(letter.reply(letter.body, {"vector": np.zeros(size, np.uint64)}))

    trial.fault("changed", "c", "mask", other, round=3)
    with pytest.raises(RoundError, match="goes on from here"):
        trial.run()
    assert any(line.get("site") == "c" and "whole numbers belong" in line["text"] for line in trial.events())


def test_rows_that_nothing_is_left_to_learn_of(tmp_path: Path, fits: list[LogisticFit]) -> None:
    """Classes so far apart that LDA has no doubt: no loss, no gradient, and the weights stay."""
    trial = logistic(tmp_path)
    for site in FOUR:
        labels = np.arange(15) % 3
        rows = 12.0 * np.eye(3, WIDTH)[labels] + 0.01 * np.random.default_rng(ord(site)).normal(size=(15, WIDTH))
        np.savez(trial.data(site), features=rows, labels=labels, class_names=np.array(CLASSES))
    result = trial.run()
    assert [s["ask"] for s in result.results["sums"]] == ["statistics", "temperature", "gradient"]
    assert any("has converged" in line["text"] for line in trial.events())
    assert fits[-1]._terms[0][1].value == 0.0
    assert bool(torch.isfinite(result.model(None).weights).all())
