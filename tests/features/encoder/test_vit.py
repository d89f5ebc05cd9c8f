"""Our encoder against the formulae and against transformers with the same weights."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedhip.errors import InputError
from fedhip.features.encoder.checkpoints import load_encoder
from fedhip.features.encoder.vit import ViTConfig, keep_lowest, num_kept, patchify, sincos_positions
from tests.features.samples import random_encoder

transformers = pytest.importorskip("transformers")

CONFIG = ViTConfig(32, 8, 48, 3, 4, mlp_ratio=2.0, layer_norm_eps=1e-12)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, Path]:
    torch.manual_seed(0)
    config = transformers.ViTMAEConfig(
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        image_size=32,
        patch_size=8,
        layer_norm_eps=1e-12,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
    )
    model = transformers.ViTMAEForPreTraining(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # positions stay what they are
                parameter.add_(0.2 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("hub")
    model.save_pretrained(folder)
    return model.vit, folder / "model.safetensors"


@pytest.mark.parametrize("mask_ratio", [0.0, 0.75])
def test_equals_transformers_with_the_same_weights_and_noise(reference: tuple[object, Path], mask_ratio: float) -> None:
    model, path = reference
    pixels, noise = torch.randn(5, 3, 32, 32), torch.rand(5, 16)
    model.config.mask_ratio = mask_ratio  # type: ignore[attr-defined]
    with torch.no_grad():
        expected: Tensor = model(pixels, noise=noise).last_hidden_state  # type: ignore[operator]
        actual = load_encoder(path, CONFIG)(pixels, keep_lowest(noise, num_kept(16, mask_ratio)))
    assert actual.shape == expected.shape == (5, 1 + 16 - round(16 * mask_ratio), 48)
    assert expected.std() > 0.1
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_no_mask_by_default_and_order_does_not_matter(reference: tuple[object, Path]) -> None:
    encoder = load_encoder(reference[1], CONFIG)
    pixels = torch.randn(2, 3, 32, 32)
    order = torch.randperm(16).expand(2, -1)
    torch.testing.assert_close(encoder(pixels)[:, 1:][:, order[0]], encoder(pixels, order)[:, 1:])


def test_layers_are_the_hidden_states_of_transformers_after_the_final_norm(
    reference: tuple[object, Path],
) -> None:
    model, path = reference
    encoder = load_encoder(path, CONFIG)
    pixels = torch.randn(2, 3, 32, 32)
    noise = torch.arange(16.0).expand(2, -1)
    model.config.mask_ratio = 0.0  # type: ignore[attr-defined]
    states = model(pixels, noise=noise, output_hidden_states=True).hidden_states  # type: ignore[operator]
    first, third = encoder.layers(pixels, [1, 3])
    torch.testing.assert_close(first, encoder.norm(states[1]), rtol=0, atol=1e-5)
    torch.testing.assert_close(third, encoder.norm(states[3]), rtol=0, atol=1e-5)


def test_positions_by_the_formula() -> None:
    positions = sincos_positions(3, 16)
    assert (positions[0] == 0).all()
    row, column = 2, 1
    for half, place in ((0, column), (1, row)):
        for i in range(4):
            angle = place / 10000 ** (i / 4)
            found = positions[1 + 3 * row + column, 8 * half :]
            assert found[i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert found[4 + i] == pytest.approx(math.cos(angle), abs=1e-6)


def test_patchify_cuts_where_slicing_cuts() -> None:
    pixels = torch.randn(2, 3, 12, 12)
    patches = patchify(pixels, 4)
    assert torch.equal(patches[1, 5], pixels[1, :, 4:8, 8:12].reshape(-1))


def test_a_mask_keeps_the_lowest_noise_in_order() -> None:
    noise = torch.tensor([[0.9, 0.1, 0.5, 0.3]])
    assert keep_lowest(noise, 2).tolist() == [[1, 3]]


def test_the_same_images_give_the_same_bits() -> None:
    encoder, pixels = random_encoder(), torch.randn(3, 3, 16, 16)
    assert torch.equal(encoder(pixels), encoder(pixels))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"image_size": 30}, "patches of 8"),
        ({"width": 190}, "190"),
        ({"width": 6, "heads": 3}, "multiple of 4"),
        ({"depth": 0}, "depth is 0"),
        ({"channels": 1}, "1 channels"),
    ],
)
def test_sizes_that_do_not_fit_are_named(fields: dict[str, int], named: str) -> None:
    with pytest.raises(InputError, match=named):
        ViTConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 0.99])
def test_a_mask_that_leaves_nothing_is_an_error(ratio: float) -> None:
    with pytest.raises(InputError, match=str(ratio)):
        num_kept(16, ratio)


def test_config_survives_json() -> None:
    assert ViTConfig.from_dict(CONFIG.to_dict()) == CONFIG
    with pytest.raises(InputError, match="'flavour'"):
        ViTConfig.from_dict({"flavour": 1})
