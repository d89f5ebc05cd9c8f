"""Noise on a sum of statistics, so that the sum says almost nothing of any one row.

A row goes into the sum as (z, ½): z of length at most 1 (`fedhip.privacy.public`), and a constant that counts. With
q = (z, ½) and a one-hot label y, it adds qqᵀ to the matrix and q yᵀ to the sums by class, whose constant row holds the
counts: there is nothing else to release. Together that is a vector of length at most

    Δ = √(B⁴ + B²)        B² = 1 + ¼

where the matrix counts by its Frobenius norm: an entry off the diagonal stands there twice, so that noise of σ/√2 on it
protects as well as σ on the diagonal. Rows are rounded to the grid first, so that Δ holds of whole numbers, and noise
is added in whole numbers (`fedhip.privacy.noise`).

Each client adds a share of the noise. Shares are sized so that those of `honest` clients alone reach σ: whoever knows
or withholds the others' is still faced with σ. The sum of all K has the deviation σ √(K / honest). Where some of them
may drop out, `honest` are those who are there in any case and tell nobody: the sum of any survivors has at least σ.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.rows import Rows
from fedhip.errors import InputError, StatisticsError
from fedhip.privacy.accounting import cost, epsilon_of, noise_multiplier, require_delta, require_epsilon
from fedhip.privacy.noise import MOST_SIGMA, Bytes, discrete_gaussian, excess
from fedhip.privacy.public import PublicMap

Unit = Literal["row", "group", "client"]
UNITS: tuple[str, ...] = get_args(Unit)
DEFAULT_DELTA = 1e-5
#: What counts in a row beside its features: ½ is on every grid.
CONSTANT = 0.5
#: The square of the longest row.
LONGEST = 1.0 + CONSTANT**2
#: A share of the noise is at least so many steps of the grid: no bit of a sum stays exact, and shares add up to a
#: discrete Gaussian.
LEAST_SHARE = 1 << 20
#: Of a grid coarser than this, rows would be lost in rounding.
_FEWEST_BITS = 12

_PROTECTS = {
    "row": "every training row",
    "group": "all training rows of a group together",
    "client": "all training rows of a {} together",
}


@dataclass(frozen=True)
class Mechanism:
    """Noise for a sum over clients.

    Parameters
    ----------
    epsilon, delta : float
        What the sum may give away of a unit.
    unit : "row", "group" or "client"
        What is protected: the sum with it and the sum without it are hard to tell apart.
    unit_rows : int
        How many rows of a unit go into the sum, at most.
    width : int
        w, how many directions rows have in the sum.
    clients : int
        K, who add a share of the noise.
    lost : int
        How many of the shares may be known to whoever looks, or missing.
    missing : int
        How many of these may be missing, because their clients have dropped out.
    """

    epsilon: float
    delta: float
    unit: Unit
    unit_rows: int
    width: int
    clients: int
    lost: int = 1
    missing: int = 0

    def __post_init__(self) -> None:
        require_epsilon(self.epsilon)
        require_delta(self.delta)
        if self.unit not in UNITS:
            raise InputError(f"unit is {self.unit!r}; give one of {', '.join(UNITS)}")
        rows: object = self.unit_rows
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise InputError(f"unit_rows is {self.unit_rows!r}; give a whole number of at least 1")
        if self.honest < 1:
            raise InputError(
                f"there are {self.clients} clients, and {self.lost} may know their share of the noise or not be there: "
                f"nobody's noise protects the others; take part with at least {self.lost + 1}"
            )
        if self.fraction_bits < _FEWEST_BITS:
            raise InputError(
                f"epsilon is {self.epsilon:g}: noise of {self.sigma:,.0f} rows would bury all that the sum says; give "
                f"a larger epsilon{'' if self.unit == 'row' else f', or fewer rows of a {self.unit}'}"
            )

    @property
    def honest(self) -> int:
        """Whose shares alone must reach σ."""
        return self.clients - self.lost

    def of_survivors(self, clients: int) -> Mechanism:
        """The same shares in a sum of so many clients: the others have dropped out."""
        known, lost = self.lost - self.missing, clients - self.honest
        return replace(self, clients=clients, lost=lost, missing=max(0, lost - known))

    @property
    def sensitivity(self) -> float:
        """Δ: what a unit changes the sum by at most."""
        return self.unit_rows * math.sqrt(LONGEST**2 + LONGEST)

    @cached_property
    def sigma(self) -> float:
        """σ of the noise that protects, in units of a row of length 1."""
        return noise_multiplier(self.epsilon, self.delta) * self.sensitivity

    @property
    def total_sigma(self) -> float:
        """The deviation of the noise in the sum, all shares together."""
        diagonal, _ = self.share
        return diagonal * 2.0**-self.fraction_bits * math.sqrt(self.clients)

    @cached_property
    def fraction_bits(self) -> int:
        """The grid's scale, in steps of 2^-bits: even, and the coarsest on which a share has its least size."""
        return 2 * math.ceil((math.log2(LEAST_SHARE) - math.log2(self.sigma / math.sqrt(self.honest))) / 2.0)

    @cached_property
    def share(self) -> tuple[int, int]:
        """σ of one client's noise in whole steps: on the diagonal and on sums by class, and off the diagonal."""
        diagonal = math.ceil(self.sigma * 2.0**self.fraction_bits / math.sqrt(self.honest))
        if diagonal > MOST_SIGMA:
            raise StatisticsError(f"a share of {diagonal} steps is more than the sampler takes")
        return diagonal, math.ceil(diagonal / math.sqrt(2.0))

    @property
    def edge(self) -> float:
        """How far the noise alone moves eigenvalues of the matrix: about σ √(2(w + 1)) for large w."""
        return self.total_sigma * math.sqrt(2.0 * (self.width + 1))

    def least_rows(self, num_classes: int) -> float:
        """How many rows of all clients the noise weighs as much as; a sum of fewer says nothing.

        Their number is known twice, from the matrix and from the classes, and must stand out of its own noise, too.
        """
        return max(self.edge, 3.0 * self.unsure_rows(num_classes))

    def unsure_rows(self, num_classes: int) -> float:
        """The deviation of the number of rows, as the noisy sum has it."""
        variance = self.total_sigma**2 / CONSTANT**2
        return math.sqrt(1.0 / (CONSTANT**2 / variance + 1.0 / (num_classes * variance)))

    def larger_epsilon(self, rows: float, num_classes: int) -> float:
        """About the ε with which the noise weighs no more than so many rows, rounded up to two digits."""
        needed = self.epsilon * self.least_rows(num_classes) / max(rows, 1.0)
        digit = 10.0 ** (math.floor(math.log10(needed)) - 1)
        return math.ceil(needed / digit) * digit

    def rho(self, length: int) -> float:
        """ρ of what is released, by the noise of the honest alone: a vector of this length."""
        diagonal, _ = self.share
        steps = self.sensitivity * 2.0**self.fraction_bits
        return cost(steps, diagonal * math.sqrt(self.honest)) + excess(diagonal, self.honest, length)

    def spent(self, length: int) -> float:
        """ε of the same."""
        return epsilon_of(self.rho(length), self.delta)

    def encoded(self, public: PublicMap, features: Any, labels: Any, num_classes: int, client: str) -> GridStatistics:
        """A client's statistics of (z, ½) on the grid, without noise. The counts are in the constant's row."""
        if len(labels) == 0:
            w, nothing = self.width + 1, torch.zeros(num_classes, dtype=torch.int64)
            gram, cross = (torch.zeros((w, size), dtype=torch.int64) for size in (w, num_classes))
            return GridStatistics(gram, cross, nothing, self.fraction_bits)
        rows = Rows.checked(features, labels, num_classes, client)
        parts = [self.placed(public, F) for F, _ in rows.blocks(4096)]
        found = GridStatistics.from_data(
            torch.cat(parts), rows.labels, num_classes, fraction_bits=self.fraction_bits, client=client
        )
        return GridStatistics(found.gram, found.cross, torch.zeros_like(found.counts), self.fraction_bits)

    def placed(self, public: PublicMap, rows: Tensor) -> Tensor:
        """(z, ½) (n, w + 1) rounded to the grid, and not longer than agreed."""
        step = 2.0 ** -(self.fraction_bits // 2)
        # Rounding adds half a step to each number at most.
        z = public.clipped(rows) * (1.0 - 0.5 * step * math.sqrt(self.width))
        steps = torch.round(z / step)
        if not bool((steps.square().sum(dim=1) <= step**-2).all()):
            raise StatisticsError("a row is longer than what was agreed, after clipping: this must not happen")
        constant = torch.full_like(steps[:, :1], CONSTANT)
        return torch.cat((steps * step, constant), dim=1)

    def noise(self, num_classes: int, randomness: Bytes = os.urandom) -> GridStatistics:
        """One client's share."""
        w, (sigma, beside) = self.width + 1, self.share
        above = torch.triu_indices(w, w, offset=1)
        gram = torch.zeros((w, w), dtype=torch.int64)
        gram[above[0], above[1]] = torch.from_numpy(discrete_gaussian(beside, above.shape[1], randomness))
        gram += gram.mT.clone()
        gram.diagonal().copy_(torch.from_numpy(discrete_gaussian(sigma, w, randomness)))
        cross = torch.from_numpy(discrete_gaussian(sigma, w * num_classes, randomness)).view(w, num_classes)
        return GridStatistics(gram, cross, torch.zeros(num_classes, dtype=torch.int64), self.fraction_bits)

    @property
    def guarantee(self) -> str:
        """Who is protected from whom, by what, how well, and what is not covered: one sentence."""
        return self.sentence()

    def sentence(self, who: str = "client") -> str:
        """The guarantee, in which a client is called by what it is; which sites a federation has is known."""
        capped = "" if self.unit == "row" else f" (at most {self.unit_rows:,} of them are used)"
        known = self.lost - self.missing
        others = f"any {_number(known)} of the other {who}s" if known < self.clients - 1 else f"all other {who}s"
        others = "the server" if known == 0 else f"the server and {others}"
        who_is_in = "" if who == "client" else f"which {who}s take part, "
        return (
            f"({self.epsilon:g}, {self.delta:g})-differential privacy protects "
            f"{_PROTECTS[self.unit].format(who)}{capped} from {others}: all that leaves a {who} is its part of one "
            f"sum, with discrete Gaussian noise of σ = {self.sigma:.3g} over {self.width:,} directions of rows of "
            f"length 1; not covered are {who_is_in}a {who}'s own model, which is made of its own rows and stays with "
            f"it, test rows, and whatever else is computed from a {who}'s rows without noise, such as how many there "
            "are and how well a model does on them."
        )

    def to_dict(self) -> dict[str, Any]:
        """`privacy` of results.json."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "unit_rows": self.unit_rows,
            "mechanism": "discrete Gaussian",
            "sigma": self.sigma,
            "width": self.width,
            "clients": self.clients,
            "lost": self.lost,
            **({"missing": self.missing} if self.missing else {}),
            "guarantee": self.guarantee,
        }

    @classmethod
    def from_dict(cls, content: Any) -> Mechanism:
        """What `to_dict` gave."""
        names = ("epsilon", "delta", "unit", "unit_rows", "width", "clients", "lost")
        return cls(**{name: content[name] for name in names}, missing=content.get("missing", 0))


def _number(count: int) -> str:
    return {1: "one", 2: "two", 3: "three"}.get(count, str(count))
