"""Names and JSON as text that can be written anywhere, whatever their characters."""

import json
import re
from typing import Any

_NO_LETTERS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff"
_DIRECTIONS = "\u200e\u200f\u202a-\u202e\u2066-\u2069"


def readable(name: str) -> str:
    r"""A file's name as text that can be written anywhere: a byte that is not UTF-8 is shown as \xNN.

    Python holds such bytes as lone surrogates, which no encoding, font or JSON reader accepts.
    """
    return re.sub("[\ud800-\udfff]", lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", name)


def json_text(value: Any, indent: int | None = None) -> str:
    r"""JSON that people can read and UTF-8 can hold: bytes of a name that are not UTF-8 stay \udcNN."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def verbatim(text: str) -> str:
    r"""A file's text with everything that could not be seen written as \uNNNN."""
    return re.sub(f"[{_NO_LETTERS}{_DIRECTIONS}]", lambda found: f"\\u{ord(found[0]):04x}", readable(text))


def one_line(text: str) -> str:
    r"""A message as one line: a line break in a name that it quotes is shown as \n."""
    return "\\n".join(verbatim(text).splitlines()) or "–"


def plain(name: object) -> str:
    """A name as one line of text that leaves the text around it alone.

    What is no letter in XML, and line breaks, become spaces; marks that change the direction of writing go, the
    letters stay.
    """
    text = re.sub(f"[{_NO_LETTERS}]", " ", readable(str(name)))
    text = re.sub(f"[{_DIRECTIONS}]", "", text)
    return re.sub(r"\s+", " ", text).strip() or "–"


def fault_of_name(name: str) -> str | None:
    """Why nobody can be called so, or None: names are printed, compared by eye, and become those of files."""
    if not name.strip():
        return "is empty"
    if re.search(f"[{_NO_LETTERS}\t\n]", name):
        return "has a line break or another control character in it"
    if any(part in ("", ".", "..") for part in re.split(r"[/\\]", name)):
        return "reads as a path"
    return None


def short(name: object, longest: int = 40) -> str:
    """A plain name, with its middle left out where it is too long."""
    text = plain(name)
    if len(text) <= longest:
        return text
    head = (longest - 1) * 2 // 3
    return f"{text[:head]}…{text[head + 1 - longest :]}"
