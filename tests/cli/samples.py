"""A command, what it said, and whether it kept to one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedhip.cli.common.exit_codes import FAILED
from fedhip.cli.main import main
from fedhip.features import ViT, ViTConfig, save_encoder
from tests.core.problems import Array

CLASSES = ("dark", "bright")


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines on standard error, those of progress left out."""
    return [line for line in capsys.readouterr().err.splitlines() if "█" not in line]


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command that must be refused with one line; the line."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == FAILED
    lines = said(capsys)
    assert len(lines) == 1, lines
    assert lines[0].startswith("fedhip: ")
    return lines[0]


def done(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def encoder(folder: Path) -> Path:
    """A random encoder of images of 16 × 16."""
    torch.manual_seed(0)
    save_encoder(
        folder / "encoder.safetensors", ViT(ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=2))
    )
    return folder / "encoder.safetensors"


def squares(rows: int, seed: int = 0) -> tuple[Array, Array]:
    """Dark and bright images with their labels."""
    labels = np.arange(rows) % 2
    images = np.random.default_rng(seed).integers(0, 60, (rows, 16, 16, 3)) + 180 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def image_folder(folder: Path, clients: tuple[str, ...] = (), rows: int = 10) -> Path:
    """client/class/image, or class/image without clients."""
    for number, client in enumerate(clients or ("",)):
        for i, (image, label) in enumerate(zip(*squares(rows, number), strict=True)):
            place = folder / client / CLASSES[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{i}.png")
    return folder


def deepen(source: Path, target: Path, bits: int = 12) -> Path:
    """The same pictures in 16-bit files, of which they use so many; the lower bits are noise."""
    rng = np.random.default_rng(0)
    for file in sorted(source.rglob("*.png")):
        grey = np.asarray(Image.open(file).convert("L")).astype(np.uint16)
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 1 << (bits - 8), grey.shape, np.uint16)
        Image.fromarray((grey << (bits - 8)) + noise).save(place)
    return target
