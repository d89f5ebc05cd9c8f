"""`ledger.jsonl`: what happened to a run, one line for each event, each bound to the one before by its hash.

A line's `hash` is the SHA-256 of its other fields, `previous` (the hash of the line before) among them: no line can be
changed, taken out or put in between without changing every hash after it. Whoever holds a receipt, a copy of one line,
can tell that it is still there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedhip.errors import FileError

SCHEMA = 1
EVENTS = ("run", "join", "update", "forget", "personalize")
_FIELDS = {"client", "clients", "total", "models", "term"}
_FIRST = "0" * 64

Entry = dict[str, Any]


@dataclass(frozen=True)
class Ledger:
    """The entries in their order; immutable: `with_entry` gives a longer one."""

    entries: tuple[Entry, ...] = ()

    @property
    def head(self) -> str:
        """Hash of the last entry."""
        return str(self.entries[-1]["hash"]) if self.entries else _FIRST

    @property
    def run(self) -> str:
        """Hash of the first entry: which run this is."""
        return str(self.entries[0]["hash"]) if self.entries else _FIRST

    def with_entry(self, event: str, time: datetime | None = None, **fields: Any) -> Ledger:
        """One more entry, bound to the last."""
        entry = {
            "schema": SCHEMA,
            "entry": len(self.entries),
            "time": (time or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "event": event,
            **fields,
            "previous": self.head,
        }
        return Ledger((*self.entries, {**entry, "hash": entry_hash(entry)}))

    def to_text(self) -> str:
        """One line of JSON for each entry, in ASCII: some names hold what ends a line elsewhere."""
        return "".join(json.dumps(entry) + "\n" for entry in self.entries)

    def receipt(self, number: int = -1) -> dict[str, Any]:
        """What a client keeps as proof of an entry."""
        return {"schema": SCHEMA, "run": self.run, "entry": self.entries[number]}

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Read and check the chain."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            entries = tuple(json.loads(line) for line in lines)
        except FileNotFoundError:
            raise FileError(f"{path} is missing; the run's history cannot be checked: restore it") from None
        except (ValueError, RecursionError) as error:
            raise FileError(f"{path} is not a ledger ({error}); restore it from a copy") from None
        ledger = cls(entries)
        ledger.require_chain(path)
        return ledger

    def require_chain(self, path: Path) -> None:
        """Refuse a chain in which any line was changed, taken out or put in."""
        previous = _FIRST
        entry: Any
        for number, entry in enumerate(self.entries):
            if not isinstance(entry, dict) or type(entry.get("schema")) is not int:
                raise FileError(f"{path}: line {number + 1} is not an entry of a ledger; restore it from a copy")
            if entry["schema"] != SCHEMA:
                raise FileError(
                    f"{path}: line {number + 1} has schema {entry['schema']}, this version reads {SCHEMA}; "
                    "use the version that wrote it"
                )
            broken = entry.get("hash") != entry_hash(entry) or entry.get("previous") != previous
            known = entry.get("event") in EVENTS and entry.keys() >= _FIELDS and isinstance(entry["clients"], dict)
            if broken or entry.get("entry") != number or not known:
                raise FileError(
                    f"{path}: line {number + 1} was altered, or a line before it was taken out or put in; "
                    "restore the ledger from a copy"
                )
            previous = entry["hash"]
        if not self.entries:
            raise FileError(f"{path} is empty; restore it from a copy")

    def require_receipt(self, receipt: Any, name: str) -> Entry:
        """The entry that a receipt proves, if this ledger has it."""
        entry = receipt.get("entry") if isinstance(receipt, dict) else None
        if not isinstance(entry, dict) or entry.get("hash") != entry_hash(entry):
            raise FileError(f"{name} is not a receipt, or was altered; get a fresh copy")
        if receipt.get("run") != self.run:
            raise FileError(
                f"{name} is a receipt of another run ({str(receipt.get('run'))[:12]}…, not {self.run[:12]}…)"
            )
        number = entry.get("entry")
        if not isinstance(number, int) or not 0 <= number < len(self.entries) or self.entries[number] != entry:
            raise FileError(
                f"{name}: entry {number} ({entry.get('event')}) is not in the ledger: the run was rolled back or its "
                "history rewritten"
            )
        if receipt.get("schema") != SCHEMA:
            raise FileError(f"{name} says schema {str(receipt.get('schema'))[:20]}, not {SCHEMA}: it was altered")
        return entry


def entry_hash(entry: Mapping[str, Any]) -> str:
    """SHA-256 of an entry's fields without the hash itself."""
    fields = {name: value for name, value in entry.items() if name != "hash"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
