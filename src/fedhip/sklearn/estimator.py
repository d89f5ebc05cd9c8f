"""What both estimators share: each client's rows kept apart, clients that come and go, and whose model answers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from fedhip.core.exact.outweighing import Spread, unlike_training
from fedhip.core.solvers import require_alpha, require_beta
from fedhip.errors import ColumnWarning, InputError
from fedhip.heads.model import Model
from fedhip.simulation.personalization import Personalization
from fedhip.sklearn.rows import (
    ONLY_CLIENT,
    Array,
    ClientName,
    Part,
    by_client,
    clients_of,
    require_same_kind,
    some,
)


class FederatedEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An estimator with a model for each client."""

    alpha: float | Literal["loo"]
    beta: float | Literal["auto"]
    models_: dict[ClientName, Model]
    global_model_: Model
    _rows: dict[ClientName, Part]
    _misses: dict[str, dict[str, Any]]
    #: Where the training rows lie; None where that is nobody's to know, under differential privacy.
    _seen: Spread | None

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_rows")

    def _with(self, X: Array, y: Array, groups: Any, blocks: Any, sample_weight: Any) -> dict[ClientName, Part]:
        """The rows of all clients with these: new clients join, known clients get more."""
        known = self._rows if self.__sklearn_is_fitted__() else {}
        if groups is None and not set(known) <= {ONLY_CLIENT}:
            raise InputError(f"groups is None, and there are clients {some(known)}; give the client of each row")
        clients = clients_of(groups, len(X))
        require_same_kind(clients, known)
        new = by_client(X, y, clients, blocks, sample_weight)
        return {**known, **{client: known[client] + rows if client in known else rows for client, rows in new.items()}}

    def _without(self, client: ClientName) -> dict[ClientName, Part]:
        """The rows of all clients but this one."""
        if client not in self._rows:
            raise InputError(f"client {client!r} is not in the federation; its clients are {some(self._rows)}")
        if len(self._rows) == 1:
            raise InputError(f"client {client!r} is the last one, and without it there is no model; fit anew instead")
        return {other: rows for other, rows in self._rows.items() if other != client}

    def _answers(self, X: Any, groups: Any, answer: Callable[[Model, Tensor], Tensor]) -> Array:
        """What the model of each row's client answers: (n_samples, n_classes or n_targets)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        F = as_tensor(X)
        if self.global_model_.lift is None:
            self._warn_of_unlike(X)
        if groups is None:
            return answer(self.global_model_, F).numpy()
        clients = clients_of(groups, len(X))
        require_same_kind(clients, self.models_)
        answers = torch.empty((len(X), len(self.global_model_.class_names)), dtype=torch.float64)
        for client in np.unique(clients).tolist():
            rows = torch.from_numpy(clients == client)
            answers[rows] = answer(self.models_.get(client, self.global_model_), F[rows])
        return answers.numpy()

    def _warn_of_unlike(self, X: Array) -> None:
        """Warn of a value that lies far from all training rows."""
        if (seen := self._seen) is None:
            return
        used = self.global_model_.weights.any(dim=1).numpy()
        words = unlike_training(np.asarray(X, np.float64), seen.mean, np.sqrt(seen.variance), used)
        if words is not None:
            warnings.warn(words, ColumnWarning, stacklevel=4)

    def _checked_alpha(self) -> float | Literal["loo"]:
        """The α of all clients, or that each chooses its own."""
        if not isinstance(self.alpha, str):
            return require_alpha(self.alpha)
        if self.alpha != "loo":
            raise InputError(f"alpha is {self.alpha!r}; give 'loo' or a finite number of at least 0")
        return "loo"

    def _checked_beta(self) -> float | Literal["auto"]:
        """β, or that the sum chooses it."""
        if not isinstance(self.beta, str):
            return require_beta(self.beta)
        if self.beta != "auto":
            raise InputError(f"beta is {self.beta!r}; give 'auto' or a finite number of at least 0")
        return "auto"


def misses_of(personal: Mapping[ClientName, Personalization]) -> dict[str, dict[str, Any]]:
    """By how much models miss training rows left out, by client: what prediction sets and intervals follow from."""
    return {
        str(client): {"misses": own.misses, "miss_scale": own.miss_scale, "global_misses": own.global_misses}
        for client, own in personal.items()
    }


def as_tensor(X: Array) -> Tensor:
    """X in float64; a copy, for X may be read-only."""
    return torch.from_numpy(np.array(X, dtype=np.float64, order="C"))
