"""`fedhip run` from features, from images and with natural clients."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.cli.main import main
from fedhip.core.choice.prior import SMOOTHINGS
from fedhip.data import make_partition, read_features
from fedhip.features import ViT, ViTConfig, save_encoder
from fedhip.runs import Run
from fedhip.simulation.client import clients_of
from tests.cli.samples import done, image_folder, refused, said
from tests.runs.samples import EXACT, contents, digest, feature_file
from tests.waiting import PATIENCE, until

#: For runs whose head is not the point: without it there are several, and a choice among them.
RIDGE = ("--head", "ridge")


@pytest.fixture
def features(tmp_path: Path) -> Path:
    """Embeddings of five classes that can be told apart."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 300)
    path = tmp_path / "mine.npz"
    np.savez(path, features=rng.normal(size=(5, 8))[labels] + rng.normal(size=(300, 8)), labels=labels)
    return path


def squares(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A random encoder, and images of dark and bright squares."""
    monkeypatch.setenv("FEDHIP_CACHE", str(folder / "cache"))
    torch.manual_seed(0)
    encoder = ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=2))
    save_encoder(folder / "encoder.safetensors", encoder)
    labels = np.arange(40) % 2
    images = np.random.default_rng(0).integers(0, 60, (40, 16, 16, 3)) + 180 * labels[:, None, None, None]
    np.savez(folder / "squares.npz", images=images.astype(np.uint8), labels=labels)
    return folder / "encoder.safetensors", folder / "squares.npz"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without --out go to a folder of their own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["run", *arguments, "--json", "--out", "run", "--force"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.usefixtures("pictures")
def test_run_from_features_prints_the_means_and_what_it_took(
    features: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--features", str(features), "--clients", "6", "--seed", "3"]) == 0
    shown = capsys.readouterr()
    assert "mine · 6 clients, dirichlet, λ = 0.1, seed 3 · given features, 8 wide" in shown.out
    for text in (
        "majority class",
        "trained alone",
        "global model",
        "personalized",
        "mean over",  # and "clients", in the next line where times are long
        "worst tenth",
        "rounds",
        "report",
    ):
        assert text in shown.out
    # The ridges; then the choice on the features and a lift of them, and what may be expected of it.
    steps = [line.split()[0] for line in shown.err.splitlines()]
    assert steps[:8] == ["1", "2", "2", "3", "trained", "0", "1", "2"]
    assert steps[8:13] == ["2", "personal", "candidates", "personal", "candidates"]
    assert steps[13:] == ["candidate", "both"]


def test_the_same_seed_gives_the_same_numbers(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--features", str(features), "--clients", "3", *RIDGE)
    first, second, other = (run_json(capsys, *arguments, "--seed", seed) for seed in "112")
    for result in (first, second, other):
        del result["seconds"]
        for method in result["methods"].values():
            del method["seconds"]
    assert first == second
    assert first["methods"]["fedhip"] != other["methods"]["fedhip"]


def test_fixed_alpha_and_beta_are_used(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "--features", str(features), "--clients", "4", "--alpha", "0", "--beta", "2.5")
    assert result["beta"] == 2.5
    personal, shared = (result["methods"][method]["per_client"] for method in ("fedhip", "global"))
    assert [client["alpha"] for client in personal] == [0.0] * 4
    assert [client["accuracy"] for client in personal] == [client["accuracy"] for client in shared]


@pytest.mark.parametrize("option", ["--alpha", "--beta"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "much"])
def test_bad_alpha_and_beta_are_refused(
    option: str, value: str, features: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", "--features", str(features), "--clients", "4", f"{option}={value}"])
    assert stop.value.code == 2
    assert f"'{value}' is neither" in capsys.readouterr().err


def test_without_a_number_there_are_fifty_clients(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "--features", str(features), *RIDGE)["num_clients"] == 50


def test_natural_clients_and_a_given_split_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "sites.npz"
    clients = np.array(["north", "south"]).repeat(30)
    split = np.tile([0, 0, 1], 20)
    np.savez(path, features=rng.normal(size=(60, 4)), labels=rng.integers(0, 2, 60), clients=clients, split=split)
    result = run_json(capsys, "--features", str(path), *RIDGE)
    entries = result["methods"]["fedhip"]["per_client"]
    assert [(c["client"], c["train"], c["test"]) for c in entries] == [("north", 20, 10), ("south", 20, 10)]


def test_options_that_would_do_nothing_are_refused(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--features", str(features), "--clients", "4", "--pooling", "cls", "--mask-ratio", "0.75"]
    assert main(arguments) == 3
    assert "--pooling, --mask-ratio has no effect on --features" in capsys.readouterr().err


@pytest.mark.usefixtures("pictures")
def test_as_many_clients_as_rows_leaves_nothing_to_test_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    features = tmp_path / "few.npz"
    np.savez(features, features=rng.normal(size=(10, 8)), labels=np.arange(10) % 5)
    done("run", "--features", features, "--clients", "10", "--partition", "iid", *RIDGE, "--out", "run")
    assert "–" in capsys.readouterr().out
    assert Run.open("run").results["methods"]["fedhip"]["accuracy"]["mean"] is None


@pytest.mark.usefixtures("pictures")
def test_a_client_that_only_tests_gets_the_global_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "sites.npz"
    clients = np.array(["old", "new"]).repeat(20)
    split = np.r_[np.tile([0, 1], 10), np.ones(20, dtype=int)]
    np.savez(path, features=rng.normal(size=(40, 4)), labels=rng.integers(0, 2, 40), clients=clients, split=split)
    result = run_json(capsys, "--features", str(path), *RIDGE)
    personal, shared = (
        next(client for client in result["methods"][method]["per_client"] if client["client"] == "new")
        for method in ("fedhip", "global")
    )
    assert personal["alpha"] is None
    assert personal["accuracy"] == shared["accuracy"] is not None


def test_extract_then_run_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, images = squares(tmp_path, monkeypatch)
    backbone = ["--weights", str(encoder), "--precision", "float32"]
    assert main(["extract", "--data", str(images), *backbone, str(tmp_path / "f.npz")]) == 0
    capsys.readouterr()
    partition = ["--clients", "3", "--partition", "iid", *RIDGE]
    direct = run_json(capsys, "--data", str(images), *backbone, *partition)
    from_file = run_json(capsys, "--features", str(tmp_path / "f.npz"), *partition)
    for method in ("local", "global", "fedhip"):
        assert direct["methods"][method]["per_client"] == from_file["methods"][method]["per_client"]
    assert direct["beta"] == from_file["beta"]


def test_extract_in_styles_brings_the_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, images = squares(tmp_path, monkeypatch)
    arguments = ["extract", "--data", str(images), "--weights", str(encoder), "--precision", "float32"]
    styles = ["--styles", "--clients", "3", "--partition", "iid"]
    assert main([*arguments, "--out", str(tmp_path / "plain.npz")]) == 0
    assert main([*arguments, *styles, "--out", str(tmp_path / "styled.npz")]) == 0
    capsys.readouterr()
    plain, styled = (read_features(tmp_path / f"{name}.npz") for name in ("plain", "styled"))
    assert plain.clients is None
    assert styled.clients is not None
    assert len(set(styled.clients.tolist())) == 3
    assert not np.allclose(plain.features, styled.features)
    assert run_json(capsys, "--features", str(tmp_path / "styled.npz"), *RIDGE)["num_clients"] == 3


def test_run_from_images_through_a_backbone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights are enough to tell black squares from white ones."""
    encoder, images = squares(tmp_path, monkeypatch)
    arguments = ["--data", str(images), "--clients", "2", "--partition", "iid"]
    result = run_json(capsys, *arguments, "--weights", str(encoder), "--pooling", "mean", *RIDGE)
    assert result["methods"]["global"]["accuracy"]["mean"] == 1.0
    assert "squares · 2 clients, iid, seed 0" in result["title"]


def timeless(path: Path) -> dict[str, Any]:
    """results.json apart from times."""
    results: dict[str, Any] = json.loads((path / "results.json").read_text())
    del results["seconds"]
    for method in results["methods"].values():
        del method["seconds"]
    return results


def test_the_configuration_of_a_run_repeats_it_from_another_folder(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--clients", "4", "--seed", "3", "--methods", "global,fedhip", "--only-local-classes", "--no-cache")
    done("run", "--features", features.name, *options, "--out", "first")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done("run", "../first/config.toml", "--out", "second")
    assert timeless(tmp_path / "first") == timeless(Path("second"))
    exact = (*EXACT, "partition.json", "details.json")
    assert contents(tmp_path / "first", exact) == contents(Path("second"), exact)
    assert tomllib.loads(Path("second/config.toml").read_text()) == tomllib.loads(
        (tmp_path / "first" / "config.toml").read_text()
    )


def test_a_run_of_images_is_repeated_by_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, _ = squares(tmp_path, monkeypatch)
    image_folder(tmp_path / "pictures", ("a", "b"))
    monkeypatch.chdir(tmp_path)
    weights = ("--weights", encoder.name, "--precision", "float32")
    done("run", "--data", "pictures", *weights, *RIDGE, "--out", "first")
    monkeypatch.chdir("/")
    done("run", tmp_path / "first" / "config.toml", "--out", tmp_path / "second")
    assert timeless(tmp_path / "first") == timeless(tmp_path / "second")
    assert contents(tmp_path / "first", EXACT) == contents(tmp_path / "second", EXACT)


def test_the_command_line_wins_over_the_configuration(features: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        f'features = "{features}"\nclients = 4\nbeta = 2\nalpha = 1.5\nonly-local-classes = true\nstatistics = false\n'
        'methods = ["fedhip", "local"]\nforce = false\nout = "mine"\n'
    )
    done("run", config)
    found = timeless(Path("mine"))
    assert (found["beta"], found["only_local_classes"], list(found["methods"])) == (2.0, True, ["local", "fedhip"])
    assert not Path("mine/statistics").exists()
    done("run", config, "--beta", "5", "--no-only-local-classes", "--statistics", "--out", "other")
    found = timeless(Path("other"))
    assert (found["beta"], found["only_local_classes"]) == (5.0, False)
    assert len(list(Path("other/statistics").iterdir())) == 4
    done("run", "--beta", "6", config, "--force")
    assert timeless(Path("mine"))["beta"] == 6.0


def test_bad_input_is_one_line_and_writes_nothing(
    features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.toml"
    here = digest(Path())
    run = ("run", "--features", features, "--clients", "4", "--out", "run")
    for words, message in {
        (*run, "--methods", "fedhpi"): "no method 'fedhpi'; choose among fedavg, ",
        (*run, "--methods", ","): "no method given",
        ("run", "--out", "run"): "no data given",
        ("run", "--features", tmp_path / "none.npz"): "is not there",
        ("run", "--features", features, "--data", "x"): "stands alone",
        (*run, "--partition", "natural"): "natural",
        ("run", "--features", features, "--clients", "301", "--partition", "iid"): "301 clients cannot share 300 rows",
        ("run", "--features", features, "--clients", "0"): "at least 1",
        (*run, "--seed", "-1"): "the seed must be",
        (*run, "--fraction-bits", "63"): "from 0 to 62",
        (*run, "--fraction-bits", "62"): "fraction_bits=",
        (*run, "--device", "nonsense"): "no device 'nonsense'",
        ("run", "--features", features, "--out", features): "exists",
        ("run", "--features", features, "--out", features / "below"): "is a file, not a folder",
        ("run", tmp_path / "none.toml"): "there is no configuration file",
        ("run", tmp_path): "is a folder; give the file in it",
        ("run", features): "is not a TOML file",
    }.items():
        assert message in refused(capsys, *words), words
        assert digest(Path()) == here, words
    for text, message in {
        "alhpa = 1": "no option 'alhpa'; did you mean 'alpha'?",
        "no-cache = true": "no option 'no-cache'",
        "help = true": "no option 'help'",
        "config = 'x'": "no option 'config'",
        "[alpha]": "'alpha' must be",
        f"features = '{features}'\nmethods = ['al']": "no method 'al'",
    }.items():
        config.write_text(text)
        assert message in refused(capsys, "run", config, "--out", "run"), text
        assert digest(Path()) == here


def test_an_out_folder_that_exists_needs_force(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ("run", "--features", features, "--clients", "3", *RIDGE, "--out", "run")
    done(*run)
    before = digest(Path())
    assert "run exists; choose another --out, or replace the run there with --force" in refused(capsys, *run)
    assert digest(Path()) == before
    done(*run, "--force", "--seed", "1")
    assert timeless(Path("run"))["seed"] == 1
    assert [path.name for path in Path().iterdir()] == ["run"]
    Path("mine").mkdir()
    Path("mine/results.json").write_text("of another program")
    line = refused(capsys, "run", "--features", features, "--clients", "3", "--out", "mine", "--force")
    assert "--force replaces runs only" in line
    assert Path("mine/results.json").read_text() == "of another program"


PHASES = {
    "reading": "fedhip.cli.common.options.read_features",
    "partition": "fedhip.simulation.tasks.divide_rows",
    "phase 1": "fedhip.core.exact.fixedpoint.GridStatistics.from_data",
    "aggregation": "fedhip.simulation.federation.Federation.of",
    "phase 3": "fedhip.simulation.personalization.Personalization.of",
    "choice": "fedhip.heads.auto.Auto.personalize",
    "models of one client": "fedhip.heads.round.local_model",
    "tests": "fedhip.heads.round.evaluate",
    "statistics writing": "fedhip.runs.draft.Draft.write_statistics",
    "model writing": "fedhip.runs.draft.Draft.write_model",
    "results writing": "fedhip.runs.draft.Draft.write_json",
    "ledger writing": "fedhip.runs.ledger.Ledger.to_text",
    "report rendering": "fedhip.runs.report.render_report",
    "taking the place": "fedhip.runs.draft._take_place",
}


@pytest.mark.parametrize("where", PHASES.values(), ids=PHASES)
@pytest.mark.parametrize("out", ["runs/deep/run", "run"], ids=["new", "replacing"])
@pytest.mark.sampled(3)
def test_ctrl_c_in_every_phase_leaves_what_was_there(
    out: str, where: str, features: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path("run")).mkdir()
    for name in ("results.json", "ledger.jsonl"):
        Path("run", name).write_text("old")
    before = digest(Path())

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    head = () if "auto" in where else RIDGE
    assert main(["run", "--features", str(features), "--clients", "3", *head, "--out", out, "--force"]) == 130
    assert said(capsys) == ["fedhip: interrupted"]
    assert digest(Path()) == before


def test_ctrl_c_while_features_are_extracted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, images = squares(tmp_path, monkeypatch)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedhip.features.extraction.Engine.features", interrupted)
    assert main(["run", "--data", str(images), "--clients", "2", "--weights", str(encoder), "--out", "run"]) == 130
    assert said(capsys) == ["fedhip: interrupted"]
    assert list(Path().iterdir()) == []


@pytest.mark.slow
def test_a_real_interrupt_of_a_real_process(tmp_path: Path) -> None:
    """In the middle of writing models, where it may well sit in a thread: each takes a while, to be met at it."""
    source = feature_file(tmp_path / "many.npz", [f"site-{i}" for i in range(150)], rows=12)
    code = """
import sys, time
from fedhip.cli.main import main
from fedhip.runs.draft import Draft

write = Draft.write_model
Draft.write_model = lambda *given: (time.sleep(0.2), write(*given))[1]
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, "run", "--features", str(source), *RIDGE, "--out", "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:  # noqa: S603
        try:
            until(lambda: list(Path().glob(".run-*")) or process.poll() is not None, pause=0.002)
            assert process.poll() is None, "it ended before it could be interrupted"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()  # one that is left would be the fault of a later test
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.splitlines()[-1] == "fedhip: interrupted"
    assert list(Path().iterdir()) == []


def test_a_disk_that_is_full_at_any_write(
    features: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 0

    def full(_: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for files in (0, 5, 9, 13):
        left = files
        line = refused(capsys, "run", "--features", features, "--clients", "3", *RIDGE, "--out", "run")
        assert "there is no space left to write" in line
        assert "nothing was changed: make room, or choose another disk" in line
        assert list(Path().iterdir()) == []


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 kB."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)]
    if mount is None or umount is None or os.getuid() != 0:
        pytest.skip("only root may mount")
    if subprocess.run([mount, *options], check=False).returncode:  # noqa: S603
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run([umount, str(place)], check=True)  # noqa: S603


def fill(disk: Path, left: int) -> None:
    """Leave this many bytes."""
    with (disk / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    os.truncate(disk / "fill", (disk / "fill").stat().st_size - left)


def test_a_disk_that_is_really_full(disk: Path, features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ("run", "--features", features, "--clients", "3", *RIDGE, "--out", disk / "run")
    for left in (0, 8192, 32768):
        fill(disk, left)
        line = refused(capsys, *run)
        assert "there is no space left to write" in line
        assert [path.name for path in disk.iterdir()] == ["fill"]
    (disk / "fill").unlink()
    done(*run)
    for left in (0, 8192, 32768):
        fill(disk, left)
        before = digest(disk)
        line = refused(capsys, "forget", disk / "run", "--client", "0")
        assert "there is no space left to write" in line
        assert digest(disk) == before
    (disk / "fill").unlink()
    done("forget", disk / "run", "--client", "0")
    done("verify", disk / "run")


def test_a_disk_of_its_own_is_no_place_for_a_run(
    disk: Path, features: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "run", "--features", features, "--clients", "3", "--out", disk)
    assert "is a disk of its own, which no folder can replace; choose a folder on it" in line


AWKWARD = [
    "a b", "a/b", "../up", "..", ".", ".hidden", "名前", "x" * 300, "Site", "site", "global", "-rf", "%", "\u2028",
    "'\"", "a\\b",
]  # fmt: skip


@pytest.mark.usefixtures("pictures")
def test_clients_of_any_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = feature_file(tmp_path / "awkward.npz", AWKWARD, rows=6)
    done("run", "--features", source, *RIDGE, "--out", "run")
    monkeypatch.setattr("fedhip.runs.report.render_report", lambda _: "<html></html>")  # drawn once is enough
    assert len(list(Path("run/models").iterdir())) == len(AWKWARD) == len(list(Path("run/statistics").iterdir()))
    assert [path.name for path in Path().iterdir()] == ["run"]
    done("verify", "run")
    for name in AWKWARD:
        capsys.readouterr()
        done("predict", "run", "--features", source, f"--client={name}", "--json")
        shown = capsys.readouterr()
        assert json.loads(shown.out)["client"] == name
        assert shown.err == ""
    for name in AWKWARD[:3]:
        done("forget", "run", f"--client={name}")
    done("verify", "run")
    assert Run.open("run").clients == sorted(AWKWARD[3:])


@pytest.mark.usefixtures("pictures")
def test_data_in_a_folder_whose_name_is_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are not UTF-8, in the names of clients and classes: written, read, forgotten like others."""
    encoder, _ = squares(tmp_path, monkeypatch)
    try:
        image_folder(tmp_path / "pictures", ("north", os.fsdecode(b"s\xfcd")))
    except OSError:
        pytest.skip("this file system wants UTF-8")
    for client in (tmp_path / "pictures").iterdir():
        (client / "dark").rename(client / os.fsdecode(b"d\xe4rk"))
    done("run", "--data", tmp_path / "pictures", "--weights", encoder, "--precision", "float32", *RIDGE, "--out", "run")
    done("verify", "run")
    done("predict", "run", tmp_path / "pictures" / "north", "--client", r"s\xfcd", "--json")
    done("forget", "run", "--client", r"s\xfcd")
    done("verify", "run")
    (tmp_path / "pictures").rename(tmp_path / os.fsdecode(b"b\xfcd"))
    line = refused(capsys, "run", "--data", tmp_path / os.fsdecode(b"b\xfcd"), "--weights", encoder, "--out", "other")
    assert "is not UTF-8, as a configuration file must be; rename it" in line
    assert not Path("other").exists()


def test_an_alpha_without_measure_is_taken(features: Path) -> None:
    done(
        "run", "--features", features, "--clients", "3", "--partition", "iid", "--alpha", "1e15", *RIDGE, "--out", "run"
    )
    done("verify", "run")
    done("forget", "run", "--client", "1")
    done("verify", "run")


def test_numbers_and_halves_and_labels_that_are_words(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for dtype in ("float16", "int8", "uint8", "int64", ">f8"):
        values = (20 * rng.random((40, 6))).astype(dtype)
        labels = np.array(["yes", "no"])[np.arange(40) % 2]
        np.savez(tmp_path / "f.npz", features=values, labels=labels, clients=np.arange(40) % 3)
        done("run", "--features", tmp_path / "f.npz", *RIDGE, "--out", "run", "--force")
        assert Run.open("run").class_names == ("no", "yes")
        done("verify", "run")


def test_rivals_stand_beside_the_closed_forms(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--features", str(features), "--clients", "2", "--rounds", "2")
    result = run_json(capsys, *words, "--methods", "fedavg,fedhip,fedas,fedncm")
    assert list(result["methods"]) == ["fedhip", "fedavg", "fedas", "fedncm"]
    assert [result["methods"][name]["rounds"] for name in ("fedhip", "fedavg", "fedncm")] == [1, 2, 1]
    linear_head = 4 * (8 * 5 + 5)
    assert result["methods"]["fedavg"]["upload_bytes_per_client"] == 2 * linear_head
    assert "degenerates" in result["methods"]["fedas"]["note"]
    for method in result["methods"].values():
        values = [entry["accuracy"] for entry in method["per_client"]]
        assert method["accuracy"]["mean"] == pytest.approx(np.mean(values))


@pytest.mark.slow
def test_all_methods_stand_beside_one_another(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--features", str(features), "--clients", "2", "--rounds", "2", *RIDGE)
    assert main(["run", *words, "--methods", "all", "--out", "all"]) == 0
    shown = capsys.readouterr().out
    assert "FedSelect" in shown
    assert "FedAS: degenerates to local training" in shown


def test_the_heads_beyond_the_paper_stand_beside_fedhip(features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With priors: rows of the table, entries of results.json, and the report."""
    words = ("--features", str(features), "--clients", "4", "--prior", "client", "--out", "beyond")
    assert main(["run", *words, "--methods", "fedhip,fedhip-lda,fedhip-logistic"]) == 0
    shown = capsys.readouterr().out
    page = Path("beyond/report.html").read_text(encoding="utf-8")
    run = Run.open(Path("beyond"))
    expected = f"{run.results['leave_one_out']['chosen']:.1%}"
    assert f"expected accuracy, by leave-one-out with α, β and prior chosen without the row: {expected}\n" in shown
    assert f"By cross-validation on training rows, {expected} are classified correctly." in page
    methods = run.results["methods"]
    assert [methods[name]["rounds"] for name in ("fedhip", "fedhip-lda", "fedhip-logistic")] == [1, 1, 8]
    statistics = 8 * (8 * 9 // 2 + 8 * 5 + 5)
    for name, title in (("fedhip-lda", "FedHiP-LDA"), ("fedhip-logistic", "FedHiP-logistic")):
        assert title in shown
        assert title in page
        assert methods[name]["upload_bytes_per_client"] > statistics
        assert methods[name]["accuracy"]["mean"] > 0.5
    assert all(entry["alpha"] >= 0.0 for entry in methods["fedhip-logistic"]["per_client"])


@pytest.mark.parametrize("only", [(), ("--only-local-classes",)])
def test_with_priors_the_models_of_the_run_answer_as_they_were_tested(
    features: Path, only: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """results.json and the models as the run folder opens them agree; config.toml repeats it; seed and rows decide."""
    options = (
        "--features",
        str(features),
        "--clients",
        "5",
        "--methods",
        "local,global,fedhip,fedavg",
        "--rounds",
        "3",
    )
    result = run_json(capsys, *options, *only, "--prior", "client")
    folder = Run.open(Path("run"))
    assert tomllib.loads((folder.path / "config.toml").read_text())["prior"] == "client"
    data = read_features(features)
    clients = clients_of(data, make_partition(data.labels, "dirichlet", 5, seed=0, concentration=0.1))
    for client, entry in zip(clients, result["methods"]["fedhip"]["per_client"], strict=True):
        if entry["accuracy"] is not None and entry["alpha"] is not None:
            model = folder.model(client.name)
            right = model.scores(client.test[0]).argmax(dim=1).numpy() == client.test[1]
            assert entry["accuracy"] == right.mean()
            assert np.array_equal(model.probabilities(client.test[0]).argmax(dim=1).numpy() == client.test[1], right)
    priors = [folder.details["clients"][name]["priors"]["fedhip"] for name in folder.clients]
    used = [prior["smoothing"] is not None for prior in priors]
    assert {prior["smoothing"] for prior in priors} <= {None, *SMOOTHINGS}
    assert [folder.model(name).bias is not None for name in folder.clients] == used
    assert any(used) or only  # to models that keep to the client's classes anyway a prior is worth little
    plain = run_json(capsys, *options, *only)
    assert [entry["client"] for entry in plain["methods"]["fedhip"]["per_client"]] == list(folder.clients)
    again = Run.open(Path("run"))
    assert all(again.model(name).bias is None for name in again.clients)
