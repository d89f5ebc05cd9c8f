"""FedCGS (Guan et al., 2025): a Gaussian head from global feature statistics.

Differs from the paper: its global head alone. What it does for each client is a training of the network that its global
statistics regularise; on frozen features that has no gradient, and its settings are not published.

client   class sums, counts, and the products G_k = F_kᵀF_k
server   Σ = S_T / (N − 1), the covariance of all rows, shrunk by s (none by default)
         scores_c(x) = x·Σ⁻¹μ_c − ½ μ_c·Σ⁻¹μ_c + log(N_c / N)

The paper calls it naive Bayes; it is a discriminant with one covariance, and that one is of all rows, not within
classes (`gh-lda`). The same however rows are divided.
"""

from __future__ import annotations

from fedhip.heads.options import Option
from fedhip.methods.engine.closed import ClosedTask
from fedhip.methods.engine.gaussian import LinearScores, Sums, log_shares, shrunk
from fedhip.methods.engine.laboratory import nbytes
from fedhip.methods.engine.one_round import Fitted, one_round


@one_round(
    "fedcgs",
    "FedCGS",
    "a global Gaussian head: class means, and one covariance of all rows",
    Option("shrinkage", 0.0, most=1.0),
)
def fit_fedcgs(task: ClosedTask) -> Fitted:
    """Every client sends its sums, and receives the head."""
    sums = Sums.of_all(task)
    freedom = max(int(sums.counts.sum()) - 1, 1)
    covariance = shrunk(sums.total / freedom, task.options["shrinkage"])
    head = LinearScores.of(covariance, sums.means, log_shares(sums.counts), sums.rounding / freedom)
    note = "the covariance of all rows has no inverse, and its pseudo-inverse was taken" if head.singular else None
    return Fitted(head, sums.nbytes, nbytes(head.W, head.b), logits=True, note=note)
