"""The federation's logistic head: what the server asks, round by round, and what everybody knows of it.

    Ĝ = argmin_W  −Σ_i log softmax(x_i W)[y_i] + ½ρ tr (W − W₀)ᵀ M (W − W₀)

with W₀ = LDA/T₀, the discriminant made calm by its leave-one-out temperature, and M the shrunk covariance within
classes (nearly nothing for the intercept, of which LDA knows little). The penalty pulls towards LDA by what a change
does to the logits within a class: with few rows for many features the head stays near LDA, with many it is the logistic
regression.

Coordinates B with BᵀMB = I, BᵀAB = diag(λ) make the curvature H ≈ κA + ρM diagonal for every ρ, with κ the mean of
p (1 − p). That whitens the problem for the server's quasi-Newton steps, and gives a fitted head's leave-one-out scores
to first order:

    z_i without i ≈ z_i + a_i/(1 − κ a_i) δ_i + ρ/(ρ + κN) (LDA_i without i − LDA_i)/T₀
    a_i = x_i H⁻¹ x_iᵀ,   δ_i = p_i − y_i

The last term is what the centre W₀ does, which has not seen the row either. ρ is chosen before there is a head, by one
Newton step for each ρ from the first model asked, which is W₀ unless another start was given. Its leave-one-out scores
are those of the step, and of the first model's p_i and mean curvature κ₁; κ in H and here is that along the first step
(`step_curvature`), for where rows are still to be learnt there is more of it:

    z_i without i ≈ z_i(step) + a_i δ_i + (1 − κ₁N/(ρ + κN)) (LDA_i without i − LDA_i)/T₀
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.discriminant import Discriminant, RotatedRows
from fedhip.core.logistic.geometry import Geometry
from fedhip.core.logistic.lbfgs import Point, best_of, halved, propose
from fedhip.core.logistic.sums import GridModel, LogisticTerm, rounded_features
from fedhip.core.rows import ArrayLike, Rows
from fedhip.core.solvers import rank_tolerance, require_beta
from fedhip.core.standardization import Standardization
from fedhip.core.statistics import Statistics
from fedhip.errors import FedHiPError, InputError
from fedhip.utils.lazy import lazy

#: Of LDA's scores: ten to the decade, from as they are to nearly uniform.
TEMPERATURES: tuple[float, ...] = tuple(10.0 ** (i / 10) for i in range(16))
#: Of heads that are nearly calm.
_CALM: tuple[float, ...] = tuple(10.0 ** (i / 20) for i in range(-8, 9))
#: ρ in units of κN, the curvature of all rows together: two to the decade.
PENALTIES: tuple[float, ...] = tuple(10.0 ** (i / 2) for i in range(-4, 5))
#: Of `LogisticFit.penalty_losses`.
PENALTY_SHAPE: tuple[int, int] = (len(PENALTIES), len(_CALM))
#: ρ in units of κN before it is chosen.
FIRST_PENALTY = 10.0
#: What a change of the intercept costs against one of a feature of unit deviation.
INTERCEPT_COST = 0.01

_HALVINGS = 5


class LogisticFit:
    """One federation's fit: everybody can make it from the sum of round one, and the server tells it the rest.

    Parameters
    ----------
    standardization : Standardization
        The federation's, with the intercept.
    statistics : Statistics
        The sum of round one in standardised coordinates; `of` makes both from the raw sum.
    penalty : float, optional
        ρ; without it, chosen by leave-one-out (`penalty_losses`, `choose_penalty`).
    temperature : float, optional
        T₀; without it, chosen by leave-one-out before the first model is asked (`temperature_losses`,
        `choose_temperature`): a round of 16 numbers.
    centre, metric : Tensor, optional
        W₀ (m + 1, d) and M (m + 1, m + 1) in standardised coordinates, instead of LDA's.

    Notes
    -----
    One round: `model = fit.ask()`, the clients' `logistic_term(...)`, their sum, `fit.tell(model, term)`.
    """

    def __init__(
        self,
        standardization: Standardization,
        statistics: Statistics,
        *,
        penalty: float | None = None,
        temperature: float | None = None,
        centre: Tensor | None = None,
        metric: Tensor | None = None,
    ) -> None:
        if statistics.num_samples == 0:
            raise InputError("the sum holds no rows; add at least one client's statistics")
        if temperature is not None and not temperature > 0.0:
            raise InputError(f"temperature is {temperature!r}; give a number above 0")
        self.standardization, self.statistics = standardization, statistics
        self.penalty = None if penalty is None else require_beta(penalty)
        self.temperature = temperature
        self.notes: list[str] = []
        self._centre, self._metric = centre, metric
        #: The first model asked, in standardised coordinates (m + 1, d), where it is not W₀.
        self.start: Tensor | None = None
        self._terms: list[tuple[GridModel, LogisticTerm]] = []
        self._failed: list[GridModel] = []

    @classmethod
    def of(
        cls,
        total: Statistics,
        *,
        penalty: float | None = None,
        temperature: float | None = None,
        centre: Tensor | None = None,
        metric: Tensor | None = None,
        step: float = 0.0,
    ) -> LogisticFit:
        """From the sum of the raw features' statistics; `step` as in `Standardization.of`.

        Rounded to float32 after standardisation, for server and clients alike: half the bytes to every client, and
        LDA and the metric need no more digits. The gradients do not depend on it.
        """
        standardization = Standardization.of(total, step=step)
        exact = standardization.statistics(total)
        rounded = Statistics(exact.gram.float().double(), exact.cross.float().double(), exact.counts)
        return cls(standardization, rounded, penalty=penalty, temperature=temperature, centre=centre, metric=metric)

    @property
    def rows(self) -> int:
        """N, all rows of round one."""
        return self.statistics.num_samples

    @cached_property
    def discriminant(self) -> Discriminant:
        """LDA of the standardised features."""
        gram, cross = self.statistics.gram[:-1, :-1], self.statistics.cross[:-1]
        return Discriminant(Statistics(gram, cross, self.statistics.counts))

    @cached_property
    def lda(self) -> Tensor:
        """LDA's weights, the intercept last (m + 1, d); a class without rows gets the least of the others."""
        model = self.discriminant.model
        known = torch.isfinite(model.bias)
        return torch.cat((model.weights, model.bias.where(known, model.bias[known].min() - 10.0)[None]))

    @cached_property
    def geometry(self) -> Geometry:
        """In which metric and Gram matrix are diagonal."""
        metric = self._metric
        if metric is None:
            metric = INTERCEPT_COST * torch.eye(self.statistics.num_features).to(self.statistics.gram)
            metric[:-1, :-1] = self.discriminant.covariance
        return Geometry.of(self.statistics.gram, metric)

    @property
    def centre(self) -> Tensor:
        """W₀ (m + 1, d)."""
        return self._centre if self._centre is not None else self.lda / self._calm

    @property
    def _calm(self) -> float:
        if self.temperature is None:
            raise InputError("LDA's temperature is not known yet; sum temperature_losses and choose_temperature")
        return self.temperature

    @property
    def curvature(self) -> float:
        """κ: the mean of p (1 − p) at the latest model; before any, that of equal probabilities."""
        d = self.statistics.num_classes
        return self._terms[-1][1].mean_curvature if self._terms else (1.0 - 1.0 / d) / d

    @property
    def rho(self) -> float:
        """ρ; until it is chosen, ten times the curvature of all rows at the first model, and 0 before that is known."""
        if self.penalty is not None:
            return self.penalty
        return FIRST_PENALTY * (self._terms[0][1].mean_curvature if self._terms else 0.0) * self.rows

    @property
    def step_curvature(self) -> float:
        """κ along the first step, Σ s·(g₂ − g₁)/Σ s·A s from the first two answers: what Newton's step should use.

        Where rows still to be learnt lie, there is more curvature than on average, and it is taken to be no less. With
        fewer than two answers, κ.
        """
        if len(self._terms) < 2:
            return self.curvature
        (first, before), (second, after) = self._terms[:2]
        s = second.weights - first.weights
        bent, length = float((s * (after.slopes - before.slopes)).sum()), float((s * (self.statistics.gram @ s)).sum())
        return max(bent / length, before.mean_curvature) if length > 0.0 else before.mean_curvature

    # --- what clients answer beside their gradients -------------------------------------------------------------------

    def temperature_losses(self, features: ArrayLike, labels: ArrayLike, *, client: str | None = None) -> Tensor:
        """Of a client's rows: the log-loss of LDA without the row, for each of TEMPERATURES. Sums of clients add."""
        rows = self._client(features, labels, client)
        return _losses(rows.lda_left_out, rows.labels, TEMPERATURES)

    def penalty_losses(self, features: ArrayLike, labels: ArrayLike, *, client: str | None = None) -> Tensor:
        """Of a client's rows: the log-loss of one step without the row, for each of PENALTIES and some temperatures.

        The step is Newton's from the first model asked (see the module). It takes the sum of the answers to that one,
        and of those to the second for the curvature along the step between them.
        """
        first, term = self._terms[0]
        rows, W, kappa = self._client(features, labels, client), first.weights, self.step_curvature
        F = rows.F @ self.geometry.B
        Z = rows.F @ W
        delta = torch.softmax(Z, dim=1)
        delta[torch.arange(len(Z), device=Z.device), rows.labels] -= 1.0
        losses = []
        for factor in PENALTIES:
            rho = factor * kappa * self.rows
            weights = 1.0 / (kappa * self.geometry.values + rho)
            pull = rho * (self.geometry.inverse @ (W - self.centre))
            step = weights[:, None] * (self.geometry.B.mT @ term.slopes + pull)
            own = (F.square() @ weights)[:, None] * delta
            # The gradient answers the centre's move with the mean curvature, the step divides by its own.
            moves = (1.0 - term.mean_curvature * self.rows / (kappa * self.rows + rho)) * self._centre_moves(rows)
            losses.append(_losses(Z - F @ step + own + moves, rows.labels, _CALM))
        return torch.stack(losses)

    def choose_temperature(self, losses: Tensor) -> float:
        """T₀ of least summed loss. On the grid, so that it is the same number however sums were rounded."""
        self.temperature = TEMPERATURES[int(losses.argmin())]
        return self.temperature

    def choose_penalty(self, losses: Tensor) -> float:
        """The ρ of least summed loss, each at its best temperature."""
        self.penalty = PENALTIES[int(losses.min(dim=1).values.argmin())] * self.step_curvature * self.rows
        return self.penalty

    # --- the server's rounds ------------------------------------------------------------------------------------------

    def ask(self) -> GridModel:
        """The model to evaluate next."""
        if not self._terms:
            return GridModel.of(self.centre if self.start is None else self.start)
        history = self._history()
        if self._failed:
            return GridModel.of(self._back(halved(history, self._whitened(self._failed[-1].weights))))
        return GridModel.of(self._back(propose(history)))

    def tell(self, model: GridModel, term: LogisticTerm) -> None:
        """The sum of the clients' answers to `model`.

        Where other rows took part than before, what was asked before belongs to another objective and is forgotten.
        """
        if self._terms and not torch.equal(term.counts, self._terms[-1][1].counts):
            before = self._terms[-1][1].rows
            self.notes.append(f"{term.rows} rows took part after {before}: the objective is now that of those present")
            self._terms.clear()
        if self.penalty == 0.0 and int(term.right) == term.rows:
            raise InputError(
                f"all {term.rows} rows are classified right, so without a penalty the weights grow for ever; "
                "give a penalty above 0"
            )
        self._terms.append((model, term))
        self._failed.clear()

    def fail(self, model: GridModel, error: FedHiPError) -> None:
        """A client had no finite loss at `model`: half the step is asked next; after five halvings, `error`."""
        if not self._terms or len(self._failed) >= _HALVINGS:
            raise error
        self._failed.append(model)

    @property
    def objective(self) -> float:
        """The least value so far."""
        return best_of(self._history()).value

    @property
    def slope(self) -> float:
        """The length of the gradient at the best model, in the metric of the curvature, relative to √value."""
        best = best_of(self._history())
        return float(best.gradient.norm()) / math.sqrt(max(best.value, 1e-300))

    @property
    def evaluations(self) -> int:
        """Answers told, of those present now."""
        return len(self._terms)

    def head(self) -> LogisticHead:
        """The best model so far; where the last step was good, the next one, unasked."""
        history = self._history()
        best = best_of(history)
        improved = best is history[-1] and len(history) > 1
        weights = self._back(propose(history)) if improved else self._back(best.point)
        return LogisticHead(self, weights, self.rho, self.curvature)

    def _history(self) -> list[Point]:
        """All answers, in whitened coordinates and with the penalty of now."""
        scale = self._scale
        found = []
        for model, term in self._terms:
            away = self.geometry.inverse @ (model.weights - self.centre)
            gradient = (self.geometry.B.mT @ term.slopes + self.rho * away) / scale[:, None]
            value = term.value + 0.5 * self.rho * float(away.square().sum())
            found.append(Point(self._whitened(model.weights), value, gradient))
        return found

    @property
    def _scale(self) -> Tensor:
        # κ of the first answer, so that the coordinates stay from round to round.
        kappa = self._terms[0][1].mean_curvature if self._terms else self.curvature
        scale = (kappa * self.geometry.values + self.rho).sqrt()
        return scale.clamp(min=1e-12 * float(scale.max()))

    def _whitened(self, W: Tensor) -> Tensor:
        return self._scale[:, None] * (self.geometry.inverse @ W)

    def _back(self, theta: Tensor) -> Tensor:
        return self.geometry.B @ (theta / self._scale[:, None])

    # --- a client's rows ----------------------------------------------------------------------------------------------

    def _client(self, features: ArrayLike, labels: ArrayLike, client: str | None) -> _ClientRows:
        given = Rows.checked(features, labels, self.statistics.num_classes, client)
        counts = torch.bincount(given.labels, minlength=given.num_classes)
        self.statistics.require_contains(counts, given.who)
        F, Y = (matrix.to(self.statistics.device) for matrix in given.matrices())
        return _ClientRows(self, rounded_features(F, self.standardization), Y.argmax(dim=1))

    def _centre_moves(self, rows: _ClientRows) -> Tensor:
        """What the centre's not having seen a row does to its scores at the centre."""
        if self._centre is not None:
            return torch.zeros((1, 1)).to(rows.F)
        return (rows.lda_left_out - rows.F @ self.lda) / self._calm

    def _centre_moves_without(self, rows: _ClientRows, gone: Tensor) -> Tensor:
        """What the centre's not having seen some rows does to all scores, by the classes' means.

        For one of these rows, its own part in that is what its leave-one-out says, covariance and all.
        """
        if self._centre is not None:
            return torch.zeros((1, 1)).to(rows.F)
        moves, own = self.discriminant.moves_without(rows.in_lda, gone)
        moves = moves / self._calm
        moves[gone] += self._centre_moves(rows)[gone]
        return moves.index_put((gone.nonzero()[:, 0], rows.labels[gone]), -own[gone] / self._calm, accumulate=True)


