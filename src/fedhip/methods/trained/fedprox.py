"""FedProx (Li et al., 2020), and its fine-tuning.

Differs from the paper: no stragglers. Every client does all of its epochs, where the paper takes in unfinished work.

θ_k ← θ_k − η (∇CE(θ_k) + μ (θ_k − θ^t)),   θ^t the model received this round; the server's mean as in FedAvg
"""

from __future__ import annotations

from typing import ClassVar

from fedhip.heads.options import Option
from fedhip.methods.engine.laboratory import LocalStep, ProximalSGD
from fedhip.methods.trained.fedavg import FedAvg, FedAvgFT


class FedProx(FedAvg):
    """FedAvg whose clients are held near the model they received."""

    name, title = "fedprox", "FedProx"
    description = "FedAvg with clients held near the model they received"
    declared: ClassVar[tuple[Option, ...]] = (Option("mu", 0.01),)

    def step(self) -> LocalStep:
        """SGD on CE + μ/2 ‖θ − θ^t‖²."""
        return ProximalSGD(self.lab.protocol.learning_rate * self.options["mu"])


class FedProxFT(FedProx, FedAvgFT):
    """FedProx, and then every client trains its copy on: plainly, or held near it where `finetune_mu` > 0.

    Differs from the paper: no stragglers; and no paper says how long to fine-tune: as many epochs as a round has.
    """

    name, title = "fedprox-ft", "FedProx+FT"
    description = "FedProx's model, trained on by each client for itself in the end"
    declared = (*FedProx.declared, *FedAvgFT.declared, Option("finetune_mu", 0.0))

    def finetuning_step(self) -> LocalStep:
        """Held near the global model by `finetune_mu`."""
        return ProximalSGD(self.lab.protocol.learning_rate * self.options["finetune_mu"])
