"""All clients train at once: what the methods that train by gradients share.

A method's local work is a `LocalStep`: a function of parameters with the clients as their first axis and of a
mini-batch of each client, that changes the parameters in place. `Laboratory.train` runs it over every client's own
rows, in every client's own order, with its own last partial batch and number of steps:

on a GPU    one step for all clients, batches filled up with rows of weight 0; an epoch is replayed as a CUDA graph
on a CPU    one client after another, a thread for each core: its weights stay in that core's cache all along

Both give the same numbers up to rounding. A client's order of rows depends on the seed, its name, the round and the
epoch, and on nothing else (`orders.py`). Nothing in a round waits for a number on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedhip.core.affine import masked
from fedhip.core.choice.prior import Prior
from fedhip.core.tested import Tested
from fedhip.methods.engine import network
from fedhip.methods.engine.clients import CheckedClients, DeviceRows
from fedhip.methods.engine.network import Batch, Params
from fedhip.methods.engine.protocol import Protocol
from fedhip.methods.engine.recording import Recorded, buffer_like, fill
from fedhip.simulation.client import Client
from fedhip.simulation.orders import SHUFFLE, Order, client_orders
from fedhip.utils.parallel import in_order

#: step(params, fixed, batch): changes params in place; both have the clients of the batch as their first axis.
LocalStep = Callable[[Params, Params, Batch], None]
#: The passes of the client at this place among those with training rows: each an order of its rows.
Orders: TypeAlias = "Callable[[int], Sequence[Order]] | Shuffled"

#: Mini-batches whose rows are gathered at once: few calls, and little memory.
GATHER = 16
#: Rounds that a GPU may be ahead of what the host has looked at.
AHEAD = 16
#: Rows of each client that class means take at a time on a GPU.
CLASS_MEAN_ROWS = 512


@dataclass(frozen=True)
class Shuffled:
    """Every client's orders in some epochs of a round: equal for all methods, so that they are found once."""

    rows: tuple[int, ...]
    names: tuple[str, ...]
    seed: int
    round: int
    epochs: range
    purpose: int

    def __call__(self, k: int) -> Sequence[Order]:
        """The orders of client k, one for each epoch."""
        return client_orders(self.rows[k], self.seed, self.names[k], self.round, self.epochs, self.purpose)


@dataclass(frozen=True)
class Models:
    """Whom to test with what: (K, ...) of the clients with training rows, (1, ...) for those without, if there is one.

    `scores(params, x)` gives (k, B, d). `priors` are those of the clients with training rows, if they are asked for.
    Probabilities are the softmax of scores that are `logits`; of others there are none.
    """

    personal: Params
    common: Params | None = None
    scores: Callable[[Params, Tensor], Tensor] = network.scores
    priors: list[Prior] | None = None
    logits: bool = True


