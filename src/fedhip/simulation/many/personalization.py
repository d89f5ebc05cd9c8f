"""Phase 3 of very many clients: what `Personalization.of` finds for each, in batches of clients of one size.

Models are the same to the last bit, since they are solved by the same operations; what is chosen on rows left out is
the same but where two values of α are equal to the last digits. Of a client of whom there is more to say (rows that
leave-one-out says nothing of, equations near to singular, more rows than features) `Personalization.of` is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core import DEFAULT_ALPHAS
from fedhip.core.affine import AffineModel
from fedhip.core.choice.calibration import TEMPERATURES
from fedhip.core.choice.selection import FOLDS, soft_hits, without_fold
from fedhip.core.exact.batch import GridBatch
from fedhip.core.ridge.batch import BatchPath
from fedhip.core.solvers import CholeskyFactor, is_regular
from fedhip.simulation.federation import Federation
from fedhip.simulation.many.rows import Ints, ManyClients
from fedhip.simulation.personalization import CALIBRATION_ROWS, Personalization

_ALPHAS = tuple(sorted(DEFAULT_ALPHAS))
#: Memory that a batch may take, and clients in it: fewer calls, and what they work on stays near.
_BATCH_BYTES, _BATCH_CLIENTS = 2**26, 250


@dataclass(frozen=True, eq=False)
class Personalized:
    """Phase 3 of c clients, some of them without training rows: these have α = NaN, and the global model.

    `own` are digests of their statistics, nothing where there are none. `curve` (c, a), `estimate` (c,), `log_losses`
    and `global_log_losses` (c, T) are what `Personalization` has of each; `counts` (c, d) training rows by class;
    `tests` (c,) test rows, of which `right` and `global_right` (c,) are what each model has right.
    """

    clients: Ints
    alpha: Tensor
    weights: Tensor
    bias: Tensor
    own: list[str]
    counts: Tensor
    curve: Tensor
    estimate: Tensor
    log_losses: Tensor
    global_log_losses: Tensor
    tests: Tensor
    right: Tensor
    global_right: Tensor

    @classmethod
    def empty(cls, federation: Federation, clients: Ints) -> Personalized:
        """Of clients of whom nothing is known yet."""
        c, d, common = len(clients), federation.grid.num_classes, federation.common
        unknown = torch.full((c, len(_ALPHAS)), torch.nan, dtype=torch.float64)
        losses = torch.zeros((c, len(TEMPERATURES)), dtype=torch.float64)
        none = torch.zeros(c, dtype=torch.int64)
        return cls(
            clients, unknown[:, 0].clone(), common.weights.repeat(c, 1, 1), common.bias.repeat(c, 1), [""] * c,
            torch.zeros((c, d), dtype=torch.int64), unknown, unknown[:, 0].clone(), losses, losses.clone(),
            none, none.clone(), none.clone(),
        )  # fmt: skip


def personalize_many(federation: Federation, clients: ManyClients, numbers: Ints) -> Personalized:
    """Some of the clients: their models, what leave-one-out says of them, and how they do on test rows."""
    found = Personalized.empty(federation, numbers)
    d = clients.num_classes
    for part in _batches(clients, numbers):
        places = part - numbers[0]
        features, labels = clients.features[rows := clients.train_rows(part)], clients.labels[rows]
        _fill(found, torch.from_numpy(places), _batch(federation, features, torch.from_numpy(labels), d))
    alone = [int(k) for k in numbers[clients.train[numbers] > 0] if torch.isnan(found.alpha[k - numbers[0]])]
    for number in alone:
        _fill_alone(found, number - int(numbers[0]), Personalization.of(federation, clients.client(number)))
        own = torch.from_numpy(clients.labels[clients.train_rows(np.array([number]))[0]])
        found.counts[number - int(numbers[0])] = torch.bincount(own, minlength=d)
    _test(found, federation.common, clients)
    return found


def _batches(clients: ManyClients, numbers: Ints) -> Iterator[Ints]:
    """Clients of one size, so many that a batch fits in memory; none of those that are not for batches."""
    m, d, a = clients.features.shape[1] + 1, clients.num_classes, len(_ALPHAS)
    for same in clients.by_size(numbers, len(numbers)):
        n = int(clients.train[same[0]])
        if n > min(m, CALIBRATION_ROWS):
            continue
        most = _BATCH_BYTES // (8 * (6 * m * m + 6 * n * a * d + 4 * a * n * n))
        step = min(max(most, 1), _BATCH_CLIENTS)
        for start in range(0, len(same), step):
            yield same[start : start + step]


@dataclass(frozen=True, eq=False)
class _Found:
    """What a batch gave, of those clients that are `plain`."""

    plain: Tensor
    alpha: Tensor
    model: AffineModel
    own: list[str]
    counts: Tensor
    curve: Tensor
    estimate: Tensor
    log_losses: Tensor
    global_log_losses: Tensor


def _batch(federation: Federation, features: NDArray[np.floating], labels: Tensor, num_classes: int) -> _Found:
    (c, n), width = labels.shape, features.shape[-1]
    encoding = federation.encoding
    rounded = encoding.rounded((features.reshape(c * n, width), labels.numpy())).view(c, n, width)
    own, exact = GridBatch.of(rounded, labels, num_classes, encoding.fraction_bits)
    F = federation.standardization.features(rounded.reshape(c * n, width)).view(c, n, -1)
    path, chosen, curve, estimate, scores, common = _choose(federation, F, labels, num_classes)
    alpha = torch.tensor(_ALPHAS, dtype=torch.float64)[chosen]
    model, regular = solve_many(federation, own, alpha)
    return _Found(
        path.plain & exact & regular, alpha, model, own.digests(), own.counts, curve, estimate,
        _log_losses(scores, labels), _log_losses(common, labels),
    )  # fmt: skip


def _choose(
    federation: Federation, F: Tensor, labels: Tensor, num_classes: int
) -> tuple[BatchPath, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """α (c,) by its place, the curve, the estimate, scores (c, n, d) of rows left out at α, and of the global model."""
    c, n = labels.shape
    fold_betas = federation.fold_betas or (federation.beta,) * FOLDS
    folds: dict[int, Tensor] = {}
    plain = torch.ones(c, dtype=torch.bool)
    for beta in (*sorted(set(fold_betas) - {federation.beta}), federation.beta):
        at = federation if beta == federation.beta else federation.with_beta(beta)
        path = BatchPath(at._system, F, labels, num_classes, _ALPHAS)
        scores = path.scores()
        margins = path.margins(scores)
        for fold in (fold for fold, of in enumerate(fold_betas) if of == beta):
            folds[fold] = path.fold_margins(margins, fold)
        plain &= path.plain
    outcome = torch.empty((c, n), dtype=torch.float64)
    for fold in range(FOLDS):
        others = without_fold(n, fold)
        if bool(others.all()):
            continue
        best = _pick(soft_hits(folds[fold][:, others]))
        judged = folds[fold][:, ~others]
        outcome[:, ~others] = judged.gather(2, best[:, None, None].expand(*judged.shape[:2], 1))[..., 0]
    chosen = _pick(soft_hits(margins))
    path.plain = plain
    at_chosen = scores.gather(2, chosen[:, None, None, None].expand(c, n, 1, num_classes))[:, :, 0]
    curve, estimate = (margins > 0.0).double().mean(dim=1), (outcome > 0.0).sum(dim=1) / n
    return path, chosen, curve, estimate, at_chosen, scores[:, :, _ALPHAS.index(0.0)]


def _pick(credit: Tensor) -> Tensor:
    """`fedhip.core.choice.selection.pick` of each (c, n, a)."""
    counted = credit.sum(dim=1)
    good = counted >= counted.amax(dim=1, keepdim=True) - 1e-9 * max(credit.shape[1], 1)
    return good.to(torch.int8).argmax(dim=1)


def _log_losses(scores: Tensor, labels: Tensor) -> Tensor:
    """`fedhip.core.choice.calibration.log_losses` of each (c, T)."""
    at = labels[..., None]
    return torch.stack(
        [-torch.log_softmax(scores / T, dim=2).gather(2, at).sum(dim=(1, 2)) for T in TEMPERATURES], dim=1
    )


def solve_many(federation: Federation, own: GridBatch, alpha: Tensor) -> tuple[AffineModel, Tensor]:
    """Models (c, m, d), (c, d) from statistics, as `Federation.model`, to the bit; and whose equations are regular."""
    grid, units, c = federation.grid, federation.standardization, len(own)
    step, weight = 2.0**-grid.fraction_bits, alpha[:, None, None]
    gram, cross = (
        part.to(torch.float64).mul_(step).mul_(weight).add_(total.to(torch.float64).mul_(step))
        for part, total in ((own.gram, grid.gram), (own.cross, grid.cross))
    )
    # A Python number times whole numbers is of 32 bits, and models are functions of that to the last bit.
    n = grid.counts.to(torch.float64) + alpha.to(torch.float32)[:, None] * own.counts
    m, mean, scale = len(units.mean), units.mean, units.scale
    N, sums = torch.stack([row.sum() for row in n])[:, None], cross.sum(dim=2)
    half = sums - (N / 2.0) * mean
    # One by one: how many of their products are rounded depends on the width, and so would the last bits.
    for A, b, weighed, mass in zip(gram, half, cross, n, strict=True):
        A.addr_(b, mean, alpha=-1.0).addr_(mean, b, alpha=-1.0)
        weighed.addr_(mean, mass, alpha=-1.0)
    B = cross.div_(scale[:, None])
    H = torch.empty((c, m + units.intercept, m + units.intercept), dtype=torch.float64)
    H[:, :m, :m] = gram.div_(scale).div_(scale[:, None])
    penalty = torch.full((H.shape[1],), federation.beta, dtype=torch.float64)
    if units.intercept:
        H[:, :m, m] = (sums - N * mean) / scale
        H[:, m, m], penalty[-1] = N[:, 0], 0.0
        B = torch.cat((B, n[:, None]), dim=1)
    H.diagonal(dim1=1, dim2=2).add_(penalty)
    R, info = torch.linalg.cholesky_ex(H.mT)  # what is above the diagonal counts, as everywhere
    regular = (info == 0) & is_regular(R, H)
    U = torch.linalg.solve_triangular(R.mT, B.mT, upper=True, left=False).mT
    to_raw = federation.encoding.columns.standardization.then(units)
    models = []
    for own_R, own_U in zip(R, U, strict=True):  # in memory of its own: where a matrix begins decides last bits, too
        factor = CholeskyFactor(own_R.clone(memory_format=torch.preserve_format))
        G = factor.unwhiten(own_U.clone(memory_format=torch.preserve_format))
        if units.intercept:
            models.append(AffineModel.of_standardized(G, to_raw))
        else:
            models.append(AffineModel(G, torch.zeros_like(G[0])).on_raw(to_raw))
    model = AffineModel(torch.stack([one.weights for one in models]), torch.stack([one.bias for one in models]))
    common, stays = federation.common, alpha == 0.0
    model.weights[stays], model.bias[stays] = common.weights, common.bias
    return model, regular | stays


def _fill(found: Personalized, places: Tensor, batch: _Found) -> None:
    at, plain = places[batch.plain], batch.plain
    for name in ("alpha", "counts", "curve", "estimate", "log_losses", "global_log_losses"):
        getattr(found, name)[at] = getattr(batch, name)[plain].to(getattr(found, name).dtype)
    found.weights[at], found.bias[at] = batch.model.weights[plain], batch.model.bias[plain]
    for place, own in zip(places.tolist(), batch.own, strict=True):
        found.own[place] = own


def _fill_alone(found: Personalized, at: int, personal: Personalization) -> None:
    found.alpha[at], found.own[at] = personal.alpha, personal.own
    found.weights[at], found.bias[at] = personal.model.weights, personal.model.bias
    found.curve[at] = torch.tensor(personal.curve, dtype=torch.float64)
    found.estimate[at] = torch.nan if personal.estimate is None else personal.estimate
    found.log_losses[at] = torch.tensor(personal.log_losses, dtype=torch.float64)
    found.global_log_losses[at] = torch.tensor(personal.global_log_losses, dtype=torch.float64)


def _test(found: Personalized, common: AffineModel, clients: ManyClients) -> None:
    """How many test rows each has right, with its own model and with the global one."""
    rows, numbers = clients.test_rows(found.clients)
    found.tests.copy_(torch.from_numpy(numbers))
    if not len(rows):
        return
    F, labels = torch.from_numpy(np.asarray(clients.features[rows], np.float64)), torch.from_numpy(clients.labels[rows])
    owner = torch.repeat_interleave(torch.arange(len(numbers)), found.tests)
    right = common.scores(F).argmax(dim=1) == labels
    found.global_right.index_add_(0, owner, right.to(torch.int64))
    most, c = int(numbers.max()), len(numbers)
    at = torch.arange(len(rows)) - torch.repeat_interleave(found.tests.cumsum(0) - found.tests, found.tests)
    padded = torch.zeros((c, most, F.shape[1]), dtype=torch.float64)
    padded[owner, at] = F
    answers = (padded @ found.weights + found.bias[:, None]).argmax(dim=2)[owner, at]
    found.right.index_add_(0, owner, (answers == labels).to(torch.int64))
