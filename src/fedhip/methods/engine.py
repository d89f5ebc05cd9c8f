"""All clients train at once: what the methods that train by gradients share.

A method's local work is a `Step`: a function of parameters with the clients as their first axis and of a mini-batch of
each client, that changes the parameters in place. `Laboratory.train` runs it over every client's own rows, in every
client's own order, with its own last partial batch and number of steps:

on a GPU    one step for all clients, batches filled up with rows of weight 0; replayed as a CUDA graph
on a CPU    one client after another, a thread for each core: its weights stay in that core's cache all along

Both give the same numbers up to rounding. A client's order of rows depends on the seed, its place among the clients,
the round and the epoch, and on nothing else; there is no state of a generator to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import add

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.prior import Prior
from fedhip.methods import heads
from fedhip.methods.heads import Batch, Params
from fedhip.methods.protocol import Protocol
from fedhip.models import masked
from fedhip.parallel import in_order
from fedhip.simulation import Client, Rows

#: step(params, fixed, batch): changes params in place; both have the clients of the batch as their first axis.
Step = Callable[[Params, Params, Batch], None]
Order = NDArray[np.int64]
#: The passes of the client at this place among those with training rows: each an order of its rows.
Orders = Callable[[int], Sequence[Order]]

#: Mini-batches whose rows a client gathers at once on a CPU: few calls, and little memory.
GATHER = 16

#: Rows of each client that class means take at a time on a GPU.
CLASS_MEAN_ROWS = 512

#: Batches laid out on a GPU, of the last rounds: the methods of a table all use the same.
_TABLES: dict[Hashable, tuple[Tensor, Tensor]] = {}
_MOST_TABLES = 512

SHUFFLE, SAMPLE, SLICE, ALIGN, TRACE, WARM_UP, HOLD_OUT = range(7)


def draw(seed: int, purpose: int, *place: int) -> np.random.Generator:
    """A generator for one purpose at one place (client, round, epoch): the same whatever was drawn before."""
    return np.random.default_rng((seed, purpose, *place))


def client_order(rows: int, seed: int, client: int, round_: int, epoch: int, purpose: int = SHUFFLE) -> Order:
    """The order in which a client goes through its rows."""
    return draw(seed, purpose, client, round_, epoch).permutation(rows)


def participants(clients: int, participation: float, seed: int, round_: int) -> list[int]:
    """int(clients · participation) of them, at least one, drawn anew each round."""
    number = max(1, int(clients * participation))
    if number >= clients:
        return list(range(clients))
    return sorted(draw(seed, SAMPLE, round_).choice(clients, number, replace=False).tolist())


@dataclass(frozen=True)
class Shuffled:
    """Every client's orders in some epochs of a round: equal for all methods, so that they can be laid out once."""

    rows: tuple[int, ...]
    place: tuple[int, ...]
    seed: int
    round: int
    epochs: range
    purpose: int

    def __call__(self, k: int) -> list[Order]:
        """The orders of client k, one for each epoch."""
        where = (self.rows[k], self.seed, self.place[k], self.round)
        return [client_order(*where, epoch, self.purpose) for epoch in self.epochs]


