"""One cell: one method on one division of one data set; computed once, and kept as a small file.

    OUT/cells/<what it is>-<hash of everything that decides it>.json

The hash is over the fingerprint of the features, the backbone, the method with its options, the protocol, the division
and its seed, and the version of fedhip; not over the device, which decides seconds and the last digits alone.

Several processes may work on one folder: who computes a cell holds a lock on a file beside it, which the system lets go
of when the process ends, however it ends.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhip import __version__
from fedhip.utils.files import write_text
from fedhip.utils.progress import ReportProgress, silent
from fedhip.utils.words import duration

Json = dict[str, Any]
#: (phase, done, total) of the cell that is being computed.
SCHEMA = 1


@dataclass(frozen=True, eq=False)
class Cell:
    """What is computed, by name and by everything that decides it; `compute(checkpoint, tell)` gives plain values."""

    label: str
    kind: str
    key: Mapping[str, Any]
    compute: Callable[[Path, ReportProgress], Json]

    @property
    def full_key(self) -> Json:
        """The key with the version of fedhip."""
        return json.loads(json.dumps({"fedhip": __version__, **self.key}, sort_keys=True))  # type: ignore[no-any-return]

    @property
    def stem(self) -> str:
        """The name of its file without suffix."""
        text = json.dumps(self.full_key, sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        readable = re.sub(r"[^A-Za-z0-9.=]+", "-", self.label.replace("λ", "lambda")).strip("-")
        return f"{readable[:100]}-{digest}"


@dataclass(frozen=True, eq=False)
class PlannedCell:
    """A cell to come, which may need earlier ones to be made: what kind it is, which one, and how it is made."""

    kind: str
    identity: tuple[object, ...]
    make: Callable[[], Cell]


@dataclass
class Store:
    """Finished cells in a folder; a finished one is never computed again."""

    folder: Path
    _known: dict[str, Json] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many cells are finished."""
        return len(list(self.folder.glob("*.json")))

    def find(self, cell: Cell) -> Json | None:
        """The result of a finished cell; None for one that is not, or whose file is damaged."""
        stem = cell.stem
        if stem not in self._known:
            try:
                content = json.loads((self.folder / f"{stem}.json").read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                return None
            if not isinstance(content, dict) or content.get("schema") != SCHEMA:
                return None
            if content.get("key") != cell.full_key or not isinstance(content.get("result"), dict):
                return None
            self._known[stem] = content["result"]
        return self._known[stem]

    def obtain(self, cell: Cell, report: ReportProgress = silent) -> Json:
        """The result: found, or computed and kept; waited for where another process is at it."""
        found = self.find(cell)
        if found is None:
            with self._claim(cell, wait=True):
                found = self.find(cell)
                if found is None:
                    found = self._compute(cell, report)
        return found

    def perform(
        self, steps: Sequence[PlannedCell], report: ReportProgress = silent, *, processes: int = 1, wait: bool = True
    ) -> None:
        """Compute the cells one after another; one that several studies need counts once.

        Cells that other processes are at come last, and are there when this returns; unless `wait` is false.
        `processes` that share the work are how the time left is told.
        """
        first: dict[tuple[object, ...], PlannedCell] = {}
        for step in steps:
            first.setdefault(step.identity, step)
        steps = list(first.values())
        clock = _Clock([step.kind for step in steps], processes)

        def done(number: int, step: PlannedCell, wait: bool) -> bool:
            cell = step.make()
            if self.find(cell) is not None:
                clock.count_found(step.kind)
                return True
            with self._claim(cell, wait) as ours:
                if not ours:
                    return False
                if self.find(cell) is not None:  # another process has just finished it
                    clock.count_found(step.kind)
                    return True

                def show(inside: str = "") -> None:
                    left = clock.left()
                    time_left = "" if left is None else f", {duration(left)} left"
                    report(f"cells: {cell.label}{inside}{time_left}", number - 1, len(steps))

                show()
                start = time.perf_counter()
                self._compute(cell, lambda phase, done, of: show(f" {done}/{of}"))
                clock.count_computed(step.kind, time.perf_counter() - start)
                return True

        busy = [(number, step) for number, step in enumerate(steps, start=1) if not done(number, step, False)]
        for number, step in busy if wait else ():
            done(number, step, True)
        if steps:
            report("cells", len(steps), len(steps))

    def _compute(self, cell: Cell, report: ReportProgress) -> Json:
        checkpoint = self.folder / f"{cell.stem}.safetensors"
        result = cell.compute(checkpoint, report)
        content = {"schema": SCHEMA, "label": cell.label, "key": cell.full_key, "result": result}
        write_text(
            self.folder / f"{cell.stem}.json",
            json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n",
        )
        checkpoint.unlink(missing_ok=True)
        # As a later run reads it: equal numbers, whether computed or found.
        self._known[cell.stem] = json.loads(json.dumps(result))
        return self._known[cell.stem]

    def remove_stale_locks(self) -> None:
        """Lock files that nobody holds: of processes that were stopped, an interrupt between two lines included."""
        for path in self.folder.glob("*.lock"):
            with self._lock(path, wait=False):
                pass

    def _claim(self, cell: Cell, wait: bool) -> AbstractContextManager[bool]:
        """Whether the cell is this process's to compute while the block runs; after waiting, always."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self._lock(self.folder / f"{cell.stem}.lock", wait)

    @staticmethod
    @contextmanager
    def _lock(path: Path, wait: bool) -> Iterator[bool]:
        """Whether this process holds the file; it is gone afterwards if so."""
        import fcntl  # not on Windows

        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            try:
                yield True
            finally:
                path.unlink(missing_ok=True)


class _Clock:
    """Seconds left, by the mean time of cells of the same kind; of any kind where none was done yet."""

    def __init__(self, kinds: Sequence[str], processes: int) -> None:
        self._processes = processes
        self._waiting = {kind: kinds.count(kind) for kind in kinds}
        self._seconds: dict[str, list[float]] = {}

    def count_found(self, kind: str) -> None:
        self._waiting[kind] -= 1

    def count_computed(self, kind: str, seconds: float) -> None:
        self._waiting[kind] -= 1
        self._seconds.setdefault(kind, []).append(seconds)

    def left(self) -> float | None:
        every = [value for values in self._seconds.values() for value in values]
        if not every:
            return None
        means = {kind: sum(values) / len(values) for kind, values in self._seconds.items()}
        mean = sum(every) / len(every)
        return sum(number * means.get(kind, mean) for kind, number in self._waiting.items()) / self._processes
