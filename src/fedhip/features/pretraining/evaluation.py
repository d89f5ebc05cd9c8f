"""How good features are: the accuracy of a ridge classifier on a labelled set."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray
from torch import Tensor

from fedhip.data.images.pixels import Pixels, check_images
from fedhip.errors import InputError
from fedhip.features.encoder.pooling import Pooling, default_concatenation
from fedhip.features.encoder.vit import ViT
from fedhip.features.images import normalise, to_rgb

# a fifth is held out to choose β, and the deviation of a feature needs two of the others
LEAST_TRAIN = 3
BETAS = tuple(10.0**k for k in range(-6, 2))


@dataclass(frozen=True)
class LabelledSet:
    """Images with labels, and which rows train (0) and test (1)."""

    name: str
    images: Pixels
    labels: NDArray[np.int64]
    split: NDArray[np.int64]

    def __post_init__(self) -> None:
        check_images(self.images, f"the images of {self.name}")
        for what, values in (("labels", self.labels), ("split", self.split)):
            if values.ndim != 1:
                raise InputError(f"the {what} of {self.name} have shape {values.shape}; give one for every image")
        if not len(self.images) == len(self.labels) == len(self.split):
            raise InputError(
                f"{self.name} has {len(self.images)} images, {len(self.labels)} labels and "
                f"{len(self.split)} entries in its split; give one of each for every image"
            )
        if set(np.unique(self.split).tolist()) != {0, 1}:
            raise InputError(f"the split of {self.name} must hold 0 (train) and 1 (test), and both of them")
        train = self.labels[self.split == 0]
        if len(train) < LEAST_TRAIN or len(np.unique(train)) < 2:
            raise InputError(
                f"{self.name} has {len(train)} training rows of {len(np.unique(train))} classes; "
                f"a ridge needs at least {LEAST_TRAIN} of 2"
            )

    @classmethod
    def load(cls, path: Path) -> LabelledSet:
        """Read an .npz with `images`, `labels` and optionally `split`; without it, a random fifth tests."""
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                images, names = file["images"], file["labels"]
                split = file.get("split")
        except (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise InputError(f"cannot read images and labels from {path}: {error}") from error
        if names.ndim != 1:
            raise InputError(f"the labels of {path} have shape {names.shape}; give one for every image")
        if split is not None and not np.isin(split, (0, 1)).all():
            raise InputError(f"the split of {path} holds {np.unique(split)[:5].tolist()}; give 0 (train) or 1 (test)")
        labels = np.unique(names, return_inverse=True)[1].astype(np.int64)
        if split is None:  # drawn thus since the published figures of backbones, and of no client: not hold_out's draw
            split = (np.random.default_rng(0).permutation(len(labels)) < len(labels) // 5).astype(np.int64)
        return cls(path.stem, images, labels, split.astype(np.int64))


def ridge_accuracy(
    features: Tensor, labels: Tensor, split: Tensor, betas: Sequence[float] = BETAS
) -> tuple[float, float]:
    """Test accuracy of argmax x·W, W = argmin ‖XW − Y‖² + βN‖W‖², and the β that was chosen.

    Features are standardised and targets centred with the training rows; β is the best on every fifth
    training row after fitting on the others, and the final fit uses all training rows. float64 throughout.
    """
    train = (split == 0).nonzero().flatten()
    test = (split == 1).nonzero().flatten()
    # Rows of a pool and of no client, on the device: hold_out draws by a client's name.
    shuffled = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).to(train.device)]
    held_out, fitted = shuffled[::5], torch.cat([shuffled[i::5] for i in range(1, 5)])
    classes = int(labels.max()) + 1
    scores = fit_and_score(features, labels, fitted, held_out, betas, classes)
    beta = betas[int(torch.tensor(scores).argmax())]
    return fit_and_score(features, labels, train, test, [beta], classes)[0], beta


def fit_and_score(
    features: Tensor, labels: Tensor, fit: Tensor, score: Tensor, betas: Sequence[float], classes: int
) -> list[float]:
    """Accuracy on the rows `score` of ridges fitted to the rows `fit`; all β from one eigendecomposition."""
    X, Z = features[fit].double(), features[score].double()
    mean, scale = X.mean(0), X.std(0).clamp_min(1e-12)
    X, Z = (X - mean) / scale, (Z - mean) / scale
    Y = functional.one_hot(labels[fit], classes).double()
    offset = Y.mean(0)
    values, vectors = torch.linalg.eigh(X.T @ X)
    rotated, target = Z @ vectors, vectors.T @ (X.T @ (Y - offset))
    accuracies = []
    for beta in betas:
        W = target / (values.clamp_min(0) + beta * len(fit))[:, None]
        accuracies.append(float(((rotated @ W + offset).argmax(1) == labels[score]).double().mean()))
    return accuracies


@torch.no_grad()
def evaluate_encoder(
    encoder: ViT,
    data: LabelledSet,
    *,
    concatenations: Sequence[str] = (),
    device: str | torch.device = "cpu",
    batch: int = 1024,
) -> dict[str, dict[str, float]]:
    """Ridge accuracy of every layer's mean and class token, and of concatenations (one by default)."""
    depth, width = encoder.config.depth, encoder.config.width
    layers = ",".join(str(layer) for layer in range(1, depth + 1))
    everything = Pooling.parse(f"mean:{layers}+cls:{layers}", depth)
    features = encode_images(encoder.to(device).eval(), data.images, everything, torch.device(device), batch)
    labels = torch.tensor(data.labels, device=device)
    split = torch.tensor(data.split, device=device)
    specs = [f"{kind}:{layer}" for kind, layer in everything.parts]
    specs += list(concatenations) or [default_concatenation(depth)]
    results = {}
    for spec in specs:
        chosen = [everything.parts.index(part) for part in Pooling.parse(spec, depth).parts]
        columns = torch.cat([features[:, i * width : (i + 1) * width] for i in chosen], dim=1)
        accuracy, beta = ridge_accuracy(columns, labels, split)
        results[spec] = {"accuracy": accuracy, "beta": beta}
    return results


def encode_images(encoder: ViT, images: Pixels, pooling: Pooling, device: torch.device, batch: int) -> Tensor:
    """Features of all images, kept on the device."""
    config = encoder.config
    out = []
    for start in range(0, len(images), batch):
        part = torch.from_numpy(np.array(to_rgb(images[start : start + batch]))).to(device)
        pixels = normalise(part, config.image_size, config.mean, config.std)
        with torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext():
            out.append(pooling(encoder, pixels))
    return torch.cat(out)
