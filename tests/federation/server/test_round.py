"""The whole round on an engine in this process: the same bits as `fedhip run`, masked or plain, whoever is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.cli.main import main
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.data import make_partition
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.errors import RoundError
from fedhip.heads.model import Model
from fedhip.runs import Run, verify
from fedhip.runs.round.settings import RoundSettings
from fedhip.runs.run import run_round
from tests.federation.samples import EIGHT, FOUR, ONE_SUM, Trial, encoding, feature_set, ridge_options, sum_of

ALL_STAGES = ("hello", "keys", "share", "mask", "unmask", "personalize")


def fedhip_run(
    path: Path, sites: tuple[str, ...], agreement: Agreement, surveyed: tuple[str, ...] | None = None, **settings: Any
) -> Run:
    """The run of the same clients in one process; `surveyed` are those who say what columns are like, if not all."""
    data, ridge = feature_set(sites), ridge_options(agreement)
    if surveyed is not None:
        ridge = replace(ridge, columns=encoding(agreement, surveyed).columns)
    partition = make_partition(data.labels, "natural", clients=data.clients)
    told = RoundSettings(alpha=agreement.alpha, beta=agreement.beta, ridge=ridge, **settings)
    config = {
        "alpha": agreement.alpha, "beta": agreement.beta, "seed": 0, "only_local_classes": False, "statistics": True,
    }  # fmt: skip
    return run_round(path, data, partition, told, title="", config=config)[0]


def assert_same_models(own: Model, other: Model) -> None:
    assert (own.alpha, own.beta, own.own, own.total) == (other.alpha, other.beta, other.own, other.total)
    torch.testing.assert_close(own.weights, other.weights, rtol=1e-9, atol=1e-12)
    assert (own.intercept is None) == (other.intercept is None)
    if own.intercept is not None:
        torch.testing.assert_close(own.intercept, other.intercept, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "sums"),
    [
        ({}, ["moments", "statistics", "beta"]),
        ({"beta": 0.1, "alpha": 2.0}, ["moments", "statistics"]),
        ({"columns": "plain"}, ["statistics", "beta"]),
        (ONE_SUM, ["statistics"]),
        ({"standardize": False, "intercept": False}, ["moments", "statistics", "beta"]),
        ({**ONE_SUM, "standardize": False, "intercept": False}, ["statistics"]),  # of before there was a choice
    ],
    ids=["default", "given", "plain", "one", "paper", "old"],
)
@pytest.mark.sampled(2)
def test_masked_plain_and_fedhip_run_are_the_same_bits(
    tmp_path: Path, settings: dict[str, Any], sums: list[str]
) -> None:
    masked = Trial.make(tmp_path / "masked", **settings)
    masked.grid.carry = True
    plain = Trial.make(tmp_path / "plain", secure_sum=False, **settings)
    for site in FOUR:
        masked.policy(site, "tell_accuracy = true")
        plain.policy(site, "tell_accuracy = true\nrequire_secure_sum = false")
    expected = fedhip_run(tmp_path / "run", FOUR, masked.agreement)
    for trial in (masked, plain):
        result = trial.run()
        assert [s["ask"] for s in result.results.get("sums", [{"ask": "statistics"}])] == sums
        assert result.results["methods"]["fedhip"]["rounds"] == len(sums)
        assert result.details["columns"] == expected.details["columns"]
        assert result.details["fold_betas"] == expected.details["fold_betas"]
        assert result.total() == expected.total()
        assert (result.path / "total.safetensors").read_bytes() == (expected.path / "total.safetensors").read_bytes()
        assert_same_models(result.model(None), expected.model(None))
        assert result.results["beta"] == expected.results["beta"]
        assert not [check for check in verify(result) if check.problem]
        for site in FOUR:
            own = Run.open(trial.site_folder(site) / "result")
            assert_same_models(own.model(site), expected.model(site))
            mine, theirs = (run.details["clients"][site]["loo_chosen"] for run in (own, expected))
            assert mine == theirs
            assert not [check for check in verify(own) if check.problem]
            left = {path.name for path in (trial.site_folder(site) / "state").iterdir()}
            assert left == {"lock", "session.bin", "site.log", "finished.json", "sum.json", "sums.head"}
        accuracy = {e["client"]: e["accuracy"] for e in expected.results["methods"]["fedhip"]["per_client"]}
        assert {e["client"]: e["accuracy"] for e in result.results["methods"]["fedhip"]["per_client"]} == accuracy
        for method in ("local", "global", "fedhip"):
            found, wanted = (r.results["methods"][method]["accuracy"] for r in (result, expected))
            assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("stage", "kind", "number"),
    [("hello", "silent", 0), *((s, k, n) for s in ALL_STAGES for k in ("silent", "lost") for n in (1, 3))],
)
@pytest.mark.sampled(3)
def test_sites_that_die_before_and_after_sending(
    tmp_path: Path, stage: str, kind: str, number: int, sums_only: None
) -> None:
    trial = Trial.make(tmp_path, EIGHT, quorum=5, threshold=5, dishonest_sites=1, **ONE_SUM)
    gone = EIGHT[1 : 1 + number]
    for site in gone:
        trial.fault(kind, site, stage)
    result = trial.run()
    # Whoever masked its vector and could send it is in the sum, whatever happened to it after.
    inside = EIGHT if stage in ("unmask", "personalize") else tuple(s for s in EIGHT if s not in gone)
    assert result.total() == sum_of(inside, trial.agreement)
    assert result.results["sites"] == list(inside)
    assert set(result.results["dropped"]) == set(gone)
    for site in EIGHT:
        own = trial.site_folder(site) / "result"
        done = site not in gone or (stage, kind) == ("personalize", "lost")
        assert own.exists() == done
        if done:
            assert GridStatistics.from_file(own / "total.safetensors") == result.total()


@pytest.mark.parametrize(
    ("stage", "kind"),
    [("hello", "silent"), ("keys", "lost"), ("share", "silent"), ("mask", "silent"), ("mask", "lost")],
)
@pytest.mark.sampled(3)
def test_sites_that_die_before_anything_is_summed(tmp_path: Path, stage: str, kind: str, sums_only: None) -> None:
    """In the first of three sums: the others go on, as if the dead had never come."""
    trial = Trial.make(tmp_path, EIGHT, quorum=5, threshold=5, dishonest_sites=1)
    for site in "bcd":
        trial.fault(kind, site, stage, round=1)
    result, inside = trial.run(), ("a", *EIGHT[4:])
    assert result.total() == sum_of(inside, trial.agreement)
    assert [(s["ask"], tuple(s["sites"])) for s in result.results["sums"]] == [
        (ask, inside) for ask in ("moments", "statistics", "beta")
    ]
    assert set(result.results["dropped"]) == {"b", "c", "d"}


@pytest.mark.parametrize(("number", "ask"), [(2, "statistics"), (3, "beta")])
@pytest.mark.parametrize(
    ("stage", "kind"), [("keys", "silent"), ("share", "lost"), ("mask", "silent"), ("mask", "lost")]
)
@pytest.mark.sampled(3)
def test_a_site_that_dies_between_the_sums(tmp_path: Path, number: int, ask: str, stage: str, kind: str) -> None:
    """The others wait for it, unless all have agreed to go on; then its rows are in the sums before alone."""
    three = ("a", "b", "d")
    trial = Trial.make(tmp_path, quorum=3, threshold=3)
    trial.fault(kind, "c", stage, round=number)
    with pytest.raises(RoundError, match="goes on from here"):
        trial.run()
    assert "c was in the sum before and is not in this one" in trial.log("a")
    assert not trial.result.exists()
    trial.again()
    for site in FOUR:
        trial.policy(site, "allow_leavers = true")
    trial.fault(kind, "c", stage, round=number)
    result = trial.run()
    inside = FOUR if ask == "beta" else three
    assert result.total() == sum_of(inside, trial.agreement, FOUR)
    assert result.results["sites"] == list(inside)
    wanted = [list(FOUR), *([list(FOUR)] if ask == "beta" else [list(three)]), list(three)]
    assert [s["sites"] for s in result.results["sums"]] == wanted
    assert not (trial.site_folder("c") / "result").exists()
    expected = fedhip_run(tmp_path / "run", inside, trial.agreement, FOUR)
    if ask == "statistics":
        for site in three:
            own = Run.open(trial.site_folder(site) / "result").model(site)
            assert_same_models(own, expected.model(site))


def test_a_site_that_dies_between_the_sums_and_is_back(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3)
    for number in (2, 3):
        trial.fault("silent", "c", "mask", round=number)
        with pytest.raises(RoundError, match="goes on from here"):
            trial.run()
        trial.again()
    result, expected = trial.run(), fedhip_run(tmp_path / "run", FOUR, trial.agreement)
    assert result.total() == expected.total()
    assert trial.codes() == {}
    for site in FOUR:
        assert_same_models(Run.open(trial.site_folder(site) / "result").model(site), expected.model(site))


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("kind", ["silent", "lost"])
@pytest.mark.sampled(3)
def test_sites_that_die_while_the_others_agree_on_who_is_left(
    tmp_path: Path, kind: str, number: int, sums_only: None
) -> None:
    trial = Trial.make(tmp_path, (*EIGHT, "i"), quorum=5, threshold=5, dishonest_sites=0, **ONE_SUM)
    for site in trial.sites:
        trial.policy(site, "dishonest_sites = 0")
    trial.fault("silent", "a", "mask")
    for site in EIGHT[1 : 1 + number]:
        trial.fault(kind, site, "agree")
    inside = (*EIGHT[1:], "i")
    assert trial.run().total() == sum_of(inside, trial.agreement)
    assert [step for _, step in trial.grid.asked].count("agree") == 8


def test_nobody_is_asked_to_agree_where_nobody_is_gone(tmp_path: Path, sums_only: None) -> None:
    trial = Trial.make(tmp_path)
    trial.fault("silent", "b", "share")
    trial.run()
    assert "agree" not in {step for _, step in trial.grid.asked}


@pytest.mark.slow
def test_the_server_holds_one_vector_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums_only: None
) -> None:
    """Of four answers only the one that is folded in is alive."""
    import gc
    import weakref

    from fedhip.federation.secure_sum import Collector

    trial = Trial.make(tmp_path, **ONE_SUM)
    seen: list[weakref.ref[np.ndarray]] = []
    alive: list[int] = []
    add = Collector.add

    def counted(self: Collector, site: str, vector: np.ndarray, signature: bytes) -> None:
        gc.collect()
        seen.append(
            weakref.ref(vector.base if vector.base is not None and isinstance(vector.base, np.ndarray) else vector)
        )
        alive.append(sum(ref() is not None for ref in seen))
        add(self, site, vector, signature)

    monkeypatch.setattr(Collector, "add", counted)
    trial.run()
    assert len(alive) == 4
    assert max(alive) <= 2


def test_a_site_has_a_run_folder_that_predict_verify_and_report_read(
    tmp_path: Path, reports: None, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = Trial.make(tmp_path, ("a", "b"))
    trial.run()
    own = trial.site_folder("a") / "result"
    assert "<svg" in (own / "report.html").read_text()
    for words in (
        ["predict", own, "--client", "a", "--features", trial.data("a")],
        ["verify", own],
        ["verify", trial.result],
        ["report", own],
    ):
        assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    assert Run.open(own).clients == ["a"]


def test_only_a_site_that_says_so_tells_its_accuracy(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path)
    trial.policy("b", "tell_accuracy = true")
    result = trial.run()
    assert [e["client"] for e in result.results["methods"]["fedhip"]["per_client"]] == ["b"]
    assert (trial.site_folder("b") / "result" / "models" / "b.safetensors").is_file()


def test_two_sites_are_warned(tmp_path: Path, sums_only: None) -> None:
    trial = Trial.make(tmp_path, ("a", "b"))
    trial.run()
    assert any("each can infer the other" in line["text"] for line in trial.events())
    assert "each can infer the other" in trial.log("a")


def test_a_finished_round_is_not_run_again(tmp_path: Path, sums_only: None) -> None:
    trial = Trial.make(tmp_path)
    trial.run()
    before = (trial.result / "ledger.jsonl").read_bytes()
    with pytest.raises(RoundError, match="is finished"):
        trial.round().run()
    assert (trial.result / "ledger.jsonl").read_bytes() == before
    assert not (trial.folder / "state" / "checkpoint").exists()
