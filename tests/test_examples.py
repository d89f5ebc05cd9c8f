"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_digits() -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "digits.py"], capture_output=True, text=True, check=True)  # noqa: S603
    *_, means, _ = done.stdout.splitlines()
    local, whole, personalized = (float(cell.strip(" %")) for cell in means.split("│")[5:8])
    assert "mean" in means
    assert personalized > whole > local
