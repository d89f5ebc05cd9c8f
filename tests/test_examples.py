"""The examples run as they stand."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from fedhip.data import load_dataset
from scripts.run_notebooks import executed, printed, read
from tests.pages import follow, run

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.slow


def test_the_tour(tmp_path: Path) -> None:
    """Every command of the README's tour, as typed, in a folder like the one that `make demo` leaves, but smaller."""
    drawings = load_dataset("sketches")
    few = np.flatnonzero((drawings.labels < 10) & (np.arange(len(drawings)) % 100 < 40))
    names = np.array(drawings.class_names)[drawings.labels[few]]
    np.savez(tmp_path / "drawings.npz", images=np.asarray(drawings.images)[few], labels=names)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    new_site = f"python {EXAMPLES / 'new_site.py'} runs"
    (recipe,) = re.findall(r"^demo:.*\n((?:\t.*\n)+)", (EXAMPLES.parent / "Makefile").read_text(), re.MULTILINE)
    assert "run --dataset sketches --clients 50 --out runs/demo" in recipe
    assert "python examples/new_site.py runs" in recipe
    environment = {"FEDHIP_CACHE": str(tmp_path / "cache"), "FEDHIP_TEST_PICTURES": "drawn"}
    demo = f"fedhip run --data drawings.npz --clients 9 --concentration 0.5 --out runs/demo --quiet; {new_site}"
    run(["bash", "-euc", demo], tmp_path, environment)
    told = follow(EXAMPLES.parent / "README.md", tmp_path, kinds=("sh",), **environment)
    for text in ("'new-site' joined", "the model of client 'new-site'", "client '7' is forgotten", "all is well"):
        assert text in told
    assert (tmp_path / "runs" / "comparison.html").is_file()


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