@dataclass(frozen=True)
class Models:
    """Whom to test with what: (K, ...) of the clients with training rows, (1, ...) for those without, if there is one.

    `scores(params, x)` gives (k, B, d). `priors` are those of the clients with training rows, if they are asked for.
    """

    personal: Params
    common: Params | None = None
    scores: Callable[[Params, Tensor], Tensor] = heads.scores
    priors: list[Prior] | None = None


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
        self.place = [at for at, client in enumerate(clients) if len(client.train[1])]
        self.number = {at: k for k, at in enumerate(self.place)}
        self.rows = [len(clients[at].train[1]) for at in self.place]
        self.starts = list(accumulate(self.rows, initial=0))
        self.features, self.labels = self._stack([clients[at].train for at in self.place])
        tests = [len(client.test[1]) for client in clients]
        self.tests = list(zip(tests, accumulate(tests, initial=0), strict=False))
        self.test_features, self.test_labels = self._stack([client.test for client in clients])
        self.class_counts = torch.stack(
            [torch.bincount(self._own(k)[1], minlength=num_classes) for k in range(self.size)]
        )
        self._graphs: dict[Hashable, _Replay] = {}

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
        return heads.initial(widths, p.seed, self.dtype, self.device)

    def shares(self, present: Sequence[int]) -> Tensor:
        """n_k / Σ n of the clients present."""
        rows = torch.tensor([self.rows[k] for k in present], dtype=torch.float64)
        return (rows / rows.sum()).to(self.device, self.dtype)

    def shuffled(self, round_: int, epochs: int | range | None = None, purpose: int = SHUFFLE) -> Orders:
        """Each client's orders in the epochs of a round (the protocol's, by default)."""
        passes = self.protocol.epochs if epochs is None else epochs
        span = range(passes) if isinstance(passes, int) else passes
        return Shuffled(tuple(self.rows), tuple(self.place), self.protocol.seed, round_, span, purpose)

    def train(
        self,
        step: Step,
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
        trained = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in params)
        if self.together:
            self._train_together(step, trained, fixed, present, orders, rate, batch)
        else:
            self._train_one_by_one(step, trained, fixed, present, orders, rate, batch)
        return trained

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
        everybody = self.class_counts.sum(dim=0)
        right: dict[int, Tensor] = {}
        for at, found in enumerate(self.test_scores(models)):
            if found is None:
                continue
            k = self.number.get(at)
            if k is not None and models.priors is not None:
                found = models.priors[k].apply(found, self.class_counts[k], everybody)
            keep = self.class_counts[k] > 0 if k is not None and self.protocol.only_local_classes else None
            right[at] = (masked(found, keep).argmax(dim=1) == self.labels_tested(at)).sum()
        counted = dict(zip(right, torch.stack(list(right.values())).tolist() if right else [], strict=True))
        return [counted[at] / rows if at in counted else None for at, (rows, _) in enumerate(self.tests)]

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

    def _stack(self, parts: Sequence[Rows]) -> tuple[Tensor, Tensor]:
        widths = {part.shape[1] for part, labels in parts if len(labels)}
        features = torch.empty(sum(len(y) for _, y in parts), max(widths, default=0), dtype=self.dtype)
        at = 0
        for part, labels in parts:
            if len(labels):
                features[at : at + len(labels)] = torch.from_numpy(np.array(part))  # which may be read-only
            at += len(labels)
        classes = torch.as_tensor(np.concatenate([np.asarray(y, np.int64) for _, y in parts]))
        return features.to(self.device), classes.to(self.device)

    def _train_one_by_one(
        self, step: Step, params: Params, fixed: Params, present: Sequence[int], orders: Orders, rate: float, batch: int
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

        for _ in in_order(work, range(len(present))):
            pass

    def _train_together(
        self, step: Step, params: Params, fixed: Params, present: Sequence[int], orders: Orders, rate: float, batch: int
    ) -> None:
        index, weight = self._table(present, orders, rate, batch)
        replay = self._replay(step, params, fixed, batch)
        if replay is not None:
            replay(params, fixed, index, weight)
            return
        for rows, w in zip(index, weight, strict=True):
            step(params, fixed, Batch(_rows(self.features, rows), _rows(self.labels, rows), w))

    def _table(self, present: Sequence[int], orders: Orders, rate: float, batch: int) -> tuple[Tensor, Tensor]:
        """Rows (S, k, B) of the feature matrix, step by step, and their weights; padding is a client's first row."""
        key = (orders, tuple(present), batch, self.device, self.dtype) if isinstance(orders, Shuffled) else None
        laid_out = _TABLES.get(key)
        if laid_out is None:
            laid_out = self._lay_out(present, orders, batch)
            if key is not None:
                while len(_TABLES) >= _MOST_TABLES:
                    _TABLES.pop(next(iter(_TABLES)))
                _TABLES[key] = laid_out
        index, share = laid_out
        return index, share * rate

    def _lay_out(self, present: Sequence[int], orders: Orders, batch: int) -> tuple[Tensor, Tensor]:
        """Rows (S, k, B) and 1/(rows of the batch) for each; 0 for padding."""
        passes = [_padded(orders(k), batch) for k in present]
        steps = max(map(len, passes))
        index = np.empty((steps, len(present), batch), np.int64)
        share = np.zeros((steps, len(present), batch))
        for i, k in enumerate(present):
            rows = passes[i]
            real = rows >= 0
            index[:, i] = self.starts[k]
            index[: len(rows), i] += np.where(real, rows, 0)
            share[: len(rows), i] = real / real.sum(axis=1, keepdims=True)
        return torch.from_numpy(index).to(self.device), torch.from_numpy(share).to(self.device, self.dtype)

    def _replay(self, step: Step, params: Params, fixed: Params, batch: int) -> _Replay | None:
        """The step as a CUDA graph, captured once for each step and shape; None where that cannot be done."""
        if self.device.type != "cuda":
            return None
        key = (step, tuple((t.shape, t.stride(0) == 0) for t in (*params, *fixed)), len(params), batch)
        if key not in self._graphs:
            try:
                self._graphs[key] = _Replay(self, step, params, fixed, batch)
            except RuntimeError:  # a step that cannot be captured runs kernel by kernel
                return None
        return self._graphs[key]


class _Replay:
    """A step recorded on buffers of its own."""

    def __init__(self, lab: Laboratory, step: Step, params: Params, fixed: Params, batch: int) -> None:
        clients = params[0].shape[0]
        self.params = tuple(map(torch.clone, params))
        # What all clients share has no copy for each.
        self.fixed = tuple(t[:1].clone().expand_as(t) if t.stride(0) == 0 else t.clone() for t in fixed)
        self.rows = torch.zeros((clients, batch), dtype=torch.int64, device=lab.device)
        self.weight = torch.zeros((clients, batch), dtype=lab.dtype, device=lab.device)

        def once() -> None:
            taken = Batch(_rows(lab.features, self.rows), _rows(lab.labels, self.rows), self.weight)
            step(self.params, self.fixed, taken)

        side = torch.cuda.Stream(lab.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(lab.device))
        with torch.cuda.stream(side):
            for _ in range(3):
                once()
        torch.cuda.current_stream(lab.device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            once()

    def __call__(self, params: Params, fixed: Params, index: Tensor, weight: Tensor) -> None:
        for buffer, tensor in zip((*self.params, *self.fixed), (*params, *fixed), strict=True):
            if buffer.stride(0) == 0:
                buffer[0].copy_(tensor[0])
            else:
                buffer.copy_(tensor)
        for rows, w in zip(index, weight, strict=True):
            self.rows.copy_(rows)
            self.weight.copy_(w)
            self.graph.replay()
        for tensor, buffer in zip(params, self.params, strict=True):
            tensor.copy_(buffer)


def _padded(passes: Sequence[Order], batch: int) -> Order:
    """(steps, B): the orders of all passes in batches, the last of each filled up with −1; no steps without a pass."""
    filled = [np.append(order, np.full(-len(order) % batch, -1)) for order in passes]
    return np.concatenate([np.empty(0, dtype=np.int64), *filled]).reshape(-1, batch)


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
    return tuple(tensor if len(present) == len(tensor) else tensor[list(present)] for tensor in params)


def put(params: Params, present: Sequence[int], new: Params) -> Params:
    """(K, ...) with those of the clients present replaced by (k, ...); nothing is changed in place."""
    at = list(present)
    return tuple(
        fresh if len(at) == len(old) else old.index_copy(0, torch.tensor(at, device=old.device), fresh)
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
    heads.descend(params, heads.gradient(params, batch))


@dataclass(frozen=True)
class ProximalSGD:
    """θ ← θ − η (∇CE(θ) + μ (θ − θ⁰)), with θ⁰ the tensors that are fixed; `strength` is η μ."""

    strength: float

    def __call__(self, params: Params, fixed: Params, batch: Batch) -> None:
        """One step."""
        factors = heads.gradient(params, batch)
        pull = batch.active * self.strength
        for theta, centre in zip(params, fixed, strict=True):
            theta.lerp_(centre, pull.view(-1, *[1] * (theta.ndim - 1)))
        heads.descend(params, factors)
