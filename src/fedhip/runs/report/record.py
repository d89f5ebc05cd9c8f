"""A run as its folder holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunRecord:
    """The files of one run: its folder's name, results.json, details.json, config.toml and ledger.jsonl."""

    name: str
    results: dict[str, Any]
    details: dict[str, Any]
    config: str
    ledger: list[dict[str, Any]]
