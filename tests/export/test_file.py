"""What runs in onnxruntime is the model; what would not be is refused, and leaves no file."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import fedhip
from fedhip.data import Window
from fedhip.data.images.pixels import fit
from fedhip.errors import InputError, MissingExtraError
from fedhip.export import LEFT_OUT, Export, export_onnx
from fedhip.export import file as exporting
from fedhip.features import load_backbone
from fedhip.features.encoder.checkpoints import save_encoder
from fedhip.features.reference import BackboneReference
from fedhip.heads.model import Model
from tests.features.samples import random_encoder, waves

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[2]
NAMES = ("zebra", "ape", "Ünïcode, with a comma", "cat", "bee")
LOCAL = torch.tensor([True, False, True, True, False])


def model_of(
    width: int,
    backbone: BackboneReference | None = None,
    *,
    only_local: bool = False,
    temperature: float = 0.3,
    client: str | None = "site-3",
) -> Model:
    generator = torch.Generator().manual_seed(width)
    weights = torch.randn(width, len(NAMES), generator=generator, dtype=torch.float64) / width**0.5
    alpha = None if client is None else 12.5
    return Model(client, weights, NAMES, alpha, 0.25, temperature, LOCAL, only_local, backbone, "digest-of-statistics")


def answers(path: Path, name: str, values: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(path)
    scores, probabilities = session.run(["scores", "probabilities"], {name: values})
    return scores, probabilities


def softmax(scores: NDArray[Any], temperature: float) -> NDArray[Any]:
    powers = np.exp((scores - scores.max(axis=1, keepdims=True)) / temperature)
    result: NDArray[Any] = powers / powers.sum(axis=1, keepdims=True)
    return result


def reference_to(folder: Path, pooling: str = "mean:1,2+cls") -> BackboneReference:
    """A small encoder on disk, and the backbone it makes."""
    path = folder / "encoder.safetensors"
    save_encoder(path, random_encoder(), torch.float32)
    backbone = load_backbone("fedhip-vit", weights=path, pooling=pooling, device="cpu")
    return BackboneReference("fedhip-vit", backbone.identity, "float32", pooling, str(path))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Export]:
    """A small ViT with a head for three of five classes, exported once for all tests."""
    folder = tmp_path_factory.mktemp("small")
    model = model_of(96, reference_to(folder), only_local=True)
    return model, export_onnx(model, folder / "deep" / "model.onnx")


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Export]:
    """The backbone of the package with a head for five classes."""
    backbone = load_backbone("fedhip-vit", device="cpu")
    model = model_of(backbone.feature_dim, BackboneReference("fedhip-vit", backbone.identity, "float32"))
    return model, export_onnx(model, tmp_path_factory.mktemp("embedded") / "model.onnx")


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_file_answers_as_the_model_does(small: tuple[Model, Export], batch: int) -> None:
    model, export = small
    images = waves(batch, seed=7)
    assert model.backbone is not None
    features = model.backbone.load(device="cpu")(torch.from_numpy(images))
    scores, probabilities = answers(export.path, "images", images)
    assert scores.dtype == probabilities.dtype == np.float32
    np.testing.assert_allclose(scores[:, LOCAL], model.scores(features)[:, LOCAL], rtol=0, atol=1e-4)
    np.testing.assert_allclose(probabilities, model.probabilities(features), rtol=0, atol=1e-4)
    assert np.ptp(scores[:, LOCAL]) > 0.1  # scores that are all alike would agree with anything


def test_classes_left_out_are_finite_and_have_no_probability(small: tuple[Model, Export]) -> None:
    scores, probabilities = answers(small[1].path, "images", waves(4))
    assert (scores[:, ~LOCAL] == np.float32(LEFT_OUT)).all()
    assert (probabilities[:, ~LOCAL] == 0).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)


def test_what_the_export_says_of_itself(small: tuple[Model, Export]) -> None:
    _, export = small
    assert export.bytes == export.path.stat().st_size
    assert (export.input_name, export.input_type, export.input_shape) == ("images", "uint8", (16, 16, 3))
    assert export.difference is not None
    assert 0 < export.difference < 1e-4
    assert export.compared_with == "fedhip-vit in float32 and the model's own scores, on random images"
    assert [file.name for file in export.path.parent.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(export.path)
    (taken,) = session.get_inputs()
    assert (taken.name, taken.type, taken.shape) == ("images", "tensor(uint8)", ["batch", 16, 16, 3])
    given = [(value.name, value.type, value.shape) for value in session.get_outputs()]
    assert given == [("scores", "tensor(float)", ["batch", 5]), ("probabilities", "tensor(float)", ["batch", 5])]


def test_everything_is_float32_and_nothing_tells_of_the_machine(small: tuple[Model, Export]) -> None:
    content = small[1].path.read_bytes()
    proto = onnx.load_from_string(content)
    kinds = {tensor.data_type for tensor in proto.graph.initializer if len(tensor.dims) > 1}
    assert kinds == {onnx.TensorProto.FLOAT}
    for path in (Path(fedhip.__file__).parent, Path(torch.__file__).parent, ROOT):
        assert str(path).encode() not in content
    assert b"site-packages" not in content
    assert b"stack_trace" not in content


def test_metadata(small: tuple[Model, Export], tmp_path: Path) -> None:
    model, export = small
    assert model.backbone is not None
    stored = onnxruntime.InferenceSession(export.path).get_modelmeta().custom_metadata_map
    assert json.loads(stored.pop("class_names")) == list(NAMES)
    assert stored == {
        "client": "site-3",
        "head": "ridge",
        "alpha": "12.5",
        "beta": "0.25",
        "temperature": "0.3",
        "backbone": "fedhip-vit",
        "backbone_identity": model.backbone.identity,
        "statistics": "digest-of-statistics",
        "fedhip_version": fedhip.__version__,
    }
    everyones = export_onnx(model_of(7, client=None), tmp_path / "head.onnx", head_only=True)
    stored = onnxruntime.InferenceSession(everyones.path).get_modelmeta().custom_metadata_map
    assert not {"client", "alpha", "backbone", "backbone_identity"} & stored.keys()


def test_classes_keep_their_order(tmp_path: Path) -> None:
    """Feature i speaks for class i alone."""
    model = dataclasses.replace(model_of(5), weights=torch.eye(5, dtype=torch.float64))
    export_onnx(model, tmp_path / "head.onnx", head_only=True)
    scores, _ = answers(tmp_path / "head.onnx", "features", np.eye(5, dtype=np.float32)[[3, 0, 2]])
    assert [NAMES[i] for i in scores.argmax(axis=1)] == ["cat", "zebra", "Ünïcode, with a comma"]


@pytest.mark.parametrize("only_local", [False, True])
@pytest.mark.parametrize("temperature", [0.001, 0.3, 10.0])
def test_the_head_alone(tmp_path: Path, temperature: float, only_local: bool) -> None:
    model = model_of(64, only_local=only_local, temperature=temperature)
    export = export_onnx(model, tmp_path / "head.onnx", head_only=True)
    assert (export.input_name, export.input_type, export.input_shape) == ("features", "float32", (64,))
    features = np.random.default_rng(5).normal(size=(6, 64)).astype(np.float32)
    scores, probabilities = answers(export.path, "features", features)
    kept = LOCAL.numpy() if only_local else np.ones(5, bool)
    expected = features.astype(np.float64) @ model.weights.numpy()
    np.testing.assert_allclose(scores[:, kept], expected[:, kept], rtol=0, atol=1e-5)
    np.testing.assert_allclose(probabilities[:, kept], softmax(expected[:, kept], temperature), rtol=0, atol=1e-3)
    np.testing.assert_allclose(probabilities, model.probabilities(features), rtol=0, atol=1e-3)
    assert (probabilities[:, ~kept] == 0).all()


def test_large_scores_are_compared_by_their_size(tmp_path: Path) -> None:
    model = model_of(64)
    large = replace(model, weights=1e6 * model.weights)
    export = export_onnx(large, tmp_path / "head.onnx", head_only=True)
    assert export.difference is not None
    assert export.difference < 1e-6


@pytest.mark.slow
def test_the_embedded_backbone(embedded: tuple[Model, Export]) -> None:
    model, export = embedded
    assert 38e6 < export.bytes < 40e6
    images = waves(2, size=64, seed=3)
    features = load_backbone("fedhip-vit", device="cpu")(torch.from_numpy(images))
    scores, probabilities = answers(export.path, "images", images)
    np.testing.assert_allclose(scores, model.scores(features), rtol=0, atol=1e-4)
    np.testing.assert_allclose(probabilities, model.probabilities(features), rtol=0, atol=1e-4)


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "export.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_documentation_brings_images_to_8_bits_as_a_window_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (30, 20), np.uint16)
    monkeypatch.chdir(tmp_path)
    Image.fromarray(values).save("scan.png")
    for window in (Window(0, 4095), Window(-1000, 400), Window(0, 65535)):
        described = SimpleNamespace(custom_metadata_map={"window": json.dumps([window.low, window.high])})
        session = SimpleNamespace(get_modelmeta=lambda described=described: described)
        names: dict[str, Any] = {"session": session, "json": json, "np": np, "Image": Image}
        exec(compile(examples()[1], "docs/export.md", "exec"), names)  # noqa: S102
        assert names["image"].mode == "RGB"
        np.testing.assert_array_equal(np.asarray(names["image"])[..., 0], window.apply(values))


@pytest.mark.slow
def test_the_example_of_the_documentation(
    embedded: tuple[Model, Export], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A picture of another shape, brought to size as fedhip's own reader does it."""
    model, export = embedded
    monkeypatch.chdir(export.path.parent)
    Image.fromarray(waves(1, size=201)[0][:150]).save("photo.png")
    exec(compile(examples()[0], "docs/export.md", "exec"), {})  # noqa: S102
    pixels = np.array(fit(Image.open("photo.png"), 64))
    features = load_backbone("fedhip-vit", device="cpu")(torch.from_numpy(pixels[None]))
    best = model.probabilities(features)[0].max(dim=0)
    name, probability = capsys.readouterr().out.rsplit(" ", 1)
    assert name == NAMES[int(best.indices)]
    assert float(probability) == pytest.approx(float(best.values), abs=2e-4)


