"""Columns as an agreement has them: what those of tables hold, and a lift that competes beside the features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedhip.data.tables.description import Description
from fedhip.errors import InputError
from fedhip.features.lifts.kinds import COMPETING_BITS
from fedhip.federation.agreement.names import shown
from fedhip.federation.errors import SetupError
from fedhip.utils.candidates import widened

if TYPE_CHECKING:
    from fedhip.federation.agreement.agreement import Agreement


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


def check_competing_lift(agreement: Agreement) -> None:
    """Refuse a half of it, and what it cannot go with."""
    if (agreement.competing_lift is None) != (agreement.competing_width is None):
        raise SetupError("competing_lift and competing_width belong together; give both or neither")
    if agreement.competing_lift is None:
        return
    head, lift, columns, beta = agreement.head, agreement.lift, agreement.columns, agreement.beta
    for is_so, what, why in (
        (head != "auto", f"the head {head!r}", "which chooses nothing"),
        (lift != "none", f"the lift {lift!r}", "which all candidates are of"),
        (columns != "sum", f"columns = {columns!r}", "and its landmarks need the units of a survey"),
        (beta != "auto", f"beta = {beta!r}", "and each of the two has a β of its own"),
        (agreement.veto_share is not None, "a veto_share", "and vetoes are of the sum of the features as they are"),
    ):
        if is_so:
            raise SetupError(f"a lift is to compete beside {what}, {why}; leave one of them out (--lift none)")


def terms_with_lift(agreement: Agreement) -> dict[str, Any]:
    """The fields that are others with the lift beside the features: as of an agreement on a lift for all candidates."""
    assert agreement.competing_width is not None  # noqa: S101  (who asks has looked)
    return {
        "columns": "plain",
        "fraction_bits": COMPETING_BITS,
        "competing_lift": None,
        "competing_width": None,
        "lift": agreement.competing_lift,
        "lift_width": agreement.competing_width + agreement.width,
        "lift_seed": 0,
        "lift_bandwidth": 1.0,
        "candidates": tuple(map("+".join, widened(agreement.members_of_candidates))),
    }
