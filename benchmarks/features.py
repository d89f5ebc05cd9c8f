"""Throughput of pre-training and extraction, and of extraction against the device's own matrix rate.

python benchmarks/features.py [--device cuda] [--minutes 0.5] [--images 200000] [--base-images 20000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fedhip.features import Pool, Progress, Recipe, ViT, ViTConfig, extract, pretrain
from fedhip.features.backbones import NAMED, ViTBackbone


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


def extraction(config: ViTConfig, count: int, device: torch.device, compiled: bool, pooling: str) -> float:
    """Images per second from memory, without the cache."""
    torch.manual_seed(0)
    backbone = ViTBackbone("random", ViT(config), pooling, device)
    shape = (count, config.image_size, config.image_size, 3)
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
    parser.add_argument("--base-images", type=int, default=20_000 if cuda else 16)
    args = parser.parse_args()
    device = torch.device(args.device)
    rate = matrix_rate(device)
    print(f"bf16 matrix product                      {rate / 1e12:8.1f} TFLOP/s", flush=True)
    base = NAMED["vit-mae-base"].config
    if base is None:
        raise SystemExit("vit-mae-base has no configuration")
    for compiled in (False, True) if cuda else (False,):
        word = "compiled" if compiled else "eager"
        tiny = extraction(ViTConfig(), args.images, device, compiled, "mean:6,8,10,12+cls")
        print(f"extract ViT-Tiny/8 at 64,    {word:<8} {tiny:>12,.0f} images/s", flush=True)
        large = extraction(base, args.base_images, device, compiled, "cls")
        share = large * flops(base) / rate
        print(f"extract ViT-Base/16 at 224,  {word:<8} {large:>12,.0f} images/s, {share:.0%} of it", flush=True)
    speed = pretraining(args.minutes, device, cuda)
    print(f"pretrain ViT-Tiny/8 at 64,   {'compiled' if cuda else 'eager':<8} {speed:>12,.0f} images/s")


if __name__ == "__main__":
    main()
