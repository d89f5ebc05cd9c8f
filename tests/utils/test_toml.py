"""TOML files: whatever is wrong with one is said in a line that names it, and what is written is read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhip.errors import FileError, InputError
from fedhip.utils.toml import parse_toml, read_toml, write_toml

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = TEXTS | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans() | st.lists(TEXTS)
TABLES = st.dictionaries(TEXTS, VALUES | st.dictionaries(TEXTS, VALUES, max_size=3), max_size=4)


@given(TABLES, TEXTS)
def test_what_is_written_is_read_back(content: dict[str, Any], heading: str) -> None:
    assert parse_toml(write_toml(content, heading), "it") == content


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbfalpha = 1\n")
    assert read_toml(path, "make one") == {"alpha": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"alpha = ", "is not a TOML file"),
        (b"alpha = '\xff'", "is not a TOML file"),
        (b"a = " + b"[" * 100_000, "is not a TOML file"),
        (b"#" * (1 << 20) + b"##", "is larger than 1 MB"),
        (None, "there is no page .*; make one"),
    ],
)
def test_what_is_wrong_is_said_of_the_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        read_toml(path, "make one", what="page", largest=1 << 20)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_and_another_class_of_errors(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"is a folder; give the file in it, such as .*a\.toml"):
        read_toml(tmp_path, "make one", name="a.toml", error=FileError)
