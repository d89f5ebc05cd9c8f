"""What can go wrong with a head, one class for each thing a user can do about it."""

from fedhip.core.errors import FedHiPError


class HeadNameError(FedHiPError, ValueError):
    """There is no head of this name."""


class OptionError(FedHiPError, ValueError):
    """A head or a method has no such option, or its value makes no sense."""


class RowsMissingError(FedHiPError, ValueError):
    """The head is fitted to rows in rounds, and rows of somebody are not there."""