class Laboratory:
    """The clients' rows on a device, and what is done with them.

    Clients with training rows are numbered 0 to K − 1; `place[k]` is where client k stands among all.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        num_classes: int,
        protocol: Protocol,
        device: str | torch.device = "cpu",
        *,
        dtype: torch.dtype = torch.float32,
        together: bool | None = None,
    ) -> None:
        self.protocol, self.num_classes, self.dtype = protocol, num_classes, dtype
        self.device = torch.device(device)
        self.together = self.device.type != "cpu" if together is None else together
        self.ahead = 1 if self.device.type == "cpu" else AHEAD
        self._clients = CheckedClients.of(clients)
        self.placed = here = self._clients.to_device(num_classes, self.device, dtype)
        self.place, self.rows, self.starts, self.tests = here.place, here.rows, here.starts, here.tests
        self.number = {at: k for k, at in enumerate(self.place)}
        self.features, self.labels, self.class_counts = here.features, here.labels, here.class_counts
        self.test_features, self.test_labels = here.test_features, here.test_labels
        self._epochs: dict[Hashable, _Epoch] = {}

    @property
    def size(self) -> int:
        """K, the number of clients with training rows."""
        return len(self.place)

    @property
    def width(self) -> int:
        """m, the number of features."""
        return int(self.features.shape[1])

    def initial(self) -> Params:
        """The parameters that everybody starts from, without the axis of clients."""
        p = self.protocol
        widths = (self.width, self.num_classes) if p.head == "linear" else (self.width, p.hidden, self.num_classes)
        return network.initial(widths, p.seed, self.dtype, self.device)

    def shares(self, present: Sequence[int]) -> Tensor:
        """n_k / Σ n of the clients present."""
        rows = self.placed.row_counts.index_select(0, places(tuple(present), self.device)).double()
        return (rows / rows.sum()).to(self.dtype)

    def shuffled(self, round_: int, epochs: int | range | None = None, purpose: int = SHUFFLE) -> Shuffled:
        """Each client's orders in the epochs of a round (the protocol's, by default)."""
        passes = self.protocol.epochs if epochs is None else epochs
        span = range(passes) if isinstance(passes, int) else passes
        return Shuffled(tuple(self.rows), self.placed.names, self.protocol.seed, round_, span, purpose)

    def train(
        self,
        step: LocalStep,
        params: Params,
        fixed: Params = (),
        *,
        present: Sequence[int],
        orders: Orders,
        rate: float | None = None,
        batch: int | None = None,
    ) -> Params:
        """The parameters (k, ...) after all steps of the k clients present; those given stay as they are.

        `fixed` (k, ...) are further tensors that a step reads. `rate` and `batch` are the protocol's by default.
        """
        rate = self.protocol.learning_rate if rate is None else rate
        batch = self.protocol.batch if batch is None else batch
        if not self.together:
            trained = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in params)
            self._train_one_by_one(step, trained, fixed, present, orders, rate, batch)
            return trained
        at = places(tuple(present), self.device)
        return self._train_together(step, params, fixed, at, self._tables(orders, at, batch, present), rate, batch)

    def class_means(self, embed: Callable[[Params, Tensor], Tensor], params: Params, present: Sequence[int]) -> Tensor:
        """(k, d, h): the mean of embed(params, x) over each client's rows of each class; 0 for classes without rows."""
        if not self.together:
            own = (self._own(k) for k in present)
            means = [
                mean_by_class(embed(slice_of(params, i), x[None])[0], y, self.num_classes)
                for i, (x, y) in enumerate(own)
            ]
            return torch.stack(means)

        def summed(first: int) -> Tensor:
            index, real = self._columns(present, first, min(first + CLASS_MEAN_ROWS, longest))
            z = embed(params, _rows(self.features, index))
            onehot = torch.nn.functional.one_hot(_rows(self.labels, index), self.num_classes).to(z.dtype)
            return (onehot * real[:, :, None]).mT @ z  # a product: adding at an index is in no fixed order on a GPU

        # All clients at once, their rows filled up to the longest, and a few rows at a time to bound the memory.
        longest = max(self.rows[k] for k in present)
        sums = reduce(add, map(summed, range(0, longest, CLASS_MEAN_ROWS)))
        counts = self.class_counts[list(present)].to(sums.dtype).clamp_(min=1)
        return sums / counts[:, :, None]

    def _columns(self, present: Sequence[int], first: int, last: int) -> tuple[Tensor, Tensor]:
        """Rows first to last of each client (k, last − first) in the feature matrix, and which there are (0 or 1)."""
        starts = torch.tensor([self.starts[k] for k in present])[:, None]
        rows = torch.tensor([self.rows[k] for k in present])[:, None]
        place = torch.arange(first, last)[None]
        real = place < rows
        index = starts + torch.where(real, place, 0)
        return index.to(self.device), real.to(self.device, self.dtype)

    def accuracies(self, models: Models) -> list[float | None]:
        """The accuracy of each client's model on its test rows; None without rows or without a model."""
        right: dict[int, Tensor] = {}
        for at, found, _ in self._answers(models):
            right[at] = (found.argmax(dim=1) == self.labels_tested(at)).sum()
        counted = dict(zip(right, torch.stack(list(right.values())).tolist() if right else [], strict=True))
        return [counted[at] / rows if at in counted else None for at, (rows, _) in enumerate(self.tests)]

    def tested(self, models: Models) -> list[Tested | None]:
        """All metrics of each client's model on its test rows."""
        every: list[Tested | None] = [None] * len(self.tests)
        for at, found, temperature in self._answers(models):
            labels, groups = self.labels_tested(at).cpu().numpy(), self._clients[at].test_groups
            every[at] = Tested.of_scores(found, labels, temperature, groups)
        return every

    def _answers(self, models: Models) -> Iterator[tuple[int, Tensor, float | None]]:
        """(client, scores with its prior and its classes, what makes probabilities of them), of those tested."""
        everybody = self.class_counts.sum(dim=0)
        for at, found in enumerate(self.test_scores(models)):
            if found is None:
                continue
            k, temperature = self.number.get(at), 1.0 if models.logits else None
            if k is not None and models.priors is not None:
                found = models.priors[k].apply(found, self.class_counts[k], everybody)
                temperature = temperature if models.priors[k].is_none else 1.0
            keep = self.class_counts[k] > 0 if k is not None and self.protocol.only_local_classes else None
            yield at, masked(found, keep), temperature

    def test_scores(self, models: Models) -> Iterator[Tensor | None]:
        """The scores (n, d) of each client's test rows; None without rows or without a model."""
        for at, (rows, start) in enumerate(self.tests):
            k = self.number.get(at)
            params = models.common if k is None else slice_of(models.personal, k)
            if not rows or params is None:
                yield None
            else:
                yield models.scores(params, self.test_features[start : start + rows][None])[0]

    def labels_tested(self, at: int) -> Tensor:
        """The labels of a client's test rows."""
        rows, start = self.tests[at]
        return self.test_labels[start : start + rows]

    def _own(self, k: int) -> tuple[Tensor, Tensor]:
        span = slice(self.starts[k], self.starts[k] + self.rows[k])
        return self.features[span], self.labels[span]

    def _train_one_by_one(
        self,
        step: LocalStep,
        params: Params,
        fixed: Params,
        present: Sequence[int],
        orders: Orders,
        rate: float,
        batch: int,
    ) -> None:
        full = torch.full((1, batch), rate / batch, dtype=self.dtype)

        def work(i: int) -> None:
            k = present[i]
            mine, given = slice_of(params, i), slice_of(fixed, i)
            features, labels = self._own(k)
            for rows in (torch.from_numpy(part) for order in orders(k) for part in _split(order, GATHER * batch)):
                x, y = features.index_select(0, rows)[None], labels.index_select(0, rows)[None]
                for at in range(0, len(rows), batch):
                    taken, there = y[:, at : at + batch], min(batch, len(rows) - at)
                    w = full if there == batch else full[:, :there] * (batch / there)
                    step(mine, given, Batch(x[:, at : at + batch], taken, w))

        for _ in in_order(work, range(len(present)), here=True):  # trained in place
            pass

    def _train_together(
        self,
        step: LocalStep,
        params: Params,
        fixed: Params,
        at: Tensor,
        tables: Sequence[OrderTable],
        rate: float,
        batch: int,
    ) -> Params:
        if not tables:
            return tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in params)
        shapes = tuple((t.shape, t.dtype) for t in params), tuple((t.shape, t.dtype, t.stride(0) == 0) for t in fixed)
        key = (step, shapes, tables[0][0].shape, rate, batch)
        if key not in self._epochs:
            self._epochs[key] = _Epoch(self.placed, step, params, fixed, tables[0], rate, batch)
        return self._epochs[key].train(params, fixed, at, tables)

    def _tables(self, orders: Orders, at: Tensor, batch: int, present: Sequence[int]) -> list[OrderTable]:
        """Of each pass the rows of the k clients (k, N) in their order, and how many of them count."""
        if isinstance(orders, Shuffled):
            length = self.placed.length(batch)
            found = self.placed.orders(length, orders.seed, orders.round, orders.epochs, orders.purpose)
            if len(at) == self.size:
                return [(table, self.placed.row_counts) for table in found]
            counts = self.placed.row_counts.index_select(0, at)
            return [(table.index_select(0, at), counts) for table in found]
        given = [orders(k) for k in present]
        return [
            _lay_out([passes[i] if i < len(passes) else np.empty(0, np.int64) for passes in given], batch, self.device)
            for i in range(max(map(len, given)))
        ]


