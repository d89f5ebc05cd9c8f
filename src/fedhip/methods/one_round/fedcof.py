"""FedCOF (Goswami et al., 2025): covariances from the spread of the clients' class means.

Differs from the paper: in float64, where its code has float32; nothing is fine-tuned afterwards.

client   μ_kc, n_kc of its own classes; with `parts` M > 1, of at most M parts of a class's rows, of 2 rows or more each
server   Σ̂_c = 1/(K_c − 1) Σ_k n_kc (μ_kc − μ_c)(μ_kc − μ_c)ᵀ + γI,   K_c the number of means of class c
         Ĝ = Σ_c (N_c − 1) Σ̂_c + N μ μᵀ,   W = Ĝ⁻¹ H with H_c = N_c μ_c,   each column of W to length 1
test     the class of x is argmax_c x·w_c

A mean of one row is that row: what clients send hides nobody. The means are the same however rows are divided, the
covariance is not: it is unbiased where a class's rows are spread over the clients by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedhip.core.solvers import rank_tolerance
from fedhip.heads.options import Option
from fedhip.methods.engine.closed import ClosedTask
from fedhip.methods.engine.laboratory import nbytes
from fedhip.methods.engine.one_round import Fitted, one_round
from fedhip.simulation.client import Client
from fedhip.simulation.orders import PARTS, client_order


@dataclass(frozen=True)
class Means:
    """Means (p, m) of some rows of a class each, their numbers of rows (p,), and their classes (p,)."""

    means: Tensor
    rows: Tensor
    classes: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor, order: Tensor, num_classes: int, parts: int) -> Means:
        """A client's: each class in at most so many parts, in this order of its rows, of at least 2 rows each."""
        place = torch.empty_like(y)
        for label in torch.unique(y):
            of_class = order[y[order] == label]
            place[of_class] = torch.arange(len(of_class), device=y.device) % min(parts, max(len(of_class) // 2, 1))
        which = y * parts + place
        rows = torch.bincount(which, minlength=num_classes * parts)
        sums = x.new_zeros(len(rows), x.shape[1]).index_add_(0, which, x)
        sent = rows.nonzero()[:, 0]
        return cls(sums[sent] / rows[sent, None], rows[sent], sent // parts)


def gram_and_sums(of: Means, num_classes: int, gamma: float) -> tuple[Tensor, Tensor]:
    """Ĝ (m, m) and H (m, d) from all clients' means."""
    d, m = num_classes, of.means.shape[1]
    onehot = torch.nn.functional.one_hot(of.classes, d).to(of.means)
    weighted = of.means * of.rows[:, None]
    H = weighted.mT @ onehot
    N, K = (onehot * of.rows[:, None]).sum(dim=0), onehot.sum(dim=0)
    # A class of which there is one mean has no spread, and γI alone.
    weight = of.rows * ((N - 1) / (K - 1).clamp(min=1))[of.classes]
    apart = of.means - (H / N.clamp(min=1)).mT[of.classes]
    whole = H.sum(dim=1)
    G = (apart * weight[:, None]).mT @ apart + torch.outer(whole, whole) / N.sum()
    return G + gamma * (N - 1).clamp(min=0).sum() * torch.eye(m).to(G), H


def normalised_solution(G: Tensor, H: Tensor) -> Tensor:
    """G⁻¹H with columns of length 1; a pseudo-inverse where G is singular."""
    values, V = torch.linalg.eigh(G)
    kept = values > rank_tolerance(len(values)) * float(values.max())
    return normalize(V[:, kept] @ (V[:, kept].mT @ H / values[kept, None]), dim=0)


@one_round(
    "fedcof",
    "FedCOF",
    "a global head from class means, with the covariance that their spread over clients tells of",
    Option("gamma", 1.0),
    Option("parts", 1.0, whole=True),
)
def fit_fedcof(task: ClosedTask) -> Fitted:
    """Every client sends its class means and counts, and receives the head."""
    parts, training = int(task.options["parts"]), task.training

    def send(client: Client) -> Means:
        x, y = task.tensors(client.train)
        order = torch.from_numpy(client_order(len(y), task.seed, client.name, 0, 0, PARTS)).to(task.device)
        return Means.of(x, y, order, task.num_classes, parts)

    sent = []
    for done, client in enumerate(training, start=1):
        sent.append(send(client))
        task.report("class means", done, len(training))
    everybody = Means(*(torch.cat([getattr(one, name) for one in sent]) for name in ("means", "rows", "classes")))
    W = normalised_solution(*gram_and_sums(everybody, task.num_classes, task.options["gamma"]))
    return Fitted(lambda x: x @ W, round(nbytes(everybody.means, everybody.rows) / len(training)), nbytes(W))
