"""Encoders and images that the tests share."""

import numpy as np
import torch
from numpy.typing import NDArray

from fedhip.features.encoder.vit import ViT, ViTConfig

SMALL = ViTConfig(image_size=16, patch_size=4, width=32, depth=3, heads=2, mlp_ratio=2.0)


def random_encoder(config: ViTConfig = SMALL, seed: int = 0) -> ViT:
    """Weights large enough that no part of the encoder is close to doing nothing."""
    generator = torch.Generator().manual_seed(seed)
    encoder = ViT(config)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            scale = float("norm" in name and name.endswith("weight"))
            parameter.copy_(scale + 0.2 * torch.randn(parameter.shape, generator=generator))
    return encoder.eval().requires_grad_(False)


def waves(count: int, size: int = 16, seed: int = 0) -> NDArray[np.uint8]:
    """Images with structure: coloured waves of random direction and length."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / size
    a, b = rng.normal(size=(2, count, 1, 1, 3))
    frequency, phase = rng.uniform(2, 8, (count, 1, 1, 1)), rng.uniform(0, 6, (count, 1, 1, 1))
    wave = np.sin(frequency * (a * x[..., None] + b * y[..., None]) + phase)
    image: NDArray[np.uint8] = (127 + 100 * wave).astype(np.uint8)
    return image
