"""What a client finds of the sum on its own rows, before it takes it: is it worse than being alone, is a part odd.

    veto          on its rows left out the federation's ridge has fewer right than the ridge of its rows alone, beyond
                  chance: the exact sign test on rows, or groups of rows, at 1 %; among the classes that it has
    calibration   mean over its rows of ⟨ŷ − π, y − ŷ⟩, less what their classes make of it, in standard errors. Rows
                  with other labels, or other columns, than everybody's are far below 0
    leverage      how far its rows lie from the middle of all rows, less how far rows of their classes do, in standard
                  errors of normal rows. Rows that have an effect of their own, as those of a backdoor, are far above 0
    strangeness   both in one: (leverage − calibration)/√2
    shape         how far the products of its features are from those of rows of its classes, ‖FᵀF/n − E‖, over what
                  chance would make it. Rows with other columns are far above 0

What classes make of it follows from the sum: with features in which all rows together have products I (but for β), the
sum has the mean m_c of each class, and the products V of rows around the means of their classes. A client with shares
q_c of the classes is expected to have products E = V + Σ q_c m_c m_cᵀ, and its rows the lengths tr V + ‖m_c‖². So a
client that has other classes than the rest is not odd for that. V is taken to be the same in all classes.

The first two are mean values over rows, and over all rows they are 0: residuals of a ridge are at right angles to what
it predicts, but for β, and leverages add up to the degrees of freedom. So at honest clients they are about 0. A liar's
stands out, and where it hides what it is, the others' are all on the other side of 0: then the sum is *askew*. Clients
differ without any lie; so a client is *odd* only if it is far from the median of all, in the spread that they have. No
client's numbers are needed for that: how many clients there are in each bin of a histogram will do, and that can be
summed under masks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.affine import masked
from fedhip.core.choice.selection import FOLDS, pick, without_fold
from fedhip.core.paired import compare_rows
from fedhip.core.rows import one_hot
from fedhip.errors import StatisticsError
from fedhip.simulation.alone import local_path
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.simulation.personalization import common_scores

#: What a veto is beyond: of honest sums that are no better than being alone, one in a hundred is refused.
VETO_LEVEL = 0.01
#: More than this share of clients must refuse before a round is said to be noticed, where nothing else is agreed on.
VETO_SHARE = 0.25
#: An odd client is so many spreads above the median.
ODD = 4.0
#: A sum is askew where the mean over clients is so many of its own standard errors on the side of the honest: over all,
#: of which it is about 0 in honest rounds, or over all but those that are suspect, so many spreads above the median.
ASKEW, ASKEW_BUT_SUSPECTS, _SUSPECT = 1.5, 2.1, 2.75
#: Of fewer clients nobody can say so.
_LEAST_CLIENTS = 4
#: Standard errors, in whole numbers, up to which a histogram tells clients apart; those beyond are in its last bins.
MOST_ERRORS = 20
#: A histogram's bins: from −20 or less to 20 or more.
BINS = 2 * MOST_ERRORS + 1
#: What there is a histogram of.
MEASURES = ("calibration", "leverage", "strangeness", "shape")
#: Numbers of a sum over clients: vetoes, and the histograms.
VERDICT_LENGTH = 1 + len(MEASURES) * BINS
#: A spread of fewer standard errors is chance; and of shapes, whose errors are those of normal rows.
_LEAST_SPREAD, _LEAST_OF_SHAPES = 1.25, 2.75
#: A median absolute deviation of normal numbers in their standard deviations.
_MAD = 0.6745


@dataclass(frozen=True)
class Doubt:
    """What one client finds: its rows right by the sum and alone, p of their difference, and how odd it is itself."""

    client: str
    rows: int
    right: int
    right_alone: int
    p: float
    calibration: float
    leverage: float
    shape: float

    @property
    def vetoes(self) -> bool:
        """Whether the sum is worse than being alone, beyond chance."""
        return self.right < self.right_alone and self.p <= VETO_LEVEL

    @property
    def strangeness(self) -> float:
        """Calibration and leverage in one."""
        return (self.leverage - self.calibration) / math.sqrt(2.0)

    def to_vector(self) -> NDArray[np.int64]:
        """As it is summed (VERDICT_LENGTH,): one bit, and one in a bin of each histogram."""
        found = np.zeros((len(MEASURES), BINS), np.int64)
        found[range(len(MEASURES)), [_bin_of(getattr(self, measure)) for measure in MEASURES]] = 1
        return np.concatenate(([int(self.vetoes)], found.reshape(-1)))


@dataclass(frozen=True)
class Verdict:
    """What all clients find together: of `clients` how many refuse the sum, and how many are odd by which measure."""

    clients: int
    vetoes: int
    miscalibrated: int
    far_out: int
    strange: int
    misshapen: int
    askew: bool

    @classmethod
    def of(cls, total: NDArray[np.int64]) -> Verdict:
        """From the sum over clients of what `Doubt.to_vector` gives; refuse one that no clients have."""
        vetoes, bins = int(total[0]), total[1:].reshape(len(MEASURES), BINS)
        clients = int(bins[0].sum())
        if int(total.min()) < 0 or vetoes > clients or any(int(part.sum()) != clients for part in bins):
            raise StatisticsError("the vetoes are those of no clients: more than there are, or of other clients")
        *means, shapes = (_values(part) for part in (bins[0][::-1], *bins[1:]))  # what is suspicious is above
        calibrations, leverages, both = (_odd(part, _LEAST_SPREAD) for part in means)
        askew = any(_is_askew(part) for part in means)
        return cls(clients, vetoes, calibrations, leverages, both, _odd(shapes, _LEAST_OF_SHAPES), askew)

    @property
    def odd(self) -> int:
        """How many clients are odd, at least."""
        return max(self.miscalibrated, self.far_out, self.strange, self.misshapen)

    @property
    def is_suspicious(self) -> bool:
        """Whether a client is odd, or the sum is askew."""
        return self.odd > 0 or self.askew

    def stops(self, share: float = VETO_SHARE) -> bool:
        """Whether more than this share of clients refuse."""
        return self.vetoes > share * self.clients

    def __str__(self) -> str:
        parts = (
            f"{self.miscalibrated} by labels, {max(self.far_out, self.misshapen)} by features, {self.strange} by both"
        )
        askew = "; the sum is askew" if self.askew else ""
        return f"of {self.clients}, {self.vetoes} find the sum worse than their own rows alone; odd: {parts}{askew}"


def doubt_of(federation: Federation, client: Client) -> Doubt:
    """What a client with rows of classes finds of the federation's ridge."""
    labels = torch.as_tensor(client.train[1])
    own = torch.bincount(labels, minlength=federation.grid.num_classes) > 0
    scores = masked(common_scores(federation, client).cpu(), own)
    hits = (scores.argmax(dim=1) == labels).numpy()
    alone = _alone_hits(federation, client)
    pair = compare_rows(hits.astype(np.float64), alone.astype(np.float64), client.groups)
    return Doubt(
        client.name,
        len(labels),
        int(hits.sum()),
        int(alone.sum()),
        pair.p,
        *_measures(federation, client),
    )


