"""What can go wrong with a table; every message names the file and, where there is one, the row and the column."""

from __future__ import annotations

from collections.abc import Iterable

from fedhip.core.errors import FedHiPError
from fedhip.utils.nearest import did_you_mean


class TableError(FedHiPError, ValueError):
    """The table cannot be read, or a value in it is not what its column holds."""


class DescriptionError(FedHiPError, ValueError):
    """The description of columns is not one, or does not fit the table."""


class TableWarning(UserWarning):
    """The table was read, and somebody should look at how."""


def no_column(source: str, name: str, known: Iterable[str], what: str = "") -> TableError:
    """The error for a column that is not there, with the nearest name that is."""
    names = list(known)
    listed = ", ".join(names[:8]) + ", …" * (len(names) > 8)
    return TableError(
        f"{source} has no column {name!r}{what}{did_you_mean(name, names)} (its {len(names)} columns: {listed})"
    )
