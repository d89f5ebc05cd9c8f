"""`fedhip join`, `update`, `forget` and `personalize`: the same bytes as a run in which it had always been so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.cli.main import main
from fedhip.runs import Run
from tests.cli.samples import done, encoder, image_folder, refused, said
from tests.data.partitions.manifests import older, other_stream
from tests.runs.samples import (
    CLASSES,
    EXACT,
    NAMES,
    ROWS,
    WIDTH,
    contents,
    digest,
    feature_file,
    feature_set,
    make_run,
    rows_of,
)

FIXED = ("--alpha", "7.5", "--beta", "2", "--fraction-bits", "32")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three clients by name; their feature file lies beside."""
    path = tmp_path / "here" / "run"
    features = feature_file(tmp_path / "sites.npz")
    return make_run(path, features=features).path


def units_of(run: Path) -> tuple[object, ...]:
    """The units of a run's columns, for another one."""
    return "--columns", run / "details.json"


def files(path: Path, *names: str) -> dict[str, bytes]:
    return contents(path, names or EXACT)


@pytest.mark.parametrize("settings", [FIXED, ("--alpha", "7.5", "--beta", "gcv")], ids=["fixed", "β from the sum"])
def test_forget_by_command_equals_a_run_without_the_client(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """On the same units of columns: those of the first run."""
    done("run", "--features", feature_file(tmp_path / "all.npz"), *settings, "--out", tmp_path / "run")
    two = feature_file(tmp_path / "two.npz", NAMES[:2])
    done("run", "--features", two, *settings, *units_of(tmp_path / "run"), "--out", tmp_path / "never")
    done("forget", tmp_path / "run", "--client", "west")
    assert files(tmp_path / "run") == files(tmp_path / "never")
    done("verify", tmp_path / "run")
    done("join", tmp_path / "run", "--features", feature_file(tmp_path / "west.npz", ["west"]))
    done("run", "--features", tmp_path / "all.npz", *settings, "--out", tmp_path / "always")
    assert files(tmp_path / "run") == files(tmp_path / "always")
    done("verify", tmp_path / "run")


def test_alpha_by_leave_one_out_is_that_of_the_others_after_personalize(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("--head", "ridge", "--only-local-classes")
    done("run", "--features", feature_file(tmp_path / "all.npz"), *settings, "--out", tmp_path / "run")
    two = feature_file(tmp_path / "two.npz", NAMES[:2])
    done("run", "--features", two, *settings, *units_of(tmp_path / "run"), "--out", tmp_path / "never")
    done("forget", tmp_path / "run", "--client", "west")
    assert "fedhip personalize chooses α and measures again" in capsys.readouterr().out
    done("personalize", tmp_path / "run")
    shown = capsys.readouterr().out
    assert "phase 3 again for 2 of 2 clients" in shown
    assert "measured before" not in shown
    assert files(tmp_path / "run") == files(tmp_path / "never")
    run, never = (Run.open(tmp_path / name) for name in ("run", "never"))
    assert run.details == never.details
    assert run.results["stale"] is None


def test_what_was_done_is_said_and_a_receipt_given(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done("forget", run, "--client", "south")
    shown = capsys.readouterr().out
    assert "client 'south' is forgotten: its 12 training rows are out of the sum; 2 models solved" in shown
    receipt = Path(shown.split("receipt: ")[1].splitlines()[0])
    assert "the cache holds no features that the run used; left: the rows themselves" in shown
    assert json.loads(receipt.read_text())["entry"]["event"] == "forget"
    done("verify", run, "--receipt", receipt)
    capsys.readouterr()
    done("personalize", run, "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["entry"]["event"], found["stale"]) == ("personalize", None)


def test_update_from_a_file_then_personalize(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    F, y = rows_of("north", 5, seed=9)
    np.savez(tmp_path / "more.npz", features=F, labels=np.array(CLASSES)[y])
    done("update", run, "--client", "north", "--features", tmp_path / "more.npz")
    assert "client 'north' has 5 training rows more" in capsys.readouterr().out
    done("verify", run)
    capsys.readouterr()
    done("personalize", run)
    shown = capsys.readouterr().out
    assert "phase 3 again for 2 of 3 clients" in shown
    assert "The accuracies and α of 'north' were measured before" in shown
    # The client itself has all its rows, and knows which of them were for training.
    from tests.runs.samples import the_client

    own = the_client("north")
    np.savez(
        tmp_path / "north.npz",
        features=np.concatenate([own.train[0], F, own.test[0]]),
        labels=np.array(CLASSES)[np.concatenate([own.train[1], y, own.test[1]])],
        split=np.repeat([0, 1], [len(own.train[1]) + 5, len(own.test[1])]),
    )
    done("personalize", run, "--client", "north", "--features", tmp_path / "north.npz")
    assert "measured before" not in capsys.readouterr().out
    assert Run.open(run).results["stale"] is None
    done("verify", run)


@pytest.mark.parametrize(
    "division",
    [(), ("--clients", "4", "--partition", "dirichlet")],
    ids=["natural", "drawn"],
)
def test_a_run_lives_on_when_numpy_draws_other_numbers(
    tmp_path: Path,
    division: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, north, east = tmp_path / "run", *(feature_file(tmp_path / f"{name}.npz", [name]) for name in ("north", "east"))
    done("run", "--features", feature_file(tmp_path / "sites.npz"), *division, "--head", "ridge", "--out", run)
    clients = Run.open(run).clients
    before = files(run)
    other_stream(monkeypatch)
    done("personalize", run)
    assert f"phase 3 again for {len(clients)} of {len(clients)} clients" in capsys.readouterr().out
    assert files(run) == before
    if not division:  # one client's rows by themselves, as it has them
        done("personalize", run, "--client", "north", "--features", north)
        assert files(run) == before
    done("join", run, "--features", east)
    joined = files(run)
    monkeypatch.undo()  # and back again, for the one that was divided meanwhile
    for words in ((), ("--client", "east", "--features", east)):
        done("personalize", run, *words)
        done("personalize", run, *words)
    assert Run.open(run).results["stale"] is None
    assert joined.keys() == files(run).keys()
    done("verify", run)
    done("forget", run, "--client", "east")
    done("verify", run)
    assert "east" not in (run / "details.json").read_text()
    done("personalize", run)
    assert files(run) == before


def test_how_a_client_that_joined_was_divided_is_of_the_rows_it_had(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    F, y = rows_of("east", 5, seed=9)
    done("join", run, "--features", feature_file(tmp_path / "east.npz", ["east"]))
    folder = Run.open(run)
    np.testing.assert_array_equal(folder.split("east", ROWS), _split_of_run("east"))
    np.testing.assert_array_equal(folder.split("north", ROWS), _split_of_run("north"))
    for client, rows in (("east", ROWS + 1), ("north", ROWS + 1), ("nobody", ROWS)):
        assert folder.split(client, rows) is None
    np.savez(tmp_path / "more.npz", features=F, labels=np.array(CLASSES)[y])
    done("update", run, "--client", "east", "--features", tmp_path / "more.npz")
    assert Run.open(run).split("east", ROWS) is None
    done("verify", run)


def test_a_run_with_a_partition_of_the_schema_before_lives_on(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older(run / "partition.json")
    done("personalize", run)
    assert "phase 3 again for 3 of 3 clients" in capsys.readouterr().out


def bad_files(folder: Path) -> dict[str, Path]:
    F, y = rows_of("east")
    names = np.array(CLASSES)[y]
    made: dict[str, dict[str, Any]] = {
        "wide": {"features": np.c_[F, F], "labels": names},
        "unknown class": {"features": F, "labels": np.where(y == 0, "appe", names)},
        "several": {"features": F, "labels": names, "clients": np.arange(len(y)) % 3},
        "nobody": {"features": F, "labels": names},
        "only test": {"features": F, "labels": names, "split": np.ones(len(y), dtype=int)},
        "nan": {"features": np.where(F > 1, np.nan, F), "labels": names},
        "huge": {"features": 1e8 * F, "labels": names},
    }
    for name, arrays in made.items():
        np.savez(folder / f"{name}.npz", **arrays)
    (folder / "nonsense.npz").write_bytes(b"nonsense")
    return {name: folder / f"{name}.npz" for name in [*made, "nonsense"]}


def test_bad_input_is_one_line_and_changes_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = bad_files(tmp_path)
    sites, east = tmp_path / "sites.npz", feature_file(tmp_path / "east.npz", ["east"])
    images = image_folder(tmp_path / "images")
    before = digest(run.parent)
    as_east = ("--client", "east")
    for words, message in {
        ("forget", run, "--client", "nort"): "the run has no client 'nort'; near it: 'north'",
        ("forget", run, "--client", "xyz"): "no client 'xyz'; there are 3: north, south, west",
        ("update", run, "--client", "nort", "--features", east): "no client 'nort'; near it: 'north'",
        ("personalize", run, "--client", "nort"): "no client 'nort'; near it: 'north'",
        ("join", run, "--features", sites): "holds rows of 3 clients; choose one with --client",
        ("join", run, "--features", sites, "--client", "south"): "client 'south' is in the run already",
        ("join", run, "--features", sites, "--client", "suoth"): "no rows of client 'suoth'; it has those of south",
        ("join", run, "--features", bad["nobody"]): "does not say whose rows these are; name the client with --client",
        ("join", run, "--features", bad["wide"], *as_east): "features are 16 wide, and the run's 8",
        ("join", run, "--features", bad["unknown class"], *as_east): "a class 'appe', which is none of the run's 3 "
        "classes; did you mean 'ape'?; a new class needs a new run",
        ("join", run, "--features", bad["only test"], *as_east): "'east' brings no training row",
        ("join", run, "--features", bad["nan"], *as_east): "NaN or infinity",
        ("join", run, "--features", bad["huge"], *as_east): "the run has no room for it",
        ("join", run, "--features", bad["nonsense"], *as_east): "cannot be read",
        ("join", run, "--features", tmp_path / "none.npz", *as_east): "is not there",
        ("join", run, "--data", tmp_path / "none", *as_east): "none",
        ("join", run, "--data", images, *as_east): "none of the run's 3 classes",
        ("update", run, "--client", "north", "--features", bad["wide"]): "features are 16 wide",
        ("personalize", run, "--client", "north", "--features", bad["nobody"]): "not the 12 training rows behind its",
        ("forget", tmp_path / "none", "--client", "north"): "there is no run folder",
        ("forget", images, "--client", "north"): "not a run folder",
    }.items():
        assert message in refused(capsys, *words), words
        assert digest(run.parent) == before, words


def test_joining_images_to_a_run_of_features_needs_its_backbone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    labels = np.array(["dark", "bright"])[np.arange(20) % 2]
    np.savez(tmp_path / "f.npz", features=rng.normal(size=(20, 4)), labels=labels, clients=np.repeat(["a", "b"], 10))
    done("run", "--features", tmp_path / "f.npz", "--head", "ridge", "--out", tmp_path / "run")
    images = image_folder(tmp_path / "images")
    line = refused(capsys, "join", tmp_path / "run", "--data", images, "--client", "c")
    assert "was run on given features, so nobody knows their backbone; give --features" in line


def test_a_run_of_images_lives_by_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))
    weights = ("--weights", encoder(tmp_path), "--precision", "float32", "--fraction-bits", "32")
    fixed = ("--alpha", "2", "--beta", "1")
    three = image_folder(tmp_path / "three", ("a", "b", "c"))
    two = image_folder(tmp_path / "two", ("a", "b"))
    done("run", "--data", three, *weights, *fixed, "--out", tmp_path / "always")
    done("run", "--data", two, *weights, *fixed, *units_of(tmp_path / "always"), "--out", tmp_path / "run")
    done("join", tmp_path / "run", "--data", three / "c", "--client", "c")
    assert files(tmp_path / "run") == files(tmp_path / "always")
    done("forget", tmp_path / "run", "--client", "b")
    done("personalize", tmp_path / "run")
    assert "phase 3 again for 1 of 2 clients" in capsys.readouterr().out
    more = image_folder(tmp_path / "more", rows=4)
    done("update", tmp_path / "run", "--client", "a", "--data", more)
    done("verify", tmp_path / "run")
    (tmp_path / "more" / "dark" / "0.png").write_bytes(b"nonsense")
    before = digest(tmp_path / "run")
    assert "0.png" in refused(capsys, "update", tmp_path / "run", "--client", "c", "--data", more)
    assert digest(tmp_path / "run") == before


def test_a_file_with_its_classes_in_another_order_or_fewer(tmp_path: Path, run: Path) -> None:
    """Classes go by name; also those of rows that are not the client's do not matter."""
    F, y = rows_of("east")
    other = Path(shutil.copytree(run, tmp_path / "other"))
    few = y < 2
    orders = {run: ("ape", "bee", "cat"), other: ("bee", "ape")}
    for path, order in orders.items():
        numbers = np.array([order.index(CLASSES[label]) for label in y[few]])
        file = tmp_path / f"{len(order)}.npz"
        np.savez(file, features=F[few], labels=numbers, class_names=np.array(order))
        done("join", path, "--features", file, "--client", "east")
    assert files(run) == files(other)
    mixed = tmp_path / "mixed.npz"
    np.savez(
        mixed,
        features=np.concatenate([F, F]),
        labels=np.r_[np.array(CLASSES)[y], np.full(len(y), "yak")],
        clients=np.repeat(["fine", "strange"], len(y)),
    )
    done("join", run, "--features", mixed, "--client", "fine")


def test_labels_as_strings_and_features_as_halves_or_whole_numbers(tmp_path: Path, run: Path) -> None:
    F, y = rows_of("east")
    for dtype in ("float16", "int32"):
        file = tmp_path / f"{dtype}.npz"
        np.savez(file, features=(3 * F).astype(dtype), labels=np.array(CLASSES)[y])
        done("join", run, "--features", file, "--client", dtype)
    done("verify", run)


def test_the_last_client_is_not_forgotten(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done("forget", run, "--client", "north")
    done("forget", run, "--client", "south")
    before = digest(run.parent)
    assert "client 'west' is the last one" in refused(capsys, "forget", run, "--client", "west")
    assert digest(run.parent) == before


def test_joining_twice_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    east = feature_file(tmp_path / "east.npz", ["east"])
    done("join", run, "--features", east)
    before = digest(run.parent)
    assert "is in the run already; add rows to it with: fedhip update" in refused(
        capsys, "join", run, "--features", east
    )
    np.savez(tmp_path / "alias.npz", **{k: v for k, v in np.load(east).items() if k != "clients"},
             split=_split_of_run("east"))  # fmt: skip
    line = refused(capsys, "join", run, "--features", tmp_path / "alias.npz", "--client", "alias")
    assert "these very rows are in the run already, as client 'east'" in line
    assert digest(run.parent) == before


def _split_of_run(name: str) -> np.ndarray:
    from fedhip.data import make_partition, split_of

    data = feature_set([name])
    return split_of(None, make_partition(data.labels, "natural", clients=data.clients))


@pytest.mark.parametrize("name", ["models/north.safetensors", "statistics/north.safetensors", "total.safetensors",
                                  "global.safetensors", "ledger.jsonl"])  # fmt: skip
def test_an_altered_file_stops_the_command_that_reads_it(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray((run / name).read_bytes())
    content[-80] ^= 1
    (run / name).write_bytes(content)
    before = digest(run.parent)
    if name.startswith("models"):  # solved anew from the statistics; verify and predict read it
        assert main(["verify", str(run)]) == 1
        return
    assert "altered" in refused(capsys, "forget", run, "--client", "north")
    assert digest(run.parent) == before


def test_a_run_of_another_schema_is_refused(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps({**results, "schema": 2}))
    before, rows = digest(run), tmp_path / "sites.npz"
    for words in (
        ("forget", run, "--client", "north"),
        ("join", run, "--features", rows, "--client", "x"),
        ("update", run, "--client", "north", "--features", rows),
        ("personalize", run),
        ("predict", run, "--features", rows),
        ("verify", run),
        ("report", run),
    ):
        assert "schema version 2, and this fedhip reads 1; use the version that wrote it" in refused(capsys, *words)
        assert digest(run) == before


PHASES = {
    "reading rows": "fedhip.cli.common.client_rows.read_features",
    "phase 1": "fedhip.core.exact.fixedpoint.GridStatistics.from_data",
    "aggregation": "fedhip.runs.change.RunState._federation",
    "phase 3": "fedhip.heads.ridge.Personalization.of",
    "model writing": "fedhip.runs.draft.Draft.write_model",
    "statistics writing": "fedhip.runs.draft.Draft.write_statistics",
    "ledger writing": "fedhip.runs.ledger.Ledger.to_text",
    "report rendering": "fedhip.runs.report.render_report",
    "taking the place": "fedhip.runs.draft._take_place",
}


@pytest.mark.parametrize("where", PHASES.values(), ids=PHASES)
def test_ctrl_c_in_every_phase_leaves_the_run_as_it_was(
    run: Path, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    east = feature_file(tmp_path / "east.npz", ["east"])
    before = digest(run.parent)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    assert main(["join", str(run), "--features", str(east)]) == 130
    assert said(capsys) == ["fedhip: interrupted"]
    assert digest(run.parent) == before


def test_the_run_may_be_given_in_any_way(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("here/run")
    done("forget", "here/run/", "--client", "north")
    east = feature_file(tmp_path / "east.npz", ["east"])
    done("join", "link", "--features", east)
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    assert Run.open(run).clients == ["south", "west", "east"]


def test_from_within_the_folder_one_is_told_to_go_out(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run)
    before = digest(run.parent)
    assert "the folder you are in" in refused(capsys, "forget", ".", "--client", "north")
    assert digest(run.parent) == before


def test_the_report_follows(run: Path, tmp_path: Path) -> None:
    east = feature_file(tmp_path / "unmistakable.npz", ["unmistakable"])
    done("join", run, "--features", east)
    assert "unmistakable" in (run / "report.html").read_text()
    assert "measured before the last change" in (run / "report.html").read_text()


def test_the_data_of_the_run_is_gone_or_another(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = tmp_path / "sites.npz"
    before = digest(run.parent)
    feature_file(sites, ["north", "south", "east"])
    refused(capsys, "personalize", run)
    feature_file(sites, NAMES, ROWS + 1)
    refused(capsys, "personalize", run)
    sites.unlink()
    assert "is not there" in refused(capsys, "personalize", run)
    assert digest(run.parent) == before
    assert WIDTH == 8
