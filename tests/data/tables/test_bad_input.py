"""Everything that is wrong with a table is told in one line that names the file, the row and the column."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedhip.data.tables import Column, Description, draft, load_table, read_labelled, read_rows, read_table, reader
from fedhip.errors import ColumnWarning, DataMissingError, FedHiPWarning, InputError
from tests.data.tables.samples import cells, write_csv

Make = Callable[[Path], object]


def text(content: str, name: str = "t.csv", encoding: str = "utf-8") -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content.encode(encoding))
        return folder / name

    return make


def changed(**columns: list[Any]) -> Make:
    return lambda folder: write_csv(folder / "t.csv", {**cells(), **columns})


def wrong(row: int, column: str, value: str) -> Make:
    """The sample with another value in one cell, its rows counted from 1."""

    def make(folder: Path) -> Path:
        columns = cells()
        columns[column][row - 1] = value
        return write_csv(folder / "t.csv", columns)

    return make


def cut_off(folder: Path) -> Path:
    path = folder / "t.parquet"
    pl.DataFrame(cells()).write_parquet(path)
    path.write_bytes(path.read_bytes()[:-200])
    return path


LABELLED: dict[str, Any] = {"label": "diagnosis", "client": "hospital", "drop": ["id"]}
Y: dict[str, Any] = {"label": "y"}

CASES: dict[str, tuple[Make, dict[str, Any], str]] = {
    "a label that is not there": (
        changed(), LABELLED | {"label": "diagnose"},
        r"t\.csv has no column 'diagnose', which --label names; did you mean 'diagnosis'\? \(its 8 columns: id, age, ",
    ),
    "a client that is not there": (
        changed(), LABELLED | {"client": "hopsital"},
        r"no column 'hopsital', which --client names; did you mean 'hospital'",
    ),
    "a group that is not there": (
        changed(), LABELLED | {"group": "patient"}, r"no column 'patient', which --group names",
    ),
    "a dropped column that is not there": (
        changed(), LABELLED | {"drop": ["ids"]}, r"no column 'ids', which --drop names; did",
    ),
    "no label": (changed(), {"client": "hospital"}, "a column that says what is to be predicted; name it with --label"),
    "a label of one value": (
        changed(diagnosis=["ill"] * 60), LABELLED, r"column 'diagnosis' is 'ill' in every row, so there is nothing",
    ),
    "a label that is missing": (
        wrong(17, "diagnosis", ""), LABELLED, r"t\.csv, row 17, column 'diagnosis': the label is missing; fill it in",
    ),
    "a client that is missing": (
        wrong(60, "hospital", "NA"), LABELLED, r"row 60, column 'hospital': the client is missing",
    ),
    "a label of quantities": (
        changed(), {"label": "pressure", "drop": ["id"]}, r"row 4, column 'pressure': the label is missing",
    ),
    "a label of real numbers": (
        changed(age=[i + 0.5 for i in range(60)]), {"label": "age", "drop": ["id"]},
        r"column 'age' holds 60 different numbers, such as 0\.5, which are no classes; predict them with --task",
    ),
    "a client for each row": (
        changed(), {"label": "diagnosis", "client": "id"}, r"column 'id' has another value in each of its 60 rows",
    ),
    "stray text among numbers": (
        wrong(23, "age", "fifty"), LABELLED,
        r"t\.csv, row 23, column 'age': 'fifty' is not a number; correct it, write NA where nothing is known, drop",
    ),
    "a number with a unit": (wrong(23, "age", "50 y"), LABELLED, r"row 23, column 'age': '50 y' is not a number"),
    "infinity": (wrong(23, "age", "inf"), LABELLED, r"row 23, column 'age': 'inf' is not a number"),
    "a date that is none": (
        wrong(5, "seen", "2021-02-30"), LABELLED, r"row 5, column 'seen': '2021-02-30' is not a date like %Y-%m-%d",
    ),
    "a date of two digits": (wrong(5, "seen", "21-02-03"), LABELLED, r"row 5, column 'seen': '21-02-03' is not a date"),
    "days or months": (
        changed(seen=["03/04/2020"] * 60), LABELLED, r"column 'seen' holds dates with the day or the month first",
    ),
    "a category of very many values": (
        lambda folder: write_csv(
            folder / "t.csv", {"name": [f"n{i}" for i in range(100_000)], "y": [i % 2 for i in range(100_000)]}
        ),
        Y, r"column 'name' is text with 100,000 different values in 100,000 rows, and each would be a feature; drop it",
    ),
    "an identifier": (changed(), LABELLED | {"drop": []}, r"column 'id' is text with 60 different values in 60 rows"),
    "duplicate columns": (
        text("a,b,a,y\n1,2,3,u\n"), Y, r"t\.csv has two columns named 'a' \(columns 1 and 3\); rename one",
    ),
    "an empty file": (text(""), Y, r"t\.csv is empty; write a header"),
    "a header alone": (text("a,y\n"), Y, r"t\.csv has 2 columns and no rows"),
    "an empty first line": (text("\na,y\n1,u\n"), Y, r"t\.csv begins with an empty line"),
    "a short row": (
        text("a,b,y\n1,2,u\n3,4\n5,6,v\n"), Y,
        r"t\.csv, row 2 ends before column 'y': it has 2 cells, and the header names 3",
    ),
    "a long row": (text("a,b,y\n1,2,u\n3,4,5,v\n"), Y, r"t\.csv, row 2 has cells too many: it has 4 cells"),
    "a quote that nobody closes": (
        text('a,b,y\n1,2,u\n3,"4,v\n5,6,u\n'), Y, r"t\.csv, row 2 ends before column 'y'|quote is opened in row 2",
    ),
    "inches": (
        text("a,b,y\n1,f,u\n2,5\" pipe,v\n" + "3,f,u\n" * 9), Y,
        r"row 2, column 'b': '5\" pipe' has a quote by itself; put the cell in quotes, and write those inside it twice",
    ),
    "inches twice": (
        text('a,b,y\n1,"a ""b""",u\n2,5" pipe,v\n3,6" pipe,u\n4,f,u\n'), Y, "row 2, column 'b': '5\" pipe' has a quote",
    ),
    "text after a quote": (
        text('a,b,y\n1,"f",u\n2,"m"n,v\n3,f,u\n'), Y, "row 2, column 'b': 'mn' has a quote by itself",
    ),
    "an Excel file": (text("PK\x03\x04aaaa"), Y, r"t\.csv is a zip archive or an Excel file, not text"),
    "zero bytes": (text("a,y\n\0,u\n"), Y, r"t\.csv is not text"),
    "a Parquet file that is cut off": (cut_off, LABELLED, r"t\.parquet cannot be read as Parquet \(.*it is cut off"),
    "text that is called Parquet": (text("a,y\n1,u\n", "t.parquet"), Y, r"t\.parquet cannot be read as Parquet"),
    "a target among the features": (
        changed(copy=cells()["diagnosis"]), LABELLED, r"column 'copy' is the label 'diagnosis' in every row, so that",
    ),
    "one column twice": (changed(), LABELLED | {"client": "diagnosis"}, r"column 'diagnosis' is named twice"),
    "a label that is dropped": (
        changed(), LABELLED | {"drop": ["diagnosis"]}, r"'diagnosis' of .* is dropped and is the label",
    ),
    "nothing left": (text("y,h\nu,1\nv,2\nu,1\n"), {"label": "y", "client": "h"}, "no column is left to predict from"),
    "a negative weight": (
        changed(w=[1] * 9 + [-2] + [1] * 50), LABELLED | {"weight": "w"}, r"row 10, column 'w': the weight is -2",
    ),
    "a number that no grid holds": (
        changed(age=[1e300 if i == 4 else 30 + i for i in range(60)]), LABELLED,
        r"t\.csv, row 5, column 'age': '1e\+300' is larger than 2e\+19 in size; correct it, write NA",
    ),
    "a target that is text": (
        changed(), LABELLED | {"task": "regression"},
        r"row 1, column 'diagnosis': '\w+' is not a number \(nor is .* other rows\); correct it, or name another "
        "column with --label",
    ),
    "no weights but 0": (changed(w=[0] * 60), LABELLED | {"weight": "w"}, r"column 'w': every weight is 0"),
    "a cell of megabytes": (
        text("a,b,y\n" + "1,f,u\n" * 9 + f"1,{'x' * 3_000_000},v\n"), Y,
        r"t\.csv, row 10, column 'b' holds 3,000,000 bytes, and a cell has at most 65,536",
    ),
    "lists in a frame": (
        lambda folder: pl.DataFrame({"a": [[1], [2]], "y": ["u", "v"]}), Y,
        r"column 'a' holds List\(Int64\), which is no",
    ),
    "two columns of pandas": (
        lambda folder: pd.DataFrame([[1, 2, "u"], [3, 4, "v"]], columns=["a", "a", "y"]), Y, r"two columns named 'a'",
    ),
    "no table at all": (lambda folder: {"a": [1]}, Y, "a dict is no table"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_told_in_one_line(case: str, tmp_path: Path) -> None:
    make, options, message = CASES[case]
    with pytest.raises(InputError, match=message) as told:
        load_table(make(tmp_path), **options)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 420


def test_a_file_or_folder_that_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match=r"none\.csv is not there"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataMissingError, match=r"folder\.csv is a folder"):
        read_table(tmp_path / "folder.csv")


