"""What can go wrong with a method, one class for each thing a user can do about it."""

from fedhip.core.errors import FedHiPError, FileFormatError


class MethodError(FedHiPError, ValueError):
    """There is no such method, or what it is told of its training makes no sense."""


class MethodCheckpointError(FileFormatError, ValueError):
    """The checkpoint cannot be read, or belongs to another problem or protocol."""
