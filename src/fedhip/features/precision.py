"""The precision that is right for a device: known for GPUs, measured on CPUs."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedhip.features.backbones import Backbone
from fedhip.utils.files import write_text

# bfloat16 costs digits: it must earn them
WORTHWHILE = 1.2
PAIRS = 5


def choose_dtype(backbone: Backbone, memory: Path | None = None, images: int | None = None) -> torch.dtype:
    """bfloat16 on a GPU; on a CPU the faster of float32 and bfloat16, measured once and kept in `memory`.

    A choice holds for these weights, this number of threads and this machine. For so few `images` that twice the speed
    would not make up for the measurement it is float32, unless an earlier choice is known.
    """
    if not backbone.mixed_precision:
        return torch.float32
    if backbone.device.type != "cpu":
        return torch.bfloat16
    machine = f"{platform.node()} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    what = backbone.identity or f"{backbone.name} {backbone.image_size} {backbone.feature_dim}"
    key = f"{what} on {machine}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    path = None if memory is None else memory / "precision.json"
    known = read_choices(path)
    if known.get(key) not in ("bfloat16", "float32"):
        if images is not None and images < 2 * images_measured(backbone):
            return torch.float32
        known[key] = "bfloat16" if speedup(backbone) > WORTHWHILE else "float32"
        if path is not None:
            write_text(path, json.dumps(known, indent=1) + "\n")
    return torch.bfloat16 if known[key] == "bfloat16" else torch.float32


def read_choices(path: Path | None) -> dict[str, str]:
    """Earlier choices; none where the file is missing or damaged."""
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in known.items()} if isinstance(known, dict) else {}


def batch_measured(backbone: Backbone) -> int:
    """As many images as in a batch of extraction, but fewer where each of them is large."""
    return max(8, min(32, 2**17 // backbone.image_size**2))


def images_measured(backbone: Backbone) -> int:
    """How many images the measurement sends through the backbone, in either precision."""
    return 2 * (1 + PAIRS) * batch_measured(backbone)


def speedup(backbone: Backbone, clock: Callable[[], float] = time.perf_counter) -> float:
    """How many times faster bfloat16 is: the median over pairs of runs, one of each right after the other.

    Other work on the machine slows both halves of a pair alike, and a pair it cuts in two does not move the
    median. The first run of each precision, which sets things up, is not counted.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (batch_measured(backbone), backbone.image_size, backbone.image_size, 3)
    images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)

    def seconds(mixed: bool) -> float:
        start = clock()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            backbone(images)
        return clock() - start

    ratios = [seconds(mixed=False) / seconds(mixed=True) for _ in range(1 + PAIRS)]
    return statistics.median(ratios[1:])
