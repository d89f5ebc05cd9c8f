"""`fedhip predict`: whose model answers, with what, and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.special import softmax

from fedhip.cli.main import main
from fedhip.errors import InputError
from fedhip.runs import Run
from tests.cli.samples import done, encoder, image_folder, refused, said
from tests.runs.samples import CLASSES, NAMES, feature_file, make_run, rows_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("predict") / "run", alpha=7.5, beta=2.0).path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of images, and its images."""
    folder = tmp_path_factory.mktemp("pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHIP_CACHE", str(folder / "cache"))
        images = image_folder(folder / "data", ("north", "south"))
        weights = ("--weights", encoder(folder), "--precision", "float32")
        done("run", "--data", images, *weights, "--head", "ridge", "--out", folder / "run")
    return folder / "run", images


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return feature_file(tmp_path / "rows.npz", ["someone"])


def answers(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    capsys.readouterr()
    done("predict", *words, "--json")
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("client", [*NAMES, None])
def test_scores_and_probabilities_are_those_of_the_model(
    run: Path, rows: Path, client: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    whose = [] if client is None else ["--client", client]
    found = answers(capsys, run, "--features", rows, *whose)
    F = rows_of("someone")[0]
    model = Run.open(run).model(client).affine
    scores = F @ model.weights.numpy() + model.bias.numpy()
    temperature = Run.open(run).details["temperature"]["global" if client is None else "fedhip"]
    assert (found["client"], found["model"]) == (client, "global" if client is None else "personalized")
    np.testing.assert_allclose([row["scores"] for row in found["rows"]], scores, rtol=1e-10)
    chances = [row["probabilities"] for row in found["rows"]]
    np.testing.assert_allclose(chances, softmax(scores / temperature, axis=1), rtol=1e-9)
    assert [row["class"] for row in found["rows"]] == [CLASSES[c] for c in scores.argmax(1)]
    assert found["class_names"] == list(CLASSES)


def test_a_client_never_seen_is_an_error_and_the_global_model_answers_whoever_means_it(
    run: Path, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a name mistyped would silently get another model."""
    found = answers(capsys, run, "--features", rows)
    near = "fedhip: the run has no client {!r}; near it: 'north', 'south'; for the global model, give --global"
    assert refused(capsys, "predict", run, "--features", rows, "--client", "nroth") == near.format("nroth")
    for name in ("zzz", "", "North "):
        line = refused(capsys, "predict", run, "--features", rows, "--client", name)
        assert f"the run has no client {name!r}" in line
        assert line.endswith("; for the global model, give --global")
    done("predict", run, "--features", rows, "--global", "--json")
    assert json.loads(capsys.readouterr().out) == found
    with pytest.raises(InputError, match="the run has no client 'zzz'"):
        Run.open(run).predict(np.load(rows)["features"], client="zzz")


def test_the_table_names_classes_from_the_most_likely(
    run: Path, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answers(capsys, run, "--features", rows, "--client", "north")
    for top, expected in ((1, 1), (2, 2), (99, 3)):
        done("predict", run, "--features", rows, "--client", "north", f"--top={top}")
        shown = capsys.readouterr()
        assert shown.err == ""
        lines = [line for line in shown.out.splitlines() if "%" in line]
        assert len(lines) == len(found["rows"])
        for line, row in zip(lines, found["rows"], strict=True):
            assert line.split()[1] == row["class"]
            assert line.count("%") == expected


@pytest.mark.parametrize("dtype", ["float16", "float32", "int16"])
def test_features_of_other_kinds(run: Path, tmp_path: Path, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    F = (4 * rows_of("someone")[0]).astype(dtype)
    np.savez(tmp_path / "f.npz", features=F, labels=np.array(["any"] * len(F)))
    found = answers(capsys, run, "--features", tmp_path / "f.npz")
    model = Run.open(run).model(None).affine
    expected = F.astype(float) @ model.weights.numpy() + model.bias.numpy()
    np.testing.assert_allclose([row["scores"] for row in found["rows"]], expected, rtol=1e-9)


def test_new_rows_need_no_labels(run: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "new.npz", features=rows_of("someone")[0])
    found = answers(capsys, run, "--features", tmp_path / "new.npz", "--client", "north")
    assert found == answers(capsys, run, "--features", rows, "--client", "north")


def test_only_local_classes_leave_the_others_without_a_score(
    tmp_path: Path, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    F, y = np.random.default_rng(0).normal(size=(40, 8)), np.r_[np.arange(20) % 2, np.arange(20) % 3]
    np.savez(tmp_path / "two.npz", features=F, labels=y, clients=np.repeat(["few", "all"], 20))
    done(
        "run", "--features", tmp_path / "two.npz", "--head", "ridge", "--only-local-classes", "--out", tmp_path / "run"
    )
    capsys.readouterr()
    found = answers(capsys, tmp_path / "run", "--features", rows, "--client", "few")
    assert {row["scores"][2] for row in found["rows"]} == {None}
    assert {row["probabilities"][2] for row in found["rows"]} == {0.0}
    assert None not in answers(capsys, tmp_path / "run", "--features", rows)["rows"][0]["scores"]


def test_bad_input_is_one_line(run: Path, tmp_path: Path, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    narrow = tmp_path / "narrow.npz"
    np.savez(narrow, features=np.zeros((2, 5)), labels=[0, 1])
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.npz").write_bytes(b"nonsense")
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    for words, message in {
        (run, "--features", narrow): "features have shape (2, 5), and the global model takes (N, 8); use the backbone",
        (run,): "no image given",
        (run, tmp_path / "none.png"): "there is no image",
        (run, tmp_path / "empty"): "no image given",
        (run, tmp_path / "a.png"): "was run on given features, so nobody knows their backbone; give --features",
        (run, tmp_path / "a.png", "--features", rows): "--features stands alone",
        (run, "--features", tmp_path / "none.npz"): "is not there",
        (run, "--features", tmp_path / "bad.npz"): "cannot be read",
        (tmp_path / "no-run", "--features", rows): "there is no run folder",
        (tmp_path, "--features", rows): "not a run folder",
        (rows, "--features", rows): "there is no run folder",
    }.items():
        assert message in refused(capsys, "predict", *words)


@pytest.mark.parametrize("methods", ["local", "global", "local,global"])
def test_a_run_of_other_methods_has_no_probabilities(
    tmp_path: Path, rows: Path, methods: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run", methods=tuple(methods.split(",")))
    line = refused(capsys, "predict", tmp_path / "run", "--features", rows)
    assert f"was run with --methods {methods}" in line


def test_an_altered_model_does_not_answer(tmp_path: Path, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run").path
    for name in ("models/north.safetensors", "global.safetensors"):
        content = bytearray((run / name).read_bytes())
        content[-40] ^= 1
        (run / name).write_bytes(content)
    client = ["--client", "north"]
    assert "was altered after it was written" in refused(capsys, "predict", run, "--features", rows, *client)
    assert "was altered after it was written" in refused(capsys, "predict", run, "--features", rows)
    (run / "models" / "north.safetensors").write_bytes((run / "models" / "south.safetensors").read_bytes())
    assert "is the model of client 'south', not of 'north'" in refused(
        capsys, "predict", run, "--features", rows, *client
    )


def test_images_and_folders_of_images(
    pictures: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, images = pictures
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))
    one = images / "north" / "bright" / "1.png"
    found = answers(capsys, run, one, images / "south", "--client", "north")
    assert Path(found["rows"][0]["row"]).name == "1.png"
    assert len(found["rows"]) == 11
    assert all(row["class"] == Path(row["row"]).parent.name for row in found["rows"])
    monkeypatch.chdir(images / "north")
    assert answers(capsys, run, "bright/1.png", "--client", "north")["rows"][0]["scores"] == pytest.approx(
        found["rows"][0]["scores"], abs=1e-5
    )


def test_an_unreadable_image_is_named(
    pictures: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))
    run, images = pictures
    whole = (images / "north" / "bright" / "1.png").read_bytes()
    for name, content in {"text.png": b"hello", "cut.png": whole[: len(whole) // 2], "empty.jpg": b""}.items():
        (tmp_path / name).write_bytes(content)
        line = refused(capsys, "predict", run, images / "north" / "bright" / "1.png", tmp_path / name)
        assert name in line
        assert "replace the file, or leave it out" in line


def test_a_backbone_with_other_weights_is_refused(
    pictures: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from fedhip.features import ViT, ViTConfig, save_encoder

    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))
    run, images = pictures
    torch.manual_seed(1)
    save_encoder(
        tmp_path / "other.safetensors", ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=2))
    )
    line = refused(capsys, "predict", run, images / "north", "--weights", tmp_path / "other.safetensors")
    assert "give the weights the model was made with" in line
    assert refused(capsys, "predict", run, images / "north", "--weights", tmp_path / "none.safetensors")


def test_the_run_may_be_given_in_any_way(
    run: Path, rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = answers(capsys, run, "--features", rows)
    (tmp_path / "link").symlink_to(run)
    monkeypatch.chdir(run)
    for way in (".", f"{run}/", tmp_path / "link", f"../{run.name}"):
        assert answers(capsys, way, "--features", rows) == expected


def test_ctrl_c_is_130_and_one_line(
    run: Path, rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedhip.cli.runs.predict.read_features", interrupted)
    assert main(["predict", str(run), "--features", str(rows)]) == 130
    assert said(capsys) == ["fedhip: interrupted"]
