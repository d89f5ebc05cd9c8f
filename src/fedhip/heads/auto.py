"""The model that a client's training rows speak for, among all that one sum can give.

A *member* answers with scores: the ridge with the client's α, the global ridge, the discriminant of the same sum, the
ridge of the client's rows alone with a penalty of its own. A *candidate* is one of them, the average of several, or the
client's most frequent class. All members are linear in the same features, so an average is linear too:

    model = Σ members / temperature        with one temperature of each member for the whole federation, which makes
                                           logarithms of probabilities of its scores

phase 1   at each client: statistics of its own training rows, on the grid (the ridge's own upload)
phase 2   at the server: their sum; β and the members' temperatures, by sums of what clients found on rows left out
phase 3a  at each client: for every candidate its prior, and the rows right that are judged by what others chose
          at the server: the mean over clients of the share right; the best candidate is everybody's
phase 3b  at each client: everybody's candidate, or a single member or its most frequent class, where its own rows speak
          for that by more than two standard errors

Of a row that is judged nothing is known to what judges it: not to the model (it is left out), nor to α, means, penalty
and prior (they are chosen by rows of other folds). For given choices of the federation, a client's model is a function
of the sum and of its own rows, however the other rows are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.choice import calibration
from fedhip.core.choice.calibration import choose_temperature
from fedhip.core.choice.candidates import HeldOut, leaves_for, nested_right
from fedhip.core.choice.prior import NO_CHOICE, NO_PRIOR, PriorChoice
from fedhip.core.choice.selection import FOLDS, fold_of, pick, without_fold
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.heads.head import AHEAD, Head, Personalized
from fedhip.heads.lda import TEMPERATURES as LDA_TEMPERATURES
from fedhip.heads.lda import Lda, LdaChoice
from fedhip.heads.model import Model
from fedhip.heads.options import Option
from fedhip.heads.ridge import Ridge
from fedhip.heads.task import Task
from fedhip.simulation.alone import local_path
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import Alpha
from fedhip.simulation.personalization import Chosen, choose_alpha
from fedhip.simulation.priors import LeftOut, choose_left_out, losses_bytes
from fedhip.utils.parallel import in_order

RIDGE, GLOBAL, LDA, ALONE, MAJORITY = "ridge", "global", "lda", "alone", "majority"
#: What scores are made log-probabilities of with, by member.
_GRIDS = {
    RIDGE: calibration.TEMPERATURES,
    GLOBAL: calibration.TEMPERATURES,
    LDA: LDA_TEMPERATURES,
    ALONE: calibration.TEMPERATURES,
}
#: The candidates, from the simplest: of equals the first is taken.
CANDIDATES: tuple[tuple[str, ...], ...] = (
    (RIDGE,), (GLOBAL,), (LDA,), (ALONE,),
    (RIDGE, LDA), (GLOBAL, LDA), (RIDGE, ALONE), (GLOBAL, ALONE), (LDA, ALONE),
    (RIDGE, LDA, ALONE), (GLOBAL, LDA, ALONE),
    (MAJORITY,),
)  # fmt: skip
#: Those that a client without rows can have.
_FOR_ANYBODY = tuple(at for at, members in enumerate(CANDIDATES) if set(members) <= {GLOBAL, LDA})
#: Those that a client leaves everybody's for: what it could have by itself, or from the sum as it is.
_CORNERS = tuple(CANDIDATES.index((name,)) for name in (RIDGE, GLOBAL, ALONE, MAJORITY))
#: A client with a single row has none to judge by.
_LEAST_ROWS = 2


def name_of(candidate: int) -> str:
    """What a candidate is called in results.json."""
    return "+".join(CANDIDATES[candidate])


def choosing_bytes(*, prior: bool) -> int:
    """What a client sends beside the ridge's own: losses over temperatures and priors, and shares of rows right."""
    losses = 8 * sum(map(len, _GRIDS.values())) + 8 * 2 * len(CANDIDATES)
    return losses + (losses_bytes([1] * (len(CANDIDATES) - 1)) if prior else 0)


@dataclass(frozen=True, eq=False)
class Member:
    """A client's model of one kind: scores (N_k, d) of its rows left out, and what the model is solved with.

    `judged` are scores in which nothing that was chosen, α, means or penalty, was chosen by rows of the same fold.
    """

    scores: Tensor
    judged: Tensor
    settings: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Members:
    """A client's, by name; with the ridge's α, its curve over α, and scores (N_k, d) by the federation's own."""

    alpha: float
    curve: list[float] | None
    found: Mapping[str, Member]
    common: Mapping[str, Tensor]


