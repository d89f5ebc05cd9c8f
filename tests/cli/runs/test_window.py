"""Images of more than 8 bits from end to end: one window for a run, and for all that comes to it later."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedhip.cli.main import main
from fedhip.data import Window, read_features
from fedhip.data.images.window import SIXTEEN_BITS
from fedhip.data.sets import folders as folders_module
from fedhip.features import extract, reference
from fedhip.runs import Run
from tests.cli.samples import deepen, done, encoder, image_folder, refused, said
from tests.core.problems import Array
from tests.runs.samples import digest, feature_file


def shallow(source: Path, target: Path, bits: int = 12) -> Path:
    """What is left of them when the highest 8 bits are kept."""
    for file in sorted(source.rglob("*.png")):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((np.asarray(Image.open(file)) >> (bits - 8)).astype(np.uint8)).save(place)
    return target


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12-bit pictures of two clients and a third, what they are in 8 bits, and a run of each."""
    folder = tmp_path_factory.mktemp("deep")
    deepen(image_folder(folder / "bright", ("north", "south")), folder / "deep")
    deepen(image_folder(folder / "other", ("east",)), folder / "east")
    shallow(folder / "deep", folder / "shallow")
    shallow(folder / "east", folder / "shallow-east")
    encoder(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDHIP_CACHE", str(folder / "cache"))
        for name in ("deep", "shallow"):
            done("run", "--data", folder / name, *options(folder), "--out", folder / f"run-{name}")
    return folder


@pytest.fixture(autouse=True)
def cache(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDHIP_CACHE", str(made / "cache"))


def options(folder: Path) -> tuple[object, ...]:
    weights = ("--weights", folder / "encoder.safetensors", "--precision", "float32", "--fraction-bits", "32")
    return (*weights, "--alpha", "2", "--beta", "1")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(made / "run-deep", tmp_path / "run"))


def weights_of(path: Path) -> dict[str | None, Array]:
    folder = Run.open(path)
    return {client: folder.model(client).weights.numpy() for client in (None, *folder.clients)}


def answers(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    capsys.readouterr()
    done("predict", *words, "--json")
    return [row["scores"] for row in json.loads(capsys.readouterr().out)["rows"]]


def window_of(path: Path) -> Window | None:
    backbone = Run.open(path).model(None).backbone
    assert backbone is not None
    return backbone.window


def test_a_run_of_12_bits_is_that_of_their_highest_8(made: Path) -> None:
    deep, in_bytes = weights_of(made / "run-deep"), weights_of(made / "run-shallow")
    assert deep.keys() == in_bytes.keys()
    for client, found in deep.items():
        np.testing.assert_array_equal(found, in_bytes[client])
    assert window_of(made / "run-deep") == Window(0, 4095)
    assert "fedhip-vit in float32, 0 to 4095 in 8 bits, " in Run.open(made / "run-deep").results["title"]


def test_one_line_says_which_range_was_used(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    done("extract", "--data", made / "deep", *options(made)[:4], tmp_path / "f.npz")
    shown = capsys.readouterr()
    (line,) = [line for line in shown.err.splitlines() if "8 bits" in line]
    assert line.startswith("fedhip: 20 images of more than 8 bits: 0 to 4095 is black to white (their values: ")
    assert line.endswith("), the bits that they use; --window LOW HIGH for another range")
    assert "features of fedhip-vit in float32, 0 to 4095 in 8 bits, written to" in shown.out
    done("extract", "--data", made / "deep", "--window", "-5", "999.5", *options(made)[:4], tmp_path / "g.npz")
    (line,) = [line for line in said(capsys) if "8 bits" in line]
    assert "-5 to 999.5 is black to white (their values: " in line
    assert line.endswith("; what lies outside is cut off), as --window says")
    assert not np.array_equal(read_features(tmp_path / "f.npz").features, read_features(tmp_path / "g.npz").features)


def test_8_bits_are_as_they_were_and_nothing_is_said(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    done("run", "--data", made / "shallow", *options(made), "--out", tmp_path / "run")
    assert "bits" not in capsys.readouterr().err
    model = Run.open(tmp_path / "run").model(None)
    assert model.backbone is not None
    assert list(model.backbone.to_dict()) == [
        *("name", "identity", "precision", "pooling", "weights", "mask_ratio", "mask_seed")
    ]
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"window" not in file.read_bytes() or file.name == "report.html"


@pytest.mark.filterwarnings("ignore:client .* nearly the same")
def test_a_window_is_in_the_configuration_and_repeats_the_run(made: Path, tmp_path: Path) -> None:
    done("run", "--data", made / "deep", "--window", "-100", "3000", *options(made), "--out", tmp_path / "one")
    assert tomllib.loads((tmp_path / "one" / "config.toml").read_text())["window"] == [-100.0, 3000.0]
    done("run", tmp_path / "one" / "config.toml", "--out", tmp_path / "two")
    assert window_of(tmp_path / "two") == Window(-100, 3000)
    one, two, found = (weights_of(path) for path in (tmp_path / "one", tmp_path / "two", made / "run-deep"))
    for client, weights in one.items():
        np.testing.assert_array_equal(weights, two[client])
        assert not np.array_equal(weights, found[client])
    done("personalize", tmp_path / "one")
    done("verify", tmp_path / "one")


def test_an_image_that_comes_later_is_seen_as_those_of_the_run(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that uses fewer bits by itself; by its own it would be bright."""
    image = np.random.default_rng(1).integers(0, 300, (16, 16), np.uint16)
    Image.fromarray(image).save(tmp_path / "one.png")
    model = Run.open(made / "run-deep").model("north")
    assert model.backbone is not None
    backbone = model.backbone.load(device="cpu")
    for words, levels in (((), image >> 4), (("--window", "0", "511"), image >> 1)):
        found = answers(capsys, made / "run-deep", "--client", "north", tmp_path / "one.png", *words)
        pixels = np.repeat(levels.astype(np.uint8)[None, ..., None], 3, axis=3)
        expected = model.scores(extract(backbone, pixels, dtype=model.backbone.dtype, cache=False)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    done("predict", made / "run-deep", "--client", "north", tmp_path / "one.png")
    line = f"fedhip: images of more than 8 bits: 0 to 4095 is black to white, as in {made / 'run-deep'}"
    assert line in said(capsys)
    files = sorted((made / "deep" / "north").rglob("*.png"))
    in_bytes = [made / "shallow" / file.relative_to(made / "deep") for file in files]
    expected = answers(capsys, made / "run-shallow", "--client", "north", *in_bytes)
    assert answers(capsys, made / "run-deep", "--client", "north", *files) == expected
    assert answers(capsys, made / "run-deep", "--client", "north", *in_bytes) == expected  # 8 bits are as they are


def test_a_run_of_more_bits_lives_by_its_window(
    made: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done("join", run, "--data", made / "east", "--client", "east")
    told = [line for line in said(capsys) if "8 bits" in line]
    assert len(told) == 1
    assert told[0].endswith(f", as in {run}")
    done("update", run, "--client", "north", "--data", made / "east")
    done("personalize", run)
    done("personalize", run, "--client", "east", "--data", made / "east")
    done("forget", run, "--client", "south")
    done("verify", run)
    with_bytes = tmp_path / "bytes"
    done("run", "--data", made / "shallow", *options(made), "--out", with_bytes)
    done("join", with_bytes, "--data", made / "shallow-east", "--client", "east")
    done("update", with_bytes, "--client", "north", "--data", made / "shallow-east")
    done("forget", with_bytes, "--client", "south")
    found, expected = weights_of(run), weights_of(with_bytes)
    assert found.keys() == expected.keys() == {None, "north", "east"}
    for client, weights in found.items():
        np.testing.assert_array_equal(weights, expected[client])


def test_values_beyond_the_window_of_the_run_are_told(
    made: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = deepen(made / "other", tmp_path / "wide", bits=14)
    done("join", run, "--data", wide, "--client", "east")
    (line,) = [line for line in said(capsys) if "8 bits" in line]
    assert "; what lies outside is cut off), as in" in line
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders_module, "IN_MEMORY", 0)
        done("join", run, "--data", wide, "--client", "west", "--window", "0", "16383")
    own, cut = (Run.open(run).statistics(client) for client in ("west", "east"))
    assert own.digest() != cut.digest()


def test_a_run_from_before_there_were_windows_lives_on(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the high byte of 16, and its models say nothing of that."""
    kept = reference.BackboneReference

    def before(**fields: Any) -> reference.BackboneReference:
        return kept(**{**fields, "window": None})

    path, deep = tmp_path / "run", deepen(made / "bright", tmp_path / "deep", bits=16)
    with monkeypatch.context() as patch:
        patch.setattr(reference, "BackboneReference", before)
        patch.setattr(Window, "of", lambda values: SIXTEEN_BITS)
        done("run", "--data", deep, *options(made), "--out", path)
    assert window_of(path) is None
    done("personalize", path)
    assert "phase 3 again for 2 of 2 clients" in capsys.readouterr().out
    done("verify", path)
    east = deepen(made / "other", tmp_path / "east", bits=16)
    before_it = digest(path)
    line = refused(capsys, "join", path, "--data", east, "--client", "east")
    assert f"{east} has more than 8 bits, and {path} knows no window" in line
    assert "an older fedhip, which took 0 to 65535; give --window LOW HIGH" in line
    assert digest(path) == before_it
    done("join", path, "--data", east, "--client", "east", "--window", "0", "65535")
    shallow(east, tmp_path / "bytes", bits=16)
    done("personalize", path, "--client", "east", "--data", tmp_path / "bytes")  # the high bytes, to the last bit


def test_bad_windows_are_one_line(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, rows = tmp_path / "out", feature_file(tmp_path / "rows.npz")
    one = next((made / "deep").rglob("*.png"))
    deep, run, in_bytes = ("--data", made / "deep"), made / "run-deep", made / "run-shallow"
    new = ("run", *deep, *options(made), "--out", out)
    before = digest(run), digest(in_bytes)
    for words, message in {
        (*new, "--window", 5, 5): "a window from 5 to 5 is empty; give the lower value first, then the higher",
        (*new, "--window", 4095, 0): "a window from 4095 to 0 is empty",
        (*new, "--window", "nan", 1): "a window from nan to 1 has no end; give two finite numbers",
        (*new, "--window", 0, "inf"): "two finite numbers",
        (
            "run",
            "--data",
            made / "shallow",
            "--window",
            0,
            9,
            "--out",
            out,
        ): "--window is for images of more than 8 bits, and there is none in shallow; leave it out",
        ("run", "--dataset", "sketches", "--window", 0, 9, "--out", out): "there is none in sketches; leave it out",
        ("run", "--features", rows, "--window", 0, 9, "--out", out): "--window has no effect on --features",
        ("audit", "--features", rows, "--window", 0, 9): "--window has no effect on --features",
        ("audit", "--data", made / "shallow" / "north", "--window", 0, 9): "there is none in",
        ("predict", run, "--features", rows, "--window", 0, 9): "--window is for images, and none are given",
        ("predict", run, one, "--window", 9, 0): "is empty",
        ("predict", run, next((made / "shallow").rglob("*.png")), "--window", 0, 9): "there is none in what was given",
        ("predict", in_bytes, one): f"{one} has more than 8 bits, and {in_bytes} knows no window",
        ("personalize", run, "--window", 0, 9): "--window and --skip-corrupt are for images that are given",
        ("join", run, "--features", rows, "--client", "east", "--window", 0, 9): "none are given",
        (
            "join",
            in_bytes,
            "--data",
            made / "east",
            "--client",
            "east",
        ): "knows no window: it was made from images of 8",
        ("join", run, "--data", made / "shallow-east", "--client", "east", "--window", 0, 9): "there is none in",
    }.items():
        assert message in refused(capsys, *words), words
    assert not out.exists()
    assert (digest(run), digest(in_bytes)) == before
    with pytest.raises(SystemExit):
        main(["run", "--data", str(made / "deep"), "--window", "x", "1", "--out", str(out)])


@pytest.mark.slow
def test_an_exported_model_says_what_to_do_with_more_bits(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    for name, window in (("deep", "[0.0, 4095.0]"), ("shallow", None)):
        capsys.readouterr()
        done("export", made / f"run-{name}", tmp_path / f"{name}.onnx", "--client", "north")
        told = capsys.readouterr().out
        assert ("images of more than 8 bits: bring 0 to 4095 to 0 to 255 before you resize" in told) is (
            window is not None
        )
        found = {entry.key: entry.value for entry in onnx.load(tmp_path / f"{name}.onnx").metadata_props}
        assert found.get("window") == window
        done("export", made / f"run-{name}", tmp_path / f"{name}-head.onnx", "--client", "north", "--head-only")
        assert "more than 8 bits" not in capsys.readouterr().out


def test_an_audit_sees_all_bits(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for name in ("deep", "shallow"):
        capsys.readouterr()
        done("audit", "--data", made / name / "north", *options(made)[:4], "--seconds", "1", "--json")
        shown = capsys.readouterr()
        told.append(json.loads(shown.out))
        assert ("0 to 4095 is black to white" in shown.err) is (name == "deep")
    deep, shallow = (re.sub(r"in [\d.]+ s", "in … s", json.dumps(found["findings"])) for found in told)  # not how fast
    assert deep == shallow