def _bin_of(error: float) -> int:
    """The bin of a number of standard errors."""
    return round(min(max(error, -MOST_ERRORS), MOST_ERRORS)) + MOST_ERRORS


def _values(bins: NDArray[np.int64]) -> NDArray[np.float64]:
    """The numbers of a histogram, in order."""
    return np.repeat(np.arange(-MOST_ERRORS, MOST_ERRORS + 1, dtype=np.float64), bins)


def _above(values: NDArray[np.float64], least: float) -> NDArray[np.float64]:
    """How far numbers are above their median, in the spread that they have, or in `least`."""
    middle = float(np.median(values))
    found: NDArray[np.float64] = (values - middle) / max(float(np.median(np.abs(values - middle))) / _MAD, least)
    return found


def _odd(values: NDArray[np.float64], least: float) -> int:
    """How many of these numbers are so far above the median that it is no chance."""
    return int((_above(values, least) > ODD).sum()) if len(values) >= _LEAST_CLIENTS else 0


def _is_askew(values: NDArray[np.float64]) -> bool:
    """Whether numbers are below 0 by more than chance, all together."""
    if len(values) < _LEAST_CLIENTS:
        return False
    kept = values[_above(values, _LEAST_SPREAD) <= _SUSPECT]
    return _errors(values) < -ASKEW or _errors(kept) < -ASKEW_BUT_SUSPECTS


