"""Runs on disk: the folder, its ledger, and life after the round."""

from fedhip.runs.folder import RunFolder, changed_run, new_run, require_place
from fedhip.runs.ledger import Ledger
from fedhip.runs.life import Change, forget, join, personalize, update
from fedhip.runs.verify import Check, verify

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
