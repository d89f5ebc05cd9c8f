"""What a pre-training run is: sizes, optimiser, and a schedule by steps or by time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedhip.errors import InputError
from fedhip.features.encoder.masking import check_seed
from fedhip.features.encoder.vit import ViTConfig, num_kept
from fedhip.features.pretraining.mae import DecoderConfig


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result of a run, apart from the pool.

    Exactly one of `steps` and `minutes` is given. `learning_rate` is the peak; by default 1.5e-4 for each
    256 images of the batch (2.4e-3 at 4096).
    """

    encoder: ViTConfig = field(default_factory=ViTConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    mask_ratio: float = 0.75
    steps: int | None = None
    minutes: float | None = None
    batch: int = 4096
    learning_rate: float | None = None
    warmup: float = 0.05
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.95)
    crop_area: tuple[float, float] = (0.2, 1.0)
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise InputError(f"give steps or minutes, not both or neither; got {self.steps} and {self.minutes}")
        for name in ("steps", "minutes", "batch", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} is {value}; it must be positive")
        if not 0 <= self.warmup < 1:
            raise InputError(f"warmup is {self.warmup}; it is a share of the run, at least 0 and below 1")
        if not 0 < self.crop_area[0] <= self.crop_area[1] <= 1:
            raise InputError(f"crop_area is {self.crop_area}; give two shares of the image, the smaller first")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay is {self.weight_decay}; it must be at least 0")
        check_seed(self.seed, "seed")
        if num_kept(self.encoder.num_patches, self.mask_ratio) == self.encoder.num_patches:
            raise InputError(f"mask_ratio {self.mask_ratio} masks no patch; there would be nothing to learn")

    @property
    def peak(self) -> float:
        """The highest learning rate."""
        return 1.5e-4 * self.batch / 256 if self.learning_rate is None else self.learning_rate

    def progress(self, step: int, seconds: float) -> float:
        """How far the run is, from 0 to 1, before this step."""
        return step / self.steps if self.steps is not None else seconds / (60 * (self.minutes or math.inf))

    def rate(self, progress: float) -> float:
        """Learning rate: linear warm-up, then half a cosine to zero."""
        if progress < self.warmup:
            return self.peak * progress / self.warmup
        return self.peak * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - self.warmup) / (1 - self.warmup))))

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON knows them."""
        fields = dataclasses.asdict(self) | {"encoder": self.encoder.to_dict()}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}

    def first_difference(self, other: Mapping[str, Any]) -> str | None:
        """The first field in which another run's `to_dict` differs, in words."""
        mine, theirs = flat(self.to_dict()), flat(other)
        for key in mine:
            if mine[key] != theirs.get(key):
                return f"{key} was {theirs.get(key)!r} and is now {mine[key]!r}"
        return None


def flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under names such as `encoder.width`."""
    out: dict[str, Any] = {}
    for key, value in fields.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out