@pytest.mark.parametrize(("kind", "pooling"), [pytest.param("ViT", None, marks=pytest.mark.slow), ("ViTMAE", "mean")])
def test_an_encoder_of_the_hub(tmp_path: Path, kind: str, pooling: str | None) -> None:
    """ViT-MAE also where transformers would shuffle the patches at random."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = getattr(transformers, f"{kind}Config")(**sizes, image_size=16, patch_size=4)
    encoder = getattr(transformers, f"{kind}Model")(config).eval()
    encoder.save_pretrained(tmp_path / "hub")
    name = f"hf:{tmp_path / 'hub'}"
    identity = load_backbone(name, pooling=pooling, device="cpu").identity
    model = model_of(32, BackboneReference(name, identity, "float32", pooling))
    export = export_onnx(model, tmp_path / "model.onnx")
    images = waves(5, seed=2)
    pixels = (
        torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    ) / (torch.tensor([0.229, 0.224, 0.225])[:, None, None])
    encoder.config.mask_ratio = 0.0
    with torch.no_grad():
        tokens = encoder(pixels).last_hidden_state.double()
    features = tokens[:, 0] if pooling is None else tokens[:, 1:].mean(dim=1)
    scores, _ = answers(export.path, "images", images)
    np.testing.assert_allclose(scores, features @ model.weights, rtol=0, atol=1e-4)
    assert not [node.op_type for node in onnx.load(export.path).graph.node if "Random" in node.op_type]


def onnx_encoder(path: Path, nodes: Sequence[Any], *, opset: int = 17, batch: str | int = "n", output: int = 2) -> None:
    """An encoder x (batch, 3, 16, 16) → y, with names that our own graphs have too."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("scores", kind, [batch, 3, 16, 16])],
        [helper.make_tensor_value_info("images", kind, [batch, *[None] * (output - 1)])],
        [onnx.numpy_helper.from_array(np.array([0, 3, 256]), "shape")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)