FINE: dict[str, Make] = {
    "a byte-order mark": text("\ufeffa,b,y\n1,f,u\n2,m,v\n3,,u\n"),
    "utf-16": text("a,b,y\n1,f,u\n2,m,v\n3,,u\n", encoding="utf-16"),
    "windows lines": text("a,b,y\r\n1,f,u\r\n2,m,v\r\n3,,u\r\n"),
    "old mac lines": text("a,b,y\r1,f,u\r2,m,v\r3,,u\r"),
    "semicolons": text("a;b;y\n1;f;u\n2;m;v\n3;;u\n"),
    "bars": text("a|b|y\n1|f|u\n2|m|v\n3||u\n"),
    "tabs": text("a\tb\ty\n1\tf\tu\n2\tm\tv\n3\t\tu\n", "t.tsv"),
    "quotes": text('"a","b","y"\n"1","f","u"\n"2","m","v"\n"3","","u"\n'),
    "spaces": text("a, b ,y\n1, f,u \n 2,m,v\n3, ,u\n"),
    "empty lines": text("a,b,y\n\n1,f,u\n2,m,v\n\n3,,u\n\n\n"),
    "lines of separators": text("a,b,y\n1,f,u\n,,\n2,m,v\n3,,u\n,,\n"),
    "row numbers of pandas": text(",a,b,y\n0,1,f,u\n1,2,m,v\n2,3,,u\n"),
    "no end of line at the end": text("a,b,y\n1,f,u\n2,m,v\n3,,u"),
    "a star in its name": text("a,b,y\n1,f,u\n2,m,v\n3,,u\n", "t*[1].csv"),
}


