"""What made the features of which images: enough to do it again, and to know that it is the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhip.data.images.window import Window
from fedhip.errors import InputError

if TYPE_CHECKING:
    import torch

    from fedhip.features.backbones import Backbone


@dataclass(frozen=True)
class BackboneReference:
    """A backbone by name and settings, with the digest of its weights (None where it has none).

    `window` is what brought its images to 8 bits; None where they had no more.
    """

    name: str
    identity: str | None
    precision: str
    pooling: str | None = None
    weights: str | None = None
    mask_ratio: float = 0.0
    mask_seed: int = 0
    window: Window | None = None

    def __post_init__(self) -> None:
        if isinstance(self.window, list | tuple):  # as JSON and TOML have it
            object.__setattr__(self, "window", Window(*self.window))

    def __str__(self) -> str:
        taken = "" if self.window is None else f", {self.window} in 8 bits"
        return f"{self.name} in {self.precision}{taken}"

    @property
    def dtype(self) -> torch.dtype:
        """The precision of its matrix products."""
        import torch

        dtype: torch.dtype = getattr(torch, self.precision)
        return dtype

    def to_dict(self) -> dict[str, Any]:
        """For JSON; without a window, as it was before there were any."""
        fields = {name: value for name, value in asdict(self).items() if name != "window"}
        return fields if self.window is None else {**fields, "window": [self.window.low, self.window.high]}

    def load(self, *, weights: Path | None = None, device: str | torch.device | None = None) -> Backbone:
        """Load it, from other weights files if given, and refuse one that would give other features."""
        from fedhip.features.backbones import load_backbone

        backbone = load_backbone(
            self.name,
            pooling=self.pooling,
            device=device,
            mask_ratio=self.mask_ratio,
            mask_seed=self.mask_seed,
            weights=weights or self.weights,
        )
        if backbone.identity != self.identity:
            raise InputError(
                f"the backbone {self.name} here has digest {_short(backbone.identity)}, and the model was made with "
                f"{_short(self.identity)}: its features would not fit; give the weights the model was made with"
            )
        return backbone


def _short(identity: str | None) -> str:
    return "none" if identity is None else f"{identity[:12]}…"
