"""What can go wrong with a run on disk, one class for each thing a user can do about it."""

from fedhip.core.errors import FedHiPError


class RunFolderError(FedHiPError):
    """The folder is not a run, or a part of it is missing or malformed."""


class RunVersionError(RunFolderError):
    """The run was written by a version of another schema."""


class RunExistsError(FedHiPError, FileExistsError):
    """There is something where the run is to be written."""


class RunChangedError(RunFolderError):
    """Somebody else changed the run meanwhile."""


class UnknownClientError(FedHiPError, ValueError):
    """No client of the run has this name."""


class ClientJoinedError(FedHiPError, ValueError):
    """The client, or its rows, are in the run already."""


class LastClientError(FedHiPError, ValueError):
    """Without this client there would be no rows left to have a model of."""


class ClientRowsError(FedHiPError, ValueError):
    """The rows do not fit the run: of another width, of unknown classes, or not those of the client."""


class LedgerError(RunFolderError):
    """The ledger was altered, or does not belong to the rest of the run."""


class MethodNameError(FedHiPError):
    """There is no method of this name."""


class ConfigFileError(FedHiPError, ValueError):
    """The configuration file cannot be read, or holds a key that is no option."""


class NoSpaceError(FedHiPError, OSError):
    """The disk is full; nothing was changed."""
