"""SAFLe (Bacellar et al., 2026), reconstructed: features as bits, bits in groups, groups as cells, one sparse ridge.

Differs from the paper: a reconstruction from a summary. Where its thresholds lie is not known: here at normal quantiles
of standardised features. A ridge in place of its pseudo-inverse; groups are dropped until there are at most `cells`.

bits     b_il = [x_i > t_l] for thresholds t_1 < … < t_L, all m·L in an order drawn by the seed
cells    each g bits that follow one another are a group, and number one of its V = 2^g cells
Φ(x)     a 1 in the cell of each of the E groups, 0 elsewhere (E·V wide)
server   W = (Σ Φ_kᵀΦ_k + b (N/V) I)⁻¹ Σ Φ_kᵀY_k,   N/V the mean of the diagonal

The sums are of whole numbers: given the thresholds, the same bits however rows are divided. A cell of one row is a
row's pattern of bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedhip.errors import InputError
from fedhip.heads.options import Option
from fedhip.methods.engine.closed import ClosedTask
from fedhip.methods.engine.gaussian import triangle
from fedhip.methods.engine.one_round import Fitted, one_round, standardization_bytes, standardize
from fedhip.simulation.orders import CELLS, draw


def cells_of(x: Tensor, thresholds: Sequence[float], order: Tensor, group: int) -> Tensor:
    """(n, E): the cell of each group. Bits stand threshold by threshold; `order` (E·g,) says which are used and how."""
    bits = torch.cat([x > t for t in thresholds], dim=1)[:, order].view(len(x), -1, group)
    powers = 2 ** torch.arange(group, device=x.device)
    return (bits * powers).sum(dim=2)


def indicators(cells: Tensor, group: int) -> Tensor:
    """Φ (n, E·V) in float32, in which whole numbers are exact up to 2²⁴."""
    return one_hot(cells, 2**group).flatten(1).float()


@one_round(
    "safle",
    "SAFLe (reconstructed)",
    "a global ridge on cells that groups of features, cut into bits, fall into",
    Option("thresholds", 7.0, whole=True),
    Option("group", 5.0, whole=True, most=12.0),
    Option("cells", 4096.0, whole=True),
    Option("penalty", 0.1, positive=True),
)
def fit_safle(task: ClosedTask) -> Fitted:
    """Every client sends sums for the standardisation, then counts of cells, alone, in pairs and by class."""
    shared, d = standardize(task), task.num_classes
    m, L, g = len(shared.mean), int(task.options["thresholds"]), int(task.options["group"])
    groups = min(m * L // g, int(task.options["cells"]) // 2**g)
    if groups < 1:
        raise InputError(
            f"SAFLe: groups of {g} bits, {m * L} bits in all and {int(task.options['cells'])} cells leave no group; "
            "give a smaller group, more thresholds or more cells"
        )
    thresholds = [NormalDist().inv_cdf(number / (L + 1)) for number in range(1, L + 1)]
    order = torch.from_numpy(draw(task.seed, CELLS).permutation(m * L)[: groups * g]).to(task.device)

    def lift(x: Tensor) -> Tensor:
        return indicators(cells_of(shared.features(x), thresholds, order, g), g)

    width = groups * 2**g
    gram = torch.zeros(width, width, device=task.device)
    cross = torch.zeros(width, d, device=task.device)
    for done, client in enumerate(task.training, start=1):
        x, y = task.tensors(client.train)
        phi = lift(x)
        gram.addmm_(phi.mT, phi)
        cross.addmm_(phi.mT, one_hot(y, d).float())
        task.report("cells", done, len(task.training))
    G, N = gram.double(), int(task.all_counts.sum())
    G.diagonal().add_(task.options["penalty"] * N / 2**g)
    W = torch.cholesky_solve(cross.double(), torch.linalg.cholesky(G)).float()
    up, down = standardization_bytes(m)
    # Counts take four bytes each.
    up += triangle(width) // 2 + 4 * width * d + 8 * d
    return Fitted(lambda x: (lift(x) @ W).double(), up, down + 4 * width * d, rounds=2)
