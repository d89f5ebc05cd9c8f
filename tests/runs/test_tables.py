"""A table through every door: the same models, predictions as scikit-learn's pipeline has them, files that say how."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from safetensors import safe_open
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fedhip
from fedhip.cli.main import main
from fedhip.data.tables import Description, load_table
from fedhip.errors import InputError
from fedhip.runs.report.page import render_report
from tests.cli.samples import done, refused
from tests.data.tables.samples import cells, write_csv

LABELLED = ["--label", "diagnosis", "--client", "hospital", "--drop", "id"]
NAMED: dict[str, Any] = {"label": "diagnosis", "client": "hospital", "drop": ["id"]}


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "patients.csv", cells(rows=90))


def without_label(path: Path, rows: slice = slice(None)) -> Path:
    columns = {name: values[rows] for name, values in cells(rows=90).items() if name != "diagnosis"}
    return write_csv(path, columns)


def test_a_number_of_clients_does_not_replace_the_column_that_names_them(patients: Path, tmp_path: Path) -> None:
    says = "column 'hospital' names the client of each row, and 2 clients are asked for; leave the number out"
    with pytest.raises(InputError, match=says):
        fedhip.run(patients, clients=2, **NAMED, out=tmp_path / "run")
    run = fedhip.run(patients, clients=2, partition="iid", **NAMED, methods=["global"], out=tmp_path / "run")
    assert run.results["num_clients"] == 2


@pytest.mark.usefixtures("no_report")
def test_command_and_python_give_the_same_run(patients: Path, tmp_path: Path) -> None:
    done("run", "--data", patients, *LABELLED, "--head", "ridge", "--out", tmp_path / "command")
    frames = {"path": patients, "pandas": pd.read_csv(patients), "polars": pl.read_csv(patients)}
    for name, source in frames.items():
        fedhip.run(source, **NAMED, head="ridge", out=tmp_path / name)
    files = [
        "global.safetensors",
        "total.safetensors",
        *(f"models/{name}.safetensors" for name in ("bern", "chur", "genf")),
    ]
    for name in frames:
        for file in (*files, "columns.toml"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "command" / file).read_bytes(), (name, file)
    done("run", tmp_path / "command" / "config.toml", "--out", tmp_path / "again")
    assert (tmp_path / "again" / "columns.toml").read_bytes() == (tmp_path / "command" / "columns.toml").read_bytes()


@pytest.mark.usefixtures("no_report")
def test_the_global_model_is_the_ridge_of_a_pipeline_of_scikit_learn(patients: Path, tmp_path: Path) -> None:
    run = fedhip.run(patients, **NAMED, beta=3.0, out=tmp_path / "run")
    frame = pd.read_csv(patients, parse_dates=["seen"]).assign(
        seen=lambda table: (table["seen"] - pd.Timestamp("1970-01-01")).dt.days
    )
    train = np.ones(len(frame), dtype=bool)
    for client in run.clients:
        mine = (frame["hospital"] == client).to_numpy()
        split = run.split(client, int(mine.sum()))
        assert split is not None
        train[mine] = split == 0
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    # The oracle's missing category is the text "(missing)", a value like the others.
    categories = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="(missing)"), OneHotEncoder(sparse_output=False), StandardScaler()
    )
    features = ColumnTransformer(
        [("n", numbers, ["age", "pressure", "seen"]), ("b", StandardScaler(), ["smoker"]), ("c", categories, ["sex"])]
    )
    oracle = make_pipeline(features, Ridge(alpha=3.0))
    targets = pd.get_dummies(frame["diagnosis"])[list(run.class_names)].to_numpy(dtype=float)
    oracle.fit(frame[train], targets[train])
    expected = oracle.predict(frame)
    found = run.model(None).scores(
        load_table(frame.assign(seen=pd.to_datetime(frame["seen"], unit="D")), **NAMED).features(train)[0].features
    )
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-4)
    np.testing.assert_array_equal(run.predict(patients), np.array(run.class_names)[expected.argmax(axis=1)])


@pytest.mark.usefixtures("no_report")
def test_predictions_of_a_table_are_those_of_its_features(
    patients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fedhip.run(patients, **NAMED, out=tmp_path / "run")
    new = without_label(tmp_path / "new.csv", slice(0, 20))
    done("predict", run.path, new, "--csv", tmp_path / "answers.csv")
    assert "20 rows answered by each client's own model" in capsys.readouterr().out
    with (tmp_path / "answers.csv").open(encoding="utf-8", newline="") as file:
        answers = list(csv.DictReader(file))
    assert (tmp_path / "answers.csv").stat().st_mode & 0o077 == 0  # it tells of rows
    frame = pl.read_csv(new)
    for number, (row, owner) in enumerate(zip(answers, frame["hospital"], strict=True)):
        assert (row["row"], row["client"]) == (str(number + 1), owner)
        proba = run.proba(frame[number], client=owner)[0]
        assert row["class"] == run.class_names[proba.argmax()]
        shown = [float(row[f"probability of {name}"]) for name in run.class_names]
        np.testing.assert_allclose(shown, proba, rtol=1e-4)
    done("predict", run.path, new, "--client", "bern", "--json")
    told = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose([row["probabilities"] for row in told["rows"]], run.proba(frame, client="bern"))


@pytest.mark.usefixtures("no_report")
def test_rows_of_the_run_are_scored_as_they_were_tested(patients: Path, tmp_path: Path) -> None:
    """A column in the wrong place would show here: the accuracies of results.json, from the file itself."""
    run = fedhip.run(patients, **NAMED, out=tmp_path / "run")
    frame = pl.read_csv(patients)
    for entry in run.results["methods"]["auto"]["per_client"]:
        mine = frame.filter(pl.col("hospital") == entry["client"])
        split = run.split(entry["client"], len(mine))
        assert split is not None
        test = mine.filter(pl.Series(split == 1))
        right = run.predict(test.drop("diagnosis"), client=entry["client"]) == test["diagnosis"].to_numpy()
        assert right.mean() == pytest.approx(entry["accuracy"])


@pytest.mark.usefixtures("no_report")
def test_a_life_with_tables(patients: Path, tmp_path: Path) -> None:
    """Joined, updated, forgotten: by command and in Python the same; forgotten is as never joined."""
    command, python = tmp_path / "command", tmp_path / "python"
    done("run", "--data", patients, *LABELLED, "--head", "ridge", "--out", command)
    run = fedhip.run(patients, **NAMED, head="ridge", out=python)
    before = (command / "total.safetensors").read_bytes()
    east = {**cells(rows=40, seed=5), "hospital": ["east"] * 40}
    more = {**cells(rows=10, seed=6), "hospital": ["bern"] * 10}
    write_csv(tmp_path / "east.csv", east)
    write_csv(tmp_path / "more.csv", more)
    done("join", command, "--data", tmp_path / "east.csv")
    run.join("east", pl.read_csv(tmp_path / "east.csv"))
    done("update", command, "--client", "bern", "--data", tmp_path / "more.csv")
    run.update("bern", pd.read_csv(tmp_path / "more.csv"))
    for file in ("total.safetensors", "global.safetensors", "models/east.safetensors", "columns.toml"):
        assert (command / file).read_bytes() == (python / file).read_bytes()
    done("personalize", command)
    done("verify", command)
    assert run.table == Description.from_file(python / "columns.toml")
    done("forget", command, "--client", "bern")
    done("join", command, "--client", "bern", "--data", patients)
    done("forget", command, "--client", "east")
    assert (command / "total.safetensors").read_bytes() == before


@pytest.mark.usefixtures("no_report")
def test_a_run_of_one_class_at_a_client_and_one_row_to_predict(tmp_path: Path) -> None:
    columns = cells(rows=90)
    columns["diagnosis"] = [
        "ill" if owner == "chur" else value
        for owner, value in zip(columns["hospital"], columns["diagnosis"], strict=True)
    ]
    run = fedhip.run(write_csv(tmp_path / "patients.csv", columns), **NAMED, out=tmp_path / "run")
    assert run.predict(without_label(tmp_path / "one.csv", slice(4, 5)), client="chur").shape == (1,)
    one = {name: values[:1] for name, values in columns.items()}
    run.update("chur", pl.DataFrame({**one, "hospital": ["chur"]}))


@pytest.mark.usefixtures("no_report")
def test_a_model_holds_what_turns_a_table_into_features(patients: Path, tmp_path: Path) -> None:
    run = fedhip.run(patients, **NAMED, head="ridge", out=tmp_path / "run")
    with safe_open(run.path / "models" / "bern.safetensors", framework="np") as file:
        held = json.loads((file.metadata() or {})["model"])["table"]
    assert Description.from_dict(held) == Description.from_file(run.path / "columns.toml")
    (run.path / "columns.toml").write_text(
        (run.path / "columns.toml").read_text(encoding="utf-8").replace('"f", "m"', '"m", "f"'), encoding="utf-8"
    )
    assert main(["verify", str(run.path)]) != 0


def test_the_report_says_what_was_done_with_each_column(patients: Path, tmp_path: Path) -> None:
    run = fedhip.run(patients, **NAMED, head="ridge", out=tmp_path / "run")
    page = render_report([run.record("run")])
    assert "What was done with each column" in page
    assert "13 of 90 missing, filled with" in page
    assert "left out: as asked" in page
    assert "days since 1970-01-01" in page


@pytest.mark.usefixtures("no_report")
def test_an_exported_model_lies_beside_its_description(
    patients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run = fedhip.run(patients, **NAMED, out=tmp_path / "run")
    done("export", run.path, tmp_path / "model.onnx", "--client", "bern")
    assert "already encoded (age, pressure, pressure=(missing), sex=f, …)" in capsys.readouterr().out
    description = Description.from_file(tmp_path / "model.columns.toml")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    assert tuple(json.loads(metadata["features"])) == description.names
    from fedhip.data.tables import read_rows

    _, features = read_rows(patients, description)
    (found,) = session.run(["probabilities"], {"features": features.astype(np.float32)})
    np.testing.assert_allclose(found, run.proba(patients, client="bern"), atol=1e-3)


@pytest.mark.usefixtures("no_report")
def test_what_is_not_for_tables_and_what_is(patients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "rows.npz", features=np.eye(4), labels=np.array([0, 1, 0, 1]), clients=np.array([0, 0, 1, 1]))
    features = ["--features", tmp_path / "rows.npz"]
    assert "--label names columns of a table" in refused(capsys, "run", *features, "--label", "y")
    assert "--pooling has no effect on a table" in refused(capsys, "run", "--data", patients, "--pooling", "cls")
    (tmp_path / "columns.toml").write_text("schema = 1\n[columns.a]\nkind = 'number'\n", encoding="utf-8")
    told = refused(capsys, "run", *features, "--columns", tmp_path / "columns.toml")
    assert "columns.toml describes a table, and none is given" in told
    done("run", *features, "--head", "ridge", "--out", tmp_path / "plain")
    assert "was not made from a table" in refused(capsys, "predict", tmp_path / "plain", patients)
    assert "was not made from a table" in refused(capsys, "join", tmp_path / "plain", "--data", patients)
    run = fedhip.run(patients, **NAMED, head="ridge", out=tmp_path / "run")
    with pytest.raises(InputError, match="a table brings labels, groups and weights with it"):
        run.join("east", patients, ["ill"])
    with pytest.raises(fedhip.FedHiPError, match="weight= name columns"):
        fedhip.run(patients, ["ill"] * 90, out=tmp_path / "other")
    told = refused(capsys, "predict", run.path, patients, "--csv", tmp_path / "a.txt")
    assert "answers are written as .csv" in told


@pytest.mark.usefixtures("no_report")
@pytest.mark.filterwarnings("default::UserWarning")
def test_describe_then_run_by_it(patients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "columns.toml"
    done("describe", patients, path, *LABELLED)
    assert "pressure" in capsys.readouterr().out
    assert "is there already" in refused(capsys, "describe", patients, path)
    done("run", "--data", patients, "--columns", path, "--head", "ridge", "--out", tmp_path / "described")
    fedhip.run(patients, **NAMED, head="ridge", out=tmp_path / "drafted")
    for file in ("total.safetensors", "global.safetensors"):
        assert (tmp_path / "described" / file).read_bytes() == (tmp_path / "drafted" / file).read_bytes()
    capsys.readouterr()
    done("describe", patients, "--label", "diagnosis")
    printed = capsys.readouterr()
    assert "column 'id' is text with 90 different values in 90 rows" in printed.err
    assert Description.from_dict(tomllib.loads(printed.out)).labels == ("diagnosis",)


@pytest.mark.usefixtures("no_report")
def test_rows_without_owners_are_divided(patients: Path, tmp_path: Path) -> None:
    done(
        "run", "--data", patients, "--label", "diagnosis", "--drop", "id,hospital", "--clients", "3",
        "--partition", "iid", "--head", "ridge", "--out", tmp_path / "run",
    )  # fmt: skip
    assert fedhip.open_run(tmp_path / "run").clients == ["0", "1", "2"]
    done("personalize", tmp_path / "run")
