"""An ONNX file that takes cells of a table answers what the model answers of the same table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.typing import NDArray

import fedhip
from fedhip.cli.main import main
from fedhip.data.tables import Column, Description, read_rows
from fedhip.errors import InputError
from fedhip.export import export_onnx
from fedhip.export.table_graph import TableGraph

onnxruntime = pytest.importorskip("onnxruntime")


def patients(rows: int, seed: int, new: bool = False) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    ward = random.choice(["a", "b", "c", "NA"] if not new else ["a", "b", "c", "z", "na", "?", ""], rows)
    age = random.normal(50, 12, rows)
    gone = random.random(rows) < 0.2
    days = pl.Series("seen", 18_000 + random.integers(0, 800, rows)).cast(pl.Int32).cast(pl.Date)
    return pl.DataFrame(
        {
            "site": random.choice(["north", "south"], rows),
            "age": pl.Series([None if no else round(float(x), 2) for no, x in zip(gone, age, strict=True)]),
            "ward": ward,
            "seen": days,
            "smoker": random.choice(["yes", "no"], rows),
            "stage": random.choice(["1", "2", "3"], rows),
            "ill": np.where(age + 6 * (ward == "a") + random.normal(0, 5, rows) > 52, "ill", "well"),
        }
    )


COLUMNS = Description(
    (
        Column("age", "number", missing=True),
        Column("ward", "category", ("a", "b", "c"), missing=True),
        Column("seen", "date", format="%Y-%m-%d"),
        Column("smoker", "boolean"),
        Column("stage", "category", ("1", "2", "3")),
    ),
    labels=("ill",),
    client="site",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedhip.runs.Run:
    out = tmp_path_factory.mktemp("runs") / "run"
    (out.parent / "columns.toml").write_text(COLUMNS.to_toml(), encoding="utf-8")
    return fedhip.run(patients(300, 0), columns=out.parent / "columns.toml", head="ridge", out=out)


def fed(columns: Mapping[str, list[str]], frame: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """What docs/export.md says, with pandas: cells as a CSV file has them."""
    frame = frame.assign(
        seen=(pd.to_datetime(frame["seen"]) - pd.Timestamp("1970-01-01")).dt.days,
        smoker=frame["smoker"].map({"yes": 1, "no": 0}),
    )
    return {
        "numbers": frame[columns["numbers"]].to_numpy(np.float32),
        "categories": frame[columns["categories"]].fillna("").astype(str).to_numpy(object),
    }


def test_cells_give_the_model_s_own_answers(
    run: fedhip.runs.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    assert main(["export", str(run.path), str(path), "--client", "north", "--from-table"]) == 0
    told = capsys.readouterr().out
    assert "input 'numbers': float32 (batch, 3), 'categories': string (batch, 2); outputs" in told
    assert (tmp_path / "model.columns.toml").is_file()
    session = onnxruntime.InferenceSession(path)
    new = patients(200, 1, new=True).drop("ill")
    told_of = session.get_modelmeta().custom_metadata_map
    columns = {name: json.loads(told_of[name]) for name in ("numbers", "categories")}
    scores, probabilities = session.run(None, fed(columns, new.to_pandas()))
    with pytest.warns(fedhip.errors.FedHiPWarning, match="not agreed on"):
        expected = run.proba(new, client="north")
    np.testing.assert_allclose(probabilities, expected, atol=1e-4)
    assert scores.shape == (200, 2)
    assert len(np.unique(probabilities.round(4))) > 100


def test_features_are_the_encoder_s(run: fedhip.runs.Run) -> None:
    """Each by itself: any mistake in their order shows."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = run.model("north")
    graph = TableGraph(Description.from_dict(model.table or {}))
    nodes, constants = graph.nodes()
    kinds = {"numbers": TensorProto.FLOAT, "categories": TensorProto.STRING}
    inputs = [helper.make_tensor_value_info(name, kinds[name], ("batch", len(graph.columns[name]))) for name in kinds]
    proto = helper.make_model(
        helper.make_graph(
            nodes, "table", inputs, [helper.make_tensor_value_info("features", TensorProto.FLOAT, ("batch", None))],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)], ir_version=8,
    )  # fmt: skip
    onnx.checker.check_model(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    new = patients(100, 2, new=True).drop("ill")
    (found,) = session.run(None, fed(graph.columns, new.to_pandas()))
    with pytest.warns(fedhip.errors.FedHiPWarning, match="not agreed on"):
        _, expected = read_rows(new, graph.description)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("kept", ["numbers", "categories"])
def test_columns_of_one_kind_alone(kept: str, tmp_path: Path) -> None:
    drop = {"numbers": ["ward", "stage"], "categories": ["age", "seen", "smoker"]}[kept]
    described = Description(
        tuple(column for column in COLUMNS.columns if column.name not in drop), COLUMNS.labels, COLUMNS.client
    )
    (tmp_path / "columns.toml").write_text(described.to_toml(), encoding="utf-8")
    run = fedhip.run(patients(120, 3).drop(drop), columns=tmp_path / "columns.toml", head="ridge", out=tmp_path / "run")
    export = export_onnx(run.model("south"), tmp_path / "model.onnx", from_table=True)
    assert (export.input_name, export.other_inputs) == (kept, ())
    assert export.difference is not None
    assert export.difference < 1e-5


def test_what_has_no_cells_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="column 'note' is text, whose encoder has no graph"):
        TableGraph(Description((Column("note", "text", backbone="minilm", width=384),)))
    run = fedhip.run(np.eye(12)[:, :4], np.arange(12) % 2, ["a", "b"] * 6, head="ridge", out=tmp_path / "run")
    with pytest.raises(InputError, match="was not made from a table; leave --from-table out"):
        export_onnx(run.model(None), tmp_path / "m.onnx", from_table=True)
