"""A client joins, grows, is forgotten or personalized in a run of an earlier version, as it did there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.compatibility.stored import COMMANDS, FILES, assert_same_run, moved, run_command


@pytest.mark.parametrize("name", COMMANDS["changes"])
def test_the_same_changes_give_the_same_run(folder: Path, name: str) -> None:
    """Sums, digests and the ledger after each step exactly; models to the precision of linear algebra."""
    changed = folder / "changes" / name
    shutil.rmtree(changed)
    shutil.copytree(folder / "runs" / name, changed)
    _tell_where_its_rows_are(changed, folder)
    for words in COMMANDS["changes"][name]:
        run_command(moved(words, folder))
    assert_same_run(changed, FILES / "changes" / name, folder)
    run_command(["verify", str(changed)])


def _tell_where_its_rows_are(run: Path, folder: Path) -> None:
    """In its settings: the rows of the stored run lay in another folder."""
    for name in ("config.toml", "results.json"):
        path = run / name
        path.write_text(moved([path.read_text()], folder)[0])


def test_receipts_of_before_are_proof_of_the_changed_run(folder: Path) -> None:
    receipts = sorted((FILES / "changes" / "ridge" / "receipts").iterdir())
    events = [json.loads(path.read_text())["entry"]["event"] for path in receipts]
    assert events == ["run", "join", "update", "forget", "personalize"]
    for path in receipts:
        run_command(["verify", str(folder / "changes" / "ridge"), "--receipt", str(path)])