#: Rows (k, N) of k clients in the order of a pass, whatever fills up behind them, and their number (k,).
OrderTable = tuple[Tensor, Tensor]


class _Epoch:
    """A pass of k clients over their rows, on buffers of its own."""

    def __init__(
        self,
        placed: DeviceRows,
        step: LocalStep,
        params: Params,
        fixed: Params,
        table: OrderTable,
        rate: float,
        batch: int,
    ) -> None:
        self.params = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in params)
        self.fixed = tuple(map(buffer_like, fixed))
        self.rows, self.counts = map(torch.clone, table)
        self.at = torch.zeros_like(self.counts)
        slot = torch.arange(self.rows.shape[1], device=placed.device)
        self.run = Recorded(lambda: self._work(placed, step, slot, rate, batch), placed.device)

    def train(self, params: Params, fixed: Params, at: Tensor, tables: Sequence[OrderTable]) -> Params:
        """The parameters after all passes."""
        self.at.copy_(at)
        for buffer, tensor in zip((*self.params, *self.fixed), (*params, *fixed), strict=True):
            fill(buffer, tensor)
        for rows, counts in tables:
            self.rows.copy_(rows)
            self.counts.copy_(counts)
            self.run()
        return tuple(map(torch.clone, self.params))

    def _work(self, placed: DeviceRows, step: LocalStep, slot: Tensor, rate: float, batch: int) -> None:
        counts, clients = self.counts[:, None], len(self.at)
        real = slot < counts
        there = (counts - slot // batch * batch).clamp_(1, batch).to(placed.dtype)
        # What fills up is a client's first row, of weight 0.
        index = placed.first_rows.index_select(0, self.at)[:, None] + self.rows.where(real, 0)
        index, weight = (
            tensor.view(clients, -1, batch).transpose(0, 1).contiguous()
            for tensor in (index, (rate / there).where(real, 0))
        )
        labels = _rows(placed.labels, index)
        for some in range(0, len(index), GATHER):
            x = _rows(placed.features, index[some : some + GATHER])
            for i in range(len(x)):
                step(self.params, self.fixed, Batch(x[i], labels[some + i], weight[some + i]))


def _lay_out(orders: Sequence[Order], batch: int, device: torch.device) -> OrderTable:
    """A pass whose orders are on the host."""
    length = -(-max(map(len, orders)) // batch) * batch
    rows = np.zeros((len(orders), length), np.int64)
    for i, order in enumerate(orders):
        rows[i, : len(order)] = order
    return _sent(torch.from_numpy(rows), device), _sent(torch.tensor([len(order) for order in orders]), device)


@lru_cache(maxsize=1024)
def places(present: tuple[int, ...], device: torch.device) -> Tensor:
    """Numbers of clients, on the device: rounds in which all take part ask for the same again and again."""
    return _sent(torch.tensor(present, dtype=torch.int64), device)


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device; a GPU takes it when it comes to it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _split(order: Order, batch: int) -> list[Order]:
    return [order[start : start + batch] for start in range(0, len(order), batch)]


def _rows(matrix: Tensor, index: Tensor) -> Tensor:
    """matrix[index], which takes four times as long."""
    return matrix.index_select(0, index.flatten()).view(*index.shape, *matrix.shape[1:])


def mean_by_class(embedded: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """(d, h): the mean of the rows (n, h) of each class; 0 for classes without rows."""
    # A product, since adding at an index is in no fixed order on a GPU.
    onehot = torch.nn.functional.one_hot(labels, num_classes).to(embedded.dtype)
    return onehot.mT @ embedded / onehot.sum(dim=0).clamp_(min=1)[:, None]


def sketch(scores: Tensor, numbers: int) -> list[float]:
    """The scores (n, d) of the first rows, less their mean over classes, to nine digits: at most so many numbers.

    A number that is added to all scores of a row decides nothing. A class that is left out counts as 0.
    """
    rows = max(1, numbers // scores.shape[1])
    S = scores[:rows].double()
    known = ~S.isneginf()
    mean = S.masked_fill(~known, 0.0).sum(dim=1, keepdim=True) / known.sum(dim=1, keepdim=True).clamp(min=1)
    centred = (S - mean).masked_fill(~known, 0.0).flatten()[:numbers]
    return [float(f"{value:.9g}") for value in centred.tolist()]


def for_each(params: Params, clients: int) -> Params:
    """Parameters without the axis of clients, seen as (clients, ...)."""
    return tuple(tensor.expand(clients, *tensor.shape) for tensor in params)


def slice_of(params: Params, k: int) -> Params:
    """(1, ...): those of client k, still with the axis of clients."""
    return tuple(tensor[k : k + 1] for tensor in params)


def take(params: Params, present: Sequence[int]) -> Params:
    """(k, ...): those of the clients present."""
    at = tuple(present)
    return tuple(t if len(at) == len(t) else t.index_select(0, places(at, t.device)) for t in params)


def put(params: Params, present: Sequence[int], new: Params) -> Params:
    """(K, ...) with those of the clients present replaced by (k, ...); nothing is changed in place."""
    at = tuple(present)
    return tuple(
        fresh if len(at) == len(old) else old.index_copy(0, places(at, old.device), fresh)
        for old, fresh in zip(params, new, strict=True)
    )


def weighted_mean(params: Params, weights: Tensor) -> Params:
    """Σ_k weights[k] θ_k."""
    return tuple((weights @ tensor.flatten(1)).view(tensor.shape[1:]) for tensor in params)


def nbytes(*tensors: Tensor) -> int:
    """What they take on the wire."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def sgd(params: Params, fixed: Params, batch: Batch) -> None:
    """θ ← θ − η ∇CE(θ)."""
    network.descend(params, network.gradient(params, batch))


@dataclass(frozen=True)
class ProximalSGD:
    """θ ← θ − η (∇CE(θ) + μ (θ − θ⁰)), with θ⁰ the tensors that are fixed; `strength` is η μ."""

    strength: float

    def __call__(self, params: Params, fixed: Params, batch: Batch) -> None:
        """One step."""
        factors = network.gradient(params, batch)
        pull = batch.active * self.strength
        for theta, centre in zip(params, fixed, strict=True):
            theta.lerp_(centre, pull.view(-1, *[1] * (theta.ndim - 1)))
        network.descend(params, factors)
