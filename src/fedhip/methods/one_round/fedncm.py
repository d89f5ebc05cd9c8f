"""FedNCM (Legate et al., 2023): one round of class means.

Differs from the paper: the head is as the round gives it; the paper goes on to fine-tune the network from it.

w_c = μ_c / ‖μ_c‖,   μ_c the mean of all clients' rows of class c;   the class of x is argmax_c x·w_c
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedhip.methods.engine.closed import ClosedTask
from fedhip.methods.engine.laboratory import nbytes
from fedhip.methods.engine.one_round import Fitted, one_round
from fedhip.simulation.client import Client


@one_round("fedncm", "FedNCM", "the nearest normalised class mean of all rows")
def fit_fedncm(task: ClosedTask) -> Fitted:
    """Every client sends its class sums and counts; everybody is tested with the normalised means."""
    d, training = task.num_classes, task.training
    width = training[0].train[0].shape[1]
    sums = torch.zeros(d, width, dtype=torch.float64, device=task.device)
    counts = torch.zeros(d, dtype=torch.int64, device=task.device)
    for done, client in enumerate(training, start=1):
        features, labels = task.tensors(client.train)
        sums.index_add_(0, labels, features)
        counts += torch.bincount(labels, minlength=d)
        task.report("class means", done, len(training))
    # The length of a sum is its count times the mean's: normalised, they are the same.
    W = normalize(sums, dim=1).mT.contiguous()

    def left_out(client: Client) -> Tensor:
        """Without a row the mean of its class alone is another; without the only one there is none."""
        x, y = task.tensors(client.train)
        own = (normalize(sums[y] - x, dim=1) * x).sum(dim=1)
        own = own.masked_fill(counts[y] == 1, -torch.inf)
        scores = (x @ W).masked_fill(counts == 0, -torch.inf)
        return scores.scatter(1, y[:, None], own[:, None])

    return Fitted(lambda x: x @ W, nbytes(sums, counts), nbytes(W), left_out=left_out)
