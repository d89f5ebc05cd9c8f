"""Phases 0 and 1: how a client's rows become whole numbers on the grid, in units of columns that all agree on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import torch
from torch import Tensor

from fedhip.core.balance import class_weights
from fedhip.core.exact.column_sums import ColumnSums
from fedhip.core.exact.columns import COLUMN_BITS, Columns, Survey, require_same_constants
from fedhip.core.exact.fixedpoint import GridStatistics, round_features
from fedhip.errors import ColumnError, InputError
from fedhip.simulation.client import Client, LabelledRows
from fedhip.simulation.options import STANDARD, RidgeOptions
from fedhip.utils.parallel import in_order


@dataclass(frozen=True)
class RowEncoding:
    """How rows become whole numbers on the grid: the same for everybody.

    `scale` (d,) is the √w that rows of each class are weighted with (`fedhip.core.balance`); None where all weigh
    alike. `surveyed` says that the columns' units are known by a survey, which every client sent and received.
    """

    columns: Columns
    fraction_bits: int = COLUMN_BITS
    scale: Tensor | None = None
    surveyed: bool = False

    def features(self, rows: LabelledRows, device: str | torch.device = "cpu") -> Tensor:
        """Rows in the columns' own units, weighted, float64; not yet rounded."""
        scaled = self.columns.features(torch.as_tensor(np.asarray(rows[0]), device=device).to(torch.float64))
        if self.scale is None:
            return scaled
        return scaled * self.scale.to(scaled)[torch.as_tensor(rows[1], device=device)][:, None]

    def statistics(self, client: Client, num_classes: int, device: str | torch.device = "cpu") -> GridStatistics:
        """Phase 1: the client's upload."""
        return GridStatistics.from_data(
            self.features(client.train, device),
            client.train[1],
            num_classes,
            fraction_bits=self.fraction_bits,
            client=client.name,
        )

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
    columns = ridge.columns or columns_of(clients, centred=ridge.intercept or ridge.standardize)
    bits = COLUMN_BITS if ridge.fraction_bits is None else ridge.fraction_bits
    scale = balancing_scale(clients, num_classes) if ridge.balance else None
    return RowEncoding(columns, bits, scale, surveyed=ridge.columns is None)


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
    try:
        columns = _without_survey(clients, centred) if survey is None else Columns.of(survey, centred=centred)
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
    return columns


def _without_survey(clients: Sequence[Client], centred: bool) -> Columns:
    """The same units, in a fraction of the time: only columns are surveyed of which plain sums leave them open."""
    sums = reduce(add, in_order(lambda client: ColumnSums.of(client.train[0], client=client.name), clients))
    columns, certain = sums.columns(centred=centred)
    open_ = np.flatnonzero(~certain)
    if not len(open_):
        return columns
    try:
        surveys = in_order(lambda client: Survey.of(client.train[0], client=client.name, only=open_), clients)
        surveyed = Columns.of(reduce(add, surveys), centred=centred)
    except ColumnError:  # in words that count the columns from the first
        return Columns.of(survey_of(clients), centred=centred)
    columns.offset[open_], columns.exponent[open_] = surveyed.offset, surveyed.exponent
    return columns
