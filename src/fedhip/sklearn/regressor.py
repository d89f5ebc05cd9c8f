"""FedHiP as a scikit-learn regressor: the ridge of `fedhip.sklearn`, of real targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from fedhip.core.solvers import require_alpha, require_beta
from fedhip.errors import InputError
from fedhip.heads import Ridge
from fedhip.heads.model import Model
from fedhip.heads.options import options_of
from fedhip.heads.task import Task
from fedhip.runs.models import global_model, personal_model
from fedhip.simulation.beta import SCORING_ALPHAS
from fedhip.simulation.driver import federate
from fedhip.simulation.options import RidgeOptions
from fedhip.simulation.tasks import thresholds_of
from fedhip.sklearn.rows import (
    ONLY_CLIENT,
    Array,
    ClientName,
    Part,
    by_client,
    clients_of,
    require_same_kind,
    site,
    some,
)


class FedHiPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """Personalized federated regression in closed form: a ridge for each client.

    The model of client k is the ridge of all clients' rows in which its own rows weigh 1 + alpha. The global model is
    that of alpha = 0. Both come from sums over clients, in one round.

    Parameters
    ----------
    alpha : "loo" or float >= 0, default="loo"
        Additional weight of a client's own rows in its model. "loo" chooses for each client the one of least squared
        error on its own training rows, each left out; several targets count alike, in units of their deviations.
    beta : float >= 0 or "auto", default="auto"
        Ridge penalty of the federation; "auto" chooses it by the same errors, summed over clients.
    standardize : bool, default=True
        Whether the ridge is on features of mean 0 and deviation 1 over all clients' rows.
    fit_intercept : bool, default=True
        Whether the ridge has an intercept, which is not penalised.
    alphas : sequence of float or None, default=None
        What alpha="loo" chooses from; None for 29 values from 0 to 1000.

    Attributes
    ----------
    alphas_ : dict of client to float
        The alpha of each client's model.
    beta_ : float
        The ridge penalty in use.
    models_ : dict of client to fedhip.models.Model
        Each client's model.
    global_model_ : fedhip.models.Model
        The model of all clients.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Where X had names that are all strings.

    Notes
    -----
    Targets that are ordered classes (grades) are a regression whose predictions are rounded:
    ``np.clip(np.rint(reg.predict(X)), low, high)``. The fitted estimator holds every client's training rows.

    Examples
    --------
    >>> import numpy as np
    >>> from fedhip.sklearn import FedHiPRegressor
    >>> X = np.arange(12.0)[:, None]
    >>> y = np.concatenate((2 * np.arange(6.0), 2 * np.arange(6.0, 12.0) + 5))  # the second site measures 5 too much
    >>> sites = np.repeat(["north", "south"], 6)
    >>> reg = FedHiPRegressor(alpha=100.0, beta=0.01).fit(X, y, groups=sites)
    >>> reg.predict([[5.0]], groups=["north"]).round().item()
    10.0
    """

    def __init__(
        self,
        *,
        alpha: float | Literal["loo"] = "loo",
        beta: float | Literal["auto"] = "auto",
        standardize: bool = True,
        fit_intercept: bool = True,
        alphas: Sequence[float] | None = None,
    ) -> None:
        self.alpha = alpha
        self.beta = beta
        self.standardize = standardize
        self.fit_intercept = fit_intercept
        self.alphas = alphas

    def fit(self, X: Any, y: Any, groups: Any = None, *, blocks: Any = None, sample_weight: Any = None) -> Self:
        """Fit the global model and one for each client.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
        groups : array-like of shape (n_samples,), default=None
            The client of each row, ints or strings; None for a single client.
        blocks : array-like of shape (n_samples,), default=None
            Rows of a client that belong together: they are left out together.
        sample_weight : array-like of shape (n_samples,), default=None
            What each row counts; a row of weight 0 is none.

        Returns
        -------
        self
        """
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True)
        flat = y.ndim == 1
        targets = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        return self._learn(by_client(X, targets, clients_of(groups, len(X)), blocks, sample_weight), flat)

    def partial_fit(self, X: Any, y: Any, groups: Any = None, *, blocks: Any = None, sample_weight: Any = None) -> Self:
        """Add rows: new clients join, known clients get more. The same as `fit` on all rows together.

        Parameters as in `fit`; groups may be None only where there is no other client than that of a fit without them.

        Returns
        -------
        self
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, groups, blocks=blocks, sample_weight=sample_weight)
        X, y = validate_data(self, X, y, reset=False, multi_output=True, y_numeric=True)
        if groups is None and not set(self._rows) <= {ONLY_CLIENT}:
            raise InputError(f"groups is None, and there are clients {some(self._rows)}; give the client of each row")
        clients = clients_of(groups, len(X))
        require_same_kind(clients, self._rows)
        targets = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        if targets.shape[1] != next(iter(self._rows.values())).y.shape[1]:
            raise InputError(f"y has {targets.shape[1]} targets, and the estimator was fitted to another number")
        new = by_client(X, targets, clients, blocks, sample_weight)
        joined = {client: self._rows[client] + rows if client in self._rows else rows for client, rows in new.items()}
        return self._learn({**self._rows, **joined}, self._flat)

    def forget(self, client: ClientName) -> Self:
        """Remove a client, bit for bit as if none of its rows had ever been there; the last one cannot be.

        Parameters
        ----------
        client : int or str

        Returns
        -------
        self
        """
        check_is_fitted(self)
        if client not in self._rows:
            raise InputError(f"client {client!r} is not in the federation; its clients are {some(self._rows)}")
        if len(self._rows) == 1:
            raise InputError(f"client {client!r} is the last one, and without it there is no model; fit anew instead")
        return self._learn({other: rows for other, rows in self._rows.items() if other != client}, self._flat)

    def predict(self, X: Any, groups: Any = None) -> Array:
        """The targets of each row by its client's model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        groups : array-like of shape (n_samples,), default=None
            The client of each row. None, and any client never seen in fit: the global model.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_targets)
        """
        found = self._answers(X, groups, Model.scores)
        return found[:, 0] if self._flat else found

    def predict_interval(self, X: Any, groups: Any = None, *, coverage: float = 0.9) -> Array:
        """The interval of each target that holds the truth so often; see `fedhip.core.conformal`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        groups : array-like of shape (n_samples,), default=None
            As in `predict`.
        coverage : float, default=0.9
            Between 0 and 1.

        Returns
        -------
        ndarray of shape (n_samples, 2) or (n_samples, n_targets, 2)
            Its two ends; infinite where there are too few rows to say.
        """

        def half(model: Model, F: Tensor) -> Tensor:
            q = thresholds_of(self._misses, model.client, coverage)
            return torch.tensor(q, dtype=torch.float64).expand(len(F), -1)

        middle, wide = self._answers(X, groups, Model.scores), self._answers(X, groups, half)
        found = np.stack((middle - wide, middle + wide), axis=2)
        return found[:, 0] if self._flat else found

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """R² of `predict(X, groups)`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
        sample_weight : array-like of shape (n_samples,), default=None
        groups : array-like of shape (n_samples,), default=None
            The client of each row, as in `predict`.

        Returns
        -------
        float
        """
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_rows")

    def _learn(self, rows: Mapping[ClientName, Part], flat: bool) -> Self:
        """The three phases. Nothing changes unless all of it succeeds."""
        rows = dict(sorted(rows.items()))
        alpha, beta = self._given()
        t = next(iter(rows.values())).y.shape[1]
        sites = {client: site(str(client), _tensor(part.X), part.y, part) for client, part in rows.items()}
        ridge = RidgeOptions(bool(self.standardize), bool(self.fit_intercept))
        task = Task(list(sites.values()), t, options_of(Ridge, alpha, {}), ridge=ridge, alphas=self.alphas)
        federation = federate(
            task.training,
            t,
            beta,
            ridge,
            alpha=alpha,
            alphas=SCORING_ALPHAS if self.alphas is None else self.alphas,
            uploads=task.uploads,
        )
        found = Ridge.fit(federation, task).personalize()
        owns = {client: found[str(client)][0] for client in sites}
        names = ("target",) if t == 1 else tuple(f"target {number + 1}" for number in range(t))
        self.models_ = {
            client: personal_model(
                federation, str(client), own.model, own.alpha, own.own, own.local_classes, class_names=names,
                only_local_classes=False, backbone=None, task="regression",
            )
            for client, own in owns.items()
        }  # fmt: skip
        self.global_model_ = global_model(federation, names, None, task="regression")
        self.alphas_ = {client: own.alpha for client, own in owns.items()}
        self.beta_, self._rows, self._flat = federation.beta, rows, flat
        self._misses = {
            str(client): {"misses": own.misses, "miss_scale": own.miss_scale, "global_misses": own.global_misses}
            for client, own in owns.items()
        }
        return self

    def _given(self) -> tuple[float | Literal["loo"], float | Literal["auto"]]:
        if isinstance(self.alpha, str) and self.alpha != "loo":
            raise InputError(f"alpha is {self.alpha!r}; give 'loo' or a finite number of at least 0")
        if isinstance(self.beta, str) and self.beta != "auto":
            raise InputError(f"beta is {self.beta!r}; give 'auto' or a finite number of at least 0")
        alpha: float | Literal["loo"] = "loo" if isinstance(self.alpha, str) else require_alpha(self.alpha)
        beta: float | Literal["auto"] = "auto" if isinstance(self.beta, str) else require_beta(self.beta)
        return alpha, beta

    def _answers(self, X: Any, groups: Any, answer: Callable[[Model, Tensor], Tensor]) -> Array:
        """What the model of each row's client answers: (n_samples, n_targets)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        F = _tensor(X)
        if groups is None:
            return answer(self.global_model_, F).numpy()
        clients = clients_of(groups, len(X))
        require_same_kind(clients, self._rows)
        answers = torch.empty((len(X), len(self.global_model_.class_names)), dtype=torch.float64)
        for client in np.unique(clients).tolist():
            rows = torch.from_numpy(clients == client)
            answers[rows] = answer(self.models_.get(client, self.global_model_), F[rows])
        return answers.numpy()


def _tensor(X: Array) -> Tensor:
    return torch.from_numpy(np.array(X, dtype=np.float64, order="C"))  # a copy, for X may be read-only
