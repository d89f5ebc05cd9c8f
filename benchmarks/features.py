"""Throughput of pre-training and extraction, and of extraction against the device's own matrix rate.

    python benchmarks/features.py [--device cuda] [--only pretrain extract base] [--compile]

pretrain: ViT-Tiny/8 at 64×64. extract: the embedded backbone, from memory. base: ViT-Base/16 at 224×224 with random
weights, against a large bfloat16 matrix product.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fedhip.features import Pool, Progress, Recipe, ViT, ViTConfig, extract, load_backbone, pretrain
from fedhip.features.backbones import Backbone, ViTBackbone

PARTS = ["pretrain", "extract", "base"]


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device, repeats: int = 3) -> float:
    """The fastest of some runs, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def matrix_rate(device: torch.device) -> float:
    """FLOP/s of a large product of random bfloat16 matrices."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = torch.randn(2, size, size, device=device).bfloat16()
    return 2 * size**3 / (seconds(lambda: [a @ b for _ in range(10)], device) / 10)


def flops(config: ViTConfig) -> float:
    """Operations of one image without a mask: the matrix products of all blocks and of attention."""
    tokens, width = config.num_patches + 1, config.width
    block = 2 * tokens * width**2 * (4 + 2 * config.mlp_ratio) + 4 * tokens**2 * width
    return config.depth * block + 2 * config.num_patches * config.patch_dim * width


def extraction(backbone: Backbone, count: int, device: torch.device, compiled: bool) -> float:
    """Images per second from memory, without the cache."""
    shape = (count, backbone.image_size, backbone.image_size, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    work = seconds(lambda: extract(backbone, images, cache=False, compile_backbone=compiled), device, 2)
    return count / work


def pretraining(minutes: float, device: torch.device, compiled: bool) -> float:
    """Images per second of ViT-Tiny/8 at 64×64: the median of the progress lines."""
    rng = np.random.default_rng(0)
    pool = Pool(rng.integers(0, 256, (20000, 64, 64, 3), dtype=np.uint8), ("noise",), (20000,), (1.0,))
    lines: list[Progress] = []
    batch, every = (4096, 100) if device.type == "cuda" else (64, 2)
    with tempfile.TemporaryDirectory() as out:
        recipe = Recipe(minutes=minutes, batch=batch)
        pretrain(
            pool,
            recipe,
            Path(out),
            device=device,
            compile_step=compiled,
            log_every=every,
            report=lines.append,
        )
    return float(np.median([line.images_per_second for line in lines]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--minutes", type=float, default=0.5 if cuda else 0.1)
    parser.add_argument("--images", type=int, default=200_000 if cuda else 1024)
    parser.add_argument("--base-images", type=int, default=12_000 if cuda else 16)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--compile", action="store_true", help="compile the backbones too")
    args = parser.parse_args()
    device, word = torch.device(args.device), "compiled" if args.compile else "eager"
    if "pretrain" in args.only:
        speed = pretraining(args.minutes, device, cuda)
        print(f"pretrain ViT-Tiny/8 at 64,  {'compiled' if cuda else 'eager':<8} {speed:>10,.0f} images/s", flush=True)
    if "extract" in args.only:
        speed = extraction(load_backbone("fedhip-vit", device=device), args.images, device, args.compile)
        print(f"extract fedhip-vit at 64,   {word:<8} {speed:>10,.0f} images/s", flush=True)
    if "base" in args.only:
        config, rate = ViTConfig(224, 16, 768, 12, 12), matrix_rate(device)
        torch.manual_seed(0)
        speed = extraction(ViTBackbone("random", ViT(config), "cls", device), args.base_images, device, args.compile)
        print(
            f"extract ViT-Base/16 at 224, {word:<8} {speed:>10,.0f} images/s, {speed * flops(config) / rate:.0%} of a "
            f"bf16 matrix product's {rate / 1e12:.1f} TFLOP/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
