"""FedHiP and its rivals in the same shape, one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from fedhip.errors import InputError
from fedhip.heads import HEADS
from fedhip.heads.options import checked_options
from fedhip.methods.engine.clients import CheckedClients
from fedhip.methods.engine.closed import ClosedMethod, ClosedTask, of_head
from fedhip.methods.engine.laboratory import Laboratory
from fedhip.methods.engine.method import Method
from fedhip.methods.engine.prior import WithPrior
from fedhip.methods.engine.protocol import Evaluation, MethodInfo, MethodRun, Network, Protocol, differs_from_paper
from fedhip.methods.engine.training import Checkpoint, train_method
from fedhip.methods.one_round.apfl import fit_apfl
from fedhip.methods.one_round.deepafl import fit_deepafl
from fedhip.methods.one_round.fedcgs import fit_fedcgs
from fedhip.methods.one_round.fedcof import fit_fedcof
from fedhip.methods.one_round.fedncm import fit_fedncm
from fedhip.methods.one_round.fedpft import fit_fedpft
from fedhip.methods.one_round.gh_ofl import fit_lda, fit_nb, fit_qda
from fedhip.methods.one_round.knn_per import knn_per_lda, knn_per_ridge
from fedhip.methods.one_round.pfedfda import run_pfedfda
from fedhip.methods.one_round.ridges import run_global, run_global_local_classes, run_local
from fedhip.methods.one_round.safle import fit_safle
from fedhip.methods.trained.ditto import Ditto
from fedhip.methods.trained.fedala import FedALA
from fedhip.methods.trained.fedas import FedAS
from fedhip.methods.trained.fedavg import FedAvg, FedAvgFT
from fedhip.methods.trained.feddbe import FedDBE
from fedhip.methods.trained.fedpcl import FedPCL
from fedhip.methods.trained.fedprox import FedProx, FedProxFT
from fedhip.methods.trained.fedselect import FedSelect
from fedhip.methods.trained.local_sgd import LocalSGD
from fedhip.simulation.client import Client
from fedhip.simulation.options import STANDARD, RidgeOptions
from fedhip.utils.nearest import did_you_mean
from fedhip.utils.progress import ReportProgress, silent

__all__ = [
    "GRADIENT",
    "METHODS",
    "CheckedClients",
    "Evaluation",
    "MethodInfo",
    "MethodRun",
    "Network",
    "Protocol",
    "run_method",
]

_TRAINED: tuple[type[Method[Any]], ...] = (
    FedAvg,
    FedAvgFT,
    FedProx,
    FedProxFT,
    Ditto,
    FedALA,
    FedDBE,
    FedAS,
    FedPCL,
    FedSelect,
    LocalSGD,
)
_CLOSED: tuple[ClosedMethod, ...] = (
    *(of_head(kind) for kind in HEADS.values()),
    run_local,
    run_global,
    run_global_local_classes,
    fit_fedncm,
    fit_fedcof,
    fit_fedcgs,
    fit_nb,
    fit_lda,
    fit_qda,
    run_pfedfda,
    fit_fedpft,
    fit_deepafl,
    fit_safle,
    fit_apfl,
    knn_per_ridge,
    knn_per_lda,
)

#: The methods that train by gradients, by name.
GRADIENT: Mapping[str, type[Method[Any]]] = MappingProxyType({kind.name: kind for kind in _TRAINED})
#: Every method by name.
METHODS: Mapping[str, MethodInfo] = MappingProxyType(
    {
        kind.name: MethodInfo(
            kind.name, kind.title, kind.description, kind.declared, gradient=True, differs=differs_from_paper(kind)
        )
        for kind in _TRAINED
    }
    | {method.name: method for method in _CLOSED}
)


def run_method(
    name: str,
    clients: Sequence[Client],
    num_classes: int,
    protocol: Protocol = Protocol(),  # noqa: B008
    *,
    options: Mapping[str, float] | None = None,
    device: str | torch.device = "cpu",
    report: ReportProgress | None = None,
    checkpoint: Path | None = None,
    probe: int = 0,
    ridge: RidgeOptions = STANDARD,
) -> MethodRun:
    """Train one method on the clients' training rows and test it on their test rows.

    Several methods on the same clients: give `CheckedClients` of them, whose rows are checked and moved to a device
    once. `options` are the method's own (see `METHODS[name].options`). `report(phase, done, total)` is called as it
    goes. `checkpoint` is a safetensors file, written from time to time, when the run is interrupted and when it has
    ended, from which a later call with the same arguments goes on to the same numbers; methods in closed form need
    none. `probe` is how many numbers to keep of the first client's scores on its test rows, to compare models by.
    `ridge` is for the ridges among the methods: the paper's are neither standardised nor have they an intercept.
    """
    if name not in METHODS:
        others = f"; there are {', '.join(METHODS)}"
        raise InputError(f"there is no method {name!r}{did_you_mean(name, METHODS, others)}")
    info, tell = METHODS[name], report or silent
    protocol.check()
    checked = CheckedClients.of(clients)
    checked.check(num_classes)
    chosen = checked_options(info.title, info.options, options or {}, protocol.epochs)
    if isinstance(info, ClosedMethod):
        return info.run(
            ClosedTask(
                checked,
                num_classes,
                chosen,
                device,
                tell,
                ridge,
                only_local_classes=protocol.only_local_classes,
                prior=protocol.prior,
                seed=protocol.seed,
                probe_size=probe,
                estimates=False,
            )
        )
    saved = None if checkpoint is None else Checkpoint.of(checkpoint, name, checked, num_classes, protocol, chosen)
    lab = Laboratory(checked, num_classes, protocol, device)
    kind = GRADIENT[name]
    method = kind.of(lab, chosen) if protocol.prior == "none" else WithPrior.around(kind, lab, checked, chosen)
    return train_method(name, method, lab, tell, saved, probe)
