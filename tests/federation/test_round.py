"""The whole round on an engine in this process: the same bits as `fedhip run`, masked or plain, whoever is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedhip.cli.main import main
from fedhip.core.fixedpoint import GridStatistics
from fedhip.data import make_partition
from fedhip.experiments.run import RoundSettings, run_round
from fedhip.runs import RunFolder, verify
from tests.federation.samples import EIGHT, FOUR, Trial, feature_set, sum_of

ALL_STAGES = ("hello", "keys", "share", "mask", "unmask", "personalize")


def fedhip_run(path: Path, sites: tuple[str, ...], bits: int) -> RunFolder:
    data = feature_set(sites)
    partition = make_partition(data.labels, "natural", clients=data.clients)
    config = {"alpha": "loo", "beta": "auto", "seed": 0, "only_local_classes": False, "statistics": True}
    settings = RoundSettings(fraction_bits=bits)
    return run_round(path, data, partition, settings, title="", config=config, render=lambda *_: "")[0]


def test_masked_plain_and_fedhip_run_are_the_same_bits(tmp_path: Path) -> None:
    masked = Trial.make(tmp_path / "masked")
    masked.grid.carry = True
    plain = Trial.make(tmp_path / "plain", secure_sum=False)
    for site in FOUR:
        plain.policy(site, "require_secure_sum = false")
    expected = fedhip_run(tmp_path / "run", FOUR, masked.bits)
    for trial in (masked, plain):
        result = trial.run()
        assert result.total() == expected.total()
        assert (result.path / "total.safetensors").read_bytes() == (expected.path / "total.safetensors").read_bytes()
        torch.testing.assert_close(result.model(None).weights, expected.model(None).weights, rtol=1e-9, atol=1e-12)
        assert result.results["beta"] == expected.results["beta"]
        assert not [check for check in verify(result) if check.problem]
        for site in FOUR:
            own, theirs = RunFolder.open(trial.site_folder(site) / "result").model(site), expected.model(site)
            torch.testing.assert_close(own.weights, theirs.weights, rtol=1e-9, atol=1e-12)
            assert (own.alpha, own.beta, own.own, own.total) == (theirs.alpha, theirs.beta, theirs.own, theirs.total)
        accuracy = {e["client"]: e["accuracy"] for e in expected.results["methods"]["fedhip"]["per_client"]}
        assert {e["client"]: e["accuracy"] for e in result.results["methods"]["fedhip"]["per_client"]} == accuracy
        for method in ("local", "global", "fedhip"):
            found, wanted = (r.results["methods"][method]["accuracy"] for r in (result, expected))
            assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("stage", "kind", "number"),
    [("hello", "silent", 0), *((s, k, n) for s in ALL_STAGES for k in ("silent", "lost") for n in (1, 3))],
)
def test_sites_that_die_before_and_after_sending(
    tmp_path: Path, stage: str, kind: str, number: int, sums_only: None
) -> None:
    trial = Trial.make(tmp_path, EIGHT, quorum=5, threshold=5)
    gone = EIGHT[1 : 1 + number]
    for site in gone:
        trial.fault(kind, site, stage)
    result = trial.run()
    # Whoever masked its vector and could send it is in the sum, whatever happened to it after.
    inside = EIGHT if stage in ("unmask", "personalize") else tuple(s for s in EIGHT if s not in gone)
    assert result.total() == sum_of(inside, trial.bits)
    assert result.results["sites"] == list(inside)
    assert set(result.results["dropped"]) == set(gone)
    for site in EIGHT:
        own = trial.site_folder(site) / "result"
        done = site not in gone or (stage, kind) == ("personalize", "lost")
        assert own.exists() == done
        if done:
            assert GridStatistics.from_file(own / "total.safetensors") == result.total()


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("kind", ["silent", "lost"])
def test_sites_that_die_while_the_others_agree_on_who_is_left(
    tmp_path: Path, kind: str, number: int, sums_only: None
) -> None:
    trial = Trial.make(tmp_path, (*EIGHT, "i"), quorum=5, threshold=5)
    trial.fault("silent", "a", "mask")
    for site in EIGHT[1 : 1 + number]:
        trial.fault(kind, site, "agree")
    inside = (*EIGHT[1:], "i")
    assert trial.run().total() == sum_of(inside, trial.bits)
    assert [step for _, step in trial.grid.asked].count("agree") == 8


def test_nobody_is_asked_to_agree_where_nobody_is_gone(tmp_path: Path, sums_only: None) -> None:
    trial = Trial.make(tmp_path)
    trial.fault("silent", "b", "share")
    trial.run()
    assert "agree" not in {step for _, step in trial.grid.asked}


def test_the_server_holds_one_vector_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums_only: None
) -> None:
    """Of four answers only the one that is folded in is alive."""
    import gc
    import weakref

    from fedhip.federation.secure_sum import Collector

    trial = Trial.make(tmp_path)
    seen: list[weakref.ref[np.ndarray]] = []
    alive: list[int] = []
    add = Collector.add

    def counted(self: Collector, site: str, vector: np.ndarray) -> None:
        gc.collect()
        seen.append(
            weakref.ref(vector.base if vector.base is not None and isinstance(vector.base, np.ndarray) else vector)
        )
        alive.append(sum(ref() is not None for ref in seen))
        add(self, site, vector)

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
    assert RunFolder.open(own).clients == ["a"]


def test_a_site_that_does_not_tell_its_accuracy(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path)
    trial.policy("b", "tell_accuracy = false")
    result = trial.run()
    assert [e["client"] for e in result.results["methods"]["fedhip"]["per_client"]] == ["a", "c", "d"]
    assert (trial.site_folder("b") / "result" / "models" / "b.safetensors").is_file()


def test_two_sites_are_warned(tmp_path: Path, sums_only: None) -> None:
    trial = Trial.make(tmp_path, ("a", "b"))
    trial.run()
    assert any("each can infer the other" in line["text"] for line in trial.diary())
    assert "each can infer the other" in trial.log("a")


def test_a_finished_round_is_not_run_again(tmp_path: Path, sums_only: None) -> None:
    from fedhip.federation.errors import RoundError

    trial = Trial.make(tmp_path)
    trial.run()
    before = (trial.result / "ledger.jsonl").read_bytes()
    with pytest.raises(RoundError, match="is finished"):
        trial.round().run()
    assert (trial.result / "ledger.jsonl").read_bytes() == before
    assert not (trial.folder / "state" / "checkpoint").exists()
