"""Ridges without personalization: of each client's rows alone, and one of all rows."""

from __future__ import annotations

import time
from dataclasses import replace

from torch import Tensor

from fedhip.core.choice.calibration import common_temperature
from fedhip.heads.options import Option
from fedhip.heads.round import simulate
from fedhip.methods.engine.closed import ClosedTask, closed, one_shot
from fedhip.methods.engine.protocol import MethodRun
from fedhip.simulation.alone import LocalModel, local_model, local_path
from fedhip.simulation.client import Client
from fedhip.simulation.priors import prior_bytes
from fedhip.utils.parallel import in_order


@closed("local", "Local ridge", "the ridge of each client's rows alone")
def run_local(task: ClosedTask) -> MethodRun:
    """The ridge of each client's rows alone."""
    began = time.perf_counter()
    models: dict[str, LocalModel] = {}
    found = in_order(
        lambda client: local_model(client, task.num_classes, task.ridge, task.device, task.only_local_classes),
        task.training,
        task.device,
    )
    for done, (client, model) in enumerate(zip(task.training, found, strict=True), start=1):
        models[client.name] = model
        task.report("trained alone", done, len(task.training))

    def scored(client: Client) -> Tensor:
        path = local_path(client, task.num_classes, task.ridge.standardize, task.ridge.intercept, task.device)
        return path.loo_scores(path.select())

    priors = task.priors(scored)
    seconds = time.perf_counter() - began
    accuracy, temperature = [], common_temperature(fit.losses for fit in models.values())
    for client in task.clients:
        scores = models[client.name].scores if client.name in models else None
        accuracy.append(task.accuracy(client, scores, priors.get(client.name), temperature))
    sent = prior_bytes(task.num_classes) if priors else 0
    return one_shot("local", task, accuracy, rounds=0, seconds=seconds, up=sent, down=sent, priors=priors)


@closed("global", "Global ridge", "one ridge of all clients' rows (AFL, Fed3R)", Option("beta"))
def run_global(task: ClosedTask) -> MethodRun:
    """α = 0 for everybody.

    Differs from the paper: statistics are summed as they are, where AFL adds a penalty to each client's and takes it
    off again; β is chosen, where Fed3R has 0.01 and scales each class's weights to length 1.
    """
    return _global(task)


@closed(
    "global-oll",
    "Global ridge, own classes",
    "the global ridge, with each client's own classes to choose among",
    Option("beta"),
)
def run_global_local_classes(task: ClosedTask) -> MethodRun:
    """The same, in which no client is told of a class it has no row of: nearly free, and hard to beat.

    Differs from the paper: as the global ridge does; the rest is Fed3R's only-local-labels.
    """
    return replace(_global(replace(task, only_local_classes=True)), name="global-oll")


def _global(task: ClosedTask) -> MethodRun:
    outcome = simulate(
        task.clients,
        task.num_classes,
        # The paper's ridge has its β from the sum alone.
        beta=task.options.get("beta", "auto" if task.ridge.standardize else "gcv"),
        methods=("global",),
        only_local_classes=task.only_local_classes,
        prior=task.prior == "client",
        **vars(task.ridge),
        device=task.device,
        report=task.report,
    )
    if outcome.clients[0].test:
        common = outcome.federation.common
        task.record_probe(task.clients[0], common.scores(task.tensors(task.clients[0].test)[0]))
    rounds, up, down = outcome.traffic("global")
    return one_shot(
        "global",
        task,
        [client.accuracy["global"] for client in outcome.clients],
        rounds=rounds,
        seconds=sum(seconds for phase, seconds in outcome.seconds.items() if phase != "tests"),
        up=up,
        down=down,
        priors={client.client: client.priors["global"] for client in outcome.clients if "global" in client.priors},
        tested={client.client: client.tested.get("global") for client in outcome.clients},
    )