def vectors() -> list[Any]:
    node = onnx.helper.make_node
    return [node("GlobalAveragePool", ["scores"], ["features"]), node("Flatten", ["features"], ["images"])]


def maps() -> list[Any]:
    return [onnx.helper.make_node("AveragePool", ["scores"], ["images"], kernel_shape=[4, 4], strides=[4, 4])]


def tokens() -> list[Any]:
    return [onnx.helper.make_node("Reshape", ["scores", "shape"], ["images"])]


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize(
    ("nodes", "rank", "pooling"),
    [(vectors, 2, None), (maps, 4, None), (tokens, 3, None), (tokens, 3, "cls"), (tokens, 3, "mean")],
)
def test_a_backbone_that_came_as_onnx(tmp_path: Path, nodes: Any, rank: int, pooling: str | None, opset: int) -> None:
    onnx_encoder(tmp_path / "encoder.onnx", nodes(), opset=opset, output=rank)
    name = f"onnx:{tmp_path / 'encoder.onnx'}"
    identity = load_backbone(name, pooling=pooling, device="cpu").identity
    images = waves(5, seed=4)
    planes = ((images / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).transpose(0, 3, 1, 2).reshape(5, 3, -1)
    of_tokens = planes[:, 1:].mean(axis=1) if pooling == "mean" else planes[:, 0]
    features = of_tokens if rank == 3 else planes.mean(axis=2)
    model = model_of(features.shape[1], BackboneReference(name, identity, "float32", pooling))
    scores, probabilities = answers(export_onnx(model, tmp_path / "model.onnx").path, "images", images)
    expected = features @ model.weights.numpy()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(probabilities, softmax(expected, 0.3), rtol=0, atol=1e-4)


def test_onnx_backbones_that_cannot_be_joined(tmp_path: Path) -> None:
    for settings, message in (
        ({"batch": 1}, "takes batches of 1 alone"),
        ({"opset": 12}, "is in opset 12, and at least 13"),
    ):
        onnx_encoder(tmp_path / "encoder.onnx", vectors(), **settings)
        name = f"onnx:{tmp_path / 'encoder.onnx'}"
        model = model_of(3, BackboneReference(name, load_backbone(name, device="cpu").identity, "float32"))
        with pytest.raises(InputError, match=rf"{message}.*--head-only"):
            export_onnx(model, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.onnx"]


def test_a_file_that_fails_the_check_is_not_left_and_an_older_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = model_of(16), tmp_path / "head.onnx"
    right = exporting.head_graph

    def wrong(model: Model, opset: int, ir_version: int) -> Any:
        return right(replace(model, weights=model.weights + 1e-3), opset, ir_version)

    monkeypatch.setattr(exporting, "head_graph", wrong)
    with pytest.raises(InputError, match=r"differs by \d\.\de-0[123] from the model of client 'site-3'.*was not kept"):
        export_onnx(model, path, head_only=True)
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"older")
    with pytest.raises(InputError, match="was not kept"):
        export_onnx(model, path, head_only=True)
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(exporting, "head_graph", right)
    assert export_onnx(model, path, head_only=True).bytes == path.stat().st_size > 5


def test_what_the_check_counts() -> None:
    model, features = model_of(16, only_local=True), torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    scores, probabilities = model.scores(features).clamp(min=LEFT_OUT), model.probabilities(features)
    assert exporting.difference(model, features, scores, probabilities) < 1e-12
    for row, column, amount in ((0, 0, 0.01), (3, 3, -0.02)):
        other = scores.clone()
        other[row, column] += amount
        follows = model.probabilities_of(other)
        assert exporting.difference(model, features, other, follows) == pytest.approx(
            abs(amount) / max(1.0, float(scores[:, LOCAL].abs().max()))
        )
        of_probabilities = probabilities.clone()
        of_probabilities[row, column] += amount
        assert exporting.difference(model, features, scores, of_probabilities) == pytest.approx(abs(amount))
    for broken in (torch.nan, torch.inf):
        other, of_probabilities = scores.clone(), probabilities.clone()
        other[1, 0] = of_probabilities[1, 0] = broken
        assert exporting.difference(model, features, other, probabilities) == np.inf
        assert exporting.difference(model, features, scores, of_probabilities) == np.inf
    masked = scores.clone()
    masked[2, 1] = 0.0
    assert exporting.difference(model, features, masked, probabilities) == np.inf


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    model = model_of(8)
    with pytest.raises(InputError, match="differs by inf"):
        export_onnx(replace(model, weights=1e300 * model.weights), tmp_path / "head.onnx", head_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (None, "was made from given features, without a backbone"),
        (
            BackboneReference("colours", None, "float32"),
            "'colours' of the model of client 'site-3' is a Python function",
        ),
        (BackboneReference("fedhip-vit", "x", "float32", mask_ratio=0.75), "hides 75% of the patches"),
    ],
)
def test_a_model_without_a_graph_is_refused_in_full(
    tmp_path: Path, backbone: BackboneReference | None, message: str
) -> None:
    model = model_of(8, backbone)
    with pytest.raises(InputError, match=f"{message}.*--head-only"):
        export_onnx(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
    export_onnx(model, tmp_path / "head.onnx", head_only=True)


def test_other_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = reference_to(tmp_path)
    with pytest.raises(InputError, match="is a folder"):
        export_onnx(model_of(8), tmp_path, head_only=True)
    with pytest.raises(InputError, match=r"leave the weights w\.bin out"):
        export_onnx(model_of(8), tmp_path / "head.onnx", head_only=True, weights=Path("w.bin"))
    nothing = dataclasses.replace(model_of(8, only_local=True), local_classes=torch.zeros(5, dtype=torch.bool))
    with pytest.raises(InputError, match="leaves every class out"):
        export_onnx(nothing, tmp_path / "head.onnx", head_only=True)
    with pytest.raises(InputError, match="gives 96 features and the model of client 'site-3' takes 8"):
        export_onnx(model_of(8, reference), tmp_path / "model.onnx")
    save_encoder(tmp_path / "other.safetensors", random_encoder(seed=1), torch.float32)
    with pytest.raises(InputError, match="its features would not fit"):
        export_onnx(model_of(96, reference), tmp_path / "model.onnx", weights=tmp_path / "other.safetensors")
    monkeypatch.setattr(exporting, "_LARGEST_FILE", 100_000)
    with pytest.raises(InputError, match=r"0\.0 GB of weights, and one ONNX file holds at most 2\.1"):
        export_onnx(model_of(96, reference), tmp_path / "model.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.safetensors", "other.safetensors"]


def test_weights_that_were_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = reference_to(tmp_path)
    moved = Path(str(reference.weights)).rename(tmp_path / "moved.safetensors")
    loaded: list[Any] = []

    def stop(backbone: Any) -> Any:
        loaded.append(backbone)
        raise InputError("far enough")

    monkeypatch.setattr(exporting, "backbone_graph", stop)
    with pytest.raises(InputError, match="far enough"):
        export_onnx(model_of(96, reference), tmp_path / "model.onnx", weights=moved)
    assert loaded[0].identity == reference.identity


@pytest.mark.filterwarnings("ignore")  # what torch warns of before it gives up is its own
@pytest.mark.slow
def test_backbones_that_torch_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(96, reference_to(tmp_path))

    def fails(self: Any, images: torch.Tensor) -> torch.Tensor:
        raise KeyError("an operation\nof its own")

    monkeypatch.setattr(exporting._Features, "forward", fails)
    with pytest.raises(InputError, match=r"torch cannot write fedhip-vit as ONNX \(.*\); export the head") as caught:
        export_onnx(model, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)

    def fixed(self: Any, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.backbone(images[i : i + 1]) for i in range(len(images))])

    monkeypatch.setattr(exporting._Features, "forward", fixed)
    with pytest.raises(InputError, match="torch can write fedhip-vit as ONNX for batches of 2 alone"):
        export_onnx(model, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["encoder.safetensors"]


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_missing_packages_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    model = model_of(96, reference_to(tmp_path))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"need {package}; pip install 'fedhip\[onnx\]'"):
        export_onnx(model, tmp_path / "model.onnx")
    if package == "onnxscript":  # which the head does without
        export_onnx(model, tmp_path / "head.onnx", head_only=True)


