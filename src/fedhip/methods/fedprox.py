"""FedProx (Li et al., 2020), and its fine-tuning.

θ_k ← θ_k − η (∇CE(θ_k) + μ (θ_k − θ^t)),   θ^t the model received this round; the server's mean as in FedAvg
"""

from __future__ import annotations

from types import MappingProxyType

from fedhip.methods.engine import ProximalSGD, Step
from fedhip.methods.fedavg import FedAvg, FedAvgFT


class FedProx(FedAvg):
    """FedAvg whose clients are held near the model they received."""

    title = "FedProx"
    description = "FedAvg with clients held near the model they received"
    defaults = MappingProxyType({"mu": 0.01})

    def step(self) -> Step:
        """SGD on CE + μ/2 ‖θ − θ^t‖²."""
        return ProximalSGD(self.lab.protocol.learning_rate * self.options["mu"])


class FedProxFT(FedProx, FedAvgFT):
    """FedProx, and then every client trains its copy on: plainly, or held near it where `finetune_mu` > 0."""

    title = "FedProx+FT"
    description = "FedProx's model, trained on by each client for itself in the end"
    defaults = MappingProxyType({"mu": 0.01, "finetune_epochs": 3.0, "finetune_mu": 0.0})

    def finetuning_step(self) -> Step:
        """Held near the global model by `finetune_mu`."""
        return ProximalSGD(self.lab.protocol.learning_rate * self.options["finetune_mu"])
