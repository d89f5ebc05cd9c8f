"""Docstrings are plain text in which only backticks and the headings of numpydoc mean something.

A star, a bar or a trailing underscore (`alphas_`) is that character, and a block set in by spaces is a formula. This
turns them into the reStructuredText that says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sphinx.application import Sphinx

_CODE = re.compile(r"(`[^`]*`)")
_MARKUP = re.compile(r"([*|\\]|_\b(?!\w)|_(?=\W|$))")


def setup(app: Sphinx) -> dict[str, bool]:
    """Before napoleon, which reads the headings."""
    app.connect("autodoc-process-docstring", plain, priority=400)
    return {"parallel_read_safe": True}


def plain(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Rewrite the lines of a docstring in place."""
    lines[:] = with_formulas([escaped(line) for line in lines])


def escaped(line: str) -> str:
    """What is markup outside of backticks, as the character it is."""
    parts = _CODE.split(line)
    return "".join(part if part.startswith("`") else _MARKUP.sub(r"\\\1", part) for part in parts)


def with_formulas(lines: list[str]) -> Iterator[str]:
    """A block that is set in, after a blank line, as a literal block."""
    inside = False
    for number, line in enumerate(lines):
        if line.startswith("    ") and not inside and number and not lines[number - 1].strip():
            inside = True
            yield from ("::", "")
        elif line.strip() and not line.startswith("    "):
            inside = False
        yield line.replace("\\", "") if inside else line