@dataclass(frozen=True)
class _ClientRows:
    """A client's standardised rows (N_k, m + 1) and labels."""

    fit: LogisticFit
    F: Tensor
    labels: Tensor

    @lazy
    def in_lda(self) -> RotatedRows:
        """As LDA sees them."""
        return self.fit.discriminant.rows(self.F[:, :-1], self.labels)

    @lazy
    def lda_left_out(self) -> Tensor:
        """LDA's scores without each row; −∞ becomes the least of the row's others, less 10."""
        scores = self.in_lda.left_out(self.fit.discriminant, None)
        known = torch.isfinite(scores)
        least = scores.where(known, torch.inf).amin(dim=1, keepdim=True)
        return scores.where(known, least - 10.0)


class LogisticHead:
    """The fitted head: weights of standardised features (m + 1, d), and what leave-one-out needs."""

    def __init__(self, fit: LogisticFit, weights: Tensor, rho: float, curvature: float) -> None:
        self.fit, self.weights, self.rho, self.curvature = fit, weights, rho, curvature

    @cached_property
    def model(self) -> AffineModel:
        """On raw features."""
        return AffineModel.of_standardized(self.weights, self.fit.standardization)

    @cached_property
    def inverse_curvature(self) -> Tensor:
        """H⁻¹ in the coordinates of the geometry, (m + 1,)."""
        values = self.curvature * self.fit.geometry.values + self.rho
        return 1.0 / values.clamp(min=1e-12 * float(values.max()))

    @property
    def centre_share(self) -> float:
        """ρ/(ρ + κN): how much of a move of the centre the head follows."""
        return self.rho / (self.rho + self.curvature * self.fit.rows) if self.rho > 0.0 else 0.0

    def scores(self, features: ArrayLike) -> Tensor:
        """(n, d) for raw features (n, m)."""
        return self.model.scores(features)

    @cached_property
    def whitening(self) -> Tensor:
        """H^-½ (m + 1, m + 1): rows times this have the curvature's inverse as their products."""
        return self.fit.geometry.B * self.inverse_curvature.sqrt()

    @cached_property
    def spread(self) -> tuple[Tensor, Tensor]:
        """How a client's own change is spread over classes (`fedhip.core.logistic.personal`): c (d,), diag(c) Uᵀ.

        Of C = U diag(c) Uᵀ (d, d); the identity where the head tells no classes apart.
        """
        G = self.weights - self.weights.mean(dim=1, keepdim=True)
        G[-1] = 0.0
        whitened = self.fit.geometry.inverse @ G
        C = whitened.mT @ whitened
        size = C.square().sum().sqrt()
        c, U = torch.linalg.eigh(C * (math.sqrt(len(C)) / size) if float(size) > 0.0 else torch.eye(len(C)).to(C))
        c = c.clamp(min=0.0)
        return c, c[:, None] * U.mT

    def loo_scores(self, features: ArrayLike, labels: ArrayLike, *, client: str | None = None) -> Tensor:
        """For each row of a client its scores without it, to first order (see the module): (N_k, d)."""
        return self.rows(features, labels, client=client).left_out

    def rows(self, features: ArrayLike, labels: ArrayLike, *, client: str | None = None) -> HeadRows:
        """A client's rows as the head sees them, for whoever asks more than once."""
        return HeadRows(self, self.fit._client(features, labels, client))


