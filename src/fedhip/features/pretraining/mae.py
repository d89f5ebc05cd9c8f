"""Masked auto-encoding: the encoder sees a quarter of the patches, a small decoder predicts the rest.

Self-attention does not care about the order of its tokens, so the decoder works on them in shuffled order,
visible first. That is the same function as putting them back in place, without a single scatter in the
backward pass, and the predictions of the masked patches are a slice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedhip.errors import InputError
from fedhip.features.encoder.vit import Block, ViT, ViTConfig, num_kept, patchify, sincos_positions, take


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the decoder, which is thrown away after training."""

    width: int = 192
    depth: int = 4
    heads: int = 3

    def __post_init__(self) -> None:
        for name in ("width", "depth", "heads"):
            if getattr(self, name) < 1:
                raise InputError(f"decoder {name} is {getattr(self, name)}; it must be at least 1")
        if self.width % self.heads or self.width % 4:
            raise InputError(f"decoder width {self.width} must be a multiple of 4 and of its {self.heads} heads")


class MaskedAutoencoder(nn.Module):
    """Encoder, decoder and the loss on masked patches."""

    decoder_positions: Tensor

    def __init__(self, config: ViTConfig, decoder: DecoderConfig, mask_ratio: float = 0.75) -> None:
        super().__init__()
        self.kept = num_kept(config.num_patches, mask_ratio)
        self.encoder = ViT(config)
        self.bridge = nn.Linear(config.width, decoder.width)
        self.mask_token = nn.Parameter(torch.zeros(decoder.width))
        self.blocks = nn.ModuleList(
            Block(decoder.width, decoder.heads, 4.0, config.layer_norm_eps) for _ in range(decoder.depth)
        )
        self.norm = nn.LayerNorm(decoder.width, eps=config.layer_norm_eps)
        self.predict = nn.Linear(decoder.width, config.patch_dim)
        positions = sincos_positions(config.grid, decoder.width)
        self.register_buffer("decoder_positions", positions, persistent=False)

    def initialize(self, seed: int) -> None:
        """Xavier-uniform matrices, small normal tokens, from one seed; the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.encoder.class_token, std=0.02, generator=generator)
        nn.init.normal_(self.mask_token, std=0.02, generator=generator)

    def forward(self, pixels: Tensor, noise: Tensor) -> Tensor:
        """Mean squared error on the masked patches of pixels (B, C, S, S); noise is (B, patches)."""
        patches = patchify(pixels, self.encoder.config.patch_size)
        order = noise.argsort(dim=1)
        keep, masked = order[:, : self.kept], order[:, self.kept :]
        target = normalise_patches(take(patches, masked))
        prediction = self.decode(self.encoder.encode(patches, [self.encoder.config.depth], keep)[0], keep, masked)
        return functional.mse_loss(prediction.float(), target)

    def decode(self, tokens: Tensor, keep: Tensor, masked: Tensor) -> Tensor:
        """Predicted pixels (B, masked, C·p·p) from the encoder's tokens (B, 1 + kept, W)."""
        positions = self.decoder_positions
        x = self.bridge(tokens)
        visible = x[:, 1:] + positions[1:][keep]
        hidden = self.mask_token + positions[1:][masked]
        x = torch.cat([(x[:, :1] + positions[0]).to(visible.dtype), visible, hidden.to(visible.dtype)], dim=1)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.predict(self.norm(x[:, 1 + self.kept :]))
        return out


def normalise_patches(patches: Tensor, eps: float = 1e-6) -> Tensor:
    """Each patch (last dimension) with mean 0 and variance 1."""
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    return (patches - mean) * (variance + eps).rsqrt()


def draw_boxes(count: int, area: tuple[float, float], generator: torch.Generator, device: torch.device) -> Tensor:
    """Random crops as affine maps (count, 2, 3): area in a range, aspect 3:4 to 4:3, half mirrored."""
    u = torch.rand(5, count, generator=generator, device=device)
    size = area[0] + (area[1] - area[0]) * u[0]
    aspect = torch.exp((2 * u[1] - 1) * math.log(4 / 3))
    width = (size * aspect).sqrt().clamp(max=1.0)
    height = (size / aspect).sqrt().clamp(max=1.0)
    x, y = (1 - width) * (2 * u[2] - 1), (1 - height) * (2 * u[3] - 1)
    flip = torch.where(u[4] < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(x)
    return torch.stack([flip * width, zero, x, zero, height, y], dim=1).view(count, 2, 3)


def crop(images: Tensor, boxes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """uint8 images (B, C, S, S) → normalised crops of the same size; all of them in one bilinear sampling."""
    grid = functional.affine_grid(boxes, list(images.shape), align_corners=False)
    sampled = functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return (sampled / 255 - mean) / std
