"""SGD on a linear head without the head: a step on the clients' rows costs products of rows with rows.

The gradient of a batch is Σ xᵢ δᵢ, so whatever SGD from θ⁰ reaches is θ⁰ − XᵀΔ with a row of Δ for each row of X. To
go on, only the scores of the rows are needed, and with G = X Xᵀ + 1, computed once, they follow from each other:

scores_b ← scores_b − G[b, a] δ_a     for every batch a before b,     δ_b = (softmax(scores_b) − onehot) η/|b|

With the rows in the order of an epoch that is forward substitution: batches in small blocks, each block's δ applied to
all rows after it in one product. A pull towards a centre c, θ ← (1 − p) θ + p c − x_bᵀ δ_b, is linear in θ as well:
with q = 1 − p, after t steps

θ = qᵗ θ⁰ + (1 − qᵗ) c − Xᵀ Δ,     δ of step u weighing q^(t−1−u) in Δ.

At the end of all epochs one product, XᵀΔ, gives the head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedhip.methods import heads
from fedhip.methods.cohort import Placed
from fedhip.methods.heads import Params
from fedhip.methods.recording import Recorded

#: The products of rows may take this part of a GPU's memory, and what is computed from them twice as much again.
MEMORY_SHARE = 1 / 16
#: Beyond this many rows for each feature, steps on the head itself are thought to be faster.
ROWS_PER_FEATURE = 4


def worthwhile(placed: Placed, batch: int) -> bool:
    """Whether the products of rows fit and pay."""
    length = placed.length(batch)
    if placed.device.type != "cuda" or length > ROWS_PER_FEATURE * placed.features.shape[1]:
        return False
    total = torch.cuda.get_device_properties(placed.device).total_memory
    return len(placed.rows) * length**2 * placed.features.element_size() <= MEMORY_SHARE * total


class Dual:
    """Epochs of SGD, with a pull p = η μ towards a centre or none (0), in batches of one size at one rate."""

    def __init__(self, placed: Placed, batch: int, rate: float, pull: float, num_classes: int) -> None:
        self.placed, self.batch, self.num_classes = placed, batch, num_classes
        self.length = placed.length(batch)
        self.rows = placed.padded(self.length)
        self.pulled = pull != 0
        slot = torch.arange(self.length, device=placed.device)
        step, counts = slot // batch, placed.row_counts[:, None]
        there = (counts - step * batch).clamp(1, batch).to(placed.dtype)
        #: (K, N, 1): η/|b| in the order of an epoch, 0 for what fills up.
        self.w = torch.where(slot < counts, rate / there, 0).unsqueeze(2)
        steps = (counts - 1) // batch + 1
        # q to the power of: steps done before a row's; steps between two rows'; steps after a row's; all steps.
        self.before = self._power(pull, step)[:, None]
        self.between = self._power(pull, step[:, None] - step - 1)
        self.after = self._power(pull, steps - 1 - step).unsqueeze(2)
        self.steps = steps[:, :, None]
        self.whole = self._power(pull, self.steps)
        self.pull = pull
        self._epochs: dict[int, _Epoch] = {}

    def _power(self, pull: float, exponent: Tensor) -> Tensor:
        return torch.pow(1 - pull, exponent.clamp(min=0).to(self.placed.dtype))

    def train(self, params: Params, centre: Params, at: Tensor, orders: Sequence[Tensor]) -> Params:
        """(W, b) of the k clients `at` (k,), from theirs, after epochs in these orders (k, N).

        `centre` (k, ...) is only read where there is a pull.
        """
        if not orders:
            return tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in params)
        x, gram = self._of(at, self.rows.x), self._of(at, self.rows.gram)
        whole = self._of(at, self.whole)
        epoch = self._epoch(len(at))
        scores, moved = epoch.scores, epoch.moved
        scores.copy_(_scores(x, params))
        if self.pulled:
            same = all(a is b for a, b in zip(params, centre, strict=True))
            epoch.centre.copy_(scores if same else _scores(x, centre))
        epoch.at.copy_(at)
        total = torch.zeros_like(moved)
        for number, order in enumerate(orders, start=1):
            epoch.order.copy_(order)
            epoch.run()
            if self.pulled:
                total.mul_(whole)
            total.add_(moved)
            if number < len(orders):
                if self.pulled:
                    scores.lerp_(epoch.centre, 1 - whole)
                scores.baddbmm_(gram, moved, alpha=-1)
        W, b = params
        if self.pulled:
            left = self._of(at, self._power(self.pull, self.steps * len(orders)))
            W, b = centre[0] + left * (W - centre[0]), centre[1] + left[:, 0] * (b - centre[1])
        return torch.baddbmm(W, x.mT, total, alpha=-1), b - total.sum(dim=1)

    def _of(self, at: Tensor, tensor: Tensor) -> Tensor:
        return tensor if len(at) == len(tensor) else tensor.index_select(0, at)

    def _epoch(self, clients: int) -> _Epoch:
        if clients not in self._epochs:
            self._epochs[clients] = _Epoch(self, clients)
        return self._epochs[clients]


class _Epoch:
    """One epoch of k clients on buffers of its own: from their scores and orders to what each row adds to Δ."""

    def __init__(self, dual: Dual, clients: int) -> None:
        placed, n = dual.placed, dual.length
        self.at = torch.arange(clients, device=placed.device)
        self.order = torch.arange(n, device=placed.device).repeat(clients, 1)
        self.scores = placed.features.new_zeros((clients, n, dual.num_classes))
        self.centre = torch.zeros_like(self.scores) if dual.pulled else self.scores
        self.moved = torch.zeros_like(self.scores)
        self.run = Recorded(lambda: self._work(dual), placed.device)

    def _work(self, dual: Dual) -> None:
        n, batch, order = dual.length, dual.batch, self.order
        clients = len(order)
        everywhere = ((self.at * n)[:, None] + order).flatten()
        gram = dual.rows.gram.flatten(0, 1).index_select(0, everywhere).view(clients, n, n)
        gram = gram.gather(2, order[:, None, :].expand_as(gram))
        w = dual.w.index_select(0, self.at)
        labels = dual.rows.y.flatten().index_select(0, everywhere).view(clients, n, 1)
        target = torch.zeros_like(self.scores).scatter_(2, labels, -w)
        to = order[:, :, None].expand_as(self.scores)
        scores = self.scores.gather(1, to)
        if dual.pulled:
            gram.mul_(dual.between)
            scores.lerp_(self.centre.gather(1, to), 1 - dual.before)
        delta = torch.empty_like(scores)
        steps = n // batch
        # Blocks of √steps: as many large products between blocks as small ones in each.
        block = max(1, round(steps**0.5)) * batch
        for begin in range(0, n, block):
            end = min(begin + block, n)
            for first in range(begin, end, batch):
                now, done = slice(first, first + batch), slice(begin, first)
                current = scores[:, now]
                if first > begin:
                    current = torch.baddbmm(current, gram[:, now, done], delta[:, done], alpha=-1)
                torch.addcmul(target[:, now], current.softmax(dim=-1), w[:, now], out=delta[:, now])
            if end < n:
                scores[:, end:].baddbmm_(gram[:, end:, begin:end], delta[:, begin:end], alpha=-1)
        if dual.pulled:
            delta.mul_(dual.after.index_select(0, self.at))
        self.moved.scatter_(1, to, delta)


def _scores(x: Tensor, params: Params) -> Tensor:
    W, b = params
    if W.stride(0) == 0:  # one head for all: one product
        return x @ W[0] + b[:1, None]
    return heads.affine(x, W, b)
