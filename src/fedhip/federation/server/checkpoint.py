"""What a server app that is started again goes on from.

    state/checkpoint/round.json     how far the round was, and the names of the files that belong to it
    state/checkpoint/….bin          collector: the sum under masks, and the sites' small messages
                                    moments, total: sums that are shared with the sites, as the table of sums says
                                    sum-N, model-N: another sum, and the weights it was asked about
    state/checkpoint/again.json     where a site is proven to have cheated: the proof, and who begins again without it

It stays until every site of the sum has its model: a round that is run again hands the same sum out to the others.
Before the masked vectors of all sites are in, there is nothing worth keeping: the sites begin a new session, or a later
round again. There is no site's plain statistics in it, as there is none at the server.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fedhip.federation.errors import SetupError
from fedhip.federation.sums.kind import SumKind
from fedhip.federation.sums.table import KINDS, TOTALS
from fedhip.utils.files import private_folder, write_private

SCHEMA = 2

Data = bytes | memoryview


class SumState(StrEnum):
    """What there is of the latest sum: the collector with all masked vectors in it, or the sum."""

    MASKED = "masked"
    SUMMED = "summed"


@dataclass
class SumRecord:
    """A sum that was made: its row of the table of sums, who is in it, and the scale of the weights asked about."""

    ask: str
    sites: list[str]
    bits: int = 0


@dataclass
class RoundProgress:
    """How far the round is: the sums that were made, from the first to the latest.

    A sum after the statistics' that a site has spoilt is asked for `again`, of these sites, with the `proofs`, in hex,
    of who did it.
    """

    agreement: str
    roster: str
    session: str
    attempt: int = 1
    stage: SumState = SumState.SUMMED
    sums: list[SumRecord] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)
    proofs: dict[str, str] = field(default_factory=dict)

    @property
    def asks(self) -> list[str]:
        """What the sums are of, from the first to the latest."""
        return [record.ask for record in self.sums]

    @property
    def total(self) -> SumKind | None:
        """The latest sum of statistics: that of the features alone may follow one with a lift."""
        return next((kind for kind in reversed(TOTALS) if kind.name in self.asks), None)

    @property
    def summed(self) -> list[str]:
        """The sites in the sum of the statistics."""
        return [] if self.total is None else self.sums[self.asks.index(self.total.name)].sites

    @property
    def without_model(self) -> list[str]:
        """The sites in the sum of the statistics that have not said that they have their model."""
        return [site for site in self.summed if site not in self.answers]

    @property
    def latest(self) -> list[str]:
        """The sites in the latest sum, or of one that is asked for again."""
        return self.again or (self.sums[-1].sites if self.sums else [])

    def file_of(self, number: int) -> str:
        """The name of a sum's data: a sum that is shared has its own, and others that of their number, from 1."""
        return KINDS[self.sums[number - 1].ask].shared_as or f"sum-{number}"

    def to_dict(self) -> dict[str, Any]:
        """As round.json holds it: the first sum stands apart, as it did before there were others."""
        content = asdict(self)
        first, *later = content.pop("sums")
        return {**content, "sites": first["sites"], "later": later, "first": first["ask"]}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> RoundProgress:
        """What `to_dict` gave."""
        content = dict(content)
        records = [{"ask": content.pop("first"), "sites": content.pop("sites")}, *content.pop("later")]
        sums = [SumRecord(**record) for record in records]
        if not all(record.ask in KINDS for record in sums):
            raise ValueError("a sum that is not in the table")
        return cls(**{**content, "stage": SumState(content["stage"]), "sums": sums})


@dataclass
class Restart:
    """A round that begins again in a new session: of `sites` only, with the proofs, in hex, that others have cheated.

    `dropped` says why each of the others is not among them.
    """

    sites: list[str]
    proofs: dict[str, str]
    dropped: dict[str, str]


class RoundCheckpoint:
    """The folder of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, progress: RoundProgress, **data: Data | None) -> None:
        """Keep this, in place of what was there; data that is not named stays, and None takes it away."""
        private_folder(self.folder)
        files = self._files() if (self.folder / "round.json").is_file() else {}
        for name, content in data.items():
            files.pop(name, None)
            if content is not None:
                files[name] = f"{hashlib.sha256(content).hexdigest()}.bin"
                write_private(self.folder / files[name], content)
        record = {"schema": SCHEMA, "files": files, **progress.to_dict()}
        write_private(self.folder / "round.json", json.dumps(record, indent=1).encode())
        for other in self.folder.glob("*.bin"):
            if other.name not in files.values():
                other.unlink()

    def read(self, agreement: str, roster: str) -> RoundProgress | None:
        """The checkpoint of this agreement; None where there is none. The data is read by `data`."""
        if not (self.folder / "round.json").is_file():
            return None
        content = self._content()
        try:
            if content.pop("schema") != SCHEMA:
                raise self._damaged("is of another version")
            content.pop("files")
            progress = RoundProgress.from_dict(content)
        except (KeyError, TypeError, ValueError):
            raise self._damaged("is damaged") from None
        if (progress.agreement, progress.roster) != (agreement, roster):
            raise self._damaged("belongs to another agreement or roster")
        return progress

    def data(self, name: str) -> bytes:
        """What `write` was given under this name."""
        file = str(self._files().get(name))
        try:
            data = (self.folder / Path(file).name).read_bytes()
        except OSError:
            raise self._damaged("lacks its data") from None
        if f"{hashlib.sha256(data).hexdigest()}.bin" != file:
            raise self._damaged("is damaged")
        return data

    def begin_again(self, again: Restart) -> None:
        """Forget all but what the next session begins with."""
        private_folder(self.folder)
        write_private(self.folder / "again.json", json.dumps(asdict(again), indent=1).encode())
        for path in self.folder.iterdir():
            if path.name != "again.json":
                path.unlink()

    def again(self) -> Restart | None:
        """What a round that begins again begins with; None where this is the first time."""
        try:
            return Restart(**json.loads((self.folder / "again.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            raise self._damaged("is damaged") from None

    def clear(self) -> None:
        """Forget it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _files(self) -> dict[str, str]:
        files = self._content().get("files")
        if not isinstance(files, dict):
            raise self._damaged("is damaged")
        return files

    def _content(self) -> dict[str, Any]:
        try:
            content = json.loads((self.folder / "round.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise self._damaged("is damaged") from None
        if not isinstance(content, dict):
            raise self._damaged("is damaged")
        return content

    def _damaged(self, what: str) -> SetupError:
        return SetupError(f"the checkpoint {self.folder} {what}; remove the folder, and the round begins anew")
