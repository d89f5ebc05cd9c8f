"""What a head is given: clients whose rows are here, and what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedhip.core.choice.prior import Prior, PriorChoice
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import InputError
from fedhip.simulation.client import Client, LabelledRows
from fedhip.simulation.options import STANDARD, RidgeOptions
from fedhip.simulation.personalization import Looked
from fedhip.simulation.priors import LeftOut, PriorOption, choose_left_out, choose_scored_priors, left_out_classes
from fedhip.utils.progress import ReportProgress, silent


@dataclass(frozen=True)
class Task:
    """Clients, and what their models are to be.

    `options` are those of the head or the method, all of them; `alphas` what a ridge's α is chosen among, where it is
    not the default. `ridge` is what ridges are of, and how rows become part of the sum. `seed` is that of draws, if
    there are any. `beside` are methods whose priors are chosen beside the head's: their losses travel too. `uploads`
    are clients' statistics, where they are at hand. With `release` the federation's factor makes room for the model of
    the only client: a site has no other use for it. Without `estimates` nobody asks what may be expected of the models,
    and heads need not find out. `looked` is what the ridges' α were chosen by, where that is known of the same sum;
    with `keep_looked` it is kept. `kept` of the last columns are the features themselves, beside a lift of them.
    """

    clients: Sequence[Client]
    num_classes: int
    options: Mapping[str, float] = field(default_factory=dict)
    device: str | torch.device = "cpu"
    report: ReportProgress = silent
    ridge: RidgeOptions = STANDARD
    only_local_classes: bool = False
    prior: PriorOption = "none"
    seed: int = 0
    alphas: Sequence[float] | None = None
    beside: tuple[str, ...] = ()
    uploads: dict[str, GridStatistics] = field(default_factory=dict)
    release: bool = False
    estimates: bool = True
    looked: Mapping[str, Looked] = field(default_factory=dict)
    keep_looked: bool = False
    kept: int = 0

    @property
    def training(self) -> list[Client]:
        """The clients with training rows."""
        return [client for client in self.clients if len(client.train[1])]

    @property
    def plain_ridge(self) -> RidgeOptions:
        """How rows become part of the sum that other heads are fitted to: as the ridge's, all rows weighing alike."""
        return replace(self.ridge, balance=False)

    def local_classes(self, client: Client) -> Tensor | None:
        """The classes to choose among (d,) bool; None for all."""
        counts = self.counts(client)
        return counts > 0 if self.only_local_classes and bool(counts.any()) else None

    def counts(self, client: Client) -> Tensor:
        """The client's training rows by class (d,)."""
        return torch.from_numpy(np.bincount(client.train[1], minlength=self.num_classes)).to(self.device)

    @cached_property
    def all_counts(self) -> Tensor:
        """Everybody's training rows by class (d,)."""
        return torch.stack([self.counts(client) for client in self.training]).sum(dim=0)

    def priors(self, scored: Callable[[Client], Tensor | None]) -> dict[str, Prior]:
        """Every client's prior, if it is asked for, from scores of its training rows by models without them."""
        if self.prior == "none":
            return {}
        scores, labels, own, groups = [], [], [], []
        for client in self.training:
            groups.append(client.group_tensor)
            labels.append(self.tensors(client.train)[1])
            own.append(self.counts(client))
            found = scored(client)
            if found is not None and self.only_local_classes:
                found = left_out_classes(found, labels[-1], own[-1], groups[-1])
            scores.append(found)
        chosen = choose_scored_priors(scores, labels, own, self.all_counts, groups)
        return {client.name: prior for client, prior in zip(self.training, chosen, strict=True)}

    def prior_choices(self, left_out: Callable[[Client], LeftOut]) -> dict[str, PriorChoice]:
        """The same with what may be said of it: every client's choice, and those for the rows of each fold."""
        if self.prior == "none":
            return {}
        training, only_local = self.training, self.only_local_classes
        labels, own = zip(*((self.tensors(c.train)[1], self.counts(c)) for c in training), strict=True)
        groups = [client.group_tensor for client in training]
        chosen = choose_left_out([left_out(c) for c in training], labels, own, self.all_counts, only_local, groups)
        return {client.name: choice for client, choice in zip(training, chosen, strict=True)}

    def tensors(self, rows: LabelledRows) -> tuple[Tensor, Tensor]:
        """Copies on the device, features in float64: the rows may be read-only."""
        features, labels = np.array(rows[0], np.float64), np.array(rows[1], np.int64)
        return torch.from_numpy(features).to(self.device), torch.from_numpy(labels).to(self.device)


def check_clients(clients: Sequence[Client], num_classes: int) -> None:
    """Refuse rows that no head and no method can be fitted to."""
    widths: dict[int, str] = {}
    for client in clients:
        for features, labels in (client.train, client.test):
            if not len(labels):
                continue
            if features.ndim != 2 or len(features) != len(labels):
                raise InputError(
                    f"client {client.name!r}: features of shape {features.shape} for {len(labels)} labels; "
                    "give a row for each label"
                )
            widths.setdefault(features.shape[1], client.name)
            if not np.isfinite(features).all():
                raise InputError(f"client {client.name!r}: a feature is not finite; repair or drop such rows")
            if labels.ndim == 2:
                if not np.isfinite(labels).all():
                    raise InputError(f"client {client.name!r}: a target is not finite; repair or drop such rows")
            elif labels.min() < 0 or labels.max() >= num_classes:
                raise InputError(
                    f"client {client.name!r}: labels from {labels.min()} to {labels.max()}; "
                    f"give class numbers from 0 to {num_classes - 1}"
                )
    if len(widths) > 1:
        (a, first), (b, second) = list(widths.items())[:2]
        raise InputError(f"client {first!r} has {a} features and client {second!r} has {b}; use one backbone")
    if not any(len(client.train[1]) for client in clients):
        raise InputError("no client has training rows; give at least one some")
