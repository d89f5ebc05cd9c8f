"""Backbones by name, from every kind of source, with an identity that tells them apart."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedhip.errors import DownloadError, FileError, InputError, MissingExtraError
from fedhip.features import backbones
from fedhip.features.backbones import RegisteredBackbone, ViTBackbone, list_backbones, load_backbone
from fedhip.features.encoder.checkpoints import load_encoder, save_encoder
from fedhip.features.encoder.vit import ViT, ViTConfig
from tests.features.encoder.test_checkpoints import hub_layout
from tests.features.samples import SMALL, random_encoder, waves
from tests.http_server import Site

CPU = torch.device("cpu")
IMAGES = torch.from_numpy(waves(4))


def small(pooling: str | None = None, mask_ratio: float = 0.0, mask_seed: int = 0, seed: int = 0) -> ViTBackbone:
    return ViTBackbone("small", random_encoder(seed=seed), pooling, CPU, mask_ratio, mask_seed)


def test_names_and_descriptions() -> None:
    names = [info.name for info in list_backbones()]
    expected = ["fedhip-vit", "vit-mae-base", "vit-mae-large"]
    expected += [*(f"efficientnet-lite{n}" for n in range(3)), "minilm", "hf:NAME", "onnx:FILE"]
    assert names == expected
    assert all(info.description for info in list_backbones())
    with pytest.raises(InputError, match=r"'resnet'; known: fedhip-vit, vit-mae-base"):
        load_backbone("resnet")


def test_published_sizes() -> None:
    base, large = backbones.NAMED["vit-mae-base"].config, backbones.NAMED["vit-mae-large"].config
    assert base is not None
    assert large is not None
    with torch.device("meta"):
        encoders = [ViT(config) for config in (base, large)]
    counts = [sum(int(p.numel()) for p in encoder.parameters()) for encoder in encoders]
    # the published 85,798,656 and 303,301,632 count the positions too
    assert counts == [85_798_656 - 197 * 768, 303_301_632 - 197 * 1024]


def test_features_are_float32_of_the_announced_width() -> None:
    backbone = small("mean:1,2+cls")
    features = backbone(IMAGES)
    assert features.shape == (4, backbone.feature_dim) == (4, 96)
    assert features.dtype == torch.float32
    assert torch.equal(features, backbone(IMAGES))
    assert backbone(torch.from_numpy(waves(2, 40))).shape == (2, 96)


def test_mask_depends_on_seed_and_row_not_on_the_batch() -> None:
    backbone = small("mean", mask_ratio=0.75)
    rows = torch.arange(4)
    together = backbone(IMAGES, rows)
    apart = torch.cat([backbone(IMAGES[i : i + 1], rows[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(together, small("mean", 0.75, mask_seed=1)(IMAGES, rows))
    assert not torch.allclose(together, small("mean")(IMAGES, rows))


def test_identity_changes_with_whatever_changes_the_features() -> None:
    variants = [
        small(),
        small("mean"),
        small("mean:2"),
        small(mask_ratio=0.5),
        small(mask_ratio=0.5, mask_seed=1),
        small(seed=1),
        ViTBackbone("small", random_encoder(dataclasses.replace(SMALL, mean=(0.5,) * 3)), None, CPU),
    ]
    assert len({variant.identity for variant in variants}) == len(variants)
    assert small().identity == small("cls:3").identity == small(mask_seed=9).identity


def test_embedded_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "embedded_weights", lambda: tmp_path / "fedhip-vit.safetensors")
    with pytest.raises(FileError, match=r"has no fedhip-vit.safetensors; install a release"):
        load_backbone("fedhip-vit")
    save_encoder(tmp_path / "fedhip-vit.safetensors", random_encoder(), torch.float32)
    backbone = load_backbone("fedhip-vit", device="cpu")
    assert backbone.feature_dim == 3 * 32  # means of layers 2 and 3, and the class token
    torch.testing.assert_close(backbone(IMAGES), small("mean:2,3+cls")(IMAGES))


@pytest.fixture
def small_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backbones.NAMED, "vit-mae-base", RegisteredBackbone("small", SMALL))


@pytest.mark.usefixtures("small_hub")
def test_weights_from_a_file_or_a_folder(tmp_path: Path) -> None:
    save_file(hub_layout(random_encoder()), tmp_path / "model.safetensors")
    for weights in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        backbone = load_backbone("vit-mae-base", weights=weights, device="cpu")
        torch.testing.assert_close(backbone(IMAGES), small("cls")(IMAGES))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"holds no weights; expected one of .*mae_pretrain_vit_base\.pth"):
        load_backbone("vit-mae-base", weights=tmp_path / "empty")


def test_weights_of_another_size_name_the_key(tmp_path: Path) -> None:
    save_file(hub_layout(random_encoder()), tmp_path / "model.safetensors")
    with pytest.raises(FileError, match=r"'class_token' .* \(32,\), expected \(768,\)"):
        load_backbone("vit-mae-base", weights=tmp_path)


def test_a_folder_of_our_own_pretraining(tmp_path: Path) -> None:
    save_encoder(tmp_path / "encoder.safetensors", random_encoder(), torch.float32)
    backbone = load_backbone("fedhip-vit", weights=tmp_path, pooling="cls", device="cpu")
    torch.testing.assert_close(backbone(IMAGES), small("cls")(IMAGES))
    with pytest.raises(FileError, match="image_size 16, expected 224"):
        load_backbone("vit-mae-base", weights=tmp_path, device="cpu")


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30])
def test_mask_seeds_have_64_bits(tmp_path: Path, seed: int) -> None:
    with pytest.raises(InputError, match=f"mask_seed is {seed}"):
        small(mask_ratio=0.5, mask_seed=seed)
    assert small(mask_ratio=0.5, mask_seed=-1)(IMAGES).shape == (4, 32)


@pytest.mark.usefixtures("small_hub")
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_weights_from_the_hub_are_fetched_once(
    tmp_path: Path, own_cache: Path, site: Site, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    state = hub_layout(random_encoder())
    if file.endswith(".bin"):
        torch.save(state, tmp_path / file)
    else:
        save_file(state, tmp_path / file)
    site.content, site.only = (tmp_path / file).read_bytes(), file
    address = f"{site.address}/facebook/{{name}}/resolve/main/{{file}}"
    monkeypatch.setattr(backbones, "HUB", address)
    first = load_backbone("vit-mae-base", device="cpu")
    requests = len(site.paths)
    second = load_backbone("vit-mae-base", device="cpu")
    assert site.paths[-1] == f"/file/facebook/vit-mae-base/resolve/main/{file}"
    assert len(site.paths) == requests
    assert first.identity == second.identity
    assert (own_cache / "weights" / "vit-mae-base" / file).is_file()


def test_without_a_network_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "HUB", "http://127.0.0.1:9/{name}/{file}")
    with pytest.raises(DownloadError, match="give its path as weights"):
        load_backbone("vit-mae-base")


def test_a_callable(tmp_path: Path) -> None:
    def colours(images: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        return images.float().mean(dim=(1, 2)).numpy()

    backbone = load_backbone(colours, device="cpu")
    assert (backbone.name, backbone.feature_dim, backbone.identity) == ("colours", 3, None)
    np.testing.assert_allclose(backbone(IMAGES).numpy(), waves(4).mean(axis=(1, 2)), rtol=1e-5)
    colours.identity = "v1"  # type: ignore[attr-defined]
    assert load_backbone(colours, device="cpu").identity is not None
    with pytest.raises(InputError, match=r"returned shape \(2, 3, 3\) for 2 images"):
        load_backbone(lambda images: torch.zeros(len(images), 3, 3), device="cpu")
    with pytest.raises(InputError, match="no setting pooling"):
        load_backbone(colours, pooling="cls")


def test_an_onnx_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("GlobalAveragePool", ["x"], ["p"]), helper.make_node("Flatten", ["p"], ["y"])],
        "mean",
        [helper.make_tensor_value_info("x", kind, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("y", kind, ["n", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "mean.onnx"
    onnx.save(model, path)
    backbone = load_backbone(f"onnx:{path}", device="cpu")
    assert (backbone.image_size, backbone.feature_dim) == (16, 3)
    expected = (waves(4).mean(axis=(1, 2)) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(backbone(IMAGES).numpy(), expected, atol=1e-4)
    with pytest.raises(InputError, match="leave the pooling 'cls' out"):
        load_backbone(f"onnx:{path}", pooling="cls", device="cpu")
    with pytest.raises(FileError, match="no ONNX file"):
        load_backbone(f"onnx:{tmp_path / 'none.onnx'}", device="cpu")
    path.write_bytes(b"no graph")
    with pytest.raises(FileError, match="not a readable ONNX file"):
        load_backbone(f"onnx:{path}", device="cpu")


@pytest.fixture
def hub_vit(tmp_path: Path) -> tuple[str, object]:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=16, patch_size=4)).eval()
    model.save_pretrained(tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").write_text(
        '{"size": {"height": 16, "width": 16}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'
    )
    return f"hf:{tmp_path / 'vit'}", model


def test_an_encoder_of_the_hub(hub_vit: tuple[str, object]) -> None:
    name, model = hub_vit
    pixels = (IMAGES.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        tokens = model(pixels).last_hidden_state  # type: ignore[operator]
    backbone = load_backbone(name, device="cpu")
    assert (backbone.image_size, backbone.feature_dim) == (16, 32)
    torch.testing.assert_close(backbone(IMAGES), tokens[:, 0], rtol=1e-4, atol=1e-4)
    mean = load_backbone(name, pooling="mean", device="cpu")
    torch.testing.assert_close(mean(IMAGES), tokens[:, 1:].mean(1), rtol=1e-4, atol=1e-4)
    assert mean.identity != backbone.identity
    with pytest.raises(InputError, match="no mask"):
        load_backbone(name, mask_ratio=0.5, device="cpu")


def test_identity_of_a_hub_model_is_its_configuration_too(hub_vit: tuple[str, object], tmp_path: Path) -> None:
    """The same weights, elsewhere and with another constant."""
    name, _ = hub_vit
    original, copy = Path(name.removeprefix("hf:")), tmp_path / "copy"
    shutil.copytree(original, copy)
    assert load_backbone(f"hf:{copy}", device="cpu").identity == load_backbone(name, device="cpu").identity
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(settings | {"layer_norm_eps": 0.1}))
    assert load_backbone(f"hf:{copy}", device="cpu").identity != load_backbone(name, device="cpu").identity


def test_mae_through_transformers_equals_our_own(tmp_path: Path) -> None:
    """Also where transformers would mask and shuffle at random."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.ViTMAEConfig(**sizes, image_size=16, patch_size=4, layer_norm_eps=1e-6)
    transformers.ViTMAEModel(config).save_pretrained(tmp_path)
    own_config = ViTConfig(16, 4, 32, 3, 2, mlp_ratio=2.0)
    encoder = load_encoder(tmp_path / "model.safetensors", own_config)
    for ratio in (0.0, 0.75):
        theirs = load_backbone(f"hf:{tmp_path}", pooling="mean", device="cpu", mask_ratio=ratio, mask_seed=3)
        ours = ViTBackbone("ours", encoder, "mean", CPU, ratio, 3)
        torch.testing.assert_close(theirs(IMAGES), ours(IMAGES), rtol=0, atol=1e-5)


def test_missing_extras_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedhip\[hf\]'"):
        load_backbone("hf:some/model")
    with pytest.raises(MissingExtraError, match=r"pip install 'fedhip\[onnx\]'"):
        load_backbone("onnx:some.onnx")


def test_hub_model_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(FileError, match="cannot load hf:"):
        load_backbone(f"hf:{tmp_path}", device="cpu")
