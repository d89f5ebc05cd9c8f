"""Differential privacy through every door: the command, `fedhip.run`, the estimator; what is refused."""

from __future__ import annotations

import json
import pickle
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fedhip
from fedhip.data import FeatureSet
from fedhip.errors import FedHiPError, InputError
from fedhip.features.backbones import embedded_moments
from fedhip.privacy import mechanism
from fedhip.privacy.public import PublicMap, PublicMoments
from fedhip.runs import Run
from fedhip.simulation.private import round as round_in_one_process
from fedhip.sklearn import FedHiPClassifier
from tests.cli.samples import deepen, done, image_folder, refused
from tests.runs.samples import NAMES, WIDTH, feature_file, feature_set, rows_of

ROWS = 120


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every share the same: what doors make of it can be compared to the bit."""

    def drawn(sigma: int, size: int, _: object) -> NDArray[np.int64]:
        return np.rint(np.random.default_rng(size).normal(size=size) * sigma).astype(np.int64)

    monkeypatch.setattr(mechanism, "discrete_gaussian", drawn)


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return feature_file(tmp_path_factory.mktemp("data") / "rows.npz", rows=ROWS)


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory, features: Path) -> Run:
    return fedhip.run(features, epsilon=2.0, clip=4.0, out=tmp_path_factory.mktemp("runs") / "private")


def test_the_results_and_the_report_say_what_is_guaranteed(private: Run) -> None:
    privacy = private.results["privacy"]
    wanted = {"epsilon": 2.0, "delta": 1e-5, "unit": "row", "mechanism": "discrete Gaussian", "width": WIDTH}
    assert {name: privacy[name] for name in wanted} == wanted
    assert privacy["sigma"] == pytest.approx(1.677 * 2.1491, rel=1e-3)  # Δ times σ/Δ at (2, 1e-5)
    sentence = privacy["guarantee"]
    for word in (
        "every training row",
        "the server and any one of the other clients",
        "discrete Gaussian",
        "not covered",
    ):
        assert word in sentence
    assert sentence.replace("'", "&#39;") in (private.path / "report.html").read_text(encoding="utf-8")
    assert private.results["feature_dim"] == WIDTH
    assert set(private.results["methods"]) == {"majority", "local", "global", "fedhip"}


def test_what_is_computed_from_rows_is_said_not_to_be_covered(private: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of a simulation has exact figures of training rows; whoever hands it out is told which files may go."""
    own = private.details["clients"]["north"]
    assert sum(own["train_counts"]) == private.results["methods"]["fedhip"]["per_client"][0]["train"] > 0
    assert private.results["leave_one_out"]["chosen"] > 0.0
    privacy = private.results["privacy"]
    assert "how many there are and how well a model does on them" in privacy["guarantee"]
    assert privacy["released"] == ["total.safetensors", "global.safetensors", "public.safetensors"]
    assert all((private.path / name).is_file() for name in privacy["released"])
    capsys.readouterr()
    done("show", private.path)
    said = "total.safetensors, global.safetensors and public.safetensors; all else here is computed from rows"
    assert said in " ".join(capsys.readouterr().out.split())
    page = (private.path / "report.html").read_text(encoding="utf-8")
    assert "All else in this folder, and this report, is computed from rows without noise." in page


