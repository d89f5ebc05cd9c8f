"""Wider features for a whole federation: one exchange before the round; see `fedhip.features.lifts.lift`.

before    at each client: a survey of its columns (`fedhip.core.exact.columns`); of landmarks then their products too
          at the server: their sum, which tells everybody the same mean, deviation and landmarks
then      at each client: its rows, lifted; whatever comes next sees features of the lift's width

The first sum is of whole numbers, like all others: any division of the rows among clients gives the same lift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch

from fedhip.core.exact.columns import Columns, Survey, offset_near
from fedhip.core.exact.fixedpoint import GridStatistics, decode, fraction_bits_for
from fedhip.core.standardization import Standardization
from fedhip.errors import InputError
from fedhip.features.lifts.budget import (
    SAME_UNITS,
    exchange_bytes,
    require_memory,
    upload_bytes,
    width_for,
)
from fedhip.features.lifts.kinds import DEFAULT_WIDTH, LANDMARKS, PROJECT, LiftKind
from fedhip.features.lifts.lift import Lift, require_lift
from fedhip.simulation.client import Client, LabelledRows
from fedhip.simulation.driver import require_terms
from fedhip.simulation.encoding import RowEncoding, columns_of, survey_of, warn_of_outweighing
from fedhip.simulation.federation import SCORES_BYTES
from fedhip.simulation.options import STANDARD, RidgeOptions
from fedhip.utils.parallel import MEMINFO, available_cores, in_order, memory_available, one_thread, summed

#: Steps of projected rows when their units are found.
_MOMENT_BITS = 14
#: A direction along which rows deviate by less is in units of this.
_LEAST_DEVIATION = 2.0**-8


@dataclass(frozen=True)
class LiftSettings:
    """Which lift, as a user says it: its width, or the MB that one client may send; σ where there is a kernel.

    With `keeps` the features themselves are columns beside it, and so many more than its width.
    """

    kind: LiftKind
    width: int | None = None
    budget: float | None = None
    seed: int = 0
    bandwidth: float | None = None
    keeps: bool = False

    def __post_init__(self) -> None:
        require_lift(self.kind, DEFAULT_WIDTH if self.width is None else self.width, self.seed, self.sigma)
        if self.width is not None and self.budget is not None:
            raise InputError("a lift has a width, or the width that a budget allows; give one of them")
        if self.kind in ("relu", "project") and self.bandwidth is not None:
            raise InputError(
                f"the lift {self.kind} has no kernel, and so no bandwidth; leave it out, or choose another lift"
            )

    @property
    def sigma(self) -> float:
        """σ of the kernel: 1, at which that of two typical rows is 1/e, unless it is given."""
        return 1.0 if self.bandwidth is None else self.bandwidth

    @property
    def options(self) -> dict[str, Any]:
        """As options of the command line, those that are given."""
        given = {"lift_width": self.width, "lift_budget": self.budget, "lift_bandwidth": self.bandwidth}
        seed = {"lift_seed": self.seed} if self.seed else {}
        return {"lift": self.kind, **{name: value for name, value in given.items() if value is not None}, **seed}

    def plan(self, num_features: int, num_classes: int) -> LiftPlan:
        """What it comes to for features of this width."""
        width = DEFAULT_WIDTH if self.width is None else self.width
        first = exchange_bytes(self.kind, num_features, width)
        if self.budget is not None:
            before = first + SCORES_BYTES  # β may be chosen on rows
            width = width_for(self.budget - before / 1e6, num_classes) if self.budget * 1e6 > before else 0
            if width < 1:
                raise InputError(
                    f"{self.budget:g} MB do not hold the first sum of the lift {self.kind}, {first / 1e6:.3g} MB; "
                    "give more"
                )
        return LiftPlan(self, num_features, num_classes, width + num_features if self.keeps else width)


@dataclass(frozen=True)
class LiftPlan:
    """A lift before anything is computed, and what it will cost."""

    settings: LiftSettings
    num_features: int
    num_classes: int
    width: int

    @property
    def exchange(self) -> int:
        """Bytes that one client sends before the round, and as many that it receives."""
        return exchange_bytes(self.settings.kind, self.num_features, self.width)

    @property
    def identity(self) -> dict[str, Any]:
        """What of it decides a number."""
        settings = self.settings
        return {"kind": settings.kind, "width": self.width, "seed": settings.seed, "bandwidth": settings.sigma}

    @property
    def title(self) -> str:
        """For the title of a run."""
        return f"{self.settings.kind} lift to {self.width:,}"

    @property
    def price(self) -> str:
        """What a client will send, in words."""
        lifted, plain = (upload_bytes(width, self.num_classes) / 1e6 for width in (self.width, self.num_features))
        return (
            f"lift {self.settings.kind}, from {self.num_features:,} features to {self.width:,}: one exchange more, in "
            f"which each client sends {self.exchange / 1e6:.3g} MB; then its statistics are {lifted:.3g} MB instead "
            f"of {plain:.3g}"
        )

    def require_memory(self, rows: int) -> None:
        """Raise `InputError`, with the width that fits, if the memory that is free does not hold it."""
        free = memory_available(MEMINFO)
        if free is not None:
            require_memory(self.width, free, rows, available_cores())

    def to_dict(self, lift: Lift) -> dict[str, Any]:
        """For results.json."""
        return {
            **lift.description,
            "from": self.num_features,
            "upload_bytes_per_client": self.exchange,
            "download_bytes_per_client": self.exchange,
        }

    def draw(
        self,
        clients: Sequence[Client],
        device: str | torch.device = "cpu",
        report: Callable[[str, int, int], None] | None = None,
    ) -> Lift:
        """The exchange: the sum over all training rows, and the lift that follows from it."""
        tell = report or (lambda phase, done, total: None)
        training = [client for client in clients if len(client.train[1])]
        if self.settings.kind == "project" and self.num_features > SAME_UNITS:
            return self.of_lengths(reduce(add, in_order(_lengths, training)))
        survey = survey_of(training)
        if self.settings.kind not in LANDMARKS:
            warn_of_outweighing(training)
            return self.of_survey(survey)
        encoding = RowEncoding(columns_of(training, survey=survey))

        done = 0

        def seen(client: Client, found: None) -> None:
            nonlocal done
            done += 1
            tell("0 first sum", done, len(training))

        grid = require_terms(summed(lambda client: products_of(client, encoding, device), training, device, seen=seen))
        return self.of_products(grid, encoding)

    def of_survey(self, survey: Survey) -> Lift:
        """From the columns' means and deviations."""
        settings = self.settings
        units = survey.standardization()
        return Lift(settings.kind, self.width, settings.seed, units, settings.sigma, keeps=settings.keeps)

    def of_lengths(self, survey: Survey) -> Lift:
        """From the mean square of the rows' lengths: one unit for all columns, whose means stay."""
        square = float(survey.moments().squares_around(np.zeros(1))[0]) / max(survey.rows, 1)
        m = self.num_features
        scale = torch.full((m,), math.sqrt(square / m) if square > 0.0 else 1.0, dtype=torch.float64)
        units = Standardization(torch.zeros_like(scale), scale, intercept=False)
        return Lift(self.settings.kind, self.width, self.settings.seed, units)

    def of_products(self, grid: GridStatistics, encoding: RowEncoding) -> Lift:
        """From the sum of all products of columns in units of their own."""
        settings = self.settings
        lift = Lift.of(
            settings.kind,
            self.width,
            settings.seed,
            decode(grid),
            settings.sigma,
            step=encoding.step,
            keeps=settings.keeps,
        )
        return replace(lift, standardization=encoding.columns.standardization.then(lift.standardization))


