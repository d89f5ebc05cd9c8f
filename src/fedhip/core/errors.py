"""What can go wrong, one class for each thing a user can do about it.

Every message names the value received and the remedy. `FedHiPError` catches them all; those that reject an
argument are also a `ValueError`, as Python's users expect.
"""

from fedhip.utils.errors import FedHiPError as FedHiPError


class FeaturesError(FedHiPError, ValueError):
    """The features are not a finite, real, two-dimensional array."""


class ColumnError(FedHiPError, ValueError):
    """A column of the features holds numbers that no grid holds together; `is_value` where one of them is at fault."""

    def __init__(self, message: str, column: int | None = None, is_value: bool = False) -> None:
        super().__init__(message)
        self.column, self.is_value = column, is_value


class LabelsError(FedHiPError, ValueError):
    """The labels are not whole numbers from 0 to num_classes − 1, one for each row."""


class EmptyClientError(FedHiPError, ValueError):
    """A client without rows has no statistics and nothing to personalize on."""


class DimensionError(FedHiPError, ValueError):
    """Two parts of a federation differ in feature width or in number of classes."""


class AlphaError(FedHiPError, ValueError):
    """α is negative or not a finite number."""


class BetaError(FedHiPError, ValueError):
    """β is negative or not a finite number."""


class StatisticsError(FedHiPError, ValueError):
    """No data set has these statistics: they are asymmetric, indefinite or inconsistent."""


class NotInTotalError(FedHiPError, ValueError):
    """The summed statistics do not contain the rows that were to be personalized on or taken out."""


class FileFormatError(FedHiPError):
    """The file is not a statistics file, or it is truncated."""


class FileVersionError(FileFormatError):
    """The file was written by a newer version of this package."""


class FileAlteredError(FileFormatError):
    """The file's contents do not match the digest stored in it."""


class GridOverflowError(FedHiPError, OverflowError):
    """A value does not fit the int64 grid at the chosen scale."""


class GridScaleError(FedHiPError, ValueError):
    """Two statistics lie on grids of different scale, or a scale is out of range."""


class ColumnWarning(UserWarning):
    """A column of the features says nothing, or gives the labels away."""


class FewRowsWarning(UserWarning):
    """There are fewer rows than what was asked for can be found by; something safe was taken."""


class LeaveOneOutWarning(UserWarning):
    """Some rows have no leave-one-out score, because without them nothing is known in their direction."""


class NotConvergedWarning(UserWarning):
    """Steps towards an optimum ended before they had reached it; the best point so far was taken."""


class SingularSystemWarning(UserWarning):
    """The equations have no unique solution; the one of minimum norm was taken."""


class MetricsError(FedHiPError, ValueError):
    """There are no rows to measure on, or what was predicted for them are no numbers."""
