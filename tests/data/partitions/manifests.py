"""What years do to a partition: a numpy that draws other numbers from the same seed, and files of older schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def other_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on every seed gives another stream."""
    draw = np.random.default_rng

    def drawn(seed: Any = None) -> np.random.Generator:
        return draw(np.random.SeedSequence(seed, spawn_key=(1,)))

    monkeypatch.setattr(np.random, "default_rng", drawn)


def older(path: Path) -> Path:
    """The same partition as a file of the schema before, without its rows."""
    content = json.loads(path.read_text())
    for name in ("clients", "client_of_row", "split_of_row", "sha256"):
        del content[name]
    path.write_text(json.dumps({**content, "schema": 3}))
    return path
