"""DeepAFL (Tang et al., 2026): residual blocks of random features, each solved by least squares from sums.

Differs from the paper: written after its code, the text being out of reach; features are standardised first, by the
federation's mean and deviation; sums in float64, EᵀR sent where its code sends more; no depth is chosen on test rows.

Φ_0 = tanh(F A + a);   E_t = gelu(Φ_t B_t + b_t),   Φ_{t+1} = Φ_t + E_t Ω_{t+1};   A, B_t and biases drawn by the seed
head    W_t = (Σ Φ_tᵀΦ_t + λI)⁻¹ Σ Φ_tᵀY,   scores Φ_T W_T
block   min ‖R − E Ω W_t‖² + γ‖Ω‖² over Ω,   R = Y − Φ_t W_t.   With EᵀE = V diag(s) Vᵀ and W_t = U diag(τ) Zᵀ:
        Ω = V [(Vᵀ EᵀR Z)_ij τ_j / (γ + s_i τ_j²)] Uᵀ

‖Y − Φ_tW_t‖² + λ‖W_t‖² never rises with t. The same however rows are divided, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, one_hot

from fedhip.core.standardization import Standardization
from fedhip.heads.options import Option
from fedhip.methods.engine import network
from fedhip.methods.engine.closed import ClosedTask
from fedhip.methods.engine.gaussian import triangle
from fedhip.methods.engine.network import Params
from fedhip.methods.engine.one_round import Fitted, one_round, standardization_bytes, standardize

Layer = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Network:
    """What makes Φ of features: the first layer, and each block's layer with its Ω."""

    standardization: Standardization
    first: Layer
    blocks: tuple[tuple[Layer, Tensor], ...] = ()

    def start(self, x: Tensor) -> Tensor:
        """Φ_0."""
        A, a = self.first
        return torch.tanh(self.standardization.features(x) @ A + a)

    def features(self, x: Tensor) -> Tensor:
        """Φ_T (n, h)."""
        phi = self.start(x)
        for layer, omega in self.blocks:
            phi = phi + activation(phi, layer) @ omega
        return phi


def activation(phi: Tensor, layer: Layer) -> Tensor:
    """E = gelu(Φ B + b)."""
    return gelu(phi @ layer[0] + layer[1])


def solve_head(rows: Iterable[tuple[Tensor, Tensor]], penalty: float) -> Tensor:
    """W from each client's (Φ, Y): the ridge of all rows."""
    gram, cross = _sums((phi, phi, Y) for phi, Y in rows)
    gram.diagonal().add_(penalty)
    return torch.cholesky_solve(cross, torch.linalg.cholesky(gram))


def solve_block(rows: Iterable[tuple[Tensor, Tensor]], W: Tensor, penalty: float) -> Tensor:
    """Ω from each client's (E, R)."""
    gram, cross = _sums((E, E, R) for E, R in rows)
    s, V = torch.linalg.eigh(gram)
    U, tau, Zt = torch.linalg.svd(W, full_matrices=False)
    middle = (V.mT @ cross @ Zt.mT) * tau / (penalty + s.clamp(min=0)[:, None] * tau.square())
    omega: Tensor = V @ middle @ U.mT
    return omega


def _sums(parts: Iterable[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Σ AᵀB and Σ AᵀC over the clients' (A, B, C)."""
    found: tuple[Tensor, Tensor] | None = None
    for A, B, C in parts:
        if found is None:
            found = A.mT @ B, A.mT @ C
        else:
            found[0].addmm_(A.mT, B)
            found[1].addmm_(A.mT, C)
    if found is None:
        raise ValueError("there are no clients")
    return found


def train_network(
    start: Network, layers: Sequence[Layer], clients: Sequence[tuple[Tensor, Tensor]], penalties: tuple[float, float],
    task: ClosedTask,
) -> tuple[Network, Tensor]:  # fmt: skip
    """The network after one block for each of the layers, and its head; clients are (features, one-hot labels)."""
    of_head, of_block = penalties
    phis, targets, blocks = [start.start(x) for x, _ in clients], [Y for _, Y in clients], []
    W = solve_head(zip(phis, targets, strict=True), of_head)
    for done, layer in enumerate(layers, start=1):
        E = [activation(phi, layer) for phi in phis]
        residuals = [Y - phi @ W for phi, Y in zip(phis, targets, strict=True)]
        omega = solve_block(zip(E, residuals, strict=True), W, of_block)
        for phi, part in zip(phis, E, strict=True):
            phi.addmm_(part, omega)
        W = solve_head(zip(phis, targets, strict=True), of_head)
        blocks.append((layer, omega))
        task.report("blocks", done, len(layers))
    return Network(start.standardization, start.first, tuple(blocks)), W


@one_round(
    "deepafl",
    "DeepAFL",
    "a deep global head of random features, block after block by least squares, in 2T + 2 rounds of sums",
    Option("blocks", 20.0, whole=True),
    Option("width", 1024.0, whole=True),
    Option("penalty", 1.0, positive=True),
    Option("block_penalty", 0.05, positive=True),
)
def fit_deepafl(task: ClosedTask) -> Fitted:
    """Every client sends sums for the standardisation, the first head, and then for each block and its head."""
    T, h, d = int(task.options["blocks"]), int(task.options["width"]), task.num_classes
    shared = standardize(task)
    m = len(shared.mean)
    drawn: Params = network.initial((m, *[h] * (T + 1)), task.seed, torch.float64, torch.device(task.device))
    first, *layers = zip(drawn[::2], drawn[1::2], strict=True)
    rows = [task.tensors(client.train) for client in task.training]
    clients = [(x, one_hot(y, d).double()) for x, y in rows]
    penalties = task.options["penalty"], task.options["block_penalty"]
    network_, W = train_network(Network(shared, first), layers, clients, penalties, task)
    up, down = standardization_bytes(m)
    return Fitted(
        lambda x: network_.features(x) @ W,
        up + 8 * d + (2 * T + 1) * (triangle(h) + 8 * h * d),
        down + (T + 1) * 8 * h * d + T * 8 * h * h,
        rounds=2 * T + 2,
    )
