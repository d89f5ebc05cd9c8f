"""APFL (Fan et al., 2025), reconstructed: a shared stream by least squares, and each client's own on what it leaves.

Differs from the paper: a reconstruction. Only its abstract can be read: two streams, both in closed form, the second
each client's own. What the second fits, and how both are mixed, is here as in DS-AL (Zhuang et al., 2024), a relative;
by default both are linear in the features.

F        the features, standardised, and a column of ones
Φ, Ψ     relu(F A + a) and tanh(F A + a), A and a drawn by the seed;   with `width` 0, the default, Φ = Ψ = F
server   W = (Σ Φ_kᵀΦ_k + βI)⁻¹ Σ Φ_kᵀY_k,   β by the clients' rows left out
client   Z_k = (Ψ_kᵀΨ_k + γI)⁻¹ Ψ_kᵀ(Y_k − Φ_kW),   scores ΦW + C ΨZ_k

Each client chooses γ and C, and whether it has a Z_k at all, by its rows left out of both streams. With Φ = Ψ, C = 1,
W + Z_k = argmin ‖Y_k − F_kV‖² + γ‖V − W‖²: Ditto, solved. W is the same however rows are divided.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedhip.core.choice.selection import margins_of, select
from fedhip.core.groups import members
from fedhip.core.solvers import rank_tolerance
from fedhip.heads.options import Option
from fedhip.methods.engine import network
from fedhip.methods.engine.closed import ClosedTask
from fedhip.methods.engine.one_round import Fitted, Scores, one_round, standardization_bytes, standardize
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.options import PAPER, Beta
from fedhip.utils.parallel import in_order

GAMMAS = tuple(10.0**power for power in range(-3, 5))
SHARES = (0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Refinement:
    """A client's second stream: Ψ_k (N_k, w) and the eigenpairs of Ψ_kΨ_kᵀ, which serve every γ."""

    psi: Tensor
    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, psi: Tensor) -> Refinement:
        """Of the client's rows."""
        values, vectors = torch.linalg.eigh(psi @ psi.mT)
        return cls(psi, values.clamp(min=0), vectors)

    def weights(self, targets: Tensor, gamma: float) -> Tensor:
        """Z (w, d) = Ψᵀ(ΨΨᵀ + γI)⁻¹R."""
        some = self.values > rank_tolerance(len(self.values)) * float(self.values.max())
        V, values = self.vectors[:, some], self.values[some]  # Ψᵀ makes nothing of the others
        return self.psi.mT @ (V / (values + gamma) @ (V.mT @ targets))

    def left_out(self, targets: Tensor, gamma: float, groups: Tensor | None = None) -> Tensor:
        """(N_k, d): what it says of each row when fitted without it, or without its group."""
        smoother = self.vectors * (self.values / (self.values + gamma)) @ self.vectors.mT
        rest = targets - smoother @ targets
        if groups is None:
            return targets - rest / (1 - smoother.diagonal())[:, None]
        found = torch.empty_like(targets)
        for S in members(groups):
            at = S.to(targets.device)
            own = torch.eye(len(at)).to(smoother) - smoother[at][:, at]
            found[at] = targets[at] - torch.linalg.solve(own, rest[at])
        return found


@one_round(
    "apfl",
    "APFL (reconstructed)",
    "the ridge of all rows on random features, and each client's own ridge on what that leaves of its rows",
    Option("width", 0.0),
    Option("beta"),
    Option("gamma", positive=True),
    Option("share", most=1.0),
)
def fit_apfl(task: ClosedTask) -> Fitted:
    """Every client sends the sums of the first stream, and receives W."""
    shared, width, d = standardize(task, intercept=True), int(task.options["width"]), task.num_classes
    m = len(shared.mean)
    layer = network.initial((m + 1, max(width, 1)), task.seed, torch.float64, torch.device(task.device))

    def streams(x: Tensor) -> tuple[Tensor, Tensor]:
        F = shared.features(x)
        if width == 0:
            return F, F
        drawn = F @ layer[0] + layer[1]
        return drawn.relu(), drawn.tanh()

    def lifted(client: Client) -> Client:
        phi = streams(task.tensors(client.train)[0])[0].cpu().numpy()
        return Client(client.name, (phi, client.train[1]), (phi[:0], client.train[1][:0]), client.groups)

    training = [lifted(client) for client in task.training]
    beta: Beta = task.options.get("beta", "auto")
    federation = federate(training, d, beta, PAPER, task.device, alpha=0.0, report=task.report)
    first = federation.common

    def second(at: int) -> tuple[Scores, Tensor]:
        client = task.training[at]
        x, y = task.tensors(client.train)
        phi, psi = streams(x)
        Y, loo = one_hot(y, d).double(), federation.path(training[at]).loo_scores(0.0)
        refinement, groups = Refinement.of(psi), client.group_tensor
        gammas = (task.options["gamma"],) if "gamma" in task.options else GAMMAS
        shares = (task.options["share"],) if "share" in task.options else (0.0, *SHARES)
        tried = [(gamma, share) for share in shares for gamma in (gammas if share else gammas[:1])]
        parts = {gamma: refinement.left_out(Y - loo, gamma, groups) for gamma in gammas}
        judged = torch.stack([margins_of(loo + share * parts[gamma], y) for gamma, share in tried], dim=1)
        gamma, share = tried[select(judged)]
        Z = share * refinement.weights(Y - first.scores(phi), gamma)

        def scores(x: Tensor) -> Tensor:
            phi, psi = streams(x)
            return first.scores(phi) + psi @ Z

        return scores, loo + share * parts[gamma]

    own, left_out = {}, {}
    # What it answers with holds on to all that `streams` does.
    for done, found in enumerate(in_order(second, range(len(training)), task.device, here=True), start=1):
        name = training[done - 1].name
        own[name], left_out[name] = found
        task.report("second stream", done, len(training))
    (_, up, down), (more_up, more_down) = federation.traffic("global"), standardization_bytes(m)
    return Fitted(
        lambda x: first.scores(streams(x)[0]),
        up + more_up,
        down + more_down,
        rounds=2,
        own=own,
        left_out=lambda client: left_out[client.name],
    )
