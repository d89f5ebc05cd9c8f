"""FedPFT (Beitollahi et al., 2024): clients send Gaussian mixtures of features, the server trains on draws of them.

Differs from the paper: mixtures of spherical or diagonal covariances, not of full ones; every client and class has its
own draws, where its code gives all the same; no differential privacy.

client   of each own class with more than q rows: a mixture of q Gaussians by EM, its numbers in float16; rows n_kc
server   n_kc synthetic rows of each mixture; a linear softmax head by AdamW, batches of 32

Not the same when rows are divided otherwise. With q = 1 what a client sends of a class is its mean and one variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedhip.errors import InputError
from fedhip.heads.options import Option
from fedhip.methods.engine import network
from fedhip.methods.engine.closed import ClosedTask
from fedhip.methods.engine.laboratory import nbytes
from fedhip.methods.engine.network import Params
from fedhip.methods.engine.one_round import Fitted, one_round
from fedhip.simulation.client import Client
from fedhip.simulation.orders import MIXTURE, SYNTHETIC, client_number, draw

#: Added to variances; EM ends when the likelihood of a row rises by less than this part of itself, or after so many.
LEAST_VARIANCE, TOLERANCE, MOST_STEPS = 1e-6, 1e-9, 1000
#: Of AdamW, as usual.
BATCH, WEIGHT_DECAY, BETA1, BETA2, EPSILON = 32, 0.01, 0.9, 0.999, 1e-8
#: The label and the number of rows that come with a mixture.
LABEL_AND_ROWS = 16


@dataclass(frozen=True)
class Mixture:
    """Weights (q,), means (q, m) and variances, (q, m) or spherical (q, 1)."""

    weights: Tensor
    means: Tensor
    variances: Tensor

    @classmethod
    def of(cls, x: Tensor, shares: Tensor, diagonal: bool) -> Mixture:
        """M-step: from what part of each row (n, q) is each component's."""
        n = shares.sum(dim=0).clamp(min=10 * torch.finfo(x.dtype).eps)[:, None]
        means = shares.mT @ x / n
        variances = (shares.mT @ x.square() / n - means.square()).clamp(min=0) + LEAST_VARIANCE
        return cls(n[:, 0] / len(x), means, variances if diagonal else variances.mean(dim=1, keepdim=True))

    def log_joint(self, x: Tensor) -> Tensor:
        """(n, q): log weight and density of each component."""
        v = self.variances.expand_as(self.means)
        distances = x.square() @ (1 / v).mT - 2 * x @ (self.means / v).mT + (self.means.square() / v).sum(dim=1)
        return self.weights.log() - (distances + (2 * math.pi * v).log().sum(dim=1)) / 2

    @classmethod
    def fitted(cls, x: Tensor, first: Tensor, diagonal: bool) -> Mixture:
        """EM from a division of the rows among components (n,)."""
        components = int(first.max()) + 1
        mixture = cls.of(x, torch.nn.functional.one_hot(first, components).to(x), diagonal)
        bound = -math.inf
        for _ in range(MOST_STEPS if components > 1 else 0):
            joint = mixture.log_joint(x)
            likelihood = joint.logsumexp(dim=1)
            mixture = cls.of(x, (joint - likelihood[:, None]).exp(), diagonal)
            before, bound = bound, float(likelihood.mean())
            if abs(bound - before) <= TOLERANCE * abs(bound):
                break
        return mixture

    def sent(self) -> Mixture:
        """As it arrives: rounded to float16, the weights summing to 1 again."""
        rounded = (part.half().double() for part in (self.weights, self.means, self.variances))
        weights, means, variances = rounded
        return Mixture(weights / weights.sum(), means, variances)

    def draws(self, rows: int, random: np.random.Generator) -> Tensor:
        """Synthetic rows (n, m)."""
        parts = random.multinomial(rows, self.weights.cpu().numpy())
        noise = torch.from_numpy(random.standard_normal((rows, self.means.shape[1]))).to(self.means)
        at = torch.from_numpy(np.repeat(np.arange(len(parts)), parts)).to(self.means.device)
        return self.means[at] + self.variances[at].sqrt() * noise

    @property
    def nbytes(self) -> int:
        """On the wire."""
        return 2 * (self.weights.numel() + self.means.numel() + self.variances.numel()) + LABEL_AND_ROWS


