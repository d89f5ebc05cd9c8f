"""Phases 0 and 1: how a client's rows become whole numbers on the grid, in units of columns that all agree on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.balance import class_weights
from fedhip.core.exact.column_sums import ColumnSums
from fedhip.core.exact.columns import COLUMN_BITS, Columns, Survey, require_same_constants
from fedhip.core.exact.fixedpoint import GridStatistics, round_features
from fedhip.core.exact.outweighing import Spread, outweighed, outweighing
from fedhip.core.exact.root import root_statistics
from fedhip.core.targets import Targets
from fedhip.errors import ColumnError, ColumnWarning, InputError
from fedhip.simulation.client import Client, LabelledRows
from fedhip.simulation.options import STANDARD, RidgeOptions
from fedhip.simulation.tasks import repeated, targets_of
from fedhip.utils.parallel import in_order, one_thread


class Block(Protocol):
    """Features of a client's rows, or of several clients', below one another; looked up where they are needed."""

    @property
    def features(self) -> NDArray[Any]:
        """(N, m)."""

    @property
    def client(self) -> str | None:
        """Whose they are, if they are one client's."""


@dataclass(frozen=True)
class _OfClient:
    """A client's training rows."""

    owner: Client

    @property
    def features(self) -> NDArray[Any]:
        return self.owner.train[0]

    @property
    def client(self) -> str:
        return self.owner.name


Blocks = Callable[[], Iterable[Block]]

#: Sums of so many columns of clients are kept at once, to look for a client that outweighs all others.
_KEPT = 2**22


