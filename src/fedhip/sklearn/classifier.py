"""FedHiP as a scikit-learn classifier: `groups` says whose each row is.

phase 1   of each client: statistics of its rows, on the grid
phase 2   their sum, β for the federation, the global model
phase 3   of each client: α by leave-one-out on its rows, its personalized model

All as in a run (`fedhip.simulation`, `fedhip.heads`), with the same defaults and the same numbers.

The estimator checks what it is given, keeps the rows of each client apart and calls the same
functions; it computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from fedhip.core.choice.calibration import choose_temperature
from fedhip.core.choice.conformal import classes_within
from fedhip.core.choice.prior import Prior
from fedhip.errors import InputError
from fedhip.features.lifts.kinds import DEFAULT_WIDTH, NO_LIFT, LiftKind
from fedhip.features.lifts.lift import Lift
from fedhip.heads import Auto, Ridge, head_named
from fedhip.heads.budget import Within, bytes_of, within
from fedhip.heads.choice import AUTO, choose
from fedhip.heads.model import RIDGE, Model
from fedhip.heads.options import options_of
from fedhip.heads.task import Task
from fedhip.privacy.mechanism import DEFAULT_DELTA, Unit
from fedhip.runs.models import answering, global_model, personal_model
from fedhip.runs.privacy import PrivacySettings
from fedhip.simulation.beta import SCORING_ALPHAS
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.lifting import LiftSettings, lifted_grid
from fedhip.simulation.options import STANDARD, RidgeOptions
from fedhip.simulation.priors import PriorOption
from fedhip.simulation.private import federate_privately, personalize_privately
from fedhip.simulation.tasks import require_ridge, thresholds_of
from fedhip.sklearn.estimator import FederatedEstimator, as_tensor, misses_of
from fedhip.sklearn.rows import (
    Array,
    ClientName,
    Part,
    by_client,
    class_numbers,
    classes_of,
    clients_of,
    require_own_blocks,
    site,
    spread_of,
)


class FedHiPClassifier(ClassifierMixin, FederatedEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Personalized federated learning in closed form: a classifier with a model for each client.

    By default, cross-validation on training rows chooses each client's model among all that one sum over clients gives.
    With head="ridge" it is the paper's: the ridge classifier of all clients' rows, with the client's own rows counted
    1 + alpha times. The global model has alpha = 0. All models come from sums over clients, without gradients, in one
    round.

    Parameters
    ----------
    head : "auto", "ridge", "lda", "logistic" or None, default=None
        The kind of model. "auto" chooses for each client by cross-validation on training rows: the ridge, linear
        discriminant analysis, a ridge on its rows alone, an average of these or its most frequent class, on X or, if X
        is narrow, on random features of it. "ridge" is the paper's. "lda" is linear discriminant analysis, with a
        client's own class means if these are better. "logistic" is logistic regression in a few rounds, with a step for
        each client. The latter two always standardise and have an intercept. None means "auto", unless something is
        given that only the ridge has (beta, standardize, fit_intercept, alphas, or weights in `fit`).
    prior : "none", "client" or None, default=None
        "client": weigh predictions by the client's class frequencies, as far as held-out rows support it. None does so
        with "auto" only.
    alpha : "loo" or float >= 0, default="loo"
        Additional weight of a client's own rows in its model. "loo" chooses for each client the value with the highest
        smoothed leave-one-out accuracy on its own training rows; of several, the smallest. For the ridge and the
        logistic head; LDA's means are always chosen.
    beta : float >= 0 or "auto", default="auto"
        Ridge penalty of the federation. "auto" chooses the value with the highest smoothed leave-one-out accuracy of
        the clients' models, summed over clients; of several, the largest. For the ridge only.
    standardize : bool, default=True
        Whether to scale features to mean 0 and deviation 1 over all clients' rows, so that units do not matter. For the
        ridge only: the other heads always do.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised. With neither it is the paper's ridge. For the ridge only:
        the other heads always have one.
    only_local_classes : bool, default=False
        Whether a client's model never predicts classes of which the client has no training row. Their score is then
        minus infinity and their probability 0. The global model predicts all classes.
    alphas : sequence of float or None, default=None
        Candidates of alpha="loo"; None for 29 values from 0 to 1000. beta="auto" is chosen for models of these. For the
        ridge without priors only.
    lift : "relu", "fourier", "nystroem", "nystroem-axes", "none" or None, default=None
        Random features of X, drawn from `lift_seed` and from mean and deviation of all clients' rows (for Nyström's,
        also their covariance). None: head="auto" may try one; "none": it does not.
    lift_width : int, default=2048
        Number of random features.
    lift_seed : int, default=0
        Their seed.
    lift_bandwidth : float, default=1.0
        Bandwidth of the Gaussian kernel, for all but "relu"; two standardised rows are about the square root of 2
        apart.
    budget : str or int, default=None
        Upload limit of each client, such as "5MB", "500kB" or a number of bytes. X is projected to fewer dimensions if
        needed.
    max_rounds : int, default=1
        Rounds that head="auto" may use; from 8 on, logistic regression is a candidate.
    epsilon : float > 0 or None, default=None
        Differential privacy by noise in the sum; None for none. For the ridge only, without lift and priors. Rows are
        clipped by `public` or `clip`. A fit is one release; `partial_fit` and `forget` would be further ones, and are
        refused.
    delta : float, default=1e-5
        Probability that epsilon does not hold; choose it below 1/n_samples.
    unit : "row", "group" or "client", default="row"
        Unit of protection: a row, a client's rows of one of the `blocks`, or all rows of a client.
    unit_rows : int or None, default=None
        At most this many rows of a group or client are used.
    clip : float or None, default=None
        Norm to which rows are clipped.
    public : array-like of shape (n, n_features), path of a feature file or None, default=None
        Public rows of the same kind, used to scale and clip private ones.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    alphas_ : dict of client to float
        The alpha of each client's model; of LDA, 1 for a client with means of its own and 0 for the others.
    head_ : str
        The head in use.
    choice_ : dict or None
        With head="auto", the accuracy of each candidate on held-out training rows, and what was chosen.
    beta_ : float or None
        The ridge penalty in use; None for other heads.
    settings_ : dict of str to float
        Other parameters of the head: "shrinkage" of LDA; "penalty", "temperature" and "curvature" of the
        logistic head.
    priors_ : dict of client to fedhip.core.choice.prior.Prior
        The prior of each client that has one.
    models_ : dict of client to fedhip.heads.model.Model
        Each client's model; `models_[client].to_file(path)` saves one, without its prior. A lift is part of the model.
    lift_ : fedhip.features.lifts.lift.Lift or None
        The lift in use.
    global_model_ : fedhip.heads.model.Model
        The model of all clients.
    n_features_in_ : int
        The number of features seen during fit.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, where X had names that are all strings.
    privacy_ : dict or None
        With epsilon, the guarantee: "epsilon", "delta", "unit", "mechanism", "sigma", "width" and, as a sentence,
        "guarantee".

    Notes
    -----
    A client is an int or a string. Without `groups`, `fit` makes a federation of a single client, 0, and `predict`
    answers with the global model; so it does for rows of a client that was never seen in fit.

    The fitted estimator, and so its pickle, holds every client's training rows: leave-one-out needs them, and so do
    `partial_fit` and `forget`; with `epsilon` it holds none. It simulates a federation in one process. To hand on a
    model without rows, use `models_`. With `epsilon` anybody may have `global_model_`; a model of `models_` tells of
    its client's rows.

    Examples
    --------
    >>> import numpy as np
    >>> from fedhip.sklearn import FedHiPClassifier
    >>> X = np.array([[1.0, 0.0], [0.8, 0.1], [0.0, 1.0], [0.2, 0.9]] * 2)
    >>> y = np.array(["a", "a", "b", "b", "b", "b", "a", "a"])  # the two sites disagree
    >>> sites = np.repeat(["north", "south"], 4)
    >>> clf = FedHiPClassifier(alpha=20.0).fit(X, y, groups=sites)
    >>> clf.predict(X[:1], groups=["north"]).item(), clf.predict(X[:1], groups=["south"]).item()
    ('a', 'b')
    """

    def __init__(
        self,
        *,
        head: str | None = None,
        prior: Literal["none", "client"] | None = None,
        alpha: float | Literal["loo"] = "loo",
        beta: float | Literal["auto"] = "auto",
        standardize: bool = True,
        fit_intercept: bool = True,
        only_local_classes: bool = False,
        alphas: Sequence[float] | None = None,
        lift: LiftKind | Literal["none"] | None = None,
        lift_width: int = DEFAULT_WIDTH,
        lift_seed: int = 0,
        lift_bandwidth: float = 1.0,
        max_rounds: int = 1,
        budget: str | int | None = None,
        epsilon: float | None = None,
        delta: float = DEFAULT_DELTA,
        unit: Unit = "row",
        unit_rows: int | None = None,
        clip: float | None = None,
        public: Any = None,
    ) -> None:
        self.head = head
        self.prior = prior
        self.alpha = alpha
        self.beta = beta
        self.standardize = standardize
        self.fit_intercept = fit_intercept
        self.only_local_classes = only_local_classes
        self.alphas = alphas
        self.lift = lift
        self.lift_width = lift_width
        self.lift_seed = lift_seed
        self.lift_bandwidth = lift_bandwidth
        self.max_rounds = max_rounds
        self.budget = budget
        self.epsilon = epsilon
        self.delta = delta
        self.unit = unit
        self.unit_rows = unit_rows
        self.clip = clip
        self.public = public

    def fit(self, X: Any, y: Any, groups: Any = None, *, blocks: Any = None, sample_weight: Any = None) -> Self:
        """Fit the global model and one for each client.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        groups : array-like of shape (n_samples,), default=None
            The client of each row, ints or strings; None for a single client.
        blocks : array-like of shape (n_samples,), default=None
            Rows of a client that belong together, such as those of one patient: they are left out together. What
            `fedhip.run` calls groups, which here are clients.
        sample_weight : array-like of shape (n_samples,), default=None
            What each row counts; a row of weight 0 is none. Of the ridge alone.

        Returns
        -------
        self
        """
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        rows = by_client(X, y, clients_of(groups, len(X)), blocks, sample_weight)
        return self._learn(rows, unique_labels(*(part.y for part in rows.values())), declared=False)

    def partial_fit(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        classes: Any = None,
        *,
        blocks: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Add rows: new clients join, known clients get more. The same as `fit` on all rows together.

        Every client's model is solved anew, for the sum is in all of them. So rather add many rows at a time.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        groups : array-like of shape (n_samples,), default=None
            The client of each row; None only where there is no other client than that of a fit without groups.
        classes : array-like of shape (n_classes,), default=None
            All labels there will ever be. Without it, new labels become new classes.
        blocks, sample_weight : array-like of shape (n_samples,), default=None
            As in `fit`; a block of the same name as one before is that one.

        Returns
        -------
        self
        """
        first = not self.__sklearn_is_fitted__()
        if not first:
            self._require_exact("partial_fit")
        X, y = validate_data(self, X, y, reset=first)
        check_classification_targets(y)
        rows = self._with(X, y, groups, blocks, sample_weight)
        return self._learn(rows, *classes_of(y, classes, None if first else (self.classes_, self._declared)))

    def forget(self, client: ClientName) -> Self:
        """Remove a client, bit for bit as if none of its rows had ever been there.

        Labels that only this client had are no longer classes, unless `partial_fit` was told of them. The last client
        cannot be forgotten.

        Parameters
        ----------
        client : int or str

        Returns
        -------
        self
        """
        check_is_fitted(self)
        self._require_exact("forget")
        rest = self._without(client)
        # A sum over the others anew, and not a difference: subtracting would leave the rounding of the client's rows.
        classes = self.classes_ if self._declared else unique_labels(*(part.y for part in rest.values()))
        return self._learn(rest, classes, self._declared)

    def decision_function(self, X: Any, groups: Any = None) -> Array:
        """Scores of each row under its client's model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        groups : array-like of shape (n_samples,), default=None
            The client of each row. None, and any client never seen in fit: the global model.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            With two classes, of shape (n_samples,): the score of `classes_[1]` less that of `classes_[0]`.
        """
        scores = self._answers(X, groups, Model.scores)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any, groups: Any = None) -> Array:
        """The class of highest score of each row; parameters as in `decision_function`.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        scores = self._answers(X, groups, Model.scores)
        labels: Array = self.classes_[scores.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """softmax(scores / T); parameters as in `decision_function`.

        There is one T for the clients' models and one for the global one: that of highest likelihood on leave-one-out
        scores of training rows. A prior brings its own.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        return self._answers(X, groups, Model.probabilities)

    def predict_set(self, X: Any, groups: Any = None, *, coverage: float = 0.9) -> Array:
        """The classes of each row that hold its label so often; see `fedhip.core.choice.conformal`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        groups : array-like of shape (n_samples,), default=None
            As in `decision_function`.
        coverage : float, default=0.9
            Between 0 and 1.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), bool
            True for the classes of the set, in the order of `classes_`; never none of a row.
        """
        check_is_fitted(self)
        if self.head_ != AUTO and self._prior(self.head_) != "none":
            raise InputError("rows left out were scored without priors, so there are no sets with them: prior='none'")

        def held(model: Model, F: Tensor) -> Tensor:
            (q,) = thresholds_of(self._misses, model.client, coverage)
            return classes_within(model.scores(F), q).to(torch.float64)

        return self._answers(X, groups, held) > 0.0

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """Accuracy of `predict(X, groups)`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
        groups : array-like of shape (n_samples,), default=None
            The client of each row, as in `predict`.

        Returns
        -------
        float
        """
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def _learn(self, rows: Mapping[ClientName, Part], classes: Array, declared: bool) -> Self:
        """The three phases. Nothing changes unless all of it succeeds."""
        weighted = any(part.weights is not None for part in rows.values())
        if self.epsilon is not None:
            return self._learn_privately(dict(sorted(rows.items())), classes, declared, self.epsilon)
        only_local = bool(self.only_local_classes)
        head = self._head(weighted)
        require_ridge("classification", weighted, head=head, prior=self._prior(head), only_local_classes=only_local)
        # In the order of their names, so that sums do not depend on the order in which clients joined.
        rows = dict(sorted(rows.items()))
        upload = self._upload(head, rows, len(classes))
        lift = None if upload.lift is None else self._drawn_lift(upload.lift, rows, len(classes))
        return self._learn_head(head, rows, classes, declared, lift, upload)

    def _head(self, weighted: bool) -> str:
        """The head that is asked for, as `fedhip run` finds it."""
        if self.head is not None:
            return self.head
        ridges_own = not (self.standardize and self.fit_intercept) or self.beta != "auto" or self.alphas is not None
        return RIDGE if weighted or ridges_own else AUTO

    def _prior(self, head: str) -> PriorOption:
        """What holds for priors with this head."""
        if self.prior not in (None, "none", "client"):
            raise InputError(f"prior is {self.prior!r}; give 'client' or 'none'")
        return self.prior or ("client" if head == AUTO else "none")

    def _ridge(self, head: str) -> RidgeOptions:
        """What the ridge is of; nothing of it is said to the other heads."""
        if head not in (RIDGE, AUTO):
            return STANDARD
        return RidgeOptions(bool(self.standardize), bool(self.fit_intercept))

    def _require_exact(self, what: str) -> None:
        if self.epsilon is not None:
            raise InputError(
                f"{what} would release a second sum of the same rows, which costs epsilon once more; fit anew, and "
                "count both"
            )

    def _learn_privately(self, rows: dict[ClientName, Part], classes: Array, declared: bool, epsilon: float) -> Self:
        """The three phases with noise in the sum; see `fedhip.simulation.private`."""
        weighted = any(part.weights is not None for part in rows.values())
        for given, name in (
            (self.head not in (None, RIDGE), f"head={self.head!r}"),
            (self.prior not in (None, "none"), f"prior={self.prior!r}"),
            (self.lift not in (None, NO_LIFT), f"lift={self.lift!r}"),
            (weighted, "sample_weight"),
            (self.alphas is not None, "alphas"),
            (self.max_rounds != 1, "max_rounds"),
            (self.budget is not None, "budget"),
            (not (self.standardize and self.fit_intercept), "standardize=False or fit_intercept=False"),
        ):
            if given:
                raise InputError(f"with epsilon there is one sum, with noise, and the ridge from it; leave out {name}")
        beside = {name: getattr(self, name) for name in ("delta", "unit", "unit_rows", "clip", "public")}
        settings = PrivacySettings.asked(epsilon, beside)
        if self.unit == "group":
            require_own_blocks(rows)
        names, d = {str(client): client for client in rows}, len(classes)
        clients, only_local = self._sites(rows, classes, None), bool(self.only_local_classes)
        beta, alpha = self._checked_beta(), self._checked_alpha()
        for client in clients:
            settings.require_others_rows(np.asarray(client.train[0]))
        options = settings.with_public(clients[0].train[0].shape[1])
        federation, sent = federate_privately(clients, d, options, beta)
        owns = {
            names[client.name]: personalize_privately(
                federation,
                client,
                alpha,
                sent[client.name],
                only_local_classes=only_local,
            )
            for client in clients
        }
        class_names = tuple(str(label) for label in classes)
        self.models_ = {
            client: answering(
                personal_model(
                    federation, str(client), found.model, found.alpha, found.own, found.local_classes,
                    class_names=class_names, only_local_classes=only_local, backbone=None,
                ),
                choose_temperature(torch.tensor(found.log_losses, dtype=torch.float64)),
            )
            for client, found in owns.items()
        }  # fmt: skip
        self.global_model_ = global_model(federation, class_names, None)
        self.alphas_ = {client: found.alpha for client, found in owns.items()}
        self.head_ = RIDGE
        self.choice_: dict[str, Any] | None = None
        self.lift_: Lift | None = None
        self.beta_: float | None = federation.beta
        self.settings_: dict[str, float] = {}
        self.priors_: dict[ClientName, Prior] = {}
        self._misses = {}
        # Nothing can be added or taken out any more, so that no row is kept, nor pickled.
        self.classes_, self._rows, self._declared, self._seen = classes, {}, declared, None
        self.privacy_: dict[str, Any] | None = federation.mechanism.to_dict()
        return self

    def _learn_head(
        self, name: str, rows: dict[ClientName, Part], classes: Array, declared: bool, lift: Lift | None, upload: Within
    ) -> Self:
        """The three phases of any head, with priors or without; see `fedhip.heads`."""
        kind, alpha, beta = head_named(name), self._checked_alpha(), self._checked_beta()
        names, d, prior_of = {str(client): client for client in rows}, len(classes), self._prior(name)
        clients, only_local = self._sites(rows, classes, lift), bool(self.only_local_classes)
        ridge = replace(self._ridge(name), room=upload.room)
        if lift is not None:
            ridge = lifted_grid(clients, ridge, lift.kind)
        # Of a grid of the user's α is chosen by the ridge without priors.
        alphas = self.alphas if kind is Ridge and prior_of == "none" and alpha == "loo" else None
        options = options_of(kind, alpha, {})
        task = Task(
            clients, d, options, ridge=ridge, alphas=alphas, only_local_classes=only_local, prior=prior_of,
            estimates=kind is not Auto,
        )  # fmt: skip
        federation = federate(
            clients,
            d,
            0.0 if beta == "auto" and kind not in (Ridge, Auto) else beta,
            ridge,
            alpha=alpha,
            alphas=SCORING_ALPHAS if alphas is None else alphas,
            uploads=task.uploads,
        )
        if kind is Auto:
            choice = choose(task, federation, wider=upload.wider, max_rounds=self.max_rounds)
            best, chosen = choice.best, choice.to_dict()
            head, found_for, lift = best.head, best.owns, best.lift or lift
            federation, kind = head.federation, type(head)
        else:
            chosen, head = None, kind.fit(federation, task)
            found_for = head.personalize()
        owns = {names[client]: own for client, own in found_for.items()}
        grid, solved_beta = federation.grid, federation.beta if kind is Ridge else None

        class_names = tuple(str(label) for label in classes)
        personals = [personal for personal, _ in owns.values()]
        common, own = (
            choose_temperature(torch.tensor(losses, dtype=torch.float64).sum(dim=0), kind.temperatures)
            for losses in ([p.global_log_losses for p in personals], [p.log_losses for p in personals])
        )
        counts = {
            client: torch.from_numpy(np.bincount(class_numbers(part.y, classes), minlength=d))
            for client, part in rows.items()
        }
        self.models_ = {
            client: answering(
                personal_model(
                    federation, str(client), found.model, found.alpha, found.own, found.local_classes,
                    class_names=class_names, only_local_classes=only_local, backbone=None, head=head, lift=lift,
                    settings=None if found.choice is None else found.choice.settings,
                ),
                own, prior, counts[client], grid.counts,
            )
            for client, (found, prior) in owns.items()
        }  # fmt: skip
        self.global_model_ = answering(global_model(federation, class_names, None, head=head, lift=lift), common)
        self.alphas_ = {client: found.alpha for client, (found, _) in owns.items()}
        self.head_, self.choice_ = head.name, chosen
        self.beta_, self.lift_, self.settings_ = solved_beta, lift, dict(head.settings)
        self.priors_ = {client: prior for client, (_, prior) in owns.items() if not prior.is_none}
        self.classes_, self._rows, self._declared, self.privacy_ = classes, rows, declared, None
        self._seen = spread_of(rows)
        self._misses = misses_of({client: found for client, (found, _) in owns.items()})
        return self

    def _sites(self, rows: Mapping[ClientName, Part], classes: Array, lift: Lift | None) -> list[Client]:
        return [
            site(
                str(client),
                as_tensor(part.X) if lift is None else lift(as_tensor(part.X)),
                class_numbers(part.y, classes),
                part,
            )
            for client, part in rows.items()
        ]

    def _upload(self, head: str, rows: Mapping[ClientName, Part], num_classes: int) -> Within:
        """The lift that is asked for, or that the budget asks for; and whether another may compete."""
        if self.budget is not None:
            if head != AUTO or self.lift is not None or self.max_rounds > 1:
                raise InputError(
                    "a budget is for the choice in one round, which finds its own upload; leave out head, lift and "
                    "max_rounds, or budget"
                )
            width, numbers = next(iter(rows.values())).X.shape[1], [len(part.y) for part in rows.values()]
            prior = self._prior(head) == "client"
            return within(bytes_of(self.budget), width, num_classes, numbers, prior=prior)
        if self.lift is None or self.lift == NO_LIFT:
            # A lift competes with the ridge that is the default; of another, what is asked for is judged.
            asked = self.beta != "auto" or not (self.standardize and self.fit_intercept)
            return Within(None, self.lift is None and not asked)
        bandwidth = None if self.lift in ("relu", "project") else self.lift_bandwidth
        return Within(LiftSettings(self.lift, self.lift_width, seed=self.lift_seed, bandwidth=bandwidth), False)

    def _drawn_lift(self, settings: LiftSettings, rows: Mapping[ClientName, Part], num_classes: int) -> Lift:
        clients = [Client(str(client), (part.X, part.y), (part.X, part.y)) for client, part in rows.items()]
        plan = settings.plan(clients[0].train[0].shape[1], num_classes)
        plan.require_memory(max(len(client.train[1]) for client in clients))
        return plan.draw(clients)
