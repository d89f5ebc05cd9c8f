"""The tuned protocol: standardised features, the same budget for all, and no test row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from fedhip.methods.engine.protocol import Protocol
from fedhip.reproduce import Source, reproduce
from fedhip.reproduce.bench import Bench
from fedhip.reproduce.divisions import divide, standardize, validation_order
from fedhip.reproduce.studies import tuning
from fedhip.simulation.client import Client
from fedhip.simulation.hold_out import hold_out
from tests.reproduce.fakes import BEST_RATE, bench_of, pretend, rows


def clients() -> list[Client]:
    return divide(Source("mine", rows()), 5, 0.1, 0)


@pytest.mark.parametrize("intercept", [False, True])
def test_standardised_features_are_those_of_scikit_learn(intercept: bool) -> None:
    before, after = clients(), standardize(clients(), intercept=intercept)
    scaler = StandardScaler().fit(np.concatenate([client.train[0] for client in before]))
    for old, new in zip(before, after, strict=True):
        for (raw, labels), (scaled, kept) in ((old.train, new.train), (old.test, new.test)):
            np.testing.assert_allclose(scaled[:, :8], scaler.transform(raw), rtol=1e-10, atol=1e-12)
            assert np.array_equal(labels, kept)
            assert scaled.shape[1] == 8 + intercept
            assert scaled[:, 8:].tolist() == [[1.0]] * len(labels) if intercept else True


def test_held_out_rows_are_a_fifth_of_the_training_rows() -> None:
    for whole, part in zip(clients(), hold_out(clients(), 0, validation_order), strict=True):
        together = np.concatenate([part.train[0], part.test[0]])
        assert sorted(map(tuple, together)) == sorted(map(tuple, whole.train[0]))
        assert len(part.test[1]) == int(0.2 * len(whole.train[1]) + 0.5)


def test_a_client_with_one_row_trains_on_it() -> None:
    single = Client("one", (np.ones((1, 2)), np.array([0])), (np.zeros((3, 2)), np.array([0, 1, 0])))
    (part,) = hold_out([single], 0, validation_order)
    assert len(part.train[1]) == 1
    assert len(part.test[1]) == 0


def test_the_best_learning_rate_is_found_and_budgets_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    bench = bench_of(tmp_path, budget=6)
    (source,) = bench.sources
    choices = {method: tuning.choose(bench, source, 0.1, method) for method in ("fedavg", "ditto", "global", "fedhip")}
    assert {len(choice.tried) for choice in choices.values()} == {6}
    assert len({setting for setting, _ in choices["ditto"].tried}) == 6
    assert choices["fedavg"].setting.learning_rate == BEST_RATE
    assert choices["ditto"].setting.learning_rate == BEST_RATE
    # The pretended training likes a large mu, and does not count the default.
    assert {dict(setting.options).get("mu") for setting, _ in choices["ditto"].tried} == {None, 0.1, 0.01}
    assert dict(choices["ditto"].setting.options)["mu"] == 0.1
    assert tuning.choose(bench, source, 0.1, "local").tried[0][0].options == ()


def test_a_setting_that_diverges_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, diverge=lambda name, protocol: protocol.learning_rate == BEST_RATE)
    bench = bench_of(tmp_path)
    choice = tuning.choose(bench, bench.sources[0], 0.1, "fedavg")
    assert choice.setting.learning_rate == 0.005
    assert (None in [accuracy for _, accuracy in choice.tried]) is True


def poisoned(bench: Bench, seeds: tuple[int, ...]) -> Any:
    """The bench with features of the division's test rows that are far from where they were."""
    (source,) = bench.sources
    features = source.features.features.copy()
    (seed,), s = seeds, bench.settings
    tests = {
        row.tobytes() for client in divide(source, s.clients[0], s.concentrations[0], seed) for row in client.test[0]
    }
    hit = np.array([row.tobytes() in tests for row in features])
    assert 0 < hit.sum() < len(hit)
    features[hit] = 1e3 * np.random.default_rng(9).normal(size=features[hit].shape)
    labels = source.features.labels
    return type(source.features)(features, labels, source.features.class_names)