@dataclass(frozen=True)
class RowEncoding:
    """How rows become whole numbers on the grid: the same for everybody.

    `scale` (d,) is the √w that rows of each class are weighted with (`fedhip.core.balance`); None where all weigh
    alike. `surveyed` says that the columns' units are known by a survey, which every client sent and received.
    `targets` say how real targets and weights of rows stand on it; None for classes whose rows are counted. A client's
    statistics are sent in no more than `room` bytes, rounded as that takes; without, whole.
    """

    columns: Columns
    fraction_bits: int = COLUMN_BITS
    scale: Tensor | None = None
    surveyed: bool = False
    targets: Targets | None = None
    room: int | None = None

    def features(self, rows: LabelledRows, device: str | torch.device = "cpu") -> Tensor:
        """Rows in the columns' own units, weighted, float64; not yet rounded."""
        scaled = self.columns.features(torch.as_tensor(np.asarray(rows[0]), device=device).to(torch.float64))
        if self.scale is None:
            return scaled
        return scaled * self.scale.to(scaled)[torch.as_tensor(rows[1], device=device)][:, None]

    def statistics(self, client: Client, num_classes: int, device: str | torch.device = "cpu") -> GridStatistics:
        """Phase 1: the client's upload."""
        if self.targets is not None:
            labels, Y, times = self.target_rows(client, num_classes, device)
            counts = torch.tensor([len(Y)]) if labels is None else torch.bincount(labels, minlength=num_classes)
            return GridStatistics.from_targets(
                self.features(client.train, device),
                Y,
                counts,
                weights=times,
                fraction_bits=self.fraction_bits,
                client=client.name,
            )
        if self.room is not None:
            labels = torch.as_tensor(client.train[1], device=device)
            with one_thread():  # the same bits whenever it is asked for
                return root_statistics(
                    self.rounded(client.train, device), labels, num_classes, self.room,
                    fraction_bits=self.fraction_bits, client=client.name,
                )  # fmt: skip
        return GridStatistics.from_data(
            self.features(client.train, device),
            client.train[1],
            num_classes,
            fraction_bits=self.fraction_bits,
            client=client.name,
        )

    def target_rows(
        self, client: Client, num_classes: int, device: str | torch.device = "cpu"
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Labels (N,) of classes, targets (N, t) as the grid holds them, and whole weights (N,) where there are any."""
        targets, values = self.targets or Targets(), torch.as_tensor(np.array(client.train[1]), device=device)
        weights = client.weights
        if weights is None and targets.unit != 1.0:
            weights = np.ones(len(values))
        times = None if weights is None else targets.whole(torch.tensor(weights, device=device))
        labels = values if targets.columns is None else None
        return labels, targets.matrix(values, num_classes, self.fraction_bits), times

    def rounded(self, rows: LabelledRows, device: str | torch.device = "cpu") -> Tensor:
        """Rows (N, m) as the grid holds them."""
        return round_features(self.features(rows, device), self.fraction_bits)

    @property
    def step(self) -> float:
        """What features are rounded to."""
        return float(2.0 ** -(self.fraction_bits // 2))


def encoding_of(
    clients: Sequence[Client],
    num_classes: int,
    ridge: RidgeOptions = STANDARD,
) -> RowEncoding:
    """How the clients' rows become whole numbers, from sums over clients alone."""
    if not clients:
        raise InputError("no client has training rows, so there is nothing to sum; give at least one some")
    columns = ridge.columns or columns_of([repeated(client) for client in clients], centred=ridge.centred)
    bits = COLUMN_BITS if ridge.fraction_bits is None else ridge.fraction_bits
    scale = balancing_scale(clients, num_classes) if ridge.balance else None
    encoding = RowEncoding(columns, bits, scale, surveyed=ridge.columns is None, room=ridge.room)
    targets = targets_of([repeated(client) for client in clients], clients, encoding, centred=ridge.intercept)
    return encoding if targets is None else replace(encoding, targets=targets)


def balancing_scale(clients: Iterable[Client], num_classes: int) -> Tensor:
    """√w of each class, from the clients' summed counts alone."""
    counts = sum(np.bincount(client.train[1], minlength=num_classes) for client in clients)
    return class_weights(torch.as_tensor(counts).expand(num_classes)).sqrt()


def survey_of(clients: Sequence[Client]) -> Survey:
    """Phase 0: the sum of the clients' surveys."""
    surveys = list(in_order(Client.survey, clients))
    if not surveys:
        raise InputError("no client has training rows, so there is nothing to sum; give at least one some")
    return reduce(add, surveys)


def columns_of(
    clients: Sequence[Client],
    *,
    centred: bool = True,
    survey: Survey | None = None,
) -> Columns:
    """The columns' units, those that the sum of the clients' surveys gives; an error names who has the value."""
    sums = list(_sums(clients)) if _may_be_kept(clients) else None
    try:
        blocks = lambda: map(_OfClient, clients)  # noqa: E731
        if survey is None:
            columns = _without_survey(reduce(add, _sums(clients) if sums is None else sums), blocks, centred)
        else:
            columns = Columns.of(survey, centred=centred)
    except ColumnError as error:
        if error.column is None or not error.is_value:
            raise
        sizes = [float(np.abs(client.train[0][:, error.column]).max()) for client in clients]
        who = clients[int(np.argmax(sizes))]
        row = int(np.abs(who.train[0][:, error.column]).argmax())
        raise ColumnError(
            f"client {who.name!r}, training row {row}: {error}", column=error.column, is_value=True
        ) from None
    for client in clients:
        require_same_constants(columns, client.train[0], f"client {client.name!r}: ")
    if sums is not None:
        warn_of_outweighing(clients, sums)
    return columns


def columns_of_blocks(blocks: Blocks, *, centred: bool = True) -> Columns:
    """The same of rows of many clients below one another, which are asked for anew whenever they are needed."""
    sums = reduce(add, in_order(lambda rows: ColumnSums.of(rows.features, client=rows.client), blocks()))
    columns = _without_survey(sums, blocks, centred)
    for rows in blocks():
        require_same_constants(columns, rows.features)
    return columns


def warn_of_outweighing(clients: Sequence[Client], sums: Sequence[ColumnSums] | None = None) -> None:
    """Warn of clients whose rows decide how far a column spreads; `sums` are the clients' where they are known.

    Not where there are so many clients that sums of each would take much memory.
    """
    if not _may_be_kept(clients):
        return
    astray, others = outweighing(Spread.of(list(_sums(clients)) if sums is None else sums))
    variance = others.variance.copy()
    for column in np.flatnonzero(variance):
        rest = [np.asarray(client.train[0][:, column]) for k, client in enumerate(clients) if not astray[k, column]]
        low, high = np.quantile(np.concatenate(rest), (0.25, 0.75), method="nearest")
        if low == high:  # a sparse column: there is little to tell apart
            variance[column] = 0.0
    for k in np.flatnonzero((astray & (variance > 0.0)).any(axis=1)).tolist():
        of_its = Spread(others.rows, others.mean, np.where(astray[k], variance, 0.0))
        if (words := outweighed(clients[k].train[0], of_its)) is not None:
            warnings.warn(f"client {clients[k].name!r}: {words}", ColumnWarning, stacklevel=2)


def _may_be_kept(clients: Sequence[Client]) -> bool:
    return bool(len(clients) * clients[0].train[0].shape[1] <= _KEPT)


def _sums(clients: Sequence[Client]) -> Iterator[ColumnSums]:
    return in_order(lambda client: ColumnSums.of(client.train[0], client=client.name), clients)


def _without_survey(sums: ColumnSums, blocks: Blocks, centred: bool) -> Columns:
    """The survey's units, in a fraction of the time: only columns are surveyed of which plain sums leave them open."""
    columns, certain = sums.columns(centred=centred)
    open_ = np.flatnonzero(~certain)
    if not len(open_):
        return columns
    try:
        surveys = in_order(lambda rows: Survey.of(rows.features, client=rows.client, only=open_), blocks())
        surveyed = Columns.of(reduce(add, surveys), centred=centred)
    except ColumnError:  # in words that count the columns from the first
        whole = in_order(lambda rows: Survey.of(rows.features, client=rows.client), blocks())
        return Columns.of(reduce(add, whole), centred=centred)
    columns.offset[open_], columns.exponent[open_] = surveyed.offset, surveyed.exponent
    return columns
