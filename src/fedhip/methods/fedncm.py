"""FedNCM (Legate et al., 2023): one round of class means.

w_c = μ_c / ‖μ_c‖,   μ_c the mean of all clients' rows of class c;   the class of x is argmax_c x·w_c
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from fedhip.methods.engine.closed import ClosedTask, closed, one_shot
from fedhip.methods.engine.laboratory import nbytes
from fedhip.methods.engine.protocol import MethodRun
from fedhip.simulation.client import Client
from fedhip.simulation.priors import losses_bytes, prior_bytes


@closed("fedncm", "FedNCM", "the nearest normalised class mean of all rows")
def run_fedncm(task: ClosedTask) -> MethodRun:
    """Every client sends its class sums and counts; everybody is tested with the normalised means."""
    began, d, training = time.perf_counter(), task.num_classes, task.training
    width = training[0].train[0].shape[1]
    sums = torch.zeros(d, width, dtype=torch.float64, device=task.device)
    counts = torch.zeros(d, dtype=torch.int64, device=task.device)
    for done, client in enumerate(training, start=1):
        features, labels = task.tensors(client.train)
        sums.index_add_(0, labels, features)
        counts += torch.bincount(labels, minlength=d)
        task.report("class means", done, len(training))
    # The length of a sum is its count times the mean's: normalised, they are the same.
    W = torch.nn.functional.normalize(sums, dim=1).mT.contiguous()
    unknown = counts == 0

    def scores(x: Tensor) -> Tensor:
        return (x @ W).masked_fill(unknown, -torch.inf)

    def scored(client: Client) -> Tensor:
        """Without a row the mean of its class alone is another; without the only one there is none."""
        x, y = task.tensors(client.train)
        own = (torch.nn.functional.normalize(sums[y] - x, dim=1) * x).sum(dim=1)
        own = own.masked_fill(counts[y] == 1, -torch.inf)
        return scores(x).scatter(1, y[:, None], own[:, None])

    priors = task.priors(scored)
    seconds = time.perf_counter() - began
    accuracy = [task.accuracy(client, scores, priors.get(client.name)) for client in task.clients]
    up, down = nbytes(sums, counts), nbytes(W)
    if priors:
        up, down = up + losses_bytes([1]), down + prior_bytes(d)
    return one_shot("fedncm", task, accuracy, rounds=1, seconds=seconds, up=up, down=down, priors=priors)
