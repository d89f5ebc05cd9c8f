"""The sums of the logistic head, after that of the statistics.

    temperature   log-losses of LDA's scores, each row left out, over 16 temperatures
    gradient      gradient ‖ curvature ‖ loss ‖ rows right ‖ class counts, at the weights that the server sends
    penalty       log-losses of a step from the first weights, each row left out, over 9 penalties and 17 temperatures

Gradients are whole numbers by themselves (`fedhip.core.logistic`), so that their sum is that of `fedhip run` to the
last bit. LDA asks for a temperature too, where priors are chosen: over 20 temperatures, of its own scores.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedhip.errors import StatisticsError
from fedhip.federation.errors import MessageError
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.kind import SiteInputs, SumContext
from fedhip.federation.sums.vector import (
    Layout,
    Vector,
    from_vector,
    losses_vector,
    require_length,
    require_losses,
)

if TYPE_CHECKING:
    from torch import Tensor

    from fedhip.core.logistic.fit import LogisticFit
    from fedhip.core.logistic.sums import GridModel, LogisticTerm
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.site.state import Session
    from fedhip.federation.transport.wire import Arrays, Body, Letter

#: In one sum: the weights, and half the step five times where somebody has no finite loss.
_MOST_WEIGHTS = 6


def temperatures(agreement: Agreement) -> tuple[float, ...]:
    """What a head's temperature is chosen among."""
    from fedhip.core.logistic.fit import TEMPERATURES
    from fedhip.heads.lda import TEMPERATURES as LDA_TEMPERATURES

    return LDA_TEMPERATURES if agreement.head == "lda" else TEMPERATURES


def temperature_losses(inputs: SiteInputs) -> Vector:
    """Of LDA, the logistic head's start; or of LDA itself, where priors are chosen."""
    if inputs.agreement.head == "lda":
        from fedhip.federation.sums.priors import lda_losses

        return lda_losses(inputs)
    losses = _fit(inputs).temperature_losses(*_rounded_rows(inputs), client=inputs.client.name)
    return losses_vector(losses, len(inputs.agreement.sites))


def check_losses(total: Vector, _: SumContext) -> None:
    """Refuse losses below 0."""
    require_losses(total)


def gradient_length(agreement: Agreement) -> int:
    """Of all parts of a term."""
    return sum(_parts(agreement.layout))


def weights_bytes(agreement: Agreement) -> int:
    """Of the weights that a gradient is at."""
    return 4 * (agreement.layout.m + 1) * agreement.layout.d


def gradient(inputs: SiteInputs) -> Vector:
    """At the weights that came; of the statistics it takes the scale of the features alone."""
    from fedhip.core.exact.fixedpoint import decode
    from fedhip.core.logistic.sums import logistic_term
    from fedhip.core.standardization import Standardization

    agreement = inputs.agreement
    (model,) = models_in(inputs.question, agreement.layout, 1)
    total = decode(from_vector(inputs.total, agreement.layout, agreement.fraction_bits))
    scale, rows = Standardization.of(total, step=inputs.encoding.step), total.num_samples
    return term_vector(logistic_term(*_rounded_rows(inputs), model, scale, rows=rows, client=inputs.client.name))


def check_weights(question: Letter, session: Session, agreement: Agreement, _: Collection[str]) -> None:
    """Refuse weights of an earlier sum, and too many in one: the server chooses them."""
    (model,) = models_in(question, agreement.layout, 1)
    if session.weights.setdefault(model_digest(model), session.round) != session.round:
        raise SiteRefusalError(SiteCode.WEIGHTS, "the server asked about the same weights in two sums")
    if sum(number == session.round for number in session.weights.values()) > _MOST_WEIGHTS:
        raise SiteRefusalError(SiteCode.WEIGHTS, f"the server asked about more than {_MOST_WEIGHTS} weights in one sum")


def check_gradient(total: Vector, context: SumContext) -> None:
    """Refuse a term that no rows of these class counts have."""
    import torch

    assert context.counts is not None  # noqa: S101  (a gradient needs the statistics)
    term = term_of(total, context.agreement.layout, context.rows)
    require_possible_term(term, torch.from_numpy(context.counts), complete=context.complete)


def penalty_length(_: Agreement) -> int:
    """Penalties by temperatures."""
    from fedhip.core.logistic.fit import PENALTY_SHAPE

    return math.prod(PENALTY_SHAPE)


def penalty_losses(inputs: SiteInputs) -> Vector:
    """After two sums of gradients that the server tells, at weights which this site was asked about."""
    question, layout = inputs.question, inputs.agreement.layout
    models = models_in(question, layout, 2)
    if any(model_digest(model) not in inputs.session.weights for model in models):
        raise SiteRefusalError(SiteCode.WEIGHTS, "the server tells of weights that nobody was asked about here")
    sums = require_length(question.array("sums"), 2 * gradient_length(inputs.agreement))
    fit = _fit(inputs, question.real("temperature"))
    for model, vector in zip(models, np.split(sums, 2), strict=True):
        fit.tell(model, term_of(vector, layout, fit.rows))
    losses = fit.penalty_losses(*_rounded_rows(inputs), client=inputs.client.name)
    return losses_vector(losses, len(inputs.agreement.sites))


def _rounded_rows(inputs: SiteInputs) -> tuple[Tensor, Tensor]:
    """The training rows as the grid sees them."""
    import torch

    train = inputs.client.train
    return inputs.encoding.rounded(train), torch.tensor(train[1])


def _fit(inputs: SiteInputs, temperature: float | None = None) -> LogisticFit:
    from fedhip.core.exact.fixedpoint import decode
    from fedhip.core.logistic.fit import LogisticFit

    agreement = inputs.agreement
    total = decode(from_vector(inputs.total, agreement.layout, agreement.fraction_bits))
    return LogisticFit.of(total, temperature=temperature, step=inputs.encoding.step)


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


def fit_of(total: Vector, layout: Layout, fraction_bits: int) -> LogisticFit:
    """The fit that everybody makes of the sum of the statistics."""
    from fedhip.core.exact.fixedpoint import decode
    from fedhip.core.logistic.fit import LogisticFit

    step = 2.0 ** -(fraction_bits // 2)
    return LogisticFit.of(decode(from_vector(total, layout, fraction_bits)), step=step)


def require_possible_term(term: LogisticTerm, counts: Tensor, *, complete: bool) -> None:
    """Refuse a sum that no rows of these class counts have; where nobody has left (`complete`), they are these."""
    rows = term.rows
    fits = bool((term.counts == counts).all()) if complete else bool((term.counts <= counts).all())
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