class Auto(Head):
    """For each client the candidate that its training rows speak for: members of one sum, or their average."""

    name, method, title = "auto", "auto", "FedHiP-auto"
    description = "for each client what its training rows speak for: ridge, LDA, alone, or their average"
    options = (Option("alpha"), Option("beta"))
    alpha_is = "how much more the client’s own rows weigh in the ridge part of its model than in the global one"
    alphas = Ridge.alphas
    #: Scores are logarithms of probabilities, and near the mark.
    temperatures = tuple(10.0 ** (i / 10) for i in range(-8, 9))

    def __init__(self, federation: Federation, task: Task, settings: Mapping[str, float] | None = None) -> None:
        super().__init__(federation, task)
        plain = replace(task, prior="none", options={})
        if settings is not None:
            plain = replace(plain, options={"temperature": settings[f"{LDA}_temperature"]})
        self._lda = Lda.fit(federation, plain)
        #: What the federation has chosen; None until it has.
        self._settings = None if settings is None else {**settings, **self._lda.settings}
        self.held_out: HeldOut | None = None

    @classmethod
    def federate(cls, task: Task) -> Federation:
        """As the ridge's."""
        return Ridge.federate(task)

    @classmethod
    def fit(cls, federation: Federation, task: Task, previous: Model | None = None) -> Self:
        """The members; which of them the federation's model is made of is chosen with the clients, or as it was."""
        _ = federation.common
        return cls(federation, task, None if previous is None else previous.settings)

    @property
    def common(self) -> AffineModel:
        """Everybody's candidate, of the members that need no rows of a client."""
        return self._mixed({GLOBAL: self.federation.common, LDA: self._lda.common}, self.settings)

    @property
    def settings(self) -> Mapping[str, float]:
        """Which members the federation's model is made of, and every member's temperature."""
        if self._settings is None:
            self._settings = dict(self._choose().settings)
        return self._settings

    @property
    def traffic(self) -> tuple[int, int, int]:
        """The ridge's own, and what was chosen by: losses over temperatures and priors, and shares of rows right."""
        rounds, up, _ = self.federation.traffic(Ridge.method)
        losses = choosing_bytes(prior=self.task.prior == "client")
        return rounds, up + losses, self.federation.survey_bytes + self.federation.statistics_bytes + losses

    def personalize(
        self, priors: Mapping[str, PriorChoice] | None = None, others: Tensor | None = None
    ) -> dict[str, Personalized]:
        """Everybody's candidate, or the client's own; with `priors`, the candidates and priors that clients have."""
        found = self._choose() if priors is None else self._keep(priors)
        owns = in_order(lambda client: self._own(client, found), self.task.training, self.task.device, AHEAD)
        return dict(zip((client.name for client in self.task.training), owns, strict=True))

    def left_out(self, client: Client) -> dict[str, LeftOut]:
        """By the federation's model, and by the candidate that the client takes without a prior."""
        one = Auto(self.federation, replace(self.task, clients=[client], prior="none"), self.settings)
        found = one._keep({})
        scores = one._scores(found.members[client.name], found.chosen[client.name])
        return {"global": LeftOut([self._common_scores(found.members[client.name])]), self.method: LeftOut([scores])}

    def refit(
        self, client: str, statistics: GridStatistics, alpha: float, previous: Callable[[], Model]
    ) -> AffineModel:
        """Its members solved anew, from its statistics and what its model says that it is made of."""
        return self._solved(client, statistics, alpha, previous().settings)

    def settings_after(self, previous: Callable[[], Model]) -> Mapping[str, float]:
        """What its model is made of stays; the shrinkage is that of the sum."""
        return {**previous().settings, **self._lda.settings}

    def kept(self, known: Mapping[str, object], prior: PriorChoice) -> PriorChoice:
        """With the candidate that the client has; of one that is new, none."""
        names = [name_of(at) for at in range(len(CANDIDATES))]
        chosen = known.get("choice")
        name = chosen.get("model") if isinstance(chosen, dict) else None
        return replace(prior, model=names.index(name) if name in names else -1)

    def taken(self, client: str) -> str:
        """The candidate that a client has taken; everybody's, of one that had no rows to choose by."""
        found = self._choose()
        assert self.held_out is not None  # noqa: S101  (all have chosen)
        return name_of(found.chosen.get(client, self.held_out.best()))

    def right(self, client: str, candidate: str) -> Tensor:
        """Which of a client's rows (N_k,) a candidate has right, a row left out."""
        return self._choose().hits[client][:, [name_of(at) for at in range(len(CANDIDATES))].index(candidate)]

    # --- choosing

    @cached_property
    def _members(self) -> dict[str, Members]:
        """Every client's members, by name."""
        training = self.task.training
        choices = self._lda._choices(training)
        found = in_order(
            lambda client: self._members_of(client, choices[client.name]), training, self.task.device, AHEAD
        )
        every = {}
        for done, (client, members) in enumerate(zip(training, found, strict=True), start=1):
            every[client.name] = members
            self.task.report("candidates", done, len(training))
        return every

    def _members_of(self, client: Client, discriminant: LdaChoice) -> Members:
        groups, task = client.group_tensor, self.task
        alpha: Alpha = task.options.get("alpha", "loo")
        tried = sorted(Ridge.alphas if task.alphas is None else task.alphas) if alpha == "loo" else [float(alpha)]
        looked = task.looked.get(client.name) or choose_alpha(self.federation, client, tried, task.only_local_classes)
        fold = fold_of(len(looked.scores), groups).to(looked.scores.device)
        by_fold = torch.stack(discriminant.fold_scores)[fold, torch.arange(len(fold), device=fold.device)]
        means = {"means": 1.0 if discriminant.personal else 0.0}
        return Members(
            looked.alpha,
            looked.curve if alpha == "loo" and task.alphas is None else None,
            {
                RIDGE: Member(looked.scores, looked.by_others, {}),
                GLOBAL: Member(looked.common, looked.common, {}),
                LDA: Member(discriminant.loo_scores, by_fold, means),
                ALONE: self._alone(client),
            },
            {GLOBAL: looked.common, LDA: discriminant.common},
        )

    def _alone(self, client: Client) -> Member:
        """The ridge of the client's rows alone, its penalty by leave-one-out on them."""
        federation, groups = self.federation, client.group_tensor
        path = local_path(
            client, federation.grid.num_classes, federation.standardize, federation.intercept, federation.grid.device
        )
        penalties = path.penalties()
        credit = path.credit(penalties)
        chosen = penalties[pick(credit)]
        known = {chosen: path.loo_scores(chosen)}
        judged = known[chosen].clone()
        for fold in range(FOLDS):
            others = without_fold(len(credit), fold, groups).to(credit.device)
            penalty = penalties[pick(credit[others])]
            if penalty not in known:
                known[penalty] = path.loo_scores(penalty)
            judged[~others] = known[penalty][~others]
        return Member(known[chosen], judged, {"penalty": chosen})

    @cached_property
    def _temperatures(self) -> dict[str, float]:
        """One of each member, by everybody's losses on rows left out."""
        if self._settings is not None:
            return {name: self._settings[f"{name}_temperature"] for name in _GRIDS}
        sums = {name: torch.zeros(len(grid), dtype=torch.float64) for name, grid in _GRIDS.items()}
        for client in self.task.training:
            labels = self.task.tensors(client.train)[1]
            for name, member in self._members[client.name].found.items():
                known = ~member.scores.gather(1, labels[:, None])[:, 0].isneginf()
                losses = calibration.log_losses(member.scores[known], labels[known], _GRIDS[name])
                sums[name] += losses.cpu()
        return {name: choose_temperature(sums[name], grid) for name, grid in _GRIDS.items()}

    def _choose(self) -> _Choice:
        """Every client's candidate and prior, by everybody's rows."""
        if "_chosen" not in self.__dict__:
            self._chosen = self._chosen_by_all()
        return self._chosen

    def _chosen_by_all(self) -> _Choice:
        training = self.task.training
        priors = [self._priors(at) for at in range(len(CANDIDATES))]
        hits = dict(zip((c.name for c in training), self._hits(training, priors), strict=True))
        self.held_out = found = HeldOut.of(list(hits.values()))
        usual, anybody = found.best(), found.best(_FOR_ANYBODY)
        chosen = {client.name: self._leaves(client, hits[client.name], usual, anybody) for client in training}
        mine = {client.name: priors[chosen[client.name]].get(client.name, NO_CHOICE) for client in training}
        groups = [client.group_tensor for client in training]
        right = nested_right(list(hits.values()), groups, _CORNERS)
        expected = {client.name: number for client, number in zip(training, right, strict=True)}
        return _Choice(self._members, chosen, mine, hits, expected, self._federation_settings(anybody))

    def _leaves(self, client: Client, hits: Tensor, usual: int, anybody: int) -> int:
        """The client's candidate; one without rows to judge by takes the federation's model."""
        groups = client.group_tensor
        if (len(client.train[1]) if groups is None else len(set(groups.tolist()))) < _LEAST_ROWS:
            return anybody
        return leaves_for(hits, usual, client.group_tensor, _CORNERS)

    def _keep(self, priors: Mapping[str, PriorChoice]) -> _Choice:
        """Every client's candidate and prior as they are; a new one has no prior, and chooses by its own rows."""
        training = self.task.training
        usual = self._usual
        fresh = [dict.fromkeys((c.name for c in training), NO_CHOICE)] * len(CANDIDATES)
        hits = dict(zip((c.name for c in training), self._hits(training, fresh), strict=True))
        chosen, mine = {}, {}
        for client in training:
            kept = priors.get(client.name, replace(NO_CHOICE, model=-1))
            own = self._leaves(client, hits[client.name], usual, usual)
            chosen[client.name] = own if kept.model < 0 else kept.model
            mine[client.name] = replace(kept, model=0) if kept.model >= 0 else NO_CHOICE
        return _Choice(self._members, chosen, mine, {}, {}, self.settings)

    @property
    def _usual(self) -> int:
        """The candidate of the federation's model."""
        return CANDIDATES.index(tuple(name for name in (GLOBAL, LDA) if self.settings[name]))

    def _federation_settings(self, candidate: int) -> dict[str, float]:
        weights = {name: float(name in CANDIDATES[candidate]) for name in (GLOBAL, LDA)}
        temperatures = {f"{name}_temperature": value for name, value in self._temperatures.items()}
        return {**weights, **temperatures, **self._lda.settings}

    def _priors(self, candidate: int) -> dict[str, PriorChoice]:
        """Every client's prior with a candidate, by scores that were judged by what others chose."""
        training, task = self.task.training, self.task
        if task.prior == "none" or CANDIDATES[candidate] == (MAJORITY,):
            return {}

        labels, own = zip(*((task.tensors(c.train)[1], task.counts(c)) for c in training), strict=True)
        scores = [LeftOut([self._scores(self._members[c.name], candidate, judged=True)]) for c in training]
        groups = [client.group_tensor for client in training]
        everybody = self.federation.grid.counts
        chosen = choose_left_out(scores, labels, own, everybody, task.only_local_classes, groups)
        self.task.report("priors of candidates", candidate + 1, len(CANDIDATES) - 1)
        return {client.name: choice for client, choice in zip(training, chosen, strict=True)}

    def _hits(self, training: Sequence[Client], priors: Sequence[Mapping[str, PriorChoice]]) -> list[Tensor]:
        """Of each client's rows (N_k, C) those that each candidate has right."""

        def one(client: Client) -> Tensor:
            labels, members = self.task.tensors(client.train)[1], self._members[client.name]
            found = []
            for at, of in enumerate(CANDIDATES):
                if of == (MAJORITY,):
                    found.append(self._majority_hits(client, labels))
                    continue
                choice = priors[at].get(client.name, NO_CHOICE)
                scores = self.nested(
                    client, [self._scores(members, at, judged=True)] * FOLDS, choice.fold_priors or (NO_PRIOR,) * FOLDS
                )
                assert scores is not None  # noqa: S101  (priors of folds are there)
                found.append(self.local_only(client, scores).argmax(dim=1) == labels)
            return torch.stack(found, dim=1)

        return list(in_order(one, training, self.task.device))

    def _majority_hits(self, client: Client, labels: Tensor) -> Tensor:
        """Which rows are of the class that is most frequent among the client's others."""
        counts, groups = self.task.counts(client), client.group_tensor
        together = torch.arange(len(labels)) if groups is None else groups
        _, at = torch.unique(together.to(labels.device), return_inverse=True)
        gone = torch.zeros((int(at.max()) + 1, len(counts)), dtype=counts.dtype, device=labels.device)
        gone.index_put_((at, labels), torch.ones_like(labels, dtype=counts.dtype), accumulate=True)
        left = counts - gone
        return (left.argmax(dim=1)[at] == labels) & (left.sum(dim=1)[at] > 0)

    # --- models

    def _scores(self, members: Members, candidate: int, judged: bool = False) -> Tensor:
        """Scores (N_k, d) of a client's rows left out, by one of its candidates."""
        parts = [
            (member.judged if judged else member.scores) / self._temperatures[name]
            for name in CANDIDATES[candidate]
            for member in (members.found[name],)
        ]
        return torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]

    def _common_scores(self, members: Members) -> Tensor:
        """The same by the federation's model."""
        names = [name for name in (GLOBAL, LDA) if self.settings[name]]
        return torch.stack([members.common[name] / self._temperatures[name] for name in names]).sum(dim=0)

    def _own(self, client: Client, found: _Choice) -> Personalized:
        """A client's model of its candidate, and what its rows left out say of it."""
        members, candidate = found.members[client.name], found.chosen[client.name]
        prior, statistics = found.priors[client.name], self.statistics(client)
        self._settings = dict(found.settings)
        of = CANDIDATES[candidate]
        labels = self.task.tensors(client.train)[1]
        made = {name: float(name in of) for name in (*_GRIDS, MAJORITY)}
        for name in of:
            made |= members.found[name].settings if name in members.found else {}
        alpha, settings = members.alpha if RIDGE in of else 0.0, {**found.settings, **made}
        model = self._solved(client.name, statistics, alpha, settings)
        if of == (MAJORITY,):
            own = judged = model.bias.expand(len(labels), -1).contiguous()
        else:
            own, judged = (self._scores(members, candidate, judged) for judged in (False, True))
        personal = self.measured(
            client, alpha, model, common=self._common_scores(members), own=own, nested=None,
            curve=members.curve, answers=self._with_prior(client, judged, prior),
        )  # fmt: skip
        hits = found.hits.get(client.name)
        right = {} if hits is None else {name_of(at): int(number) for at, number in enumerate(hits.sum(dim=0))}
        expected = found.expected.get(client.name)
        estimate = None if expected is None else expected / len(labels)
        return replace(personal, estimate=estimate, choice=Chosen(name_of(candidate), settings, right)), prior.prior

    def _with_prior(self, client: Client, scores: Tensor, choice: PriorChoice) -> Tensor:
        """Scores (N_k, d) of rows left out as the client's model answers, with its prior, without each row."""
        if choice.prior.is_none:
            return scores
        labels, own = self.task.tensors(client.train)[1], self.task.counts(client)
        shifts = choice.prior.left_out_shifts(labels, own, self.federation.grid.counts, client.group_tensor)
        return scores + choice.prior.temperature * shifts.to(scores)

    def _solved(
        self, client: str, statistics: GridStatistics, alpha: float, settings: Mapping[str, float]
    ) -> AffineModel:
        """A client's model, from its statistics and what it is made of."""
        federation, grid = self.federation, self.federation.grid
        if settings.get(MAJORITY):
            n = statistics.counts.to(torch.float64)
            weights = torch.zeros((grid.num_features, grid.num_classes), dtype=torch.float64, device=n.device)
            return AffineModel(weights, n / n.sum().clamp(min=1.0))
        parts: dict[str, AffineModel] = {}
        if settings[RIDGE]:
            parts[RIDGE] = federation.model(statistics, alpha, client=client)
        if settings[GLOBAL]:
            parts[GLOBAL] = federation.common
        if settings[LDA]:
            parts[LDA] = self._lda.refit(client, statistics, settings["means"], _nobody)
        if settings.get(ALONE):
            parts[ALONE] = replace(federation, grid=statistics, beta=settings["penalty"], fold_betas=()).common
        return self._mixed(parts, settings)

    def _mixed(self, parts: Mapping[str, AffineModel], settings: Mapping[str, float]) -> AffineModel:
        """The sum of members over their temperatures."""
        taken = [(parts[name], settings[f"{name}_temperature"]) for name in parts if settings.get(name)]
        weights = torch.stack([model.weights / temperature for model, temperature in taken]).sum(dim=0)
        return AffineModel(weights, torch.stack([model.bias / temperature for model, temperature in taken]).sum(dim=0))


@dataclass(frozen=True, eq=False)
class _Choice:
    """Every client's members, candidate, prior and rows right (N_k, C), by name; and what the federation chose.

    `expected` are the rows right where the candidate, too, is chosen without the row's fold.
    """

    members: Mapping[str, Members]
    chosen: Mapping[str, int]
    priors: Mapping[str, PriorChoice]
    hits: Mapping[str, Tensor]
    expected: Mapping[str, int]
    settings: Mapping[str, float]


def _nobody() -> Model:
    raise AssertionError("a discriminant is solved from statistics")
