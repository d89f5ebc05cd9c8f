"""Rounds over an engine in this process, of sites whose rows are always the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: What each federation agreed on beyond the usual.
ROUNDS: dict[str, dict[str, Any]] = {
    "ridge": {},
    "lda": {"head": "lda", "prior": "client"},
    "logistic": {"head": "logistic", "gradient_rounds": 2},
}
SITE = "a"


def play(name: str, folder: Path) -> dict[str, Path]:
    """Play a round; the folders of its result, at the server and at a site."""
    from tests.federation.samples import Trial

    trial = Trial.make(folder, **ROUNDS[name])
    return {"server": trial.run().path, "site": trial.site_folder(SITE) / "result"}
