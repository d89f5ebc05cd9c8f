"""The precision that is right for a device: known for GPUs, measured on CPUs."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path

import torch

from fedhip.data.files import write_text
from fedhip.features.backbones import Backbone

# bfloat16 costs digits: it must earn them
WORTHWHILE = 1.2


def choose_dtype(backbone: Backbone, memory: Path | None = None) -> torch.dtype:
    """bfloat16 on a GPU; on a CPU the faster of float32 and bfloat16, measured once and kept in `memory`."""
    if not backbone.mixed_precision:
        return torch.float32
    if backbone.device.type != "cpu":
        return torch.bfloat16
    place = f"{platform.machine()} {platform.processor()} {torch.backends.cpu.get_cpu_capability()}"
    key = f"{backbone.name} {backbone.image_size} {backbone.feature_dim} on {place} torch {torch.__version__}"
    path = None if memory is None else memory / "precision.json"
    known = read_choices(path)
    if key not in known:
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


def speedup(backbone: Backbone, count: int = 8) -> float:
    """How many times faster bfloat16 is on a few images."""
    images = torch.randint(0, 256, (count, backbone.image_size, backbone.image_size, 3), dtype=torch.uint8)
    seconds = {}
    for mixed in (False, True):
        times = []
        for _ in range(3):
            start = time.perf_counter()
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                backbone(images)
            times.append(time.perf_counter() - start)
        seconds[mixed] = min(times)
    return seconds[False] / seconds[True]