@pytest.mark.parametrize("case", FINE)
def test_what_is_only_unusual_is_read(case: str, tmp_path: Path) -> None:
    rows = load_table(FINE[case](tmp_path), label="y")
    np.testing.assert_array_equal(rows.matrix, [[1, 1, 0, 0, 0], [2, 0, 1, 0, 0], [3, 0, 0, 0, 1]])
    assert [rows.class_names[label] for label in rows.labels] == ["u", "v", "u"]


def test_rows_are_counted_as_the_file_does_with_empty_lines(tmp_path: Path) -> None:
    path = text("a,b,y\n\n1,f,u\n\n2,m,v\nx,m,v\n4,m,v\n")(tmp_path)
    with pytest.raises(InputError, match="row 5, column 'a': 'x'"):
        load_table(path, label="y")


def test_latin_1_is_read_with_a_warning_that_names_the_place(tmp_path: Path) -> None:
    path = text("x,city,y\n1,Bern,u\n2,Zürich,v\n3,Zürich,u\n", encoding="latin-1")(tmp_path)
    with pytest.warns(FedHiPWarning, match=r"t\.csv, row 2, column 'city' is not UTF-8; the file was read as Latin-1"):
        rows = load_table(path, label="y")
    assert rows.description.names == ("x", "city=Bern", "city=Zürich", "city=(other)")


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("a,b,y\n1,f,u\n2," + "x" * 3000 + ",v\n3,f,u\n", r"row 2, column 'b' has a cell of more than 1,000 bytes"),
        ('a,b,y\n1,"f,\ng",u\n\n2,' + "x" * 3000, r"row 3, column 'b' has a cell of more than"),
        ("a,b,y\n1,f,u\n" + "x" * 3000, r"row 2, column 'a' has a cell of more than"),
        ("x" * 3000, r"its header, column 1 has a cell of more than"),
        ("a;b;" + "x" * 3000 + "\n", r"its header, column 3 has a cell of more than"),
        ('a,b,y\n1,"f",u\n2,"' + "x,\n" * 1000, r"row 2, column 'b' has a cell of more than"),
        ('a,b,y\n1,"f,",u\n"' + "x,\n" * 1000, r"row 2, column 'a' has a cell of more than"),
        ('"' + "x,\n" * 1000, r"its header, column 1 has a cell of more than"),
        ("a,b,y\n" + "1,f,u\n" * 1000 + "1,f," + "x" * 3000 + "\n", r"row 1001, column 'y' has a cell of more"),
    ],
)
def test_an_endless_cell_is_found_before_anything_is_in_memory(
    content: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_BLOCK", 256)
    monkeypatch.setattr(reader, "_TOO_LONG", 1000)
    monkeypatch.setattr(reader, "_parsed", None)  # which polars reads with
    with pytest.raises(InputError, match=rf"t\.csv, {where}") as told:
        load_table(text(content)(tmp_path), **Y)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("longest", [300, 1000])
def test_cells_of_less_than_that_are_read(longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BLOCK", 256)
    monkeypatch.setattr(reader, "_TOO_LONG", 1000)
    lines = "".join(f"{i},{'x' * longest},{'uv'[i % 2]}\n" for i in range(6))
    assert len(load_table(text(f"a,b,y\n{lines}")(tmp_path), label="y", drop=["b"])) == 6


@pytest.mark.parametrize("cell", ['5"2" pipe', '"a,"', "''", '""', '"a"', '"'])
def test_quotes_long_before_the_end_open_no_cell(cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BLOCK", 256)
    monkeypatch.setattr(reader, "_TOO_LONG", 1000)
    lines = "".join(f"{i},m,{'uv'[i % 2]}\n" for i in range(600))
    path = text(f"a,b,y\n1,{cell},u\n{lines}")(tmp_path)
    if cell == '"':
        with pytest.raises(InputError, match="row 1, column 'b' has a cell of more than 1,000 bytes; is a quote open"):
            read_table(path)
    else:
        assert len(read_table(path)) == 601


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_panic_of_the_reader_is_one_line_too(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no Exception: 8 of 1,200 Parquet files with wrong bytes made one."""

    def panic(*_: object, **__: object) -> None:
        raise pl.exceptions.PanicException("range end index 17 out of range")

    monkeypatch.setattr(pl, "read_parquet" if name.endswith("parquet") else "read_csv", panic)
    with pytest.raises(InputError, match=r"cannot be read.*out of range"):
        read_table(text("a,y\n1,u\n", name)(tmp_path))


def test_where_latin_1_begins_is_told_after_cells_of_any_kind(tmp_path: Path) -> None:
    """A cell of several lines, one longer than Python's reader takes by itself, an empty line."""
    content = f'x,city,y\n1,"B\x0bern\n\n",u\n1,{"b" * 200_000},u\n\n3,Zürich,u\n'
    path = text(content, encoding="latin-1")(tmp_path)
    with pytest.warns(FedHiPWarning, match=r"t\.csv, row 4, column 'city' is not UTF-8"):
        assert len(read_table(path)) == 3
    path = text("x,größe,y\n1,2,u\n", encoding="latin-1")(tmp_path)
    with pytest.warns(FedHiPWarning, match=r"t\.csv, its header, column 2 is not UTF-8"):
        assert read_table(path).names == ["x", "größe", "y"]


def test_a_feature_that_says_the_label_is_warned_of(tmp_path: Path) -> None:
    codes = [7 if value == "ill" else 3 for value in cells()["diagnosis"]]
    with pytest.warns(ColumnWarning, match=r"column 'code' says the label 'diagnosis' in every row: if"):
        load_table(changed(code=codes)(tmp_path), **LABELLED)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"diagnosis": [str(i // 2) for i in range(60)]},
            "'diagnosis': each of its 30 numbers is a class of its own; if",
        ),
        (
            {"diagnosis": ["ill", "Ill", "well"] * 20},
            "column 'diagnosis': 'Ill' and 'ill' are two; write them alike if",
        ),
        ({"hospital": ["north", "NORTH", "south"] * 20}, "column 'hospital': 'NORTH' and 'north' are two; write them"),
    ],
)
def test_names_that_may_be_meant_otherwise_are_warned_of(
    columns: dict[str, list[Any]], told: str, tmp_path: Path
) -> None:
    with pytest.warns(ColumnWarning, match=told):
        load_table(changed(**columns)(tmp_path), **LABELLED)


def test_names_of_every_day_are_not_warned_of(tmp_path: Path) -> None:
    """Twenty numbers, and thirty names that hold numbers."""
    for labels in ([str(i % 20) for i in range(60)], [f"bed {i % 30}" for i in range(60)]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load_table(changed(diagnosis=labels)(tmp_path), **LABELLED)


def test_row_numbers_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(ColumnWarning, match=r"column 'number': whole numbers that rise from row to row: an identifier"):
        load_table(changed(number=[*range(60)])(tmp_path), **LABELLED)


def described(folder: Path) -> Description:
    rows = load_table(write_csv(folder / "all.csv"), **LABELLED)
    return rows.features(np.ones(60, dtype=bool))[1]


def test_a_table_that_lacks_a_column(tmp_path: Path) -> None:
    columns = cells()
    del columns["pressure"], columns["sex"]
    with pytest.raises(
        InputError, match=r"new\.csv has no column 'pressure'.*nor 'sex'; the description asks for it: add it"
    ):
        read_rows(write_csv(tmp_path / "new.csv", columns), described(tmp_path))


def test_another_table_is_refused_before_anything_is_said_of_its_columns(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no column"):
        read_rows(pl.DataFrame({"height": [1.8]}), described(tmp_path))


@pytest.mark.parametrize("rows", [1, 60])
def test_a_table_in_other_units(rows: int, tmp_path: Path) -> None:
    description = described(tmp_path)
    columns = {name: values[:rows] for name, values in cells().items()}
    columns["pressure"] = [None if value is None else value / 7.5 for value in columns["pressure"]]  # kPa, not mmHg
    with pytest.warns(ColumnWarning, match=r"column 'pressure': .* and \d+ to \d+ is agreed on; is it in other units"):
        read_labelled(write_csv(tmp_path / "new.csv", columns), description)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_labelled(write_csv(tmp_path / "same.csv"), description)


def test_a_unit_is_named_in_the_warning() -> None:
    description = Description((Column("chol", "number", low=120.0, high=400.0, unit="mg/dl", fill=200.0),))
    with pytest.warns(ColumnWarning, match="half its values are below 5.2, and 120 to 400 mg/dl is agreed on"):
        read_rows(pl.DataFrame({"chol": [5.1, 5.2, 5.3]}), description)


def test_a_column_that_is_not_described_is_warned_of(tmp_path: Path) -> None:
    description = described(tmp_path)
    for read in (read_labelled, read_rows):  # of rows to predict as of rows with labels
        with pytest.warns(ColumnWarning, match="column 'more' is not described, and is not used"):
            read(changed(more=["a"] * 60)(tmp_path), description)


def test_a_draft_tells_what_is_to_be_decided_and_goes_on(tmp_path: Path) -> None:
    found = draft(read_table(write_csv(tmp_path / "t.csv")), label="diagnosis")
    assert re.search("column 'id' is text with 60 different values", found.questions[0])
    assert next(column for column in found.description.columns if column.name == "id").kind == "dropped"


def test_decimal_commas_are_no_identifiers(tmp_path: Path) -> None:
    """Whole numbers that rise are; numbers with a comma do not, and nor does one value."""
    lines = "".join(f"{20 + i},5;130,5;{'uv'[i % 2]}\n" for i in range(30))
    found = draft(read_table(text(f"age;bp;y\n{lines}")(tmp_path)), label="y").description
    assert [(column.kind, column.note) for column in found.columns] == [("number", ""), ("number", "")]


def test_a_column_that_is_missing_is_told_before_those_that_are_too_many(tmp_path: Path) -> None:
    described = Description((Column("weight", "number"),), labels=("y",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=r"t\.csv has no column 'weight'; did you mean 'weigth'"):
            load_table(text("weigth,b,y\n1,2,u\n3,4,v\n")(tmp_path), description=described)


def test_numbers_that_never_come_twice_do_not_say_the_label() -> None:
    """Each goes with one target, as any column of such numbers does; but a column that is the target is refused."""
    random = np.random.default_rng(0)
    frame = pl.DataFrame({"x": random.normal(size=40), "cost": random.normal(size=40), "site": ["n", "s"] * 20})
    load_table(frame, label="cost", client="site", task="regression")  # a warning would be an error here
    with pytest.raises(InputError, match="column 'copy' is the label 'cost' in every row"):
        load_table(frame.with_columns(copy="cost"), label="cost", client="site", task="regression")
