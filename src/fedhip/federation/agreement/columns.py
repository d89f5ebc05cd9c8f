"""What the columns of tables hold, as an agreement has it; `columns.toml` beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedhip.data.tables.description import Description
from fedhip.errors import InputError
from fedhip.federation.agreement.names import shown
from fedhip.federation.errors import SetupError


def require_description(name: str, value: Any) -> Description:
    """The description of tables, from what a file holds if it comes from one."""
    if isinstance(value, Description):
        return value
    if not isinstance(value, Mapping):
        raise SetupError(f"{name} is {shown(value)}; give a description of columns (fedhip describe drafts it)")
    try:
        return Description.from_dict(value, name)
    except InputError as error:
        raise SetupError(str(error)) from None
