"""Every error and warning of the package: a handful of classes, for what a caller would do about it.

The sentence does the work: it names the value received, whose it is, and the remedy. `FedHiPError` catches all; what
rejects an argument is a `ValueError` too, as Python's users expect. Classes of the federation stand beside it
(`fedhip.federation.errors`).
"""


class FedHiPError(Exception):
    """Base of every error this package raises on purpose."""


# What was given.


class InputError(FedHiPError, ValueError):
    """Rows, labels, names or options that cannot be used: repair what is given."""


class ColumnError(InputError):
    """A column of the features holds numbers that no grid holds together; `is_value` where one of them is at fault."""

    def __init__(self, message: str, column: int | None = None, is_value: bool = False) -> None:
        super().__init__(message)
        self.column, self.is_value = column, is_value


class DataMissingError(FedHiPError, FileNotFoundError):
    """A file of the data set is not there; the message says how to get it."""


class MissingExtraError(FedHiPError, ImportError):
    """A part that is not installed is needed; the message names the extra that brings it."""


# What was computed.


class StatisticsError(FedHiPError, ValueError):
    """No data set has these statistics: they are asymmetric, indefinite or inconsistent."""


class GridOverflowError(FedHiPError, OverflowError):
    """A value does not fit the int64 grid at the chosen scale."""


class LossError(FedHiPError, ArithmeticError):
    """A loss is no finite number: steps, a learning rate or the features' units are too large."""


# What is on disk or comes from elsewhere.


class FileError(FedHiPError):
    """A file or a run's folder is damaged, altered, of another version or kind, or cannot be written: replace it."""


class CorruptImageError(FileError):
    """An image cannot be decoded, or has more pixels than Pillow decodes; the message names it. It may be skipped."""


class DownloadError(FedHiPError, OSError):
    """A download did not finish; what arrived is kept, and the next try goes on from there."""

    status: int | None = None  # the server's answer, where it was an error


class RunExistsError(FedHiPError, FileExistsError):
    """There is something where the run is to be written."""


class RunChangedError(FileError):
    """Somebody else changed the run meanwhile; nothing was done, and it may be tried again."""


class OpenPlaceError(FedHiPError):
    """A folder for secrets belongs to somebody else, or others can look into it."""


# Warnings: the work goes on, and the answer is worth a second look.


class FedHiPWarning(UserWarning):
    """Base of every warning; by itself, that rows or images were too few or left out."""


class ColumnWarning(FedHiPWarning):
    """A column says nothing, gives the labels away, or is not as it was described."""


class NumericalWarning(FedHiPWarning):
    """Equations without a unique solution, an optimum that was not reached, or rows without a leave-one-out score."""


class CacheWarning(FedHiPWarning):
    """The cache cannot be used; everything is computed anew."""
