"""columns.toml: what is written is read again, what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhip.data.tables import Column, Description, draft, read_table
from fedhip.errors import InputError
from tests.data.tables.samples import write_csv

GOOD = """schema = 1
label = "y"
[columns.age]
kind = "number"
"""

_names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def columns(drawn: st.DrawFn, name: str) -> Column:
    kind = drawn(st.sampled_from(["number", "boolean", "date", "category"]))
    numbers = st.none() | st.floats(-1e9, 1e9)
    low, high = sorted((drawn(st.floats(-1e6, 1e6)), drawn(st.floats(-1e6, 1e6))))
    values = tuple(drawn(st.lists(_names, unique=True, max_size=3))) if kind == "category" else ()
    return Column(name, kind, values, drawn(st.booleans()), low, high, drawn(_names), "%Y", drawn(numbers), "")


@given(st.data())
def test_what_is_written_is_read_again(data: st.DataObject) -> None:
    names = data.draw(st.lists(_names, unique=True, min_size=2, max_size=5))
    described = Description(
        tuple(data.draw(columns(name)) for name in names[1:]), (names[0],), missing=tuple(data.draw(st.lists(_names)))
    )
    path = Path(data.draw(st.just("columns.toml")))
    assert Description.from_dict(__import__("tomllib").loads(described.to_toml()), str(path)) == described
    # Sorted keys, as in a model's file: the order of the columns is that of the features, and stays.
    assert Description.from_dict(json.loads(json.dumps(described.to_dict(), sort_keys=True))) == described


def test_a_draft_is_read_again(tmp_path: Path) -> None:
    table = read_table(write_csv(tmp_path / "patients.csv"))
    found = draft(table, label="diagnosis", client="hospital", drop=["id"]).certain()
    (tmp_path / "columns.toml").write_text(found.to_toml(), encoding="utf-8")
    assert Description.from_file(tmp_path / "columns.toml") == found
    kinds = {column.name: column.kind for column in found.columns}
    assert kinds == {
        "id": "dropped", "age": "number", "pressure": "number", "sex": "category", "smoker": "boolean", "seen": "date",
    }  # fmt: skip
    age = found.columns[1]
    assert (age.low, age.high) == (20.0, 89.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema = 2\n[columns.a]\nkind = 'number'", "has the schema 2, and this fedhip reads 1"),
        ("[columns.a]\nkind = 'number'", "has the schema None"),
        ("schema = 1", r"\[columns\] is missing"),
        (GOOD.replace("number", "nubmer"), "kind is 'nubmer'; it is one of .*did you mean 'number'"),
        (GOOD + "lo = 1", "column 'age': there is no key 'lo'; did you mean 'low'"),
        (GOOD + "low = 'a'", "column 'age': low is 'a'; give a number"),
        (GOOD + "low = 2\nhigh = 1", "low is 2 and high is 1"),
        (GOOD + "values = ['a']", "is a number, which has no 'values'"),
        (GOOD.replace("number", "category"), "is a category without 'values'"),
        (GOOD.replace("number", "category") + "values = ['a', 'a']", "lists a value twice, 'a'"),
        (GOOD.replace("number", "category") + "values = [1]", "values must be a list of texts"),
        (GOOD.replace("number", "dropped"), "no column is left"),
        (GOOD.replace("columns.age", "columns.y"), "column 'y' is the label and a feature too"),
        (GOOD.replace('label = "y"', 'label = "y"\nclient = "y"'), "column 'y' is named twice"),
        (GOOD + "missing = 1", "missing is 1; give true or false"),
        ("schema = ", "is not a TOML file"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "columns.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as told:
        Description.from_file(path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value).replace(text, "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="draft one with: fedhip describe"):
        Description.from_file(tmp_path / "columns.toml")
