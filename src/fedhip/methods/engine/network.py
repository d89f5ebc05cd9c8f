"""The heads that methods train, and their gradients in closed form, for k clients at once.

linear   scores = x W + b
mlp      scores = relu(x U + c) W + b

Parameters are (W, b) or (U, c, W, b), each with the clients as its first axis. Loss is softmax cross-entropy. With
δ = (softmax(scores) − onehot(y)) · w, w the weight of each row, ∂/∂W = hᵀδ and ∂/∂b = Σδ, where h is what the layer
took in; so a layer's gradient is the pair (h, δ), and a step of SGD one matrix product onto W.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

Params = tuple[Tensor, ...]
Factors = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Batch:
    """A mini-batch of each of k clients: x (k, B, m), labels y (k, B), and w (k, B), the rate over the batch's rows.

    Rows that only fill up a smaller batch have w = 0; a client that has finished has no other.
    """

    x: Tensor
    y: Tensor
    w: Tensor

    @property
    def active(self) -> Tensor:
        """(k,), 1 for clients with rows in this batch and 0 for those that have finished."""
        return (self.w[:, 0] > 0).to(self.w.dtype)


def initial(widths: Sequence[int], seed: int, dtype: torch.dtype, device: torch.device) -> Params:
    """(W, b) or (U, c, W, b) for widths (m, d) or (m, h, d), without the axis of clients: uniform in ±1/√fan-in."""
    generator = torch.Generator().manual_seed(seed)
    params: list[Tensor] = []
    for inputs, outputs in pairwise(widths):
        for shape in ((inputs, outputs), (outputs,)):
            draw = torch.rand(shape, generator=generator, dtype=torch.float64)
            params.append(((2 * draw - 1) / inputs**0.5).to(device, dtype))
    return tuple(params)


def affine(x: Tensor, W: Tensor, b: Tensor) -> Tensor:
    """x W + b for each client."""
    return torch.baddbmm(b.unsqueeze(1), x, W)


def layer_inputs(params: Params, x: Tensor, shift: Tensor | None = None) -> list[Tensor]:
    """What each layer takes in; `shift` (k, h) is added to what the last one does."""
    inputs = [x] if len(params) == 2 else [x, affine(x, *params[:2]).relu_()]
    if shift is not None:
        inputs[-1] = inputs[-1] + shift.unsqueeze(1)
    return inputs


def scores(params: Params, x: Tensor) -> Tensor:
    """(k, B, d)."""
    return affine(layer_inputs(params, x)[-1], *params[-2:])


def shifted_scores(params: Params, x: Tensor) -> Tensor:
    """(k, B, d) of parameters whose last, (k, h), is added to what the last layer takes in."""
    return affine(layer_inputs(params[:-1], x, params[-1])[-1], *params[-3:-1])


def softmax_errors(logits: Tensor, batch: Batch) -> Tensor:
    """δ = (softmax(logits) − onehot(y)) · w."""
    w = batch.w.unsqueeze(-1)
    return logits.softmax(dim=-1).mul_(w).scatter_add_(-1, batch.y.unsqueeze(-1), -w)


def hidden_errors(params: Params, hidden: Tensor, delta: Tensor) -> Tensor:
    """δ of the hidden layer: δ Wᵀ where the unit is on."""
    return (delta @ params[2].mT).mul_(hidden > 0)


def gradient(params: Params, batch: Batch) -> Factors:
    """(h, δ) of each layer, times the rate."""
    inputs = layer_inputs(params, batch.x)
    delta = softmax_errors(affine(inputs[-1], *params[-2:]), batch)
    if len(inputs) == 1:
        return [(inputs[0], delta)]
    return [(inputs[0], hidden_errors(params, inputs[1], delta)), (inputs[1], delta)]


def dense(factors: Factors) -> list[Tensor]:
    """The gradient with the shapes of the parameters."""
    return [tensor for h, delta in factors for tensor in (h.mT @ delta, delta.sum(dim=1))]


def descend(params: Params, factors: Factors) -> None:
    """θ ← θ − gradient, in place."""
    for W, b, (h, delta) in zip(params[::2], params[1::2], factors, strict=True):
        W.baddbmm_(h.mT, delta, alpha=-1)
        b.sub_(delta.sum(dim=1))


def weighted_loss(params: Params, batch: Batch) -> Tensor:
    """(k,): Σ w · cross-entropy over the rows of the batch."""
    logs = torch.log_softmax(scores(params, batch.x), dim=-1).gather(-1, batch.y.unsqueeze(-1))
    return -(logs.squeeze(-1) * batch.w).sum(dim=1)