@pytest.mark.parametrize("given", [{}, {"partition": "iid", "clients": 3}, {"groups": True, "unit": "group"}])
def test_a_row_more_in_the_file_changes_the_sum_by_no_more_than_itself(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not by who else is a training row then: of the usual division, which counts rows, others would be drawn."""
    monkeypatch.setattr(mechanism, "discrete_gaussian", lambda sigma, size, _: np.zeros(size, np.int64))
    data = feature_set(rows=ROWS)
    groups = np.array([f"{i % 40}" for i in range(len(data.labels))])  # of 3 rows, each at one client
    owners = np.repeat(NAMES, ROWS)
    groups = np.char.add(owners, groups)
    changes = []
    for gone in (None, 0, 7, 200):
        kept = np.arange(len(owners)) != gone if "groups" not in given or gone is None else groups != groups[gone]
        asked: dict[str, Any] = {"epsilon": 50.0, "clip": 4.0, **given}
        if "groups" in given:
            asked |= {"groups": groups[kept], "unit_rows": 2}
        if "clients" not in given:
            asked["clients"] = owners[kept]
        out = tmp_path / str(gone)
        run = fedhip.run(data.features[kept], data.labels[kept], out=out, **asked)
        total = run.total()
        changes.append(torch.cat((total.gram, total.cross), dim=1).double() * 2.0**-total.fraction_bits)
    noise = run.results["privacy"]
    most = noise["unit_rows"] * np.sqrt(1.25**2 + 1.25)
    sizes = [float(torch.linalg.matrix_norm(other - changes[0])) for other in changes[1:]]
    assert max(sizes) <= most
    assert max(sizes) > 0.0
    assert run.split("north", ROWS) is not None or "clients" in given


def test_a_window_that_is_read_off_all_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One image with a larger value would change the features of all others, by far more than is hidden."""
    deep = deepen(image_folder(tmp_path / "images", ("north", "south")), tmp_path / "deep")
    words = ("run", "--data", deep, "--epsilon", 50, "--out", tmp_path / "run")
    assert "images of more than 8 bits" in refused(capsys, *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("unit", ["row", "group"])
def test_a_number_that_no_model_could_be_made_of_is_refused_before_anything_is_released(
    unit: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the sum it would be clipped; a client's own model is of its rows as they are. Rows beside the sum, too."""

    def none(*_: object) -> NDArray[np.int64]:
        raise AssertionError("noise was drawn for a sum that is not to be")

    monkeypatch.setattr(mechanism, "discrete_gaussian", none)
    rows = 40
    owners, X = np.repeat(["a", "b"], rows), np.random.default_rng(0).normal(size=(2 * rows, 3))
    y, groups = np.arange(2 * rows) % 2, np.arange(2 * rows) // 20
    X[:rows, 1] = 1e200  # of a group all rows, of which one counts
    given: dict[str, Any] = {"epsilon": 50.0, "clip": 2.0, "unit": unit, "unit_rows": 1}
    with pytest.raises(InputError, match=r"client 'a': the feature in row 0, column 1 is 1e\+200"):
        FedHiPClassifier(**given).fit(X, y, groups=owners, blocks=groups)
    if unit == "group":
        given["groups"] = groups
    with pytest.raises(InputError, match="client 'a': the feature in row 0, column 1"):
        fedhip.run(X, y, owners, out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_an_estimator_with_noise_keeps_no_row(tmp_path: Path) -> None:
    """Neither it nor its pickle; without noise it does, for who comes and goes."""
    data, owners = feature_set(rows=ROWS), np.repeat(NAMES, ROWS)
    X = np.asarray(data.features, np.float64)
    for epsilon, kept in ((4.0, 0), (None, len(X))):
        clf = FedHiPClassifier(head="ridge", epsilon=epsilon, clip=None if epsilon is None else 4.0)
        held = pickle.dumps(clf.fit(X, data.labels, groups=owners))
        assert sum(row.tobytes() in held for row in X) == kept
    assert set(clf.predict(X[:4], groups=owners[:4])) <= set(data.labels)


def test_epsilon_and_delta_may_be_any_real_number() -> None:
    data = feature_set(rows=ROWS)
    clf = FedHiPClassifier(epsilon=np.int64(4), delta=np.float32(1e-5), clip=4.0)  # type: ignore[arg-type]
    clf.fit(data.features, data.labels, groups=np.repeat(NAMES, ROWS))
    assert clf.privacy_ is not None
    assert json.loads(json.dumps(clf.privacy_))["epsilon"] == 4.0


def test_the_folder_has_the_noisy_sum_and_nobodys_statistics(private: Run) -> None:
    assert not (private.path / "statistics").exists()
    total = private.total()
    exact = sum(int((rows_of(name, ROWS)[1] >= 0).sum()) for name in NAMES) * 8 // 10
    assert abs(total.num_samples - exact) < 100
    # No entry of a matrix with noise is on the coarser grid that products of rows lie on.
    assert (total.cross % (1 << (total.fraction_bits // 2)) != 0).double().mean() > 0.9
    assert all(check.problem is None for check in private.verify())
    details = private.details
    assert details["temperature"] == {"fedhip": None, "global": None}
    assert all(client["log_losses"] is None and client["misses"] == [] for client in details["clients"].values())
    assert "table" not in details


def test_what_may_be_handed_out_follows_from_the_noisy_sum_and_from_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same sum for other rows, more of them, of other sizes, a client without any: the same files, to the bit."""
    noise = mechanism.Mechanism(2.0, 1e-5, "row", 1, WIDTH, len(NAMES) + 1)
    total = noise.noise(3, np.random.default_rng(0).bytes)
    total.cross[-1] += 200 << total.fraction_bits
    total.gram[-1, -1] += 150 << total.fraction_bits
    monkeypatch.setattr(round_in_one_process, "add_up", lambda uploads: [list(uploads), total][1])
    found = []
    for seed, rows, last in ((0, 60, 1), (7, 90, 20)):
        parts = [rows_of(name, rows, seed=seed) for name in NAMES]
        parts.append((parts[0][0][:last] + 9.0, parts[0][1][:last]))
        split = [np.arange(len(y)) % 5 == 0 for _, y in parts]
        split[-1][:] = last == 1  # its only row is a test row
        features = FeatureSet(
            np.concatenate([F for F, _ in parts]), np.concatenate([y for _, y in parts]), ("ape", "bee", "cat"),
            clients=np.repeat((*NAMES, "last"), [len(y) for _, y in parts]),
            split=np.concatenate(split).astype(np.int8),
        )  # fmt: skip
        run = fedhip.run(features, epsilon=2.0, clip=4.0, out=tmp_path / str(seed))
        files = [(run.path / f"{name}.safetensors").read_bytes() for name in ("total", "global", "public")]
        found.append((files, run.results["privacy"], run.results["beta"], run.total().digest()))
    assert found[0] == found[1]


def test_it_answers_with_a_clients_own_temperature(private: Run) -> None:
    X = rows_of("north", 10, seed=5)[0]
    assert set(private.predict(X, client="north")) <= {"ape", "bee", "cat"}
    np.testing.assert_allclose(private.proba(X, client="north").sum(axis=1), 1.0)
    assert len(private.predict(X)) == 10
    with pytest.raises(FedHiPError, match="no temperature"):
        private.proba(X)


def test_a_change_would_be_a_second_release_and_is_refused(private: Run) -> None:
    X, y = rows_of("east", 30)
    labels = np.array(["ape", "bee", "cat"])[y]
    changes: list[Callable[[], object]] = [
        lambda: private.join("east", X, labels),
        lambda: private.update("north", X, labels),
        lambda: private.forget("north"),
        lambda: private.personalize(feature_set(rows=ROWS)),
    ]
    for change in changes:
        with pytest.raises(FedHiPError, match="was run with epsilon = 2: its sum was released once"):
            change()


def test_a_run_whose_public_map_was_changed_is_found_out(private: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(private.path, copy)
    run = Run.open(copy)
    PublicMap.of_length(WIDTH, 5.0).to_file(copy / "public.safetensors")
    assert any(check.problem is not None for check in run.verify())


@pytest.mark.usefixtures("same_noise")
def test_every_door_has_the_same_models(features: Path, tmp_path: Path) -> None:
    run = fedhip.run(features, epsilon=3.0, clip=4.0, out=tmp_path / "python")
    done("run", "--features", features, "--epsilon", 3, "--clip", 4, "--out", tmp_path / "command")
    command = Run.open(tmp_path / "command")
    done("run", tmp_path / "command" / "config.toml", "--out", tmp_path / "again")
    again = Run.open(tmp_path / "again")
    for client in (None, *NAMES):
        for other in (command, again):
            assert torch.equal(run.model(client).weights, other.model(client).weights)
            assert run.model(client).alpha == other.model(client).alpha
    config = tomllib.loads((tmp_path / "command" / "config.toml").read_text(encoding="utf-8"))
    assert (config["epsilon"], config["clip"], config["statistics"]) == (3.0, 4.0, False)

    clients = [run.split(name, ROWS) for name in NAMES]
    train = np.concatenate([split == 0 for split in clients if split is not None])
    data = feature_set(rows=ROWS)
    owners = np.repeat(NAMES, ROWS)
    clf = FedHiPClassifier(epsilon=3.0, clip=4.0).fit(data.features[train], data.labels[train], groups=owners[train])
    assert clf.privacy_ is not None
    assert {**clf.privacy_, "released": run.results["privacy"]["released"]} == run.results["privacy"]
    for name in NAMES:
        torch.testing.assert_close(clf.models_[name].weights, run.model(name).weights)
        assert clf.alphas_[name] == run.model(name).alpha
        assert clf.models_[name].temperature == run.model(name).temperature
    with pytest.raises(InputError, match="forget would release a second sum"):
        clf.forget("north")
    with pytest.raises(InputError, match="partial_fit would release a second sum"):
        clf.partial_fit(data.features, data.labels, groups=owners)


def test_without_epsilon_nothing_is_said_of_privacy(features: Path, tmp_path: Path) -> None:
    run = fedhip.run(features, out=tmp_path / "plain")
    assert "privacy" not in run.results
    text = (tmp_path / "plain" / "config.toml").read_text(encoding="utf-8")
    assert not any(name in text for name in ("epsilon", "delta", "unit", "clip", "public"))
    assert FedHiPClassifier().fit(feature_set().features, feature_set().labels).privacy_ is None


@pytest.mark.usefixtures("same_noise")
def test_public_rows_scale_and_clip_private_ones(features: Path, tmp_path: Path) -> None:
    public = feature_file(tmp_path / "public.npz", ("elsewhere",), rows=400)
    run = fedhip.run(features, epsilon=2.0, public=public, delta=1e-6, out=tmp_path / "run")
    assert run.results["privacy"]["delta"] == 1e-6
    assert run.config["public"] == str(public)
    assert run.results["methods"]["global"]["accuracy"]["mean"] > 0.5
    with pytest.raises(InputError, match="too small for epsilon = 2"):  # a client of 90 rows takes 90 times the noise
        fedhip.run(features, epsilon=2.0, public=public, unit="client", unit_rows=90, out=tmp_path / "other")


def test_rows_that_are_to_be_protected_are_no_public_ones(features: Path, tmp_path: Path) -> None:
    """Its own rows as the public ones: mean and main directions of them would be in the folder, without noise."""
    with pytest.raises(InputError, match="360 of the rows to be protected are among the public ones"):
        fedhip.run(features, epsilon=2.0, public=features, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    data = feature_set(rows=ROWS)
    public = np.concatenate((data.features[-1:], np.random.default_rng(0).normal(size=(400, WIDTH))))
    with pytest.raises(InputError, match="1 of the rows to be protected"):
        FedHiPClassifier(epsilon=3.0, public=public).fit(data.features, data.labels, groups=np.repeat(NAMES, ROWS))


CSV = "age,sex,site,ill\n" + "".join(
    f"{20 + (7 * i) % 60},{'fm'[i % 2]},{'abc'[i % 3]},{'yes' if (7 * i) % 60 > 30 else 'no'}\n" for i in range(240)
)
COLUMNS = """schema = 1
label = "ill"
client = "site"
[columns.age]
kind = "number"
missing = true
{age}
[columns.sex]
kind = "category"
values = ["f", "m"]
"""


@pytest.mark.usefixtures("same_noise")
def test_a_table_needs_ranges_that_were_agreed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, columns = tmp_path / "people.csv", tmp_path / "columns.toml"
    table.write_text(CSV.replace("20,f,a", ",f,a"), encoding="utf-8")  # some ages are missing
    words = ("run", "--data", table, "--label", "ill", "--client", "site", "--epsilon", 3, "--out", tmp_path / "run")
    assert "was read off its rows" in refused(capsys, *words)
    columns.write_text(COLUMNS.format(age=""), encoding="utf-8")
    described = ("run", "--data", table, "--columns", columns, "--epsilon", 3, "--out", tmp_path / "run")
    assert "column 'age' has no range" in refused(capsys, *described)
    columns.write_text(COLUMNS.format(age="low = 20\nhigh = 80"), encoding="utf-8")
    done(*described)
    run = Run.open(tmp_path / "run")
    assert run.table is not None
    assert next(column.fill for column in run.table.columns if column.name == "age") == 50.0  # nobody's mean
    out = capsys.readouterr().out
    assert run.results["privacy"]["guarantee"] in " ".join(out.split())
    assert "columns:" not in out
    found = run.predict(table, client="a")
    assert np.mean(found == np.array([line.split(",")[3] for line in CSV.splitlines()[1:]])) > 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", 0], "epsilon is 0.0; give a number above 0"),
        (["--epsilon", -1], "epsilon is -1.0"),
        (["--epsilon", 1, "--delta", 0.5, "--clip", 2], "delta is 0.5, and there are 279 rows"),
        (["--epsilon", 1], "nothing public is known of these features"),
        (["--delta", 1e-5], "--delta is of differential privacy; give --epsilon too"),
        (["--epsilon", 1, "--clip", 2, "--public", "x.npz"], "give --public or --clip, not both"),
        (["--epsilon", 1, "--clip", 0], "clip is 0.0"),
        (["--epsilon", 1, "--clip", 2, "--head", "lda"], "leave out --head lda"),
        (["--epsilon", 1, "--clip", 2, "--methods", "fedavg"], "leave out the method fedavg"),
        (["--epsilon", 1, "--clip", 2, "--prior", "client"], "leave out --prior client"),
        (["--epsilon", 1, "--clip", 2, "--lift", "relu"], "leave out --lift"),
        (["--epsilon", 1, "--clip", 2, "--beta", "gcv"], "leave out --beta gcv"),
        (["--epsilon", 1, "--clip", 2, "--no-intercept"], "leave out --no-standardize or --no-intercept"),
        (["--epsilon", 1, "--clip", 2, "--unit", "client"], "--unit-rows N"),
        (["--epsilon", 1, "--clip", 2, "--unit", "group", "--unit-rows", 2], "the unit is a group, and rows have none"),
        (["--epsilon", 0.01, "--clip", 2], "the federation is too small for epsilon = 0.01"),
        (["--epsilon", 1, "--public", "fedhip-vit"], "features are 8 wide, and what is public of them"),
        (["--epsilon", 1, "--clip", 2, "--clients", 1, "--partition", "iid"], "there are 1 clients"),
    ],
)
@pytest.mark.usefixtures("same_noise")
def test_what_cannot_be_guaranteed_is_one_line_and_no_folder(
    options: list[Any], message: str, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "run", "--features", features, *options, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_estimator_refuses_the_same(features: Path) -> None:
    data = feature_set(rows=ROWS)
    owners = np.repeat(NAMES, ROWS)

    def fit(blocks: Any = None, **options: Any) -> None:
        clf = FedHiPClassifier(**{"epsilon": 1.0, "clip": 2.0, **options})
        clf.fit(data.features, data.labels, groups=owners, blocks=blocks)

    for options, message in (
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"clip": None}, "nothing public is known"),
        ({"head": "lda"}, "leave out head='lda'"),
        ({"lift": "relu"}, "leave out lift"),
        ({"fit_intercept": False}, "leave out standardize=False"),
        ({"unit": "group", "unit_rows": 3}, "rows have none"),
    ):
        with pytest.raises(InputError, match=message):
            fit(**options)
    shared = np.arange(len(owners)) % 10
    with pytest.raises(InputError, match="have rows of the same one"):
        fit(blocks=shared, unit="group", unit_rows=3)
    fit(blocks=np.char.add(owners, shared.astype(str)), unit="group", unit_rows=3, epsilon=8.0)


def test_real_targets_and_weights_are_refused(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    owners = np.repeat(["a", "b"], 30)
    with pytest.raises(InputError, match="not for --task regression"):
        fedhip.run(X, X[:, 0], owners, task="regression", epsilon=1.0, clip=1.0, out=tmp_path / "run")
    with pytest.raises(InputError, match="not for rows with weights"):
        fedhip.run(
            X, (X[:, 0] > 0).astype(int), owners, weights=np.ones(60), epsilon=1.0, clip=1.0, out=tmp_path / "run"
        )


def test_what_is_public_of_the_embedded_backbone_comes_with_the_package() -> None:
    found = PublicMoments.from_file(embedded_moments())
    assert found.directions.shape == (1280, 256)
    np.testing.assert_allclose(found.directions.T @ found.directions, np.eye(256), atol=5e-3)
    assert (np.diff(found.scale) <= 0).all()
    assert found.rest < found.scale[-1]


def test_json_has_the_guarantee(features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    done("run", "--features", features, "--epsilon", 4, "--clip", 4, "--json", "--out", tmp_path / "run")
    assert json.loads(capsys.readouterr().out)["privacy"]["epsilon"] == 4.0