def _errors(values: NDArray[np.float64]) -> float:
    """How many of its standard errors a mean is above 0."""
    return math.sqrt(len(values)) * float(values.mean()) / max(float(values.std(ddof=1)), 1.0)


def _alone_hits(federation: Federation, client: Client) -> NDArray[np.bool_]:
    """Whether the ridge of the client's other rows is right about each (N,), its penalty chosen by other folds."""
    path = local_path(client, federation.grid.num_classes, federation.standardize, federation.intercept)
    betas, labels = path.penalties(), torch.as_tensor(client.train[1])
    credit, found = path.credit(betas), torch.zeros(len(labels), dtype=torch.bool)
    for fold in range(FOLDS):
        others = without_fold(len(labels), fold, client.group_tensor)
        beta = betas[pick(credit[others])]
        found[~others] = (path.loo_scores(beta).argmax(dim=1) == labels)[~others]
    hits: NDArray[np.bool_] = found.numpy()
    return hits


def _measures(federation: Federation, client: Client) -> tuple[float, float, float]:
    """Calibration, leverage and shape."""
    total, system, rows = federation.total, federation._system, federation.grid.num_samples
    F, labels = federation.rows(client)
    W, n = system.factor.whiten(F) * math.sqrt(rows), len(labels)
    counts = federation.grid.counts.to(W)
    seen = counts > 0
    # Means of classes (d, r), and how rows lie around them (r, r), over all rows.
    means = torch.where(seen, system.U / counts.clamp(min=1.0), 0.0).mT * math.sqrt(rows)
    within = system.factor.whiten(system.factor.whiten(total.gram).mT)
    within = within - (means.mT * (counts / rows)) @ means
    shares = torch.bincount(labels, minlength=len(counts)).to(W) / n
    spread, sizes = within.square().sum(), means.square().sum(dim=1)
    # Not below 0, though no rows have a sum that says so: one that lies is to be doubted, too.
    sideways = (shares @ ((means @ within) * means).sum(dim=1)).clamp(min=0.0)

    U = system.U / math.sqrt(rows)
    prior, Y = counts / rows, one_hot(labels, len(counts))

    def agreed(scores: Tensor, targets: Tensor) -> Tensor:
        return ((scores - prior) * (targets - scores)).sum(dim=1)

    expected = agreed(means @ U, torch.eye(len(counts)).to(W)) - ((within @ U) * U).sum()
    found = agreed(W @ U, Y) - expected[labels]
    deviation = float(found.std(correction=0))
    calibration = math.sqrt(n) * float(found.mean()) / deviation if deviation > 1e-9 else 0.0

    trace = within.diagonal().sum()
    beyond = W.square().sum(dim=1) - trace - sizes[labels]
    leverage = math.sqrt(n) * float(beyond.mean() / (2.0 * spread + 4.0 * sideways).sqrt().clamp(min=1.0))

    apart = (W.mT @ W / n - within - (means.mT * shares) @ means).square().sum()
    chance = (trace.square() + spread + 2.0 * (shares @ sizes * trace + sideways)) / n
    shape = (float((apart / chance.clamp(min=1.0 / n)).sqrt()) - 1.0) * (float(trace + shares @ sizes) + 1.0)
    return calibration, leverage, shape
