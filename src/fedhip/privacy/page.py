"""The audit as a page: findings, the rows that were recovered, advice; everything from outside escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedhip.errors import MissingExtraError
from fedhip.privacy.audit import Audit
from fedhip.utils.text import readable

#: Pictures beyond these are counted, not shown.
MOST_PICTURES = 60


def recovered_rows(audit: Audit) -> list[dict[str, object]]:
    """Every row that was recovered from the plain upload, and by what: the simplest attack that gave it."""
    by_column = {row["row"] for row in audit.plain["single_rows"]}
    rows = [{**row, "how": "a column of cross"} for row in audit.plain["single_rows"]]
    found = audit.plain["lattice"]["recovered"]
    return rows + [{**row, "how": "lattice reduction"} for row in found if row["row"] not in by_column]


def render_audit(audit: Audit, pictures: Mapping[int, str]) -> str:
    """The page as HTML; `pictures` holds data URLs of rows that have an image."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise MissingExtraError("pages need jinja2; install it with: pip install jinja2") from None
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["readable"] = readable
    rows = recovered_rows(audit)
    shown = rows[:MOST_PICTURES]
    page = environment.get_template("audit.html.j2")
    return page.render(audit=audit, rows=shown, more=len(rows) - len(shown), all=len(rows), pictures=pictures)
