"""The names and files other people's code depends on."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import fedhip
import fedhip.core


def test_public_names() -> None:
    for name in ("Statistics", "solve_global", "personalize", "PersonalizationPath", "FedHiPError"):
        assert name in fedhip.__all__
    for module in (fedhip, fedhip.core):
        assert all(hasattr(module, name) for name in module.__all__)
    assert fedhip.__version__ == version("fedhip")


def test_the_citation_is_of_this_version() -> None:
    citation = (Path(__file__).parent.parent / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {fedhip.__version__}\n" in citation


def test_the_core_needs_torch_numpy_and_safetensors_alone() -> None:
    """The machine that runs it may have nothing else."""
    program = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"sklearn", "scipy", "rich", "hypothesis", "matplotlib", "transformers"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import fedhip, fedhip.core.paper, fedhip.core.exact.fixedpoint
import numpy as np
F, y = np.random.default_rng(0).normal(size=(9, 3)), np.arange(9) % 2
total = fedhip.Statistics.from_data(F, y, 2)
print(fedhip.PersonalizationPath(total, F, y).select() >= 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.stdout.strip() == "True", done.stderr
