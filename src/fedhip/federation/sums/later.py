"""What is summed after the statistics, as vectors of whole numbers: the same at the sites and the server.

Of the logistic head (for priors see `prior_sums`):

    temperature   log-losses of LDA's scores, each row left out, over 16 temperatures
    gradient      gradient ‖ curvature ‖ loss ‖ rows right ‖ class counts, at the weights that the server sends
    penalty       log-losses of a step from the first weights, each row left out, over 9 penalties and 17 temperatures

Gradients are whole numbers by themselves (`fedhip.core.logistic.sums`), so that their sum is that of `fedhip run` to
the last bit. Losses are real numbers, put on a grid of 2^-32: a sum differs by less than 2^-33 for each site, and what
is chosen by it, from a short list, does not.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedhip.core.errors import StatisticsError
from fedhip.federation.errors import MessageError
from fedhip.federation.sums.vector import Layout, Vector, from_vector
from fedhip.federation.transport.wire import Arrays, Body, Letter

if TYPE_CHECKING:
    from torch import Tensor

    from fedhip.core.logistic.fit import LogisticFit
    from fedhip.core.logistic.sums import GridModel, LogisticTerm

_LOSS_BITS = 32


class Ask(StrEnum):
    """What a sum is of: rows, what the columns are like, the statistics, and what follows them."""

    CENSUS = "census"
    MOMENTS = "moments"
    STATISTICS = "statistics"
    BETA = "beta"
    TEMPERATURE = "temperature"
    GRADIENT = "gradient"
    PENALTY = "penalty"
    SCALE = "scale"
    PRIOR = "prior"


def length(ask: Ask, layout: Layout) -> int:
    """How many numbers a site sends for the logistic head."""
    from fedhip.core.logistic.fit import PENALTY_SHAPE, TEMPERATURES

    lengths = {
        Ask.TEMPERATURE: len(TEMPERATURES),
        Ask.GRADIENT: sum(_parts(layout)),
        Ask.PENALTY: math.prod(PENALTY_SHAPE),
    }
    return lengths[ask]


def _parts(layout: Layout) -> tuple[int, ...]:
    return (layout.m + 1) * layout.d, layout.d, 1, 1, layout.d


def term_vector(term: LogisticTerm) -> Vector:
    """A term as one vector."""
    parts = term.gradient, term.curvature, term.loss, term.right, term.counts
    return np.concatenate([part.cpu().numpy().reshape(-1) for part in parts]).view(np.uint64)


def term_of(vector: Vector, layout: Layout, rows: int) -> LogisticTerm:
    """The term that a vector holds; `rows` are those of the statistics, which set the scale."""
    import torch

    from fedhip.core.logistic.sums import FEATURE_BITS, LogisticTerm, residual_bits

    ends = np.cumsum(_parts(layout))[:-1]
    parts = [torch.from_numpy(part.copy()) for part in np.split(vector.view(np.int64), ends)]
    gradient, curvature, loss, right, counts = parts
    bits = FEATURE_BITS + residual_bits(rows)
    return LogisticTerm(gradient.reshape(-1, layout.d), curvature, loss, right, counts, bits)


def losses_vector(losses: Tensor, sites: int) -> Vector:
    """Losses on the grid. One too large for a sum of so many sites is as large as that allows: nobody chooses it."""
    from fedhip.core.logistic.sums import LossError

    values = losses.numpy().reshape(-1)
    if not np.isfinite(values).all():
        raise LossError("a loss of rows left out is not a finite number")
    largest = 2.0 ** (62 - _LOSS_BITS) / sites
    steps: NDArray[np.int64] = np.rint(np.clip(values, 0.0, largest) * 2.0**_LOSS_BITS).astype(np.int64)
    return steps.view(np.uint64)


def losses_of(vector: Vector) -> Tensor:
    """Losses in float64."""
    import torch

    return torch.from_numpy(vector.view(np.int64) * 2.0**-_LOSS_BITS)


def fit_of(total: Vector, layout: Layout, fraction_bits: int) -> LogisticFit:
    """The fit that everybody makes of the sum of the statistics."""
    from fedhip.core.exact.fixedpoint import decode
    from fedhip.core.logistic.fit import LogisticFit

    step = 2.0 ** -(fraction_bits // 2)
    return LogisticFit.of(decode(from_vector(total, layout, fraction_bits)), step=step)


def known_temperature(fit: LogisticFit) -> float:
    """T₀, once it is chosen."""
    from fedhip.core.logistic.fit import TemperatureError

    if fit.temperature is None:
        raise TemperatureError("LDA's temperature is not known yet; its losses are summed first")
    return fit.temperature


def require_possible_term(term: LogisticTerm, counts: Tensor, *, all_here: bool) -> None:
    """Refuse a sum that no rows of these class counts have; where nobody has left, the counts are these."""
    rows = term.rows
    fits = bool((term.counts == counts).all()) if all_here else bool((term.counts <= counts).all())
    if not (fits and bool((term.counts >= 0).all()) and rows > 0):
        raise StatisticsError("the class counts of a gradient are not those of the statistics")
    if not 0 <= int(term.right) <= rows or int(term.loss) < 0 or int(term.curvature.min()) < 0:
        raise StatisticsError("the loss, the curvature or the number of rows classified right is that of no rows")


def model_body(models: Sequence[GridModel]) -> Body:
    """The scales of weights."""
    return {f"bits-{at}": model.bits for at, model in enumerate(models)}


def model_arrays(models: Sequence[GridModel]) -> Arrays:
    """Weights as they travel, one after the other."""
    return {"models": np.concatenate([model.steps.cpu().numpy().reshape(-1) for model in models])}


def model_bytes(model: GridModel) -> bytes:
    """Weights as a file holds them; their scale is kept apart."""
    return model.steps.cpu().numpy().astype("<i4").tobytes()


def model_of(data: bytes, bits: int, layout: Layout) -> GridModel:
    """What `model_bytes` gave."""
    import torch

    from fedhip.core.logistic.sums import GridModel

    steps = np.frombuffer(data, "<i4").astype(np.int32)
    return GridModel(torch.from_numpy(steps).reshape(-1, layout.d), bits)


def models_in(letter: Letter, layout: Layout, number: int) -> list[GridModel]:
    """So many weights in a letter, strictly."""
    import torch

    from fedhip.core.logistic.sums import WEIGHT_BITS, GridModel

    steps = letter.array("models")
    shape, most = (number, layout.m + 1, layout.d), 1 << WEIGHT_BITS
    if steps.dtype != np.int32 or steps.shape != (math.prod(shape),) or steps.min() < -most or steps.max() > most:
        raise MessageError(f"the weights are not {shape} whole numbers of {WEIGHT_BITS} bits")
    parts = torch.from_numpy(steps.reshape(shape).copy()).unbind()
    return [GridModel(part, letter.number(f"bits-{at}", -1000, 1000)) for at, part in enumerate(parts)]


def model_digest(model: GridModel) -> str:
    """Which weights these are."""
    return hashlib.sha256(b"%d " % model.bits + model_bytes(model)).hexdigest()
