"""After the round: a late site joins the server's result, and what else is asked of the folders that a round leaves."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.federation.errors import SetupError
from fedhip.runs import Run
from tests.cli.samples import done, refused
from tests.federation.samples import FOUR, Trial, sum_of, write_rows
from tests.federation.server.test_round import assert_same_models, fedhip_run

LATE = (*FOUR, "late")


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    trial = Trial.make(tmp_path)
    trial.run()
    return trial


def test_a_late_site_joins_the_result_of_the_server(
    trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, result = write_rows(tmp_path / "late.npz", "late"), tmp_path / "result"
    shutil.copytree(trial.result, result)
    done("join", result, "--client", "late", "--features", rows)
    assert "1 model solved" in capsys.readouterr().out
    # The columns and β stay those that the sites of the round found together.
    joined, agreed = Run.open(result), replace(trial.agreement, beta=Run.open(trial.result).results["beta"])
    expected = fedhip_run(tmp_path / "run", LATE, agreed, FOUR)
    assert joined.total() == sum_of(LATE, trial.agreement, FOUR) == expected.total()
    assert_same_models(joined.model("late"), expected.model("late"))
    for words in (["verify", result], ["report", result], ["predict", result, "--client", "late", "--features", rows]):
        done(*words)
    # Another one, and the first leaves: the sum of the round is always what is left.
    done("join", result, "--client", "later", "--features", write_rows(tmp_path / "later.npz", "later"))
    done("verify", result)
    done("forget", result, "--client", "late")
    done("verify", result)
    done("join", result, "--client", "late", "--features", rows)
    done("forget", result, "--client", "later")
    assert Run.open(result).total() == sum_of(LATE, trial.agreement, FOUR)


def test_a_sum_that_is_not_the_that_of_the_round_and_who_joined_is_found_out(
    trial: Trial, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done("join", trial.result, "--client", "late", "--features", write_rows(tmp_path / "late.npz", "late"))
    place = trial.result / "statistics" / "late.safetensors"
    other = GridStatistics.from_file(place)
    (other + other).to_file(place)
    capsys.readouterr()
    from fedhip.cli.main import main

    assert main(["verify", str(trial.result)]) == 1
    assert "WRONG  the sum is the sum of the round's, and the statistics of who joined" in capsys.readouterr().out


def test_a_site_of_the_round_cannot_join_once_more(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "join", trial.result, "--client", "a", "--features", trial.data("a"))
    assert "'a' is one of the sites whose sum this is" in line


def test_the_model_of_the_server_answers_with_scores(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    rows = trial.data("a")
    done("predict", trial.result, "--features", rows)
    said = capsys.readouterr()
    assert "no probabilities, only scores" in said.err
    assert "score" in said.out
    assert "%" not in said.out
    done("predict", trial.result, "--features", rows, "--json")
    found = json.loads(capsys.readouterr().out)["rows"]
    assert found[0]["probabilities"] is None
    with np.load(rows) as arrays:
        scores = Run.open(trial.result).model(None).scores(arrays["features"])
    np.testing.assert_allclose([row["scores"] for row in found], scores)
    line = refused(capsys, "export", trial.result, trial.folder / "model.onnx", "--head-only")
    assert "in a federation in a site's and not in the server's" in line


def test_what_needs_statistics_or_rows_is_refused_in_words(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    own, rows = trial.site_folder("a") / "result", trial.data("a")
    for words in (
        ["join", own, "--client", "x"],
        ["update", own, "--client", "a"],
        ["personalize", own, "--client", "a"],
    ):
        line = refused(capsys, *words, "--features", rows)
        assert "a site's result of a federation" in line
        assert "take part in another round" in line
    for folder in (own, trial.result):
        assert "whose sites keep their rows" in refused(capsys, "personalize", folder)


def test_the_result_of_the_same_agreement_may_be_written_again(trial: Trial, tmp_path: Path) -> None:
    from fedhip.federation.site.folder import open_site
    from fedhip.federation.site.preflight import require_ready

    require_ready(open_site(trial.site_folder("a")), trial.data("a"))
    other = fedhip_run(tmp_path / "run", FOUR, trial.agreement)
    with pytest.raises(SetupError, match="holds another run"):
        require_ready(open_site(trial.site_folder("a")), trial.data("a"), out=other.path)
