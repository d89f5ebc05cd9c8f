"""The examples run as they stand."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
from pathlib import Path

import pytest

from scripts.run_notebooks import executed, printed, read
from tests import warm

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.slow


def test_the_tour(tmp_path: Path) -> None:
    """Every command of the README's tour on a real run folder, with the embedded backbone."""
    environment = {**os.environ, "PATH": warm.path(), "FEDHIP_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    command = [EXAMPLES / "tour.sh", tmp_path / "tour"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert "all is well" in done.stdout
    for text in ("the report: first/report.html", "client '3' is forgotten", "phase 3 again for 4 of 5 clients"):
        assert text in done.stdout
    results = json.loads((tmp_path / "tour" / "first" / "results.json").read_text())
    assert results["num_clients"] == 5
    for name in ("model.onnx", "comparison.html", "second/report.html"):
        assert (tmp_path / "tour" / name).is_file()


def test_digits(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "digits.py"), run_name="__main__")
    *_, means, _ = capsys.readouterr().out.splitlines()
    local, whole, personalized = (float(cell.strip(" %")) for cell in means.split("│")[5:8])
    assert "mean" in means
    assert personalized > whole > local


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_shows(path: Path) -> None:
    kept = printed(read(path))
    assert all(kept)
    assert printed(executed(path)) == kept