@dataclass(frozen=True, eq=False)
class HeadRows:
    """A client's rows before a head: what all scores without some of them are made of is computed once."""

    head: LogisticHead
    of: _ClientRows

    @property
    def features(self) -> Tensor:
        """Standardised, with a 1 (N_k, m + 1)."""
        return self.of.F

    @property
    def labels(self) -> Tensor:
        """(N_k,)."""
        return self.of.labels

    @lazy
    def scores(self) -> Tensor:
        """Their scores (N_k, d)."""
        return self.features @ self.head.weights

    @lazy
    def _residuals(self) -> Tensor:
        """softmax(Z) − Y."""
        delta = torch.softmax(self.scores, dim=1)
        delta[torch.arange(len(delta), device=delta.device), self.labels] -= 1.0
        return delta

    @lazy
    def whitened(self) -> Tensor:
        """x_i H^-½ (N_k, m + 1)."""
        return self.features @ self.head.whitening

    @lazy
    def basis(self) -> tuple[Tensor, Tensor, Tensor]:
        """S (N_k, r), Λ (r,) with SᵀS = diag(Λ), and what takes coordinates back to weights (m + 1, r)."""
        Phi, back = self.whitened, self.head.whitening
        if len(Phi) <= Phi.shape[1]:
            values, E = torch.linalg.eigh(Phi @ Phi.mT)
            kept = values > rank_tolerance(Phi.shape[1]) * values[-1]
            values, E = values[kept], E[:, kept]
            return E * values.sqrt(), values, back @ (Phi.mT @ (E / values.sqrt()))
        values, Q = torch.linalg.eigh(Phi.mT @ Phi)
        return Phi @ Q, values.clamp(min=0.0), back @ Q

    @lazy
    def left_out(self) -> Tensor:
        """For each row its scores without it, to first order: (N_k, d)."""
        head, delta = self.head, self._residuals
        a = (self.features @ head.fit.geometry.B).square() @ head.inverse_curvature
        a = a / (1.0 - head.curvature * a).clamp(min=1e-3)
        return self.scores + a[:, None] * delta + head.centre_share * head.fit._centre_moves(self.of)

    def without(self, gone: Tensor) -> Tensor:
        """Scores (N_k, d) of all rows by the head without those `gone` (N_k,) bool, to first order.

        As for one row, but these leave the curvature together, and of the centre the classes' means. For one row gone,
        its own scores are those of `left_out`.
        """
        head, Phi = self.head, self.whitened
        K = Phi @ Phi[gone].mT
        values, E = torch.linalg.eigh(head.curvature * K[gone])
        pulls = E @ ((E.mT @ self._residuals[gone]) / (1.0 - values).clamp(min=1e-3)[:, None])
        found: Tensor = self.scores + K @ pulls + head.centre_share * head.fit._centre_moves_without(self.of, gone)
        return found

    def fold_scores(self, gone: Tensor) -> Tensor:
        """Scores (n, d) of the other rows, each left out together with those `gone` (N_k,) bool.

        To first order, and as if the row and the others that are gone had nothing to do with each other.
        """
        return (self.left_out + self.without(gone) - self.scores)[~gone]


def _losses(scores: Tensor, labels: Tensor, temperatures: Sequence[float]) -> Tensor:
    at = labels[:, None]
    return torch.stack([-torch.log_softmax(scores / T, dim=1).gather(1, at).sum() for T in temperatures])
