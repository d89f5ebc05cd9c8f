"""Runs on disk: the folder, its ledger, and life after the round."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedhip.runs.folder import RunFolder, changed_run, new_run, require_place
    from fedhip.runs.ledger import Ledger
    from fedhip.runs.life import Change, forget, join, personalize, update
    from fedhip.runs.verify import Check, verify
else:
    _FOLDER = ("RunFolder", "changed_run", "new_run", "require_place")
    _WHERE = {**dict.fromkeys(_FOLDER, "folder"), "Ledger": "ledger", "Check": "verify", "verify": "verify"}

    def __getattr__(name):
        """Imported when asked for: who only reads a configuration does not wait for torch."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"fedhip.runs.{_WHERE.get(name, 'life')}"), name)
        globals()[name] = found  # importing the module `verify` has put it where the function belongs
        return found


__all__ = [
    "Change",
    "Check",
    "Ledger",
    "RunFolder",
    "changed_run",
    "forget",
    "join",
    "new_run",
    "personalize",
    "require_place",
    "update",
    "verify",
]
