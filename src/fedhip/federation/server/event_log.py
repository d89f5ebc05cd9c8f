"""`state/progress.jsonl`: what happens in a round, for whoever follows it.

Each line is a JSON object with `time`, `step` and `text`. Of an answer, or of none, there are `site` and `code` too
(`ok`, or why it was left out); of a question to several sites `asked`, whom, and `sum`, the number of the sum.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedhip.utils.files import append_private

#: The step that a round, or one that goes on from its checkpoint, begins with.
BEGUN = "begun"


@dataclass
class EventLog:
    """A file of one JSON object a line."""

    path: Path

    def write(self, step: str, text: str, site: str | None = None, code: str | None = None) -> None:
        """One more line."""
        self._append({"step": step, "text": text, "site": site, "code": code})

    def asking(self, step: str, number: int, sites: Iterable[str]) -> None:
        """One more line: who is asked, or waited for, from now on."""
        asked = sorted(sites)
        self._append({"step": step, "text": f"asking {len(asked)} sites", "sum": number, "asked": asked})

    def _append(self, entry: dict[str, Any]) -> None:
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        line |= {name: value for name, value in entry.items() if value is not None}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with append_private(self.path) as file:
            file.write(json.dumps(line).encode() + b"\n")
