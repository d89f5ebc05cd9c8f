"""A model on a client's test rows: its answers, every metric of them, and what curves over clients are made of."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedhip.core.intervals import Estimate
from fedhip.core.metrics import Floats, Ints, classification_metrics, reliability, roc, softmax


class Tested:
    """What came out, row by row and in all.

    `gain` (n,) is what the model makes of each row, more being better: 1 where it is right; of real targets minus the
    absolute error, of several labels the share that is right, the mean over these. `bins` (15, 3) are those of
    the reliability curve, without probabilities None; `roc` is the curve of two classes on `ROC_GRID`. `groups` (n,)
    are those of the rows, where they have any.
    """

    def __init__(
        self,
        predicted: Ints,
        metrics: dict[str, Estimate | None],
        gain: Floats,
        bins: Floats | None = None,
        roc: Floats | None = None,
        groups: Ints | None = None,
    ) -> None:
        self.predicted, self.metrics, self.gain, self.bins, self.roc = predicted, metrics, gain, bins, roc
        self.groups = groups

    def __eq__(self, other: object) -> bool:
        """The same answers with the same metrics."""
        if not isinstance(other, Tested):
            return NotImplemented
        return self.metrics == other.metrics and np.array_equal(self.predicted, other.predicted)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of_targets(cls, predicted: Floats, truth: Floats, labels: bool, groups: Ints | None = None) -> Tested:
        """Of real targets (n, t), or of several `labels` of 0 and 1: the gain of each row alone."""
        f, y = (np.asarray(part, np.float64).reshape(len(truth), -1) for part in (predicted, truth))
        gain = ((f >= 0.5) == (y >= 0.5)).mean(axis=1) if labels else -np.abs(f - y).mean(axis=1)
        return cls(np.zeros(0, np.int64), {}, gain, groups=groups)

    @classmethod
    def of_scores(cls, scores: Tensor, labels: Ints, temperature: float | None, groups: Ints | None = None) -> Tested:
        """Of scores (n, d); probabilities are softmax(scores / T), and there are none where T is None."""
        y = np.asarray(labels, np.int64)
        predicted = np.asarray(scores.argmax(dim=1).cpu().numpy(), np.int64)
        found = np.asarray(scores.detach().double().cpu().numpy())
        p = None if temperature is None else softmax(found, temperature)
        d = found.shape[1]
        return cls(
            predicted,
            classification_metrics(y, predicted, found, p, num_classes=d, groups=groups),
            (predicted == y).astype(np.float64),
            None if p is None else reliability(y, predicted, p),
            roc(y, p) if d == 2 and p is not None else None,
            groups,
        )
