"""Metrics of a run against scikit-learn, from the models that its folder holds; who gains; tables as CSV."""

from __future__ import annotations

import csv
import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as oracle
from sklearn.dummy import DummyClassifier

from fedhip.core.intervals import wilson
from fedhip.core.metrics import SCALES
from fedhip.data import FeatureSet
from fedhip.runs import Run, life
from fedhip.runs.measures import metrics_in
from fedhip.runs.report import render_report
from fedhip.runs.report.csv_tables import csv_tables
from fedhip.runs.results import metrics_in_words
from tests.runs.samples import NAMES, make_run, the_client

Json = dict[str, Any]
OF_CLASSES = ("accuracy", "balanced_accuracy", "f1", "auc", "log_loss", "calibration_error")


def shifted(clients: int = 4, rows: int = 60, classes: int = 3, seed: int = 0) -> FeatureSet:
    """Clients whose classes are not where those of the others are, and who have some classes more often."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(classes, 8))
    labels = np.concatenate([rng.choice(classes, rows, p=rng.dirichlet(np.full(classes, 2.0))) for _ in range(clients)])
    owner = np.repeat(np.arange(clients), rows)
    X = means[labels] + rng.normal(size=(clients, 8))[owner] + rng.normal(size=(clients * rows, 8))
    names = tuple("abcdefgh"[:classes])
    return FeatureSet(X, labels, names, clients=np.array([f"c{k}" for k in owner]))


def rows_of(run: Run, data: FeatureSet, client: str) -> tuple[Any, Any, Any]:
    """The client's training labels, and the rows it was tested on."""
    assert data.clients is not None
    own = data.clients == client
    split = run.split(client, int(own.sum()))
    assert split is not None
    return data.labels[own][split == 0], data.features[own][split == 1], data.labels[own][split == 1]


def entries(run: Run, method: str) -> dict[str, Json]:
    return {entry["client"]: entry for entry in run.results["methods"][method]["per_client"]}


