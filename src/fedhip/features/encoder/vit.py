"""A plain vision transformer encoder, as masked auto-encoders use it.

Pre-norm blocks, one class token, fixed sine-cosine positions. The patch embedding is a linear map on
flattened patches (equal to the usual strided convolution), so that only the patches that are kept need to
be embedded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedhip.errors import InputError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ViTConfig:
    """Sizes of an encoder and the pixel normalisation it was trained with."""

    image_size: int = 64
    patch_size: int = 8
    width: int = 192
    depth: int = 12
    heads: int = 3
    mlp_ratio: float = 4.0
    channels: int = 3
    layer_norm_eps: float = 1e-6
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "width", "depth", "heads", "channels"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.image_size % self.patch_size:
            raise InputError(
                f"images of {self.image_size} pixels cannot be cut into patches of {self.patch_size}; "
                f"choose a patch size that divides the image size"
            )
        if self.width % self.heads:
            raise InputError(f"width {self.width} is not a multiple of the {self.heads} heads")
        if self.width % 4:
            raise InputError(f"width {self.width} is not a multiple of 4, which sine-cosine positions need")
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise InputError(
                f"{self.channels} channels need as many means and deviations; got {len(self.mean)} and {len(self.std)}"
            )

    @property
    def grid(self) -> int:
        """Patches along one side."""
        return self.image_size // self.patch_size

    @property
    def num_patches(self) -> int:
        """Patches of one image."""
        return self.grid**2

    @property
    def patch_dim(self) -> int:
        """Numbers in one flattened patch."""
        return self.channels * self.patch_size**2

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON knows them."""
        fields = dataclasses.asdict(self)
        return fields | {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ViTConfig:
        """The inverse of `to_dict`; an unknown or malformed field is an error that names it."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - known)
        if unknown:
            raise InputError(f"unknown field {unknown[0]!r} in an encoder configuration; known: {sorted(known)}")
        try:
            lists = {key: tuple(float(v) for v in fields[key]) for key in ("mean", "std") if key in fields}
            return cls(**{**fields, **lists})
        except TypeError as error:
            raise InputError(f"the encoder configuration {dict(fields)} is malformed: {error}") from error


def sincos_positions(grid: int, width: int) -> Tensor:
    """Sine-cosine positions (1 + grid², width): zeros for the class token, then the patches row by row.

    The first half of the channels encodes the column, the second half the row; each half holds sines, then
    cosines.
    """
    frequencies = 10000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width / 4))
    angles = torch.arange(grid, dtype=torch.float64)[:, None] * frequencies
    line = torch.cat([angles.sin(), angles.cos()], dim=1)
    columns = line[None, :, :].expand(grid, -1, -1)
    rows = line[:, None, :].expand(-1, grid, -1)
    patches = torch.cat([columns, rows], dim=2).reshape(grid * grid, width)
    return torch.cat([patches.new_zeros(1, width), patches]).float()


def patchify(pixels: Tensor, patch_size: int) -> Tensor:
    """(B, C, H, W) → (B, patches, C·p·p); patches row by row, each flattened as channel, row, column."""
    batch, channels, height, width = pixels.shape
    rows, columns = height // patch_size, width // patch_size
    blocks = pixels.reshape(batch, channels, rows, patch_size, columns, patch_size)
    return blocks.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, channels * patch_size**2)


def take(tokens: Tensor, indices: Tensor) -> Tensor:
    """Tokens (B, L, W) at each image's own indices (B, K)."""
    return tokens.gather(1, indices[:, :, None].expand(-1, -1, tokens.shape[2]))


def num_kept(num_patches: int, mask_ratio: float) -> int:
    """Patches that stay visible; rounded down, as MAE does."""
    if not 0.0 <= mask_ratio < 1.0:
        raise InputError(f"mask_ratio is {mask_ratio}; it must be at least 0 and below 1")
    kept = int(num_patches * (1 - mask_ratio))
    if kept < 1:
        raise InputError(f"mask_ratio {mask_ratio} leaves none of {num_patches} patches visible; choose a smaller one")
    return kept


class Attention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, W) → (B, T, W)."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.projection(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, layer_norm_eps: float) -> None:
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.norm1 = nn.LayerNorm(width, eps=layer_norm_eps)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=layer_norm_eps)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, W) → (B, T, W)."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.contract(functional.gelu(self.expand(self.norm2(x))))
        return out


class ViT(nn.Module):
    """The encoder: normalised pixels (B, C, S, S) → tokens (B, 1 + patches, width), class token first."""

    positions: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = nn.Linear(config.patch_dim, config.width)
        self.class_token = nn.Parameter(torch.zeros(config.width))
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.mlp_ratio, config.layer_norm_eps) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width, eps=config.layer_norm_eps)
        self.register_buffer("positions", sincos_positions(config.grid, config.width), persistent=False)

    def embed(self, patches: Tensor, keep: Tensor | None = None) -> Tensor:
        """Class token and embedded patches with positions; only the patches in `keep` (B, K) if given."""
        positions = self.positions[1:]
        if keep is not None:
            patches, positions = take(patches, keep), positions[keep]
        x = self.patch_embedding(patches) + positions
        first = (self.class_token + self.positions[0]).to(x.dtype).expand(x.shape[0], 1, -1)
        return torch.cat([first, x], dim=1)

    def forward(self, pixels: Tensor, keep: Tensor | None = None) -> Tensor:
        """Tokens after the last block and the final norm."""
        return self.layers(pixels, [self.config.depth], keep)[0]

    def layers(self, pixels: Tensor, wanted: Sequence[int], keep: Tensor | None = None) -> list[Tensor]:
        """Tokens after each wanted block (counted 1..depth), in ascending order.

        The final norm is applied to every one of them: the residual stream grows with depth, and the norm
        puts all layers on one scale, which a ridge on their concatenation needs.
        """
        return self.encode(patchify(pixels, self.config.patch_size), wanted, keep)

    def encode(self, patches: Tensor, wanted: Sequence[int], keep: Tensor | None = None) -> list[Tensor]:
        """The same as `layers`, from flattened patches (B, L, C·p·p)."""
        x = self.embed(patches, keep)
        found = []
        for layer, block in enumerate(self.blocks, start=1):
            x = block(x)
            if layer in wanted:
                found.append(self.norm(x))
            if layer == max(wanted):
                break
        return found


def keep_lowest(noise: Tensor, kept: int) -> Tensor:
    """Indices (B, kept) of the patches with the lowest noise (B, L), in its order, as MAE keeps them."""
    return noise.argsort(dim=1, stable=True)[:, :kept]
