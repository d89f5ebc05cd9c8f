"""Columns of text: described, encoded beside others, missing, refused. The encoder can be done by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from fedhip.data.tables import Column, Description, draft, load_table, read_labelled, read_rows, read_table
from fedhip.data.tables.report import column_report, summary
from fedhip.data.tables.text import Unread
from fedhip.errors import ColumnWarning, InputError

FRAME = pl.DataFrame(
    {
        "age": [31, 42, 53, 64],
        "note": ["a cough", None, "  banana  ", "NA"],
        "site": ["n", "n", "s", "s"],
        "ill": ["yes", "no", "no", "yes"],
    }
)


class Letters:
    """How many letters and how many a's a text has."""

    def describe(self, column: Column) -> Column:
        return replace(column, backbone=column.backbone or "letters", width=2, identity="by hand")

    def encode(self, column: Column, texts: Sequence[str], where: str) -> NDArray[Any]:
        assert where == "the table, column 'note'"
        return np.array([[len(text), text.count("a")] for text in texts])


def test_text_stands_beside_other_columns_and_a_missing_one_is_zero_and_marked() -> None:
    rows = load_table(FRAME, label="ill", client="site", text=["note"], texts=Letters())
    assert rows.description.names == ("age", "note[1]", "note[2]", "note=(missing)")
    np.testing.assert_array_equal(rows.matrix, [[31, 7, 1, 0], [42, 0, 0, 1], [53, 6, 3, 0], [64, 0, 0, 1]])
    assert rows.missing == {"note": 2}


def test_a_description_of_text_travels() -> None:
    rows = load_table(FRAME, label="ill", client="site", text=["note"], texts=Letters())
    _, described = rows.features(np.ones(4, bool))
    again = Description.from_dict(described.to_dict())
    assert again == described
    new = FRAME.drop("ill").with_columns(note=pl.Series(["aha", "", "b", "?"]))
    _, matrix = read_rows(new, again, texts=Letters())
    np.testing.assert_array_equal(matrix[:, 1:], [[3, 2, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]])
    labelled = read_labelled(FRAME, again, texts=Letters())
    np.testing.assert_array_equal(labelled.features, rows.matrix)


def test_what_a_file_leaves_open_is_looked_up() -> None:
    written = {"schema": 1, "label": "ill", "client": "site", "columns": {"note": {"kind": "text", "backbone": "l"}}}
    described = Description.from_dict(written)
    assert described.width == 0
    with pytest.warns(ColumnWarning) as told:
        rows = load_table(FRAME, description=described, texts=Letters())
    assert sorted(str(warning.message) for warning in told) == [
        "the table, column 'age' is not described, and is not used",
        "the table, column 'note': 2 of 4 values are missing, and none was when it was described; they are 0 in every "
        "feature",
    ]
    assert rows.description.names == ("note[1]", "note[2]")
    assert rows.description.texts[0].identity == "by hand"


def test_described_columns_can_be_read_as_text() -> None:
    described = draft(read_table(FRAME), label="ill", client="site").description
    assert described.columns[1].kind == "category"
    rows = load_table(FRAME, description=described, text=["note"], texts=Letters())
    assert rows.description.names == ("age", "note[1]", "note[2]", "note=(missing)")


def test_the_report_says_what_became_of_text() -> None:
    rows = load_table(FRAME, label="ill", client="site", text=["note"], texts=Letters())
    report = column_report(rows.description, rows.missing, len(rows))
    assert report[-1]["done"] == "2 features by letters; 2 of 4 missing and marked by a feature"
    assert summary(rows.description, report) == "1 number and 1 text → 4 features; missing values in note"


def test_where_features_are_not_looked_at_text_is_not_read() -> None:
    rows = load_table(FRAME, label="ill", client="site", text=["note"], texts=Unread())
    assert rows.matrix.shape == (4, 3)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"text": ["nota"]}, "the table has no column 'nota', which --text names; did you mean 'note'"),
        ({"text": ["ill"]}, "column 'ill' of the table is to be read as text and is the label; choose one"),
        ({"text": ["note"], "drop": ["note"]}, "column 'note' of the table is to be read as text and is dropped"),
        ({"text": ["note"], "texts": None}, "column 'note' is text, and nothing is given that makes features of it"),
    ],
)
def test_text_that_is_refused(given: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refused:
        load_table(FRAME, label="ill", client="site", **{"texts": Letters(), **given})
    assert str(refused.value).startswith(line)


def test_a_column_without_text_is_refused() -> None:
    empty = FRAME.with_columns(note=pl.lit(None, pl.String))
    with pytest.raises(InputError, match="column 'note' is to be read as text, and has none; drop it"):
        load_table(empty, label="ill", client="site", text=["note"], texts=Letters())
    lists = FRAME.with_columns(note=pl.Series([[1], [2], [3], [4]]))
    with pytest.raises(InputError, match=r"column 'note' holds List\(Int64\), which is no text"):
        load_table(lists, label="ill", client="site", text=["note"], texts=Letters())


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"kind": "text"}, "is text without 'backbone', which makes features of it; name one, such as minilm"),
        ({"kind": "number", "backbone": "minilm"}, "is a number, which has no 'backbone'; leave it out"),
        ({"kind": "text", "backbone": "minilm", "width": -1}, "width is -1; give a whole number, or leave it out"),
        ({"kind": "text", "backbone": "minilm", "width": 1e3}, "width is 1000.0; give a whole number"),
    ],
)  # fmt: skip
def test_a_description_of_text_that_is_refused(entry: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refused:
        Description.from_dict({"schema": 1, "columns": {"note": entry}})
    assert line in str(refused.value)