def test_without_onnxruntime_nothing_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        export = export_onnx(model_of(8), tmp_path / "head.onnx", head_only=True)
    assert (export.difference, export.compared_with) == (None, "nothing: onnxruntime is not installed")
    assert answers(export.path, "features", np.ones((1, 8), np.float32))[0].shape == (1, 5)


def test_a_file_that_onnxruntime_cannot_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(proto: Any, path: Path) -> None:
        path.write_bytes(b"no graph")

    monkeypatch.setattr(exporting, "_save", damaged)
    with pytest.raises(InputError, match="onnxruntime cannot run what was written"):
        export_onnx(model_of(8), tmp_path / "head.onnx", head_only=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_nothing_is_printed(tmp_path: Path) -> None:
    """By a process of its own: torch says some things only once."""
    model_of(96, reference_to(tmp_path)).to_file(tmp_path / "model.safetensors")
    program = (
        "import sys; from pathlib import Path; from fedhip.export import export_onnx; "
        "from fedhip.heads.model import Model; "
        "export_onnx(Model.from_file(sys.argv[1]), Path(sys.argv[2]))"
    )
    files = [str(tmp_path / "model.safetensors"), str(tmp_path / "model.onnx")]
    command = [sys.executable, "-W", "default", "-c", program, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "model.onnx").is_file()


def test_the_intercept_of_another_head_and_a_class_that_nobody_has(tmp_path: Path) -> None:
    """Intercept and prior are one sum in the file; −∞ becomes the score of a class that is left out."""
    d = len(NAMES)
    intercept = torch.linspace(-1.0, 1.0, d, dtype=torch.float64)
    intercept[1] = -torch.inf
    model = dataclasses.replace(
        model_of(6), beta=None, head="lda", intercept=intercept, bias=torch.arange(d, dtype=torch.float64) / 10
    )
    export = export_onnx(model, tmp_path / "head.onnx", head_only=True)
    assert export.difference is not None
    features = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    scores, chances = answers(tmp_path / "head.onnx", "features", features)
    expected = model.scores(features).numpy()
    kept = np.arange(d) != 1
    np.testing.assert_allclose(scores[:, kept], expected[:, kept], atol=1e-5)
    assert (scores[:, 1] == np.float32(LEFT_OUT)).all()
    assert (chances[:, 1] == 0.0).all()
    stored = onnxruntime.InferenceSession(export.path).get_modelmeta().custom_metadata_map
    assert stored["head"] == "lda"
    assert "beta" not in stored
