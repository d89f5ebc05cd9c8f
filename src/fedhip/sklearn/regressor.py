"""FedHiP as a scikit-learn regressor: the ridge of `fedhip.sklearn`, of real targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

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
from fedhip.sklearn.estimator import FederatedEstimator, as_tensor, misses_of
from fedhip.sklearn.rows import Array, ClientName, Part, by_client, clients_of, site, spread_of


class FedHiPRegressor(MultiOutputMixin, RegressorMixin, FederatedEstimator):  # type: ignore[misc]  # no types
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
    models_ : dict of client to fedhip.heads.model.Model
        Each client's model.
    global_model_ : fedhip.heads.model.Model
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
        targets = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        if targets.shape[1] != next(iter(self._rows.values())).y.shape[1]:
            raise InputError(f"y has {targets.shape[1]} targets, and the estimator was fitted to another number")
        return self._learn(self._with(X, targets, groups, blocks, sample_weight), self._flat)

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
        return self._learn(self._without(client), self._flat)

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
        """The interval of each target that holds the truth so often; see `fedhip.core.choice.conformal`.

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

    def _learn(self, rows: Mapping[ClientName, Part], flat: bool) -> Self:
        """The three phases. Nothing changes unless all of it succeeds."""
        rows = dict(sorted(rows.items()))
        alpha, beta = self._checked_alpha(), self._checked_beta()
        t = next(iter(rows.values())).y.shape[1]
        sites = {client: site(str(client), as_tensor(part.X), part.y, part) for client, part in rows.items()}
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
        self.beta_, self._rows, self._flat, self._seen = federation.beta, rows, flat, spread_of(rows)
        self._misses = misses_of(owns)
        return self
