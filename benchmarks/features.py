"""Extraction and pre-training, against the device's own matrix rate."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import Setup, best_seconds, matrix_rate
from benchmarks.table import Line, share
from fedhip.features import Pool, Recipe, TrainingStatus, ViT, ViTConfig, extract, load_backbone, pretrain
from fedhip.features.backbones import Backbone, ViTBackbone
from fedhip.features.encoder.vit import num_kept
from fedhip.features.precision import choose_dtype
from fedhip.features.pretraining.mae import DecoderConfig

BASE = ViTConfig(224, 16, 768, 12, 12)


def section(setup: Setup) -> Iterator[Line]:
    """Extraction and pre-training as shares of the rate of a large matrix product on the same device."""
    cuda = setup.device.type == "cuda"
    backbone = load_backbone("fedhip-vit", device=setup.device)
    assert isinstance(backbone, ViTBackbone)
    images = setup.pick(toy=2, quick=20_000 if cuda else 256, full=100_000 if cuda else 1_024)
    yield extraction(setup, "fedhip-vit at 64×64", backbone, backbone.encoder.config, images)
    images = setup.pick(toy=0, quick=4_000 if cuda else 8, full=8_000 if cuda else 16)
    if images:
        torch.manual_seed(0)
        base = ViTBackbone("random", ViT(BASE), "cls", setup.device)
        yield extraction(setup, "ViT-Base/16 at 224×224, random weights", base, BASE, images)
    yield pretraining(setup)


def extraction(setup: Setup, what: str, backbone: Backbone, config: ViTConfig, count: int) -> Line:
    """From memory, without the cache."""
    dtype = torch.float32 if setup.size == "toy" else choose_dtype(backbone)
    shape = (count, backbone.image_size, backbone.image_size, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    (seconds,) = best_seconds(setup, lambda: extract(backbone, images, dtype=dtype, cache=False), repeats=2)
    return of_matrix_rate(setup, f"extraction, {what}", count / seconds, forward_operations(config), dtype)


def pretraining(setup: Setup) -> Line:
    """ViT-Tiny/8 at 64×64, the fastest of the progress lines; compiled on a GPU, as the command does it."""
    cuda = setup.device.type == "cuda"
    batch, every, steps = (4096, 20, 100) if cuda else setup.pick(toy=(4, 1, 2), quick=(64, 2, 6), full=(64, 2, 12))
    pool = Pool(
        np.random.default_rng(0).integers(0, 256, (4096, 64, 64, 3), dtype=np.uint8), ("noise",), (4096,), (1.0,)
    )
    lines: list[TrainingStatus] = []
    encoder = setup.pick(toy=ViTConfig(depth=1), quick=ViTConfig(), full=ViTConfig())
    recipe = Recipe(encoder=encoder, steps=steps, batch=batch)
    with tempfile.TemporaryDirectory() as out:
        pretrain(
            pool,
            recipe,
            Path(out),
            device=setup.device,
            compile_step=cuda and setup.size == "full",
            log_every=every,
            log=lines.append,
        )
    speed = max(line.images_per_second for line in lines)
    dtype = torch.bfloat16 if cuda else torch.float32
    return of_matrix_rate(setup, "pre-training, ViT-Tiny/8 at 64×64", speed, training_operations(recipe), dtype)


def of_matrix_rate(setup: Setup, what: str, speed: float, operations: float, dtype: torch.dtype) -> Line:
    """The operations of so many images a second, as a share of those of matrix products."""
    rate, precision = matrix_rate(setup, dtype), str(dtype).removeprefix("torch.")
    return share(
        what,
        speed * operations / rate,
        f"the rate of a large {precision} matrix product",
        images_per_second=speed,
        matrix_tflops=rate / 1e12,
    )


def forward_operations(config: ViTConfig, patches: int | None = None) -> float:
    """Operations of one image: the matrix products of all blocks, of attention and of the embedding."""
    visible = config.num_patches if patches is None else patches
    embedding = 2 * visible * config.patch_dim * config.width
    return config.depth * block_operations(1 + visible, config.width, config.mlp_ratio) + embedding


def training_operations(recipe: Recipe) -> float:
    """Operations of one image in a step: forward through encoder and decoder, and twice that backward."""
    config, decoder = recipe.encoder, recipe.decoder
    visible = num_kept(config.num_patches, recipe.mask_ratio)
    return 3 * (forward_operations(config, visible) + decoder_operations(config, decoder, visible))


def decoder_operations(config: ViTConfig, decoder: DecoderConfig, visible: int) -> float:
    """Bridge, blocks over all patches, and the prediction of the masked ones."""
    bridge = 2 * (1 + visible) * config.width * decoder.width
    prediction = 2 * (config.num_patches - visible) * decoder.width * config.patch_dim
    return bridge + decoder.depth * block_operations(1 + config.num_patches, decoder.width, 4.0) + prediction


def block_operations(tokens: int, width: int, mlp_ratio: float) -> float:
    """Projections, attention and the two layers behind it."""
    return 2 * tokens * width**2 * (4 + 2 * mlp_ratio) + 4 * tokens**2 * width
