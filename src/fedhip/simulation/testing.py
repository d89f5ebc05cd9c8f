"""Models tested on a client's test rows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.affine import AffineModel, masked
from fedhip.core.choice.prior import NO_PRIOR, Prior
from fedhip.core.tested import Tested
from fedhip.simulation.client import Client
from fedhip.simulation.outcome import ClientResult
from fedhip.simulation.personalization import Personalization
from fedhip.simulation.tasks import has_real_targets, label_metrics, regression_intervals, regression_metrics


def evaluate(
    client: Client,
    models: Mapping[str, AffineModel | None],
    personal: Personalization | None,
    num_classes: int,
    only_local_classes: bool = False,
    priors: Mapping[str, Prior] = MappingProxyType({}),
    everybody: Tensor | None = None,
    *,
    own: str = "fedhip",
    temperatures: Mapping[str, float | None] = MappingProxyType({}),
) -> ClientResult:
    """Test every model on the client's test rows; with its prior, if it has one, among `everybody`'s class counts.

    `own` is the method whose mistakes are kept; `temperatures` make probabilities of scores, where they are known. Real
    targets have metrics of their own.
    """
    features, labels = client.test
    if has_real_targets(client.train):
        return _evaluate_targets(client, models, personal)
    train_counts = np.bincount(client.train[1], minlength=num_classes)
    # A client that has seen nothing has no classes of its own to keep to.
    mask = torch.from_numpy(train_counts > 0) if only_local_classes and train_counts.any() else None
    accuracies: dict[str, float | None] = {}
    tested: dict[str, Tested] = {}
    confusions: list[tuple[int, int, int]] = []
    mistakes: list[tuple[int, int]] = []
    for method, model in models.items():
        prior, counts = priors.get(method, NO_PRIOR), torch.from_numpy(train_counts)
        shift = None if prior.is_none or everybody is None else prior.temperature * prior.shift(counts, everybody)
        accuracies[method] = None
        if model is None or not len(labels):
            continue
        temperature = temperatures.get(method) if shift is None else prior.temperature
        found = scored(model, features, mask, shift)
        tested[method] = Tested.of_scores(found, labels, temperature, client.test_groups)
        predicted = tested[method].predicted
        accuracies[method] = float((predicted == labels).mean())
        if method == own:
            wrong = np.flatnonzero(predicted != labels)
            pairs, numbers = np.unique(np.stack((labels[wrong], predicted[wrong]), axis=1), axis=0, return_counts=True)
            confusions = [(int(t), int(p), int(n)) for (t, p), n in zip(pairs, numbers, strict=True)]
            mistakes = [(int(row), int(predicted[row])) for row in wrong]
    return ClientResult(
        client.name,
        len(client.train[1]),
        len(labels),
        train_counts.tolist(),
        np.bincount(labels, minlength=num_classes).tolist(),
        accuracies,
        personal,
        confusions,
        mistakes,
        dict(priors),
        tested,
        group_counts=client.group_counts,
    )


def _evaluate_targets(
    client: Client, models: Mapping[str, AffineModel | None], personal: Personalization | None
) -> ClientResult:
    """Every model on the client's test rows, of real targets."""
    (features, truth), train = client.test, len(client.train[1])
    metrics: dict[str, dict[str, Any]] = {}
    tested: dict[str, Tested] = {}
    for method, model in models.items():
        if model is not None and len(truth):
            predicted, values = model.scores(features).cpu().numpy(), np.asarray(truth, np.float64)
            tested[method] = Tested.of_targets(predicted, values, client.multilabel, client.test_groups)
            if client.multilabel:
                metrics[method] = label_metrics(predicted, values)
            else:
                ends = regression_intervals(predicted, values, client.test_groups)
                metrics[method] = {**regression_metrics(predicted, values), **ends}
    counts = [train], [len(truth)]
    nothing: dict[str, float | None] = dict.fromkeys(models)
    return ClientResult(
        client.name, train, len(truth), *counts, nothing, personal, [], [], tested=tested,
        metrics=metrics, is_regression=True, group_counts=client.group_counts,
    )  # fmt: skip


def scored(
    model: AffineModel, features: NDArray[Any], classes: Tensor | None = None, shift: Tensor | None = None
) -> Tensor:
    """Scores (n, d), −∞ but for `classes` (d,) bool if given; `shift` (d,) is added to them."""
    scores = model.scores(features)
    if shift is not None:
        scores += shift.to(scores)
    return masked(scores, classes)


def predict(model: AffineModel, features: NDArray[Any], classes: Tensor | None = None) -> NDArray[np.int64]:
    """The class of highest score for each row, among `classes` (d,) bool if given."""
    return np.asarray(scored(model, features, classes).argmax(dim=1).cpu().numpy())
