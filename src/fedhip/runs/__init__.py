"""Runs on disk: the folder, its ledger, and life after the round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedhip.utils.late import late

if TYPE_CHECKING:
    from fedhip.runs.change import Change
    from fedhip.runs.draft import changed_run, new_run, require_place
    from fedhip.runs.folder import Run
    from fedhip.runs.ledger import Ledger
    from fedhip.runs.life import forget, join, personalize, update
    from fedhip.runs.verify import Check, verify
else:
    __getattr__ = late(
        __name__,
        change="Change",
        draft="changed_run new_run require_place",
        folder="Run",
        ledger="Ledger",
        life="forget join personalize update",
        verify="Check verify",
    )


__all__ = [
    "Change",
    "Check",
    "Ledger",
    "Run",
    "changed_run",
    "forget",
    "join",
    "new_run",
    "personalize",
    "require_place",
    "update",
    "verify",
]
