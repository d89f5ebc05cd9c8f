"""What a server app that is started again goes on from.

    state/checkpoint/round.json     how far the round was, and what belongs to it
    state/checkpoint/data.bin       the sum under masks and the sites' small messages; then the sum itself

Before the masked vectors of all sites are in, there is nothing worth keeping: the sites begin a new session. There is
no site's plain statistics in it, as there is none at the server.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fedhip.federation.errors import CheckpointError
from fedhip.federation.site_state import replace_private
from fedhip.federation.started import private_folder

SCHEMA = 1


class Stage(StrEnum):
    """What `data.bin` is: the collector with all masked vectors in it, or the sum."""

    MASKED = "masked"
    SUMMED = "summed"


@dataclass
class Progress:
    """How far the round was."""

    agreement: str
    roster: str
    session: str
    attempt: int
    stage: Stage
    sites: list[str]
    dropped: dict[str, str] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)


class Checkpoint:
    """The folder of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, progress: Progress, data: bytes | memoryview | None = None) -> None:
        """Keep this, in place of what was there; without `data`, that of before stays."""
        private_folder(self.folder)
        if data is None:
            name = self._content()["data"]
        else:
            name = f"{hashlib.sha256(data).hexdigest()}.bin"
            replace_private(self.folder / name, data)
        content = {"schema": SCHEMA, "data": name, **asdict(progress)}
        replace_private(self.folder / "round.json", json.dumps(content, indent=1).encode())
        for other in self.folder.glob("*.bin"):
            if other.name != name:
                other.unlink()

    def read(self, agreement: str, roster: str) -> Progress | None:
        """The checkpoint of this agreement; None where there is none. The data is read by `data`."""
        if not (self.folder / "round.json").is_file():
            return None
        content = self._content()
        try:
            if content.pop("schema") != SCHEMA:
                raise self._damaged("is of another version")
            content.pop("data")
            progress = Progress(**{**content, "stage": Stage(content["stage"])})
        except (KeyError, TypeError, ValueError):
            raise self._damaged("is damaged") from None
        if (progress.agreement, progress.roster) != (agreement, roster):
            raise self._damaged("belongs to another agreement or roster")
        return progress

    def data(self) -> bytes:
        """What `write` was given."""
        name = str(self._content().get("data"))
        try:
            data = (self.folder / Path(name).name).read_bytes()
        except OSError:
            raise self._damaged("lacks its data") from None
        if f"{hashlib.sha256(data).hexdigest()}.bin" != name:
            raise self._damaged("is damaged")
        return data

    def clear(self) -> None:
        """Forget it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _content(self) -> dict[str, Any]:
        try:
            content = json.loads((self.folder / "round.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise self._damaged("is damaged") from None
        if not isinstance(content, dict):
            raise self._damaged("is damaged")
        return content

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"the checkpoint {self.folder} {what}; remove the folder, and the round begins anew")
