"""Features of a table are those of pandas and scikit-learn; sums of clients give the means."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from fedhip.data.tables import Column, Description, FillSums, draft, encode, load_table, read_rows, read_table
from fedhip.errors import ColumnWarning, InputError
from tests.data.tables.samples import cells, write_csv

TRAIN = np.arange(60) % 4 != 0


def test_features_are_those_of_pandas(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "patients.csv")
    rows = load_table(path, label="diagnosis", client="hospital", drop=["id"])
    found, description = rows.features(TRAIN)
    frame = pd.read_csv(path)
    dummies = pd.get_dummies(frame["sex"], dtype=float)
    filled = frame["pressure"].fillna(frame["pressure"][TRAIN].mean())
    days = (pd.to_datetime(frame["seen"]) - pd.Timestamp("1970-01-01")).dt.days
    expected = {
        "age": frame["age"],
        "pressure": filled,
        "pressure=(missing)": frame["pressure"].isna().astype(float),
        "sex=f": dummies["f"],
        "sex=m": dummies["m"],
        "sex=(other)": np.zeros(60),
        "sex=(missing)": frame["sex"].isna().astype(float),
        "smoker": frame["smoker"].astype(float),
        "seen": days,
    }
    assert description.names == tuple(expected)
    np.testing.assert_allclose(found.features, np.column_stack(list(expected.values())), rtol=1e-7)
    assert found.clients is not None
    assert found.clients.tolist() == frame["hospital"].tolist()
    assert [found.class_names[label] for label in found.labels] == frame["diagnosis"].tolist()


def test_a_column_transformer_of_scikit_learn_gives_the_same(tmp_path: Path) -> None:
    frame = pd.read_csv(write_csv(tmp_path / "patients.csv"))
    rows = load_table(frame[["age", "pressure", "sex", "diagnosis"]], label="diagnosis")
    found, description = rows.features(TRAIN)
    oracle = ColumnTransformer(
        [
            ("numbers", SimpleImputer(add_indicator=True), ["age", "pressure"]),
            ("categories", OneHotEncoder(categories=[["f", "m"]], handle_unknown="ignore"), ["sex"]),
        ]
    ).fit(frame[TRAIN])
    expected = oracle.transform(frame)
    order = ["age", "pressure", "pressure=(missing)", "sex=f", "sex=m"]
    places = [description.names.index(name) for name in order]
    np.testing.assert_allclose(found.features[:, places], expected, rtol=1e-7)


@pytest.mark.parametrize("kind", ["pandas", "polars", "lazy", "arrow", "tsv", "parquet", "semicolons"])
def test_every_way_in_gives_the_same_features(kind: str, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "patients.csv")
    frame = pl.DataFrame(cells()).with_columns(pl.col("seen").str.to_date())
    frame.write_parquet(tmp_path / "patients.parquet")
    source = {
        "pandas": pd.read_csv(path, parse_dates=["seen"]),
        "polars": frame,
        "lazy": frame.lazy(),
        "arrow": frame.to_arrow(),
        "tsv": write_csv(tmp_path / "patients.tsv", separator="\t", missing="NA"),
        "parquet": tmp_path / "patients.parquet",
        "semicolons": write_csv(tmp_path / "semicolons.csv", separator=";", missing="?"),
    }[kind]
    options = {"label": "diagnosis", "client": "hospital", "drop": ["id"]}
    expected, _ = load_table(path, **options).features(TRAIN)  # type: ignore[arg-type]
    found, description = load_table(source, **options).features(TRAIN)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found.features, expected.features)
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert found.class_names == expected.class_names
    assert "pressure=(missing)" in description.names


@given(st.lists(st.integers(0, 3), min_size=60, max_size=60), st.integers(0, 5))
def test_means_are_of_the_sums_however_rows_are_divided(owners: list[int], seed: int) -> None:
    table = read_table(pl.DataFrame(cells(seed=seed)))
    description = draft(table, label="diagnosis", drop=["id"]).description
    matrix = encode(table, description).matrix
    whole = FillSums.of(matrix, description)
    parts = [FillSums.of(matrix[np.array(owners) == owner], description) for owner in sorted(set(owners))]
    added = sum(parts[1:], parts[0])
    assert added.means(description) == whole.means(description)  # to the last bit
    again = FillSums.from_vector(added.to_vector(), description)
    assert again.means(description) == whole.means(description)
    for column in description.values:
        values = matrix[:, description.positions[column.name]]
        assert whole.means(description)[column.name] == pytest.approx(np.nanmean(values), rel=1e-6)


def test_test_rows_do_not_change_what_missing_values_are_filled_with(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "patients.csv")
    _, description = load_table(path, label="diagnosis", drop=["id"]).features(TRAIN)
    columns = cells()
    columns["pressure"] = [
        value if train or value is None else value + 1000
        for value, train in zip(columns["pressure"], TRAIN, strict=True)
    ]
    _, moved = load_table(write_csv(tmp_path / "moved.csv", columns), label="diagnosis", drop=["id"]).features(TRAIN)
    assert [column.fill for column in description.values] == [column.fill for column in moved.values]


def test_new_rows_are_encoded_as_the_old_ones(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "patients.csv")
    found, description = load_table(path, label="diagnosis", client="hospital", drop=["id"]).features(TRAIN)
    columns = cells()
    del columns["diagnosis"], columns["hospital"], columns["id"]
    reordered = dict(reversed(columns.items()))
    _, again = read_rows(write_csv(tmp_path / "new.csv", reordered), description)
    np.testing.assert_array_equal(again, found.features)


def test_a_value_that_is_not_agreed_on_is_a_feature_of_its_own() -> None:
    description = Description((Column("sex", "category", ("f", "m")), Column("x", "number", fill=2.0)))
    frame = pl.DataFrame({"sex": ["f", "x", None, "m "], "x": [1.0, 2.0, float("nan"), 4.0]})
    with pytest.warns(ColumnWarning) as told:
        _, features = read_rows(frame, description)
    np.testing.assert_array_equal(features, [[1, 0, 0, 1], [0, 0, 1, 2], [0, 0, 1, 2], [0, 1, 0, 4]])
    words = "\n".join(str(warning.message) for warning in told)
    assert "column 'sex': 1 rows have values that are not agreed on ('x')" in words
    assert "column 'sex': 1 of 4 values are missing, and none was" in words
    assert "column 'x': 1 of 4 values are missing, and none was" in words


@pytest.mark.parametrize("values", [["1", "2"], [1, 2], [1.0, 2.0], ["1.0", "2.0"]])
def test_a_category_of_numbers_is_the_same_however_it_is_written(values: list[object]) -> None:
    description = Description((Column("stage", "category", ("1", "2")),))
    _, features = read_rows(pl.DataFrame({"stage": values}), description)
    np.testing.assert_array_equal(features, [[1, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("1970-01-02", 1.0),
        ("1969-12-31", -1.0),
        ("02.01.1970", 1.0),
        ("1970-01-01 12:00", 0.5),
        ("1970-01-02T06:00:00Z", 1.25),
        ("1970-01-02T06:00:00+06:00", 1.0),
        ("31/01/1970", 30.0),
        ("01/31/1970", 30.0),
    ],
)
def test_dates_are_days(text: str, day: float) -> None:
    table = read_table(pl.DataFrame({"seen": [text] * 3, "y": ["a", "b", "a"]}))
    description = draft(table, label="y").certain()
    assert encode(table, description).matrix[:, 0].tolist() == [day] * 3


def test_dates_of_frames_are_days() -> None:
    when = [datetime.datetime(1970, 1, 2, 12), None]
    frame = pl.DataFrame({"seen": when, "on": [datetime.date(1970, 1, 3)] * 2, "y": ["a", "b"]})
    table = read_table(frame)
    matrix = encode(table, draft(table, label="y").certain()).matrix
    np.testing.assert_array_equal(matrix, [[1.5, 0, 2], [np.nan, 1, 2]])
    zoned = pd.DataFrame({"seen": pd.to_datetime(["1970-01-02T00:00+02:00", None], utc=True), "y": ["a", "b"]})
    table = read_table(zoned)
    np.testing.assert_allclose(encode(table, draft(table, label="y").certain()).matrix[:, 0], [22 / 24, np.nan])


def test_decimal_commas_are_numbers_where_semicolons_separate(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x;y\n1,5;a\n-0,25;b\n3;a\n", encoding="utf-8")
    rows = load_table(tmp_path / "a.csv", label="y")
    np.testing.assert_array_equal(rows.matrix[:, 0], [1.5, -0.25, 3.0])
    (tmp_path / "b.csv").write_text('x,y\n"1,5",a\n2,b\n3,a\n', encoding="utf-8")
    with pytest.raises(InputError, match="row 1, column 'x': '1,5' is not a number"):
        load_table(tmp_path / "b.csv", label="y")


def test_columns_of_integers_booleans_and_nothing() -> None:
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "flag": pd.array([True, None, False], dtype="boolean"),
            "object": [True, None, False],
            "half": np.array([0.5, 1.5, 2.5], dtype=np.float16),
            "none": [None, None, None],
            "kind": pd.Categorical(["u", "v", None]),
            "y": ["a", "b", "a"],
        }
    )
    table = read_table(frame)
    found = draft(table, label="y").certain()
    kinds = {column.name: column.kind for column in found.columns}
    assert kinds == {
        "whole": "number", "flag": "boolean", "object": "boolean", "half": "number", "none": "dropped",
        "kind": "category",
    }  # fmt: skip
    matrix = encode(table, found).matrix
    np.testing.assert_array_equal(matrix[:, found.positions["whole"]], [1, np.nan, 3])
    np.testing.assert_array_equal(matrix[:, found.positions["object"]], [1, np.nan, 0])
    np.testing.assert_array_equal(matrix[:, found.positions["half"]], [0.5, 1.5, 2.5])
    place = found.positions["kind"]
    np.testing.assert_array_equal(matrix[:, place : place + 4], [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]])


def test_labels_that_are_numbers_are_in_their_order() -> None:
    frame = pl.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": ["10", "9", "9", "10"]})
    assert load_table(frame, label="y").class_names == ("9", "10")
    floats = pl.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": [10.0, 9.0, 9.0, 10.0]})
    assert load_table(floats, label="y").class_names == ("9", "10")
    zeros = pl.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": ["010", "10", "9", "9"]})
    assert load_table(zeros, label="y").class_names == ("010", "10", "9")


def test_targets_groups_and_weights_come_with_the_rows() -> None:
    frame = pl.DataFrame(
        {
            "x": [1.0, 2.0, 5.0, 4.0],
            "y": [0.5, 1.5, 2.5, 9.0],
            "z": [1, 0, 1, 1],
            "who": [7, 7, 8, 8],
            "w": [1, 2, 0, 1],
        }
    )
    rows, description = load_table(frame, label=["y", "z"], group="who", weight="w", task="regression").features()
    assert rows.groups is not None
    assert rows.weights is not None
    np.testing.assert_array_equal(rows.labels, [[0.5, 1], [1.5, 0], [2.5, 1], [9, 1]])
    assert (tuple(rows.class_names), description.names) == (("y", "z"), ("x",))
    assert rows.groups.tolist() == ["7", "7", "8", "8"]
    assert rows.weights.tolist() == [1, 2, 0, 1]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_rows_of_no_weight_do_not_change_what_missing_values_are_filled_with(name: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": [1.0, 2.0, None, 1000.0], "y": ["u", "v", "u", "v"], "w": [1, 3, 1, 0]})
    getattr(frame, {"t.csv": "write_csv", "t.parquet": "write_parquet"}[name])(tmp_path / name)
    _, description = load_table(tmp_path / name, label="y", weight="w").features(np.ones(4, dtype=bool))
    assert description.values[0].fill == 1.5


def test_several_labels_are_named_with_commas_everywhere() -> None:
    frame = pl.DataFrame({"x": [1.0, 2.0, 5.0], "y": [0, 1, 1], "z": [1, 0, 1], "y,z": ["u", "v", "u"]})
    assert draft(read_table(frame), label="y, z").description.labels == ("y", "z")
    assert load_table(frame, label="z,y").description.labels == ("z", "y")
    assert load_table(frame, label="y,z").description.labels == ("y,z",)  # a column's own name comes first
