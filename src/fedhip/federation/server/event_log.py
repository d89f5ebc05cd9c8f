"""`state/progress.jsonl`: what happens in a round, for whoever follows it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedhip.utils.files import append_private


@dataclass
class EventLog:
    """A file of one JSON object a line."""

    path: Path

    def write(self, step: str, text: str, site: str | None = None) -> None:
        """One more line."""
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "step": step, "text": text}
        if site is not None:
            line["site"] = site
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with append_private(self.path) as file:
            file.write(json.dumps(line).encode() + b"\n")
