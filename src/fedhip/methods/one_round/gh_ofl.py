"""GH-OFL (Turazza et al., 2026): naive Bayes, linear and quadratic discriminants from sums of moments.

Differs from the paper: its closed-form heads alone, of the features themselves; the two heads that its server trains on
synthetic rows, and its random projection, are left out.

client   counts and class sums; and for `gh-nb` sums of squares by class, for `gh-lda` the products of all its rows,
         for `gh-qda` the products of each class's rows
gh-nb    v_c = E_c[x²] − μ_c², at least `floor`;   scores_c(x) = log π_c − ½ Σ (x − μ_c)²/v_c − ½ Σ log v_c
gh-lda   Σ = S_W / (N − d), shrunk by s, + floor·I;   scores_c(x) = x·Σ⁻¹μ_c − ½ μ_c·Σ⁻¹μ_c + log π_c
gh-qda   S_c of each class (N_c − 1), shrunk by s, + floor·I = L_cL_cᵀ;   a class of one row has the Σ of gh-lda
         scores_c(x) = log π_c − ½ ‖L_c⁻¹(x − μ_c)‖² − Σ log diag L_c

d counts the classes that somebody has. The same however rows are divided. Of a class with fewer rows than features, the
products that `gh-qda` asks for are nearly the rows themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.heads.options import Option
from fedhip.methods.engine.closed import ClosedTask
from fedhip.methods.engine.gaussian import LinearScores, Sums, log_shares, means_of, shrunk, triangle
from fedhip.methods.engine.laboratory import nbytes
from fedhip.methods.engine.one_round import Fitted, one_round

FLOOR = Option("floor", 1e-6, positive=True)


@dataclass(frozen=True)
class NaiveBayes:
    """Class means and variances (d, m), and log π (d,)."""

    means: Tensor
    variances: Tensor
    log_prior: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """(n, d)."""
        weights = 1 / self.variances
        distances = x.square() @ weights.mT - 2 * x @ (weights * self.means).mT + (weights * self.means**2).sum(dim=1)
        return self.log_prior - distances / 2 - self.variances.log().sum(dim=1) / 2


@one_round(
    "gh-nb", "GH-NB", "naive Bayes of all rows: each class's mean and variances", FLOOR,
)  # fmt: skip
def fit_nb(task: ClosedTask) -> Fitted:
    """Every client sends sums and sums of squares by class, and receives the head."""
    d, training = task.num_classes, task.training
    sums = torch.zeros(d, training[0].train[0].shape[1], dtype=torch.float64, device=task.device)
    squares, counts = torch.zeros_like(sums), torch.zeros(d, dtype=torch.int64, device=task.device)
    for done, client in enumerate(training, start=1):
        x, y = task.tensors(client.train)
        counts += torch.bincount(y, minlength=d)
        sums.index_add_(0, y, x)
        squares.index_add_(0, y, x.square())
        task.report("class moments", done, len(training))
    means = means_of(sums, counts)
    variances = (means_of(squares, counts) - means.square()).clamp(min=task.options["floor"])
    head = NaiveBayes(means, variances, log_shares(counts))
    down = nbytes(head.means, head.variances, head.log_prior)
    return Fitted(head, nbytes(sums, squares, counts), down, logits=True)


def pooled_covariance(sums: Sums, shrinkage: float, floor: float) -> Tensor:
    """Σ of gh-lda."""
    freedom = int(sums.counts.sum()) - int((sums.counts > 0).sum())
    covariance = shrunk(sums.within / max(freedom, 1), shrinkage)
    return covariance + floor * torch.eye(len(covariance)).to(covariance)


@one_round(
    "gh-lda", "GH-LDA", "linear discriminant of all rows, its shrinkage given", Option("shrinkage", 0.05, most=1.0),
    FLOOR,
)  # fmt: skip
def fit_lda(task: ClosedTask) -> Fitted:
    """Every client sends its sums, and receives the head."""
    sums = Sums.of_all(task)
    covariance = pooled_covariance(sums, task.options["shrinkage"], task.options["floor"])
    head = LinearScores.of(covariance, sums.means, log_shares(sums.counts))
    return Fitted(head, sums.nbytes, nbytes(head.W, head.b), logits=True)


@dataclass(frozen=True)
class Quadratic:
    """Class means (d, m), Cholesky factors of the classes' covariances, and log π (d,)."""

    means: Tensor
    factors: list[Tensor]
    log_prior: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """(n, d)."""
        scores = x.new_empty(len(x), len(self.means))
        for c, (mean, L) in enumerate(zip(self.means, self.factors, strict=True)):
            whitened = torch.linalg.solve_triangular(L, (x - mean).mT, upper=False)
            scores[:, c] = self.log_prior[c] - whitened.square().sum(dim=0) / 2 - L.diagonal().log().sum()
        return scores


@one_round(
    "gh-qda", "GH-QDA", "quadratic discriminant of all rows: a covariance for each class",
    Option("shrinkage", 0.1, most=1.0), FLOOR,
)  # fmt: skip
def fit_qda(task: ClosedTask) -> Fitted:
    """Every client sends the products of each class's rows; what is added up here is a class's rows at once."""
    shrinkage, floor, d = task.options["shrinkage"], task.options["floor"], task.num_classes
    sums = Sums.of_all(task)
    rows = [task.tensors(client.train) for client in task.training]
    x, y = (torch.cat(part) for part in zip(*rows, strict=True))
    m = x.shape[1]
    pooled = torch.linalg.cholesky(pooled_covariance(sums, shrinkage, floor))
    factors = []
    for c, n in enumerate(sums.counts.tolist()):
        if n > 1:
            apart = x[y == c] - sums.means[c]
            covariance = shrunk(apart.mT @ apart / (n - 1), shrinkage)
            factors.append(torch.linalg.cholesky(covariance + floor * torch.eye(m).to(covariance)))
        else:
            factors.append(pooled)
        task.report("class covariances", c + 1, d)
    head = Quadratic(sums.means, factors, log_shares(sums.counts))
    up, down = nbytes(sums.sums, sums.counts), nbytes(head.means, head.log_prior)
    return Fitted(head, up + d * triangle(m), down + d * triangle(m), logits=True)