@pytest.mark.parametrize("prior", ["none", "client"])
@pytest.mark.parametrize("head", ["ridge", "lda", "logistic"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.sampled(3)
def test_every_metric_is_scikit_learns_of_the_probabilities_that_the_folder_gives(
    tmp_path: Path, head: str, prior: str, classes: int
) -> None:
    data = shifted(classes=classes)
    run = make_run(tmp_path / "run", data=data, head=head, prior=prior, methods=("global", "fedhip"))
    own = run.head.method
    for client, entry in entries(run, own).items():
        _, X, y = rows_of(run, data, client)
        p = np.asarray(run.proba(X, client))
        predicted = p.argmax(axis=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = {
                "accuracy": oracle.accuracy_score(y, predicted),
                "balanced_accuracy": oracle.balanced_accuracy_score(y, predicted),
                "f1": oracle.f1_score(y, predicted, average="macro", zero_division=0),
                "log_loss": oracle.log_loss(y, p, labels=range(classes)),
            }
            present = np.unique(y)
            if len(present) == 1:
                assert entry["auc"] is None
            elif classes == 2:
                want["auc"] = oracle.roc_auc_score(y, p[:, 1])
            else:
                want["auc"] = np.mean([oracle.roc_auc_score(y == c, p[:, c]) for c in present])
            if classes == 2 and len(present) == 2:
                want |= {"sensitivity": oracle.recall_score(y, predicted)}
                want |= {"specificity": oracle.recall_score(y, predicted, pos_label=0)}
        for name, value in want.items():
            assert entry[name] == pytest.approx(value, abs=1e-9), name
        assert ("sensitivity" in entry) == (classes == 2)


def test_means_are_over_clients_and_intervals_are_around_them(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data=shifted(), methods=("majority", "local", "global", "fedhip", "fedncm"))
    for name, method in run.results["methods"].items():
        for metric in OF_CLASSES:
            found, values = method[metric], [entry[metric] for entry in method["per_client"]]
            known = [value for value in values if value is not None]
            if not known:
                assert found["mean"] is found["low"] is None
                assert metric in ("log_loss", "calibration_error"), (name, metric)
                continue
            assert found["mean"] == pytest.approx(np.mean(known))
            assert found["low"] < found["mean"] < found["high"]
        assert {"mean", "weighted", "std", "worst_decile", "low", "high"} == method["accuracy"].keys()
        assert not {"r2", "rmse", "mae", "sensitivity"} & method.keys()
    labels_or_scores = [name for name, m in run.results["methods"].items() if m["log_loss"]["mean"] is None]
    assert labels_or_scores == ["majority", "fedncm"]
    calibration = run.results["methods"]["fedhip"]["calibration_error"]
    assert 0.0 < calibration["pooled"] < calibration["mean"]  # errors of few rows are mostly chance
    entry = entries(run, "fedhip")["c0"]
    ends = wilson(entry["accuracy"], entry["test"])
    assert (entry["low"]["accuracy"], entry["high"]["accuracy"]) == pytest.approx(ends, abs=1e-6)


def test_rivals_by_gradients_have_probabilities_and_prototypes_have_none(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data=shifted(), methods=("fedhip", "fedavg", "fedpcl", "pfedfda"), rounds=3)
    methods = run.results["methods"]
    for name in ("fedavg", "pfedfda"):
        assert 0.0 < methods[name]["log_loss"]["mean"] < 10.0
        assert 0.0 < methods[name]["calibration_error"]["pooled"] < 1.0
    assert methods["fedpcl"]["log_loss"]["mean"] is None
    assert 0.4 < methods["fedpcl"]["auc"]["mean"] <= 1.0


def test_the_majority_is_each_clients_own_and_the_first_of_several(tmp_path: Path) -> None:
    data = shifted(classes=3)
    run = make_run(tmp_path / "run", data=data)
    assert list(run.results["methods"]) == ["majority", "local", "global", "fedhip"]
    majority = run.results["methods"]["majority"]
    assert (majority["rounds"], majority["upload_bytes_per_client"]) == (0, 0)
    for client, entry in entries(run, "majority").items():
        trained, X, y = rows_of(run, data, client)
        dummy = DummyClassifier(strategy="most_frequent").fit(np.zeros((len(trained), 1)), trained)
        assert entry["accuracy"] == pytest.approx(np.mean(dummy.predict(X[:, :1]) == y))
        assert entry["auc"] in (None, 0.5)
    labels = np.array([2, 1, 1, 2, 0, 1, 2, 0])
    split = np.array([0, 0, 0, 0, 0, 1, 1, 1], np.int8)
    tied = FeatureSet(np.random.default_rng(0).normal(size=(8, 8)), labels, ("a", "b", "c"), split=split)
    alone = make_run(tmp_path / "tied", data=FeatureSet(**{**vars(tied), "clients": np.full(8, "x")}))
    assert entries(alone, "majority")["x"]["accuracy"] == pytest.approx(1 / 3)  # 1, as frequent as 2


def test_who_gains_against_the_global_model(tmp_path: Path) -> None:
    data = shifted(clients=6, rows=120, seed=3)
    run = make_run(tmp_path / "run", data=data)
    gain = run.results["gains"]["global"]
    for line in gain["per_client"]:
        _, X, y = rows_of(run, data, line["client"])
        names = np.array(data.class_names)
        mine, theirs = (run.predict(X, client) == names[y] for client in (line["client"], None))
        better, worse = int((mine & ~theirs).sum()), int((~mine & theirs).sum())
        assert (line["better"], line["worse"]) == (better, worse)
        assert line["difference"] == pytest.approx((better - worse) / len(y))
        if better + worse:
            assert line["p"] == pytest.approx(stats.binomtest(better, better + worse).pvalue)
        assert line["p"] <= line["p_adjusted"] <= 1.0
        assert line["low"] < line["difference"] < line["high"]
    differences = [line["difference"] for line in gain["per_client"]]
    assert gain["mean"] == pytest.approx(np.mean(differences))
    assert gain["low"] < gain["mean"] < gain["high"]
    assert (gain["better"], gain["worse"]) == (sum(d > 0 for d in differences), sum(d < 0 for d in differences))
    named = [line["client"] for line in gain["per_client"] if line["p_adjusted"] <= 0.05]
    assert sorted(gain["gains_beyond_chance"] + gain["loses_beyond_chance"]) == sorted(named)
    words = metrics_in_words(run.results)
    assert words[0].startswith("personalized: balanced accuracy ")
    assert f"{gain['better']} of 6 clients better, {gain['worse']} worse" in words[2]


def test_a_client_that_leaves_takes_its_part_along(tmp_path: Path) -> None:
    make_run(tmp_path / "run", data=shifted())
    life.forget(Run.open(tmp_path / "run"), "c1")
    left = Run.open(tmp_path / "run").results
    assert '"c1"' not in json.dumps({"methods": left["methods"], "gains": left["gains"]})
    for method in left["methods"].values():
        for metric, found in metrics_in(method).items():
            known = [entry[metric] for entry in method["per_client"] if entry[metric] is not None]
            assert len(method["per_client"]) == 3
            assert found["mean"] == (pytest.approx(np.mean(known)) if known else None)
    assert left["gains"]["local"]["mean"] == pytest.approx(
        np.mean([line["difference"] for line in left["gains"]["local"]["per_client"]])
    )


def test_a_client_that_joins_is_measured_like_the_others(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    life.join(Run.open(tmp_path / "run"), the_client("east"))
    run = Run.open(tmp_path / "run")
    for name, method in run.results["methods"].items():
        east = next(entry for entry in method["per_client"] if entry["client"] == "east")
        assert east["balanced_accuracy"] is not None, name
        assert (east["log_loss"] is None) == (name == "majority")
    assert [line["client"] for line in run.results["gains"]["local"]["per_client"]] == [*NAMES, "east"]
    assert entries(run, "local")["east"]["curves"]["bins"]


def test_one_class_in_the_test_rows_has_no_auc_and_nothing_is_nan(tmp_path: Path) -> None:
    data = shifted(clients=3, rows=30, classes=2)
    split = np.zeros(90, np.int8)
    split[(data.clients == "c0") & (data.labels == 0)] = 1  # nothing but the first class
    split[np.flatnonzero(data.clients == "c1")[0]] = 1  # one row
    assert data.clients is not None
    data = FeatureSet(data.features, data.labels, data.class_names, clients=data.clients, split=split)
    run = make_run(tmp_path / "run", data=data)  # c2 has no test row at all
    found = entries(run, "fedhip")
    assert found["c0"]["auc"] is None
    assert found["c0"]["sensitivity"] is None
    assert found["c1"]["auc"] is None
    assert found["c1"]["low"]["accuracy"] < found["c1"]["high"]["accuracy"]
    assert "balanced_accuracy" not in found["c2"]
    assert found["c2"]["accuracy"] is None
    method = run.results["methods"]["fedhip"]
    assert method["auc"] == {"mean": None, "low": None, "high": None}
    json.dumps(run.results, allow_nan=False)
    json.dumps(run.details, allow_nan=False)
    page = render_report([run.record("x")])
    assert "specificity" in page
    assert ">AUC<" not in page


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_table_as_csv(tmp_path: Path) -> None:
    data = shifted(classes=2)
    assert data.clients is not None
    renamed = np.array(['north, "old"\nwing' if name == "c0" else name for name in data.clients])
    run = make_run(tmp_path / "run", data=FeatureSet(data.features, data.labels, ("no", "yes, it is"), clients=renamed))
    tables = csv_tables([run.record("first"), run.record("second")])
    assert list(tables) == [
        "methods.csv", "clients.csv", "gains.csv", "rows.csv", "errors.csv", "reliability.csv", "roc.csv",
        "seconds.csv", "ledger.csv",
    ]  # fmt: skip
    methods = read(tables["methods.csv"])
    assert [line["run"] for line in methods] == ["first"] * 4 + ["second"] * 4
    for line in methods:
        held = run.results["methods"][line["method"]]
        for metric in SCALES:
            for name, value in (held.get(metric) or {}).items():
                assert line[f"{metric}_{name}"] == ("" if value is None else repr(value))
    clients = read(tables["clients.csv"])
    assert len(clients) == 2 * 4 * 4
    assert any(line["client"] == 'north, "old"\nwing' for line in clients)
    assert all(float(line["accuracy_low"]) <= float(line["accuracy"]) for line in clients)
    rows = read(tables["rows.csv"])
    assert sum(int(line["train"]) + int(line["test"]) for line in rows) == 2 * len(data)
    assert {line["class"] for line in rows} == {"no", "yes, it is"}
    gains = read(tables["gains.csv"])
    assert {line["against"] for line in gains} == {"local", "global"}
    bins = [line for line in read(tables["reliability.csv"]) if line["run"] == "first" and line["method"] == "fedhip"]
    assert sum(float(line["share_of_rows"]) for line in bins) == pytest.approx(1.0)
    error = sum(float(b["share_of_rows"]) * abs(float(b["probability"]) - float(b["right"])) for b in bins)
    pooled = run.results["methods"]["fedhip"]["calibration_error"]["pooled"]
    assert error == pytest.approx(pooled, abs=1e-5)
    assert {line["method"] for line in read(tables["roc.csv"])} == {"local", "global", "fedhip"}


def test_the_report_has_words_curves_and_lists(tmp_path: Path, pictures: None) -> None:
    page = render_report([make_run(tmp_path / "run", data=shifted(classes=2)).record("x")])
    for text in ("Other metrics", "Who gains", "Against training alone", "majority class", "rows won", "AUC"):
        assert text in page
    assert 'id="metrics-table"' in page
    assert "ROC curve for" in page
    three = render_report([make_run(tmp_path / "three", data=shifted(classes=3)).record("x")])
    assert "ROC curve for" not in three
    assert "predicted probability" in three


def test_the_mean_roc_curve_has_the_mean_area(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data=shifted(clients=5, rows=200, classes=2, seed=1))
    curves = [entry["curves"]["roc"] for entry in entries(run, "fedhip").values()]
    area = np.trapezoid(np.mean(curves, axis=0), np.linspace(0, 1, 41))
    assert area == pytest.approx(run.results["methods"]["fedhip"]["auc"]["mean"], abs=0.02)