def nearest_seeds(x: Tensor, components: int, random: np.random.Generator) -> Tensor:
    """Rows (n,) by the nearest of so many seeds among them, each drawn by its squared distance from those before."""
    seeds = [int(random.integers(len(x)))]
    distances = (x - x[seeds[0]]).square().sum(dim=1)[:, None]
    while len(seeds) < components:
        least = distances.amin(dim=1)
        if not float(least.sum()) > 0:  # rows that are all alike have one component
            break
        seeds.append(int(random.choice(len(x), p=(least / least.sum()).cpu().numpy())))
        distances = torch.cat((distances, (x - x[seeds[-1]]).square().sum(dim=1)[:, None]), dim=1)
    first: Tensor = torch.unique(distances.argmin(dim=1), return_inverse=True)[1]
    return first


def train_head(x: Tensor, y: Tensor, start: Params, epochs: int, rate: float, seed: int, task: ClosedTask) -> Params:
    """(W, b) after so many passes of AdamW over the rows, in orders of the seed's own."""
    # One matrix, its last row the bias, and the steps by hand: torch's own optimizers take seconds to import.
    theta = torch.cat((start[0], start[1][None]))
    first, second, step = torch.zeros_like(theta), torch.zeros_like(theta), 0
    x = torch.cat((x, torch.ones_like(x[:, :1])), dim=1)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        for rows in torch.split(torch.randperm(len(y), generator=generator).to(x.device), BATCH):
            features, step = x[rows], step + 1
            errors = (features @ theta).softmax(dim=1)
            errors[torch.arange(len(rows), device=x.device), y[rows]] -= 1
            slope = features.mT @ errors / len(rows)
            first.lerp_(slope, 1 - BETA1)
            second.mul_(BETA2).addcmul_(slope, slope, value=1 - BETA2)
            scale = (second / (1 - BETA2**step)).sqrt_().add_(EPSILON)
            theta.mul_(1 - rate * WEIGHT_DECAY).addcdiv_(first, scale, value=-rate / (1 - BETA1**step))
        task.report("training on synthetic rows", epoch + 1, epochs)
    return theta[:-1], theta[-1]


@one_round(
    "fedpft",
    "FedPFT",
    "a softmax head that the server trains on draws of the clients' Gaussian mixtures",
    Option("components", 1.0, whole=True),
    Option("diagonal", 0.0, most=1.0),
    Option("epochs", 50.0, whole=True),
    Option("rate", 1e-4, positive=True),
)
def fit_fedpft(task: ClosedTask) -> Fitted:
    """Every client sends its mixtures, and receives the head."""
    components, diagonal, d = int(task.options["components"]), task.options["diagonal"] > 0, task.num_classes
    rows, labels, up = [], [], 0
    for done, client in enumerate(task.training, start=1):
        x, y = task.tensors(client.train)
        for label in torch.unique(y).tolist():
            own = x[y == label]
            if len(own) > components:
                place = client_number(client.name) % 2**64, label
                first = nearest_seeds(own, components, draw(task.seed, MIXTURE, *place))
                mixture = received(Mixture.fitted(own, first, diagonal), client)
                rows.append(mixture.draws(len(own), draw(task.seed, SYNTHETIC, *place)))
                labels.append(torch.full((len(own),), label, device=x.device))
                up += mixture.nbytes
        task.report("mixtures", done, len(task.training))
    if not rows:
        raise InputError(
            f"FedPFT: no client has a class with more than {components} row{'s' if components > 1 else ''}, which a "
            f"mixture of {components} needs; take fewer components or another method"
        )
    x, y = torch.cat(rows).float(), torch.cat(labels)
    start = network.initial((x.shape[1], d), task.seed, torch.float32, x.device)
    W, b = train_head(x, y, start, int(task.options["epochs"]), task.options["rate"], task.seed, task)
    left = bool(((torch.bincount(y, minlength=d) == 0) & (task.all_counts > 0)).any())
    return Fitted(
        lambda x: x @ W.double() + b.double(),
        round(up / len(task.training)),
        nbytes(W, b),
        logits=True,
        note=f"classes that no client has more than {components} of have no part in the training" if left else None,
    )


def received(mixture: Mixture, client: Client) -> Mixture:
    """What the server has of it."""
    found = mixture.sent()
    if not all(bool(torch.isfinite(part).all()) for part in (found.means, found.variances)):
        raise InputError(
            f"FedPFT: client {client.name!r} has features beyond float16, in which mixtures are sent (65,504); "
            "standardise them"
        )
    return found
