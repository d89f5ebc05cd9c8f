"""Masked auto-encoding against a slow, literal version."""

import numpy as np
import pytest
import torch
from torch import nn

from fedhip.errors import InputError
from fedhip.features.encoder.vit import ViTConfig, patchify
from fedhip.features.pretraining.mae import DecoderConfig, MaskedAutoencoder, crop, draw_boxes, normalise_patches
from fedhip.features.pretraining.recipe import Recipe
from tests.features.samples import SMALL, waves

DECODER = DecoderConfig(width=16, depth=2, heads=2)


def model(seed: int = 0) -> MaskedAutoencoder:
    made = MaskedAutoencoder(SMALL, DECODER)
    made.initialize(seed)
    return made.eval()


def test_shuffled_decoder_equals_putting_tokens_back_in_place() -> None:
    """The literal version, one image at a time: mask tokens in their places, all positions in order."""
    mae = model()
    pixels, noise = torch.randn(3, 3, 16, 16), torch.rand(3, 16)
    loss = mae(pixels, noise)
    errors = []
    for image, draw in zip(pixels, noise, strict=True):
        order = sorted(range(16), key=lambda i, draw=draw: float(draw[i]))  # type: ignore[misc]
        keep, masked = sorted(order[:4]), sorted(order[4:])
        tokens = mae.bridge(mae.encoder(image[None], torch.tensor([keep])))[0]
        line = torch.stack([tokens[1 + keep.index(i)] if i in keep else mae.mask_token for i in range(16)])
        x = (torch.cat([tokens[:1], line]) + mae.decoder_positions)[None]
        for block in mae.blocks:
            x = block(x)
        predicted = mae.predict(mae.norm(x))[0, 1:]
        patches = patchify(image[None], 4)[0]
        target = (patches - patches.mean(1, keepdim=True)) / (patches.var(1, keepdim=True) + 1e-6).sqrt()
        errors.append(((predicted - target)[masked] ** 2).mean())
    torch.testing.assert_close(loss, torch.stack(errors).mean(), rtol=1e-5, atol=1e-6)


def test_every_parameter_learns() -> None:
    mae = model()
    mae(torch.randn(4, 3, 16, 16), torch.rand(4, 16)).backward()
    silent = [n for n, p in mae.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


def test_hidden_patches_do_not_reach_the_encoder() -> None:
    mae, noise = model(), torch.arange(16.0)[None]
    keep = noise.long()[:, :4]
    pixels = torch.randn(1, 3, 16, 16)
    other = pixels.clone()
    other[:, :, 4:] = torch.randn(1, 3, 12, 16)  # the first row of patches is what is kept
    assert torch.equal(mae.encoder(pixels, keep), mae.encoder(other, keep))


def test_initialisation_depends_on_the_seed_alone() -> None:
    first, again, other = model(1), model(1), model(2)
    assert torch.equal(first.predict.weight, again.predict.weight)
    assert not torch.equal(first.predict.weight, other.predict.weight)
    assert all((m.bias == 0).all() for m in first.modules() if isinstance(m, nn.Linear))


def test_targets_have_mean_zero_and_variance_one() -> None:
    target = normalise_patches(torch.rand(3, 5, 48) * 7 + 100)
    torch.testing.assert_close(target.mean(-1), torch.zeros(3, 5), rtol=0, atol=1e-4)
    torch.testing.assert_close(target.var(-1), torch.ones(3, 5), rtol=1e-3, atol=0)
    assert (normalise_patches(torch.full((1, 1, 48), 3.0)) == 0).all()


def boxes(count: int, area: tuple[float, float]) -> torch.Tensor:
    return draw_boxes(count, area, torch.Generator().manual_seed(0), torch.device("cpu"))


def test_crops_stay_inside_and_have_the_area_asked_for() -> None:
    found = boxes(4000, (0.2, 1.0))
    width, height = found[:, 0, 0].abs(), found[:, 1, 1]
    assert (found[:, 0, 2].abs() + width <= 1 + 1e-6).all()
    assert (found[:, 1, 2].abs() + height <= 1 + 1e-6).all()
    area = width * height
    assert 0.19 < float(area.min()) < 0.22
    assert 0.55 < float(area.mean()) < 0.62  # 0.6, less what the frame cuts off
    aspect = width / height
    assert float(aspect.min()) >= 0.74
    assert float(aspect.max()) <= 1.34
    assert 0.45 < float((found[:, 0, 0] < 0).float().mean()) < 0.55


def test_the_whole_image_and_its_mirror() -> None:
    images = torch.from_numpy(waves(2)).permute(0, 3, 1, 2)
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(-1, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(-1, 1, 1)
    whole = torch.tensor([[1.0, 0, 0], [0, 1, 0]]).expand(2, 2, 3)
    expected = (images.double() / 255 - mean) / std
    torch.testing.assert_close(crop(images, whole, mean, std).double(), expected, rtol=0, atol=1e-4)
    mirrored = torch.tensor([[-1.0, 0, 0], [0, 1, 0]]).expand(2, 2, 3)
    torch.testing.assert_close(crop(images, mirrored, mean, std).double(), expected.flip(3), rtol=0, atol=1e-4)


def test_a_quarter_of_the_image_is_that_quarter() -> None:
    image = np.zeros((1, 3, 16, 16), dtype=np.uint8)
    image[:, :, 8:, 8:] = 200
    corner = torch.tensor([[[0.5, 0, 0.5], [0, 0.5, 0.5]]])
    found = crop(torch.from_numpy(image), corner, torch.zeros(3, 1, 1), torch.ones(3, 1, 1)) * 255
    assert float(found[:, :, 1:, 1:].min()) == pytest.approx(200, abs=0.01)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "steps or minutes"),
        ({"steps": 1, "minutes": 1.0}, "steps or minutes"),
        ({"steps": 0}, "steps is 0"),
        ({"minutes": float("inf")}, "minutes is inf"),
        ({"steps": 1, "batch": -1}, "batch is -1"),
        ({"steps": 1, "learning_rate": float("nan")}, "learning_rate is nan"),
        ({"steps": 1, "mask_ratio": 0.0}, "masks no patch"),
        ({"steps": 1, "warmup": 1.0}, "warmup is 1.0"),
        ({"steps": 1, "crop_area": (0.0, 1.0)}, "crop_area"),
        ({"steps": 1, "weight_decay": -0.1}, r"weight_decay is -0\.1"),
        ({"steps": 1, "weight_decay": float("nan")}, "weight_decay is nan"),
        ({"steps": 1, "seed": 2**63}, "seed is"),
    ],
)
def test_recipes_that_make_no_sense(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Recipe(encoder=ViTConfig(), **fields)  # type: ignore[arg-type]


def test_schedule_warms_up_and_ends_at_zero() -> None:
    recipe = Recipe(steps=1000)
    assert recipe.peak == pytest.approx(2.4e-3)
    rates = [recipe.rate(i / 1000) for i in range(1001)]
    assert max(rates) == rates[50] == pytest.approx(2.4e-3)
    assert rates[25] == pytest.approx(1.2e-3)
    assert rates[525] == pytest.approx(1.2e-3)
    assert rates[1000] == pytest.approx(0, abs=1e-12)
    assert recipe.rate(1.7) == pytest.approx(0, abs=1e-12)
    assert Recipe(minutes=2).progress(10**6, 60.0) == 0.5
