"""A site that sends false statistics: the others refuse the sum, and a commitment names the liar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict

from fedhip.cli.main import main
from fedhip.federation.errors import RoundError, SetupError
from fedhip.federation.operations.commitments import open_commitment, verify_commitment
from fedhip.federation.secure_sum import Opening, Reason, SecureSumError
from fedhip.federation.site.personalization import ALONE
from fedhip.federation.sums.vector import Layout, Vector
from fedhip.runs import Run
from tests.federation.samples import CLASSES, FOUR, ONE_SUM, WIDTH, Trial, rows_of, vector_of

LAYOUT = Layout(WIDTH, len(CLASSES))


def trial_of(tmp_path: Path, **settings: Any) -> Trial:
    """Sites with 60 rows each: of a dozen nobody can say that a sum is worse."""
    trial = Trial.make(tmp_path, **ONE_SUM, **settings)
    for site in FOUR:
        features, labels = rows_of(site, 60)
        np.savez(trial.data(site), features=features, labels=labels, class_names=np.array(CLASSES))
    return trial


def others_labels(vector: Vector) -> None:
    """A hundred times the rows, each with the label of another class: rows could have such statistics."""
    for part in (LAYOUT.cross(vector), LAYOUT.counts(vector)):
        part[..., :3] = np.roll(part[..., :3], 1, axis=-1)
    vector *= np.uint64(100)


def test_an_honest_sum_is_taken(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, veto_share=0.25)
    found = trial.run().results
    assert found["verdict"]["clients"] == 4
    assert found["verdict"]["vetoes"] == 0
    assert [each["ask"] for each in found["sums"]] == ["statistics", "veto"]
    assert "no veto" in trial.log("a")
    assert "of the sites: of 4, 0 find the sum worse" in trial.log("a")


@pytest.mark.usefixtures("sums_only")
def test_false_statistics_stop_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = trial_of(tmp_path, veto_share=0.5)
    trial.lie(monkeypatch, "d", others_labels)
    with pytest.raises(RoundError, match=r"[34] of 4 sites find the sum worse than their own rows alone"):
        trial.run()
    assert not trial.result.exists()
    assert all("): a veto" in trial.log(site) for site in "abc")


def test_who_has_a_veto_is_as_good_as_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With α given, no choice of α saves a site from the sum: its veto does."""
    trial = trial_of(tmp_path, veto_share=1.0, alpha=0.1)
    trial.lie(monkeypatch, "d", others_labels)
    trial.run()
    found = Run.open(trial.site_folder("a") / "result").results["methods"]
    entry, alone = (found[method]["per_client"][0] for method in ("fedhip", "local"))
    assert entry["alpha"] == ALONE
    assert entry["accuracy"] == alone["accuracy"]
    assert "the model is of these alone" in trial.log("a")
    without = trial_of(tmp_path / "without", alpha=0.1)
    without.run()
    found = Run.open(without.site_folder("a") / "result").results["methods"]
    assert found["fedhip"]["per_client"][0]["accuracy"] < found["local"]["per_client"][0]["accuracy"] - 0.2


def test_who_chooses_and_has_a_veto_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a choice of models, which the lies have a say in."""
    trial = Trial.make(tmp_path, head="auto", prior="none", columns="plain", largest_feature=16.0, veto_share=1.0)
    for site in FOUR:
        features, labels = rows_of(site, 60)
        np.savez(trial.data(site), features=features, labels=labels, class_names=np.array(CLASSES))
    trial.lie(monkeypatch, "d", others_labels)
    trial.run()
    found = Run.open(trial.site_folder("a") / "result").results
    own = next(iter(found["methods"]))
    entry, alone = (found["methods"][method]["per_client"][0] for method in (own, "local"))
    assert (entry["alpha"], found["choice"]["taken"]) == (ALONE, "alone")
    assert entry["accuracy"] == alone["accuracy"]
    assert "the model is of these alone" in trial.log("a")


def test_a_server_that_hides_vetoes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.app import Array

    def without_vetoes(records: RecordDict) -> RecordDict:
        arrays: Any = records["arrays"]
        numbers = np.frombuffer(arrays["vetoes"].data, "<u8").copy()
        numbers[0] = 0
        arrays["vetoes"] = Array("uint64", numbers.shape, arrays["vetoes"].stype, numbers.tobytes())
        return records

    trial = trial_of(tmp_path, veto_share=1.0)
    trial.lie(monkeypatch, "d", others_labels)
    trial.fault("asked", "a", "personalize", without_vetoes)
    trial.run()
    assert trial.codes() == {"a": "total"}
    assert "does not fit this site's rows" in trial.log("a")


@pytest.mark.usefixtures("sums_only")
def test_the_auditor_sees_who_lied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = trial_of(tmp_path, auditor="Ada of the ethics board")
    trial.lie(monkeypatch, "d", others_labels)
    trial.run()
    kept = trial.folder / "state" / "commitments"
    for site in FOUR:
        out = tmp_path / f"{site}.opening"
        assert main(["federation", "open-commitment", str(trial.site_folder(site)), str(out)]) == 0
        assert out.stat().st_mode & 0o777 == 0o600
        found = verify_commitment(out, kept / f"1-statistics-{site}.commitment", trial.site_folder("b"))
        assert found.site == site
        assert found.impossible is None
        rows = sum(found.rows or ())
        assert rows == (4800 if site == "d" else 48)
    given = ["verify-commitment", str(tmp_path / "d.opening"), str(kept / "1-statistics-d.commitment")]
    assert main([*given, "--federation", str(trial.folder)]) == 0
    assert "as statistics: 4800 rows" in capsys.readouterr().out

    # Nobody opens anything else than what was masked.
    opened = Opening.from_bytes((tmp_path / "d.opening").read_bytes())
    honest = vector_of("d", trial.agreement)
    for forged in (
        Opening(opened.commitment, honest, opened.seed, opened.mask),
        Opening(opened.commitment, opened.vector, bytes(32), opened.mask),
        Opening(opened.commitment, opened.vector, opened.seed, b"\1" * 32),
    ):
        with pytest.raises(SecureSumError) as refused:
            forged.require_fits(opened.commitment)
        assert refused.value.reason is Reason.NOT_COMMITTED
    with pytest.raises(SetupError, match="is of site 'd', and"):
        verify_commitment(tmp_path / "d.opening", kept / "1-statistics-a.commitment", trial.folder)
    (tmp_path / "broken").write_bytes(b"x" + (tmp_path / "d.opening").read_bytes())
    with pytest.raises(SetupError, match="no opening of a commitment, or damaged"):
        verify_commitment(tmp_path / "broken", kept / "1-statistics-d.commitment", trial.folder)
    with pytest.raises(SetupError, match="there is no sum 'rows'"):
        open_commitment(trial.site_folder("a"), "rows", tmp_path / "x")
    with pytest.raises(SetupError, match=r"d\.opening exists"):
        open_commitment(trial.site_folder("d"), "statistics", tmp_path / "d.opening")


@pytest.mark.usefixtures("sums_only")
def test_without_an_auditor_nothing_is_kept(tmp_path: Path) -> None:
    trial = trial_of(tmp_path)
    trial.run()
    assert not (trial.site_folder("a") / "state" / "openings").exists()
    assert not (trial.folder / "state" / "commitments").exists()
    with pytest.raises(SetupError, match="names no auditor"):
        open_commitment(trial.site_folder("a"), "statistics", tmp_path / "x")