def lift_clients(lift: Lift, clients: Iterable[Client], device: str | torch.device = "cpu") -> list[Client]:
    """The clients with lifted rows."""
    with one_thread():
        lift.draw()
    return list(in_order(lambda client: _lifted(lift, client, device), clients, device))


def products_of(client: Client, encoding: RowEncoding, device: str | torch.device = "cpu") -> GridStatistics:
    """The statistics of rows that are all of one class."""
    one_class = np.zeros(len(client.train[1]), np.int64)
    return encoding.statistics(Client(client.name, (client.train[0], one_class), client.test), 1, device)


def lifted_grid(
    clients: Iterable[Client], ridge: RidgeOptions = STANDARD, kind: LiftKind | None = None
) -> RidgeOptions:
    """The grid of lifted rows: they are of one size, and so are their columns' units, but for those of a projection."""
    if kind == PROJECT:
        return projected_grid(clients, ridge)
    largest, width = 0.0, 0
    for client in clients:
        width = client.train[0].shape[1]
        if len(client.train[1]):
            largest = max(largest, float(np.abs(client.train[0]).max()))
    bits = fraction_bits_for(largest) if ridge.fraction_bits is None else ridge.fraction_bits
    return replace(ridge, columns=Columns.plain(width), fraction_bits=bits)


def projected_grid(clients: Iterable[Client], ridge: RidgeOptions = STANDARD) -> RidgeOptions:
    """The grid of projected rows: columns in units by which they deviate, to within a factor of √2.

    The units follow from two sums, of whole numbers: Σ q and Σ q² of each column in steps of 2^-14. Projected rows are
    of length √m in the mean square, so that Σ q² is no more than 2^28 N m.
    """
    rows, sums = 0, np.zeros((2, 1), np.int64)
    for client in clients:
        q = np.rint(np.asarray(client.train[0], np.float64) * 2.0**_MOMENT_BITS).astype(np.int64)
        rows, sums = rows + len(q), sums + np.stack((q.sum(axis=0), (q * q).sum(axis=0)))
    first, second = sums.astype(object)
    mean = first.astype(np.float64) / rows * 2.0**-_MOMENT_BITS
    # In whole numbers of any size: a mean takes no digit from the deviation.
    spread = np.array([math.sqrt(s2) for s2 in rows * second - first * first])
    deviation = spread / rows * 2.0**-_MOMENT_BITS
    exponent = np.rint(np.log2(np.maximum(deviation, _LEAST_DEVIATION))).astype(np.int64)
    columns = Columns(torch.from_numpy(offset_near(mean, exponent)), torch.from_numpy(exponent))
    return replace(ridge, columns=columns)


def _lengths(client: Client) -> Survey:
    """Of a client's rows, each taken as its length."""
    lengths = np.linalg.norm(np.asarray(client.train[0], np.float64), axis=1, keepdims=True)
    return Survey.of(lengths, client=client.name)


def _lifted(lift: Lift, client: Client, device: str | torch.device) -> Client:
    def lifted(rows: LabelledRows) -> LabelledRows:
        features = np.array(rows[0])  # a copy: the rows may be read-only
        return lift(torch.from_numpy(features).to(device)).cpu().numpy(), rows[1]

    return replace(client, train=lifted(client.train), test=lifted(client.test))
