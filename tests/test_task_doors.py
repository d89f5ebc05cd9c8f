"""Groups, regression, weights, several labels and prediction sets: Python, files, commands, estimator alike."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedhip
from fedhip.cli.main import main
from fedhip.core.choice.conformal import common_threshold, pooled_rows, threshold
from fedhip.data import FeatureSet, feature_set, make_partition, read_features, split_clients, write_features
from fedhip.errors import FedHiPError, FedHiPWarning, InputError
from fedhip.runs.round.repeats import near_pairs
from fedhip.simulation.client import Client
from fedhip.simulation.hold_out import hold_out, hold_out_fold
from fedhip.simulation.tasks import label_metrics
from fedhip.sklearn import FedHiPClassifier, FedHiPRegressor

SITES = ("a", "b", "c")


def full(rows: FeatureSet) -> tuple[Any, Any, Any]:
    """Clients, groups and weights of the table, which has all of them."""
    return rows.clients, rows.groups, rows.weights


def table(task: str = "classification", rows: int = 40, seed: int = 0) -> FeatureSet:
    rng = np.random.default_rng(seed)
    n = rows * len(SITES)
    sites = np.repeat(SITES, rows)
    X = rng.normal(size=(n, 5))
    scores = X @ rng.normal(size=(5, 2)) + 0.3 * rng.normal(size=(n, 2)) + np.repeat(np.arange(3), rows)[:, None] / 2
    labels = {
        "classification": np.where(scores[:, 0] > 0, "yes", "no"),
        "regression": scores * [1.0, 1e4],
        "multilabel": (scores > 0).astype(int),
    }[task]
    groups = np.array([f"{site}{row // 4}" for site, row in zip(sites, range(n), strict=True)])
    weights = rng.integers(1, 4, size=n).astype(float)
    return feature_set(
        X, labels, sites, groups=groups, weights=weights if task != "classification" else None, task=task
    )


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("task", ["classification", "regression", "multilabel"])
def test_a_feature_file_keeps_groups_weights_and_targets(tmp_path: Path, suffix: str, task: str) -> None:
    rows, path = table(task), tmp_path / f"rows.{suffix}"
    write_features(path, rows)
    again = read_features(path, task=task)
    assert again.fingerprint == rows.fingerprint
    assert again.groups is not None
    np.testing.assert_array_equal(again.groups, full(rows)[1])
    np.testing.assert_array_equal(again.labels, rows.labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": np.array([1.0, -1.0])}, r"weight of row 1 is -1\.0"),
        ({"weights": np.array([0.0, 0.0])}, "all weights are 0"),
        ({"weights": np.ones(3)}, "a number for each of the 2 rows"),
        ({"groups": np.array(["a"])}, "groups have shape"),
        ({"labels": np.array([1.0, np.nan]), "task": "regression"}, r"'target' of row 1 is nan"),
        ({"labels": np.array([[0, 1], [2, 0]]), "task": "multilabel"}, r"'target 1' of row 1 is 2\.0; give 0 or 1"),
        ({"labels": np.array(["a", "b"]), "task": "regression"}, "give real numbers"),
    ],
)
def test_bad_rows_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FedHiPError, match=message):
        feature_set(**{"features": np.eye(2), "labels": np.array([0, 1]), **change})


def test_a_split_never_divides_a_group_and_single_rows_split_as_before() -> None:
    rows = table()
    partition = make_partition(rows.labels, "natural", clients=rows.clients, groups=rows.groups)
    split = split_clients(partition)
    assert all(len(set(split[rows.groups == group])) == 1 for group in np.unique(full(rows)[1]))
    alone = make_partition(rows.labels, "natural", clients=rows.clients, groups=np.arange(len(rows)))
    plain = make_partition(rows.labels, "natural", clients=rows.clients)
    np.testing.assert_array_equal(split_clients(alone), split_clients(plain))


@pytest.mark.parametrize("scheme", ["dirichlet", "iid", "shards", "quantity"])
def test_a_group_goes_to_one_client(scheme: str) -> None:
    rows = table()
    partition = make_partition(rows.labels, scheme, 4, groups=rows.groups)
    assert all(len(set(partition.assignment[rows.groups == group])) == 1 for group in np.unique(full(rows)[1]))


def test_hold_outs_are_of_whole_groups() -> None:
    rows = table()
    client = Client(
        "a", (rows.features[:40], rows.labels[:40]), (rows.features[:0], rows.labels[:0]), np.arange(40) // 4
    )
    (apart,) = hold_out([client], 0)
    assert apart.groups is not None
    assert apart.test_groups is not None
    assert not set(apart.groups) & set(apart.test_groups)
    held: list[Any] = [hold_out_fold(client, fold, 0).test_groups for fold in range(5)]
    assert sorted(group for part in held for group in set(part)) == list(range(10))
    assert len(list(GroupKFold(5).split(client.train[0], groups=client.groups))) == 5  # so many folds, as there


@pytest.mark.parametrize("head", ["ridge", "lda", "auto"])
@pytest.mark.sampled(3)
def test_a_run_with_groups(tmp_path: Path, head: str) -> None:
    run = fedhip.run(table(), out=tmp_path / "run", head=head)
    entry = run.results["methods"]["fedhip" if head == "ridge" else run.head.method]["per_client"][0]
    if head == "ridge":
        assert (entry["train_groups"], entry["test_groups"]) == (8, 2)
    assert entry["test"] == 8
    assert [check for check in run.verify() if check.problem] == []


def test_the_logistic_head_refuses_groups_and_priors_count_without_them(tmp_path: Path) -> None:
    with pytest.raises(FedHiPError, match="leaves rows out one by one"):
        fedhip.run(table(), out=tmp_path / "run", head="logistic")
    run = fedhip.run(table(), out=tmp_path / "run", head="ridge", prior="client")
    with_prior = [client for client in SITES if not run.priors(client)["fedhip"].is_none]
    for client in SITES:
        if client in with_prior:
            with pytest.raises(InputError, match="answers with a prior"):
                run.thresholds(client)
        else:
            assert len(run.thresholds(client)) == 1


def test_groups_at_two_clients_are_warned_of(tmp_path: Path) -> None:
    rows = table()
    with pytest.warns(FedHiPWarning, match="group 'p' is at client 'a' and at client 'b'"):
        fedhip.run(
            rows.features,
            rows.labels,
            rows.clients,
            groups=np.full(len(rows), "p"),
            head="ridge",
            out=tmp_path / "run",
        )


def test_rows_that_are_nearly_the_same_are_warned_of(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 12)), rng.integers(2, size=120)
    twice = np.concatenate((X, X[:30] + 1e-5 * rng.normal(size=(30, 12))))
    labels, sites = np.concatenate((y, y[:30])), np.array(["a"] * 60 + ["b"] * 60 + ["a"] * 30)
    with pytest.warns(FedHiPWarning, match=r"client 'a': \d+ of \d+ training rows are nearly the same"):
        fedhip.run(twice, labels, sites, head="ridge", out=tmp_path / "one")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedHiPWarning)
        fedhip.run(X, y, sites[:120], head="ridge", out=tmp_path / "two")
        together = np.concatenate((np.arange(120), np.arange(30)))
        fedhip.run(twice, labels, sites, groups=together, head="ridge", out=tmp_path / "three")
    assert not near_pairs(rng.integers(2, size=(200, 20)).astype(float))  # few values: the same by chance


def test_a_regression_lives(tmp_path: Path) -> None:
    rows = table("regression")
    run = fedhip.run(rows, out=tmp_path / "run")
    own = run.results["methods"]["fedhip"]
    assert run.task == "regression"
    assert own["r2"]["mean"] > 0.8
    assert own["accuracy"]["mean"] is None
    assert len(own["per_client"][0]["targets"]["rmse"]) == 2
    assert run.predict(rows.features[:3], "a").shape == (3, 2)
    again = fedhip.run(rows, out=tmp_path / "again")
    assert again.federation().digest == run.federation().digest
    more = table("regression", seed=1)
    clients, groups, weights = full(more)
    at = clients == "a"
    run.join("new", more.features[at], more.labels[at], groups=groups[at], weights=weights[at])
    run.update("new", more.features[at][:5] + 1.0, more.labels[at][:5])
    run.forget("b")
    assert run.clients == ["a", "c", "new"]
    assert (run.path / "report.html").read_text().count("R²") > 2
    run.forget("new")
    without = fedhip.open_run(again.path)
    without.forget("b")
    assert run.federation().digest == without.federation().digest  # to the bit, as if it had never joined
    assert main(["verify", str(run.path)]) == 0
    with pytest.raises(InputError, match="ask for predict_interval"):
        run.predict_set(rows.features[:1], "a")


def test_what_a_regression_cannot_have_is_said_in_a_line(tmp_path: Path) -> None:
    rows = table("regression")
    for options, message in (
        ({"head": "lda"}, "--head lda is not for --task regression: take the ridge"),
        ({"methods": ["fedhip", "fedavg"]}, "the method fedavg is not for --task regression"),
        ({"prior": "client"}, "--prior client is not for"),
        ({"only_local_classes": True}, "--only-local-classes is not for"),
        ({"balance": True}, "--balance is not for"),
        ({"partition": "dirichlet", "clients": 3}, "divides rows by class"),
    ):
        with pytest.raises(InputError, match=message):
            fedhip.run(rows, out=tmp_path / "run", **options)
    weighted = feature_set(rows.features, (rows.labels[:, 0] > 0).astype(int), rows.clients, weights=rows.weights)
    with pytest.raises(InputError, match="--head lda is not for rows with weights"):
        fedhip.run(weighted, out=tmp_path / "run", head="lda")
    assert fedhip.run(weighted, out=tmp_path / "run").results["methods"]["fedhip"]["accuracy"]["mean"] > 0.7


@pytest.mark.parametrize("methods", [["majority"], ["local", "majority"]])
def test_a_regression_without_models_of_clients_has_a_report(tmp_path: Path, methods: list[str]) -> None:
    run = fedhip.run(table("regression", rows=8), methods=methods, out=tmp_path / "run")
    assert "No model of a client’s own is among the methods" in (run.path / "report.html").read_text(encoding="utf-8")


def test_a_target_among_the_features_is_warned_of(tmp_path: Path) -> None:
    rows = table("regression")
    X = np.column_stack((rows.features, 3.0 * rows.labels[:, 0] - 7.0))
    with pytest.warns(UserWarning, match="column 5 is target 0 itself"):
        fedhip.run(X, rows.labels, rows.clients, task="regression", out=tmp_path / "run")


def test_several_labels(tmp_path: Path) -> None:
    rows = table("multilabel")
    run = fedhip.run(rows, out=tmp_path / "run")
    assert run.results["methods"]["fedhip"]["label_accuracy"]["mean"] > 0.8
    predicted = run.predict(rows.features, "a")
    assert predicted.shape == (120, 2)
    assert set(np.unique(predicted)) <= {0, 1}
    found = label_metrics(np.array([[0.9, 0.1], [0.2, 0.1]]), np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert found["label_accuracy"] == pytest.approx(0.75)
    assert found["f1"] == pytest.approx(2 / 3)  # of the first label; nobody has the second


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_features(tmp_path / "rows.npz", table("regression"))
    where = ["--features", str(tmp_path / "rows.npz")]
    assert main(["run", *where, "--task", "regression", "--out", str(tmp_path / "run")]) == 0
    assert "rmse" in capsys.readouterr().out
    assert main(["predict", str(tmp_path / "run"), *where, "--client", "a", "--coverage", "0.9", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    low, high = row["intervals"]["target 1"]
    assert low < row["targets"]["target 1"] < high
    assert main(["personalize", str(tmp_path / "run")]) == 0
    assert main(["run", str(tmp_path / "run" / "config.toml"), "--out", str(tmp_path / "again")]) == 0
    assert (
        fedhip.open_run(tmp_path / "again").federation().digest == fedhip.open_run(tmp_path / "run").federation().digest
    )
    write_features(tmp_path / "classes.npz", table())
    where = ["--features", str(tmp_path / "classes.npz")]
    assert main(["run", *where, "--head", "ridge", "--out", str(tmp_path / "classes")]) == 0
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "classes"), *where, "--client", "a", "--coverage", "0.95", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["rows"]
    assert all(row["class"] in row["set"] for row in told)
    assert main(["predict", str(tmp_path / "classes"), *where, "--coverage", "90"]) != 0
    assert "give a share between 0 and 1" in capsys.readouterr().err


def test_quantiles_by_hand() -> None:
    assert threshold([1.0, 2.0, 3.0, 4.0], [], 0.6) == 3.0  # 0.6 · 5 rows
    assert threshold([1.0, 2.0, 3.0, 4.0], [], 0.8) == 4.0
    assert threshold([1.0, 2.0, 3.0, 4.0], [], 0.81) == np.inf  # four rows say nothing of one in five
    # Two rows of its own and four lent: of weight 7, 0.5 is reached at the third and a half.
    assert threshold([5.0, 6.0], [[1.0, 2.0], [1.0, 2.0]], 0.5, pooled=4.0) == 2.0
    assert common_threshold([[1.0], [2.0, 3.0]], 0.75) == 3.0
    rng = np.random.default_rng(0)
    alike = [rng.normal(size=50) for _ in range(30)]
    assert pooled_rows(alike, 0.9) > 50
    assert pooled_rows([part * scale for part, scale in zip(alike, np.logspace(-2, 2, 30), strict=True)], 0.9) < 5


def test_sets_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(6, 1))
    X, own = rng.normal(size=(12 * 560, 6)), np.repeat(np.arange(12), 560)
    y = (X @ w)[:, 0] + rng.standard_t(4, size=len(X)) + rng.normal(size=12)[own]
    train = np.arange(len(X)) % 560 < 60
    reg = FedHiPRegressor().fit(X[train], y[train], groups=own[train])
    low, high = reg.predict_interval(X[~train], groups=own[~train], coverage=0.8).T
    held = (low <= y[~train]) & (y[~train] <= high)
    assert held.mean() == pytest.approx(0.8, abs=0.02)
    labels = np.digitize(y, [-2.0, 0.0, 2.0])
    clf = FedHiPClassifier().fit(X[train], labels[train], groups=own[train])
    sets = clf.predict_set(X[~train], groups=own[~train], coverage=0.8)
    assert sets.any(axis=1).all()
    assert sets[np.arange(len(sets)), labels[~train]].mean() == pytest.approx(0.8, abs=0.04)


def same_but_for_the_choice(estimator: object) -> dict[str, str]:
    return {
        "check_sample_weight_equivalence_on_dense_data": "leave-one-out leaves out a row, and not one of two copies",
    }


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [FedHiPRegressor(), FedHiPRegressor(standardize=False, fit_intercept=False)],
    expected_failed_checks=same_but_for_the_choice,
)
@pytest.mark.sampled(3)
def test_the_regressor_is_a_regressor(estimator: object, check: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)  # type: ignore[operator]


@parametrize_with_checks([FedHiPRegressor(alpha=2.0, beta=1.0)])  # type: ignore[untyped-decorator]
def test_without_a_choice_weights_are_repeated_rows(estimator: object, check: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)  # type: ignore[operator]


def test_the_estimator_and_the_run_are_one(tmp_path: Path) -> None:
    rows = table("regression")
    run = fedhip.run(
        rows.features, rows.labels, rows.clients, groups=rows.groups, weights=rows.weights, task="regression",
        split=np.zeros(len(rows), int), out=tmp_path / "run",
    )  # fmt: skip
    reg = FedHiPRegressor().fit(
        rows.features, rows.labels, rows.clients, blocks=rows.groups, sample_weight=rows.weights
    )
    assert reg.beta_ == run.results["beta"]
    for client in SITES:
        assert reg.alphas_[client] == run.details["clients"][client]["alpha"]
        np.testing.assert_array_equal(
            reg.predict(rows.features, [client] * len(rows)), run.predict(rows.features, client)
        )
        np.testing.assert_allclose(
            reg.predict_interval(rows.features, [client] * len(rows)),
            run.predict_interval(rows.features, client),
            rtol=1e-4,
        )
    clients, groups, weights = full(rows)
    parts = [clients == client for client in SITES]
    grown = FedHiPRegressor()
    for at in parts:
        grown.partial_fit(rows.features[at], rows.labels[at], clients[at], blocks=groups[at], sample_weight=weights[at])
    np.testing.assert_array_equal(grown.predict(rows.features), reg.predict(rows.features))
    rest = ~parts[1]
    never = FedHiPRegressor().fit(
        rows.features[rest], rows.labels[rest], clients[rest], blocks=groups[rest], sample_weight=weights[rest]
    )
    np.testing.assert_array_equal(grown.forget("b").predict(rows.features), never.predict(rows.features))


def test_one_client_is_sklearns_ridge_and_blocks_change_the_choice() -> None:
    rows = table("regression", rows=60)
    X, y, w = rows.features, rows.labels[:, 0], rows.weights
    reg = FedHiPRegressor(alpha=0.0, beta=3.0).fit(X, y, sample_weight=w)
    mean = np.average(X, axis=0, weights=w)
    Z = (X - mean) / np.sqrt(np.average((X - mean) ** 2, axis=0, weights=w))
    np.testing.assert_allclose(reg.predict(X), Ridge(alpha=3.0).fit(Z, y, sample_weight=w).predict(Z), atol=1e-3)
    rng = np.random.default_rng(0)
    shift = np.repeat(
        rng.normal(size=(12, 5)), 15, axis=0
    )  # a patient's rows are nearly the same, and so is its target
    X, y = shift + 0.01 * rng.normal(size=shift.shape), np.repeat(rng.normal(size=12), 15)
    patients = np.repeat(np.arange(12), 15)
    sites = np.repeat(["a", "b"], 90)
    single = FedHiPRegressor(beta=0.01).fit(X, y, sites)
    whole = FedHiPRegressor(beta=0.01).fit(X, y, sites, blocks=patients)
    assert max(whole.alphas_.values()) < max(single.alphas_.values())
    wide, narrow = (model.predict_interval(X[:1], ["a"], coverage=0.8)[0] for model in (whole, single))
    assert np.ptp(wide) > 2.0 * np.ptp(narrow)
