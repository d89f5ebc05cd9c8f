"""FedHiP and its rivals in the same shape, one file each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fedhip.core.errors import DimensionError, EmptyClientError, FeaturesError, LabelsError
from fedhip.methods.closed import Task, run_fedhip, run_global, run_global_local_classes, run_local
from fedhip.methods.cohort import Cohort
from fedhip.methods.ditto import Ditto
from fedhip.methods.engine import Laboratory
from fedhip.methods.errors import CheckpointError, MethodError
from fedhip.methods.fedala import FedALA
from fedhip.methods.fedas import FedAS
from fedhip.methods.fedavg import FedAvg, FedAvgFT
from fedhip.methods.feddbe import FedDBE
from fedhip.methods.fedhip_lda import run_fedhip_lda
from fedhip.methods.fedhip_logistic import run_fedhip_logistic
from fedhip.methods.fedncm import run_fedncm
from fedhip.methods.fedpcl import FedPCL
from fedhip.methods.fedprox import FedProx, FedProxFT
from fedhip.methods.fedselect import FedSelect
from fedhip.methods.local_sgd import LocalSGD
from fedhip.methods.method import Method
from fedhip.methods.pfedfda import run_pfedfda
from fedhip.methods.prior import WithPrior
from fedhip.methods.protocol import Evaluation, Head, MethodRun, Protocol
from fedhip.methods.training import Checkpoint, train_method
from fedhip.phases import Client
from fedhip.simulation import STANDARD, RidgeOptions
from fedhip.utils.nearest import did_you_mean

__all__ = [
    "METHODS",
    "CheckpointError",
    "Cohort",
    "Evaluation",
    "Head",
    "MethodError",
    "MethodInfo",
    "MethodRun",
    "Protocol",
    "checked_options",
    "closed_task",
    "run_method",
]

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class MethodInfo:
    """A method by name: its title in tables, a line about it, its options' defaults, whether it trains by gradients.

    `optional` are options without a default: what they set is chosen from the data unless they are given.
    """

    name: str
    title: str
    description: str
    defaults: Mapping[str, float]
    gradient: bool
    optional: tuple[str, ...] = ()


_GRADIENT: Mapping[str, type[Method[Any]]] = {
    "fedavg": FedAvg,
    "fedavg-ft": FedAvgFT,
    "fedprox": FedProx,
    "fedprox-ft": FedProxFT,
    "ditto": Ditto,
    "fedala": FedALA,
    "feddbe": FedDBE,
    "fedas": FedAS,
    "fedpcl": FedPCL,
    "fedselect": FedSelect,
    "local-sgd": LocalSGD,
}

_CLOSED: Mapping[str, tuple[MethodInfo, Callable[[Task], MethodRun]]] = {
    info.name: (info, run)
    for info, run in (
        (
            MethodInfo(
                "fedhip",
                "FedHiP",
                "each client's own: the ridge of all rows in which its own weigh 1 + α",
                {},
                gradient=False,
                optional=("alpha", "beta"),
            ),
            run_fedhip,
        ),
        (
            MethodInfo(
                "fedhip-lda",
                "FedHiP-LDA",
                "linear discriminant of all rows, with each client's own means where they differ",
                {},
                gradient=False,
                optional=("shrinkage",),
            ),
            run_fedhip_lda,
        ),
        (
            MethodInfo(
                "fedhip-logistic",
                "FedHiP-logistic",
                "logistic regression of all rows in a few rounds of sums, then each client's own step",
                {"gradient_rounds": 5},
                gradient=False,
                optional=("alpha", "penalty", "temperature"),
            ),
            run_fedhip_logistic,
        ),
        (
            MethodInfo("local", "Local ridge", "the ridge of each client's rows alone", {}, gradient=False),
            run_local,
        ),
        (
            MethodInfo(
                "global",
                "Global ridge",
                "one ridge of all clients' rows (AFL, Fed3R)",
                {},
                gradient=False,
                optional=("beta",),
            ),
            run_global,
        ),
        (
            MethodInfo(
                "global-oll",
                "Global ridge, own classes",
                "the global ridge, with each client's own classes to choose among",
                {},
                gradient=False,
                optional=("beta",),
            ),
            run_global_local_classes,
        ),
        (
            MethodInfo("fedncm", "FedNCM", "the nearest normalised class mean of all rows", {}, gradient=False),
            run_fedncm,
        ),
        (
            MethodInfo(
                "pfedfda",
                "pFedFDA",
                "discriminant analysis between the client's Gaussians and everybody's",
                {"shrinkage": 1e-4},
                gradient=False,
                optional=("beta",),
            ),
            run_pfedfda,
        ),
    )
}

_WHOLE = ("_epochs", "_tensors", "_rounds", "_batch")
_POSITIVE = ("temperature", "ala_rate", "align_rate", "slice_percent")
_MOST = {
    ("feddbe", "momentum"): 1.0,
    ("pfedfda", "beta"): 1.0,
    ("pfedfda", "shrinkage"): 1.0,
    ("fedhip-lda", "shrinkage"): 1.0,
}

#: Every method by name.
METHODS: Mapping[str, MethodInfo] = MappingProxyType(
    {
        name: MethodInfo(name, method.title, method.description, MappingProxyType(dict(method.defaults)), gradient=True)
        for name, method in _GRADIENT.items()
    }
    | {name: info for name, (info, _) in _CLOSED.items()}
)


def run_method(
    name: str,
    clients: Sequence[Client],
    num_classes: int,
    protocol: Protocol = Protocol(),  # noqa: B008
    *,
    options: Mapping[str, float] | None = None,
    device: str | torch.device = "cpu",
    report: Report | None = None,
    checkpoint: Path | None = None,
    probe: int = 0,
    ridge: RidgeOptions = STANDARD,
) -> MethodRun:
    """Train one method on the clients' training rows and test it on their test rows.

    Several methods on the same clients: give a `Cohort` of them, whose rows are checked and moved to a device once.
    `options` are the method's own (see `METHODS[name].defaults`). `report(phase, done, total)` is called as it goes.
    `checkpoint` is a safetensors file, written from time to time, when the run is interrupted and when it has ended,
    from which a later call with the same arguments goes on to the same numbers; methods in closed form need none.
    `probe` is how many numbers to keep of the first client's scores on its test rows, to compare models by. `ridge` is
    for the ridges among the methods: the paper's are neither standardised nor have they an intercept.
    """
    if name not in METHODS:
        raise MethodError(f"there is no method {name!r}{_nearest(name, METHODS)}")
    if name in _CLOSED:
        task = closed_task(
            name,
            clients,
            num_classes,
            protocol,
            options=options,
            device=device,
            report=report,
            probe=probe,
            ridge=ridge,
        )
        return _CLOSED[name][1](task)
    cohort, chosen = _checked(name, clients, num_classes, protocol, options)
    tell = report or (lambda phase, done, total: None)
    saved = None if checkpoint is None else Checkpoint.of(checkpoint, name, cohort, num_classes, protocol, chosen)
    lab = Laboratory(cohort, num_classes, protocol, device)
    kind = _GRADIENT[name]
    method = kind.of(lab, chosen) if protocol.prior == "none" else WithPrior.around(kind, lab, cohort, chosen)
    return train_method(name, method, lab, tell, saved, probe)


def closed_task(
    name: str,
    clients: Sequence[Client],
    num_classes: int,
    protocol: Protocol = Protocol(),  # noqa: B008
    *,
    options: Mapping[str, float] | None = None,
    device: str | torch.device = "cpu",
    report: Report | None = None,
    probe: int = 0,
    ridge: RidgeOptions = STANDARD,
) -> Task:
    """What a method in closed form is given, everything checked; parameters as in `run_method`."""
    cohort, chosen = _checked(name, clients, num_classes, protocol, options)
    tell = report or (lambda phase, done, total: None)
    return Task(cohort, num_classes, protocol, chosen, device, tell, ridge, probe)


def _checked(
    name: str,
    clients: Sequence[Client],
    num_classes: int,
    protocol: Protocol,
    options: Mapping[str, float] | None,
) -> tuple[Cohort, dict[str, float]]:
    """Clients that were looked through, and all options of the method."""
    _check_protocol(protocol)
    cohort = Cohort.of(clients)
    if num_classes not in cohort.checked:
        _check_clients(cohort, num_classes)
        cohort.checked.add(num_classes)
    return cohort, checked_options(METHODS[name], options or {}, protocol)


def _nearest(word: str, words: Mapping[str, object] | Sequence[str]) -> str:
    return did_you_mean(word, words, f"; there are {', '.join(words)}")


def checked_options(
    info: MethodInfo,
    given: Mapping[str, float],
    protocol: Protocol = Protocol(),  # noqa: B008
) -> dict[str, float]:
    """All options of a method: those given, if it has them and can take them, and the others as they are by default."""
    known = (*info.defaults, *info.optional)
    for option, value in given.items():
        if option not in known:
            remedy = _nearest(option, known) if known else "; it has none"
            raise MethodError(f"{info.title} has no option {option!r}{remedy}")
        if not (math.isfinite(value) and value >= 0):
            raise MethodError(f"{info.title}: {option} is {value!r}; give a number of at least 0")
        if option.endswith(_WHOLE) and (value != int(value) or value < 1):
            raise MethodError(f"{info.title}: {option} is {value!r}; give a whole number of at least 1")
        if option in _POSITIVE and value == 0:
            raise MethodError(f"{info.title}: {option} is {value!r}; give a number above 0")
        most = _MOST.get((info.name, option), 100.0 if option.endswith("percent") else math.inf)
        if value > most:
            raise MethodError(f"{info.title}: {option} is {value!r}; give a number of at most {most:g}")
    follow = _GRADIENT[info.name].follow_epochs if info.gradient else frozenset()
    chosen = {option: float(protocol.epochs if option in follow else value) for option, value in info.defaults.items()}
    return chosen | {option: float(value) for option, value in given.items()}


def _check_protocol(protocol: Protocol) -> None:
    for word in ("rounds", "epochs", "batch", "hidden"):
        value = getattr(protocol, word)
        if not isinstance(value, int) or value < 1:
            raise MethodError(f"{word} is {value!r}; give a whole number of at least 1")
    for word in ("seed", "evaluate_every"):
        value = getattr(protocol, word)
        if not isinstance(value, int) or value < 0:
            raise MethodError(f"{word} is {value!r}; give a whole number of at least 0")
    if not (math.isfinite(protocol.learning_rate) and protocol.learning_rate > 0):
        raise MethodError(f"learning_rate is {protocol.learning_rate!r}; give a number above 0")
    if not 0 < protocol.participation <= 1:
        raise MethodError(f"participation is {protocol.participation!r}; give a share above 0 and up to 1")
    if protocol.prior not in ("none", "client"):
        raise MethodError(f"prior is {protocol.prior!r}; give 'client' or 'none'")
    if protocol.head not in ("linear", "mlp"):
        raise MethodError(f"head is {protocol.head!r}; give 'linear' or 'mlp'")


def _check_clients(clients: Sequence[Client], num_classes: int) -> None:
    widths: dict[int, str] = {}
    for client in clients:
        for features, labels in (client.train, client.test):
            if not len(labels):
                continue
            if features.ndim != 2 or len(features) != len(labels):
                raise FeaturesError(
                    f"client {client.name!r}: features of shape {features.shape} for {len(labels)} labels; "
                    "give a row for each label"
                )
            widths.setdefault(features.shape[1], client.name)
            if not np.isfinite(features).all():
                raise FeaturesError(f"client {client.name!r}: a feature is not finite; repair or drop such rows")
            if labels.min() < 0 or labels.max() >= num_classes:
                raise LabelsError(
                    f"client {client.name!r}: labels from {labels.min()} to {labels.max()}; "
                    f"give class numbers from 0 to {num_classes - 1}"
                )
    if len(widths) > 1:
        (a, first), (b, second) = list(widths.items())[:2]
        raise DimensionError(f"client {first!r} has {a} features and client {second!r} has {b}; use one backbone")
    if not any(len(client.train[1]) for client in clients):
        raise EmptyClientError("no client has training rows; give at least one some")
