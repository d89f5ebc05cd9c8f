"""From the tokens of an encoder to one feature vector for each image.

A specification is a sum of parts, `kind[:layers]`: `cls` is the class token, `mean` the mean of the
(visible) patches; layers are counted from 1 and default to the last. `"mean:6,8,10,12+cls"` is five vectors
side by side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.errors import InputError
from fedhip.features.encoder.vit import ViT

PART = re.compile(r"(cls|mean)(?::(\d+(?:,\d+)*))?")


@dataclass(frozen=True)
class Pooling:
    """What to concatenate: pairs of kind (`cls` or `mean`) and layer."""

    parts: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, spec: str, depth: int) -> Pooling:
        """Read a specification for an encoder of `depth` layers."""
        parts: list[tuple[str, int]] = []
        for text in spec.replace(" ", "").split("+"):
            match = PART.fullmatch(text)
            if match is None:
                raise InputError(
                    f"cannot read {text!r} in the pooling {spec!r}; write parts such as 'cls', 'mean' or "
                    f"'mean:6,12', joined by '+'"
                )
            kind, layers = match.groups()
            parts += [(kind, int(layer)) for layer in (layers.split(",") if layers else [depth])]
        for part in parts:
            if not 1 <= part[1] <= depth:
                raise InputError(f"the pooling {spec!r} names layer {part[1]}; this encoder has layers 1 to {depth}")
            if parts.count(part) > 1:
                raise InputError(f"the pooling {spec!r} takes {part[0]} of layer {part[1]} twice")
        return cls(tuple(parts))

    @property
    def layers(self) -> list[int]:
        """The layers that are needed, ascending."""
        return sorted({layer for _, layer in self.parts})

    def __str__(self) -> str:
        return "+".join(f"{kind}:{layer}" for kind, layer in self.parts)

    def __call__(self, encoder: ViT, pixels: Tensor, keep: Tensor | None = None) -> Tensor:
        """Features (B, len(parts) · width) in float32."""
        tokens = dict(zip(self.layers, encoder.layers(pixels, self.layers, keep), strict=True))
        vectors = [
            tokens[layer][:, 0].float() if kind == "cls" else tokens[layer][:, 1:].mean(dim=1, dtype=torch.float32)
            for kind, layer in self.parts
        ]
        return torch.cat(vectors, dim=1)


def default_concatenation(depth: int) -> str:
    """The means of four layers of the upper half, and the class token: `mean:6,8,10,12+cls` at depth 12."""
    layers = sorted({max(1, round(depth * share)) for share in (1 / 2, 2 / 3, 5 / 6, 1)})
    return f"mean:{','.join(map(str, layers))}+cls"