def test_the_search_sees_no_test_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    clean = bench_of(tmp_path / "clean", seeds=(0,), clients=(4,), concentrations=(0.1,))
    other = bench_of(
        tmp_path / "other", poisoned(clean, (0,)), seeds=(0,), clients=(4,), concentrations=(0.1,)
    )  # fmt: skip
    for method in clean.settings.methods:
        assert tuning.choose(clean, clean.sources[0], 0.1, method) == tuning.choose(
            other, other.sources[0], 0.1, method
        )
    # The poison is felt where test rows are meant to be seen.
    cleans = divide(clean.sources[0], 4, 0.1, 0)
    others = divide(other.sources[0], 4, 0.1, 0)
    for a, b in zip(cleans, others, strict=True):
        assert np.array_equal(a.train[0], b.train[0])
        assert not np.array_equal(a.test[0], b.test[0])


def test_the_standardised_training_rows_do_not_depend_on_test_rows(tmp_path: Path) -> None:
    clean = bench_of(tmp_path, seeds=(0,), clients=(4,), concentrations=(0.1,))
    other = Source("mine", poisoned(clean, (0,)))
    one = standardize(divide(clean.sources[0], 4, 0.1, 0))
    two = standardize(divide(other, 4, 0.1, 0))
    assert all(np.array_equal(a.train[0], b.train[0]) for a, b in zip(one, two, strict=True))


def test_standardised_divisions_are_not_mixed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are kept; every method gets those of its own division, with a column of ones or without."""
    methods = pretend(monkeypatch)
    bench = bench_of(tmp_path, regimes=("tuned",))
    reproduce(bench, ("table1",), tmp_path / "out")
    looked = 0
    for call in methods.calls:
        if call["protocol"].evaluate_every or call["name"] in ("global", "fedhip"):
            looked += 1
            s = call["protocol"].seed
            width = 9 if call["name"] in ("global", "fedhip") else 8
            matches = [
                all(np.array_equal(a.train[0], b.train[0]) for a, b in zip(call["clients"], made, strict=True))
                for concentration in (0.1, 1.0)
                for base in [divide(bench.sources[0], len(call["clients"]), concentration, s)]
                for division in (base, hold_out(base, s, validation_order))
                for made in [standardize(division, intercept=width == 9)]
            ]
            assert sum(matches) == 1
    assert looked > 8


def test_methods_are_run_as_the_search_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = pretend(monkeypatch)
    (table,), _ = reproduce(bench_of(tmp_path, regimes=("tuned",)), ("table1",), tmp_path / "out")
    final = [call for call in methods.calls if call["protocol"].evaluate_every and call["name"] == "fedavg"]
    assert len(final) == 8
    assert {call["protocol"].learning_rate for call in final} == {BEST_RATE}
    stacked = np.concatenate([client.train[0] for client in final[0]["clients"]])
    np.testing.assert_allclose(stacked.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(stacked.std(axis=0), 1, atol=1e-12)
    ridge = next(call for call in methods.calls if call["name"] == "fedhip")
    assert ridge["clients"][0].train[0].shape[1] == 9
    assert any(note.startswith("FedAvg: learning rate 0.02; of 4 settings") for note in table.footnotes)
    record = next(record for record in table.records if record["method"] == "fedavg")
    assert (record["learning_rate"], record["settings_tried"]) == (BEST_RATE, 4)


def test_every_heterogeneity_has_a_search_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best rate diverges where clients have few classes; where they have many, it is taken."""
    methods = pretend(monkeypatch)
    bench = bench_of(tmp_path, regimes=("tuned",), seeds=(0,))

    def few_classes(name: str, protocol: Protocol) -> bool:
        return protocol.learning_rate == BEST_RATE and len(set(methods.calls[-1]["clients"][0].train[1])) < 4

    methods.diverge = few_classes
    (table,), _ = reproduce(bench, ("table1",), tmp_path / "out")
    rates = {r["concentration"]: r["learning_rate"] for r in table.records if r["method"] == "fedavg"}
    assert rates[0.1] != BEST_RATE
    assert rates[1.0] == BEST_RATE
    assert any(
        note.startswith("FedAvg: learning rate 0.005 at λ = 0.1; learning rate 0.02 at λ = 1; of 4 settings")
        for note in table.footnotes
    )
