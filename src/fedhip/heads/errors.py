"""What can go wrong with a head, one class for each thing a user can do about it."""

from fedhip.core.errors import FedHiPError


class HeadNameError(FedHiPError, ValueError):
    """There is no head of this name."""


class HeadOptionError(FedHiPError, ValueError):
    """An option of a head is not a name with a number."""


class RowsMissingError(FedHiPError, ValueError):
    """The head is fitted to rows in rounds, and rows of somebody are not there."""
