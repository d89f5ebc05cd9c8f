"""The model that a client's training rows speak for, among all that one sum can give.

A *member* answers with scores: the ridge with the client's α, the global ridge, the discriminant of the same sum, the
ridge of the client's rows alone with a penalty of its own. A *candidate* is one of them, the average of several, or the
client's most frequent class. All members are linear in the same features, so an average is linear too. With a lift that
keeps the features as columns there are four members of these and four of all columns (`fedhip.heads.members`):

    model = Σ members / temperature        with one temperature of each member for the whole federation, which makes
                                           logarithms of probabilities of its scores

phase 1   at each client: statistics of its own training rows, on the grid (the ridge's own upload)
phase 2   at the server: their sum; β and the members' temperatures, by sums of what clients found on rows left out
phase 3a  at each client: for every candidate its prior, and the rows right that are judged by what others chose
          at the server: the mean over clients of the share right; everybody takes all that the sum gives, averaged,
          unless another candidate is ahead of it by more than chance
phase 3b  at each client: everybody's candidate, or a single member or its most frequent class, where its own rows speak
          for that by more than two standard errors

Of a row that is judged nothing is known to what judges it: not to the model (it is left out), nor to α, means, penalty
and prior (they are chosen by rows of other folds). For given choices of the federation, a client's model is a function
of the sum and of its own rows, however the other rows are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import add, or_
from typing import Self, TypeVar

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.choice import calibration
from fedhip.core.choice.calibration import choose_temperature
from fedhip.core.choice.candidates import HeldOut, leaves_for, nested_right_of
from fedhip.core.choice.prior import (
    NO_CHOICE,
    NO_PRIOR,
    FoldLosses,
    PriorChoice,
    PriorLosses,
    choose_nested,
    deviations,
    scale_from,
)
from fedhip.core.choice.selection import FOLDS
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.heads.head import AHEAD, Head, Personalized
from fedhip.heads.lda import TEMPERATURES as LDA_TEMPERATURES
from fedhip.heads.members import GRIDS, Members, Part, kept_federation
from fedhip.heads.model import Model
from fedhip.heads.options import Option
from fedhip.heads.ridge import Ridge
from fedhip.heads.task import Task
from fedhip.simulation.client import Client
from fedhip.simulation.federation import SCORES_BYTES, Federation
from fedhip.simulation.personalization import Chosen
from fedhip.simulation.priors import SCALE_BYTES, LeftOut, losses_bytes
from fedhip.utils.candidates import (
    CANDIDATES,
    GLOBAL,
    KNOWN,
    LDA,
    MAJORITY,
    RIDGE,
    WIDE,
    corners,
    for_anybody,
    name_of,
    presumed,
    widened,
    with_prior,
)
from fedhip.utils.parallel import in_order

#: A client with a single row has none to judge by.
_LEAST_ROWS = 2
#: Of a client's scores over temperatures, member by member of one part.
MEMBER_LOSSES = sum(map(len, GRIDS.values()))

T = TypeVar("T")


def choosing_bytes(candidates: Sequence[tuple[str, ...]], parts: int = 1, *, prior: bool) -> int:
    """What a client sends beside the ridge's own: losses over temperatures and priors, and shares of rows right."""
    losses = 8 * (parts * (len(LDA_TEMPERATURES) + MEMBER_LOSSES) + len(candidates) + 1)
    models = [1] * len(with_prior(candidates)) if prior else []
    return losses + SCALE_BYTES * len(models) + (losses_bytes(models) if models else 0)


@dataclass(frozen=True, eq=False)
class ChoiceSums:
    """What all clients together say, each sum decided on before the next is made; None of one that is not known yet.

    `discriminant` are losses of LDA's scores, over its temperatures: by them clients judge whose means they take.
    `members` are losses (MEMBER_LOSSES,) over the temperatures of every member. Of every candidate that can have a
    prior, `scales` (C, 2) are squared deviations of its scores and how many they are, and `priors` losses and rows
    right over priors. `held_out` are the shares right of all candidates. `plain_betas` are β of the features beside a
    lift, of all rows and without each fold.
    """

    discriminant: Tensor | None = None
    members: Tensor | None = None
    scales: Tensor | None = None
    priors: Sequence[PriorLosses] | None = None
    held_out: HeldOut | None = None
    plain_betas: tuple[float, ...] = ()


def everybodys(
    held_out: HeldOut, candidates: Sequence[tuple[str, ...]], rows: int, among: Sequence[int] | None = None
) -> int:
    """Everybody's candidate of some: the presumed one, unless another is ahead by more than chance in so many rows."""
    places = list(range(len(candidates)) if among is None else among)
    return held_out.best(places, presumed(candidates, places), max(rows, 1))


class Auto(Head):
    """For each client the candidate that its training rows speak for: members of one sum, or their average."""

    name, method, title = "auto", "auto", "FedHiP-auto"
    description = "for each client what its training rows speak for: ridge, LDA, alone, or their average"
    options = (Option("alpha"), Option("beta"))
    alpha_is = "how much more the client’s own rows weigh in the ridge part of its model than in the global one"
    alphas = Ridge.alphas
    #: Scores are logarithms of probabilities, and near the mark.
    temperatures = tuple(10.0 ** (i / 10) for i in range(-8, 9))

    def __init__(
        self,
        federation: Federation,
        task: Task,
        settings: Mapping[str, float] | None = None,
        sums: ChoiceSums | None = None,
        candidates: Sequence[tuple[str, ...]] | None = None,
    ) -> None:
        """With `settings`, what the federation has chosen before; with `sums`, what clients elsewhere are part of."""
        super().__init__(federation, task)
        # What was chosen before may have been chosen among others.
        usual = CANDIDATES if settings is None else KNOWN
        usual = widened(usual) if task.kept else usual
        self.candidates, self._sums = tuple(candidates or usual), ChoiceSums() if sums is None else sums
        temperatures: Sequence[float | None] = (None, None)
        if settings is not None:
            temperatures = [settings.get(f"{prefix}{LDA}_temperature") for prefix in ("", WIDE)]
        elif self._sums.discriminant is not None:
            every = torch.split(self._sums.discriminant, len(LDA_TEMPERATURES))
            temperatures = [choose_temperature(losses, LDA_TEMPERATURES) for losses in every]
        parts: tuple[Part, ...]
        if task.kept:
            betas = self._sums.plain_betas if settings is None else (settings["plain_beta"],)
            plain = kept_federation(federation, task, betas[0] if betas else None, betas[1:])
            before = federation.grid.num_features - task.kept
            parts = (Part(plain, task, "", before, temperatures[0]), Part(federation, task, WIDE, 0, temperatures[1]))
        else:
            parts = (Part(federation, task, temperature=temperatures[0]),)
        self._parts = parts
        #: What every member's scores are made log-probabilities of with.
        self._grids = {part.prefix + name: grid for part in parts for name, grid in GRIDS.items()}
        #: What the federation has chosen; None until it has.
        self._settings = None if settings is None else {**settings, **self._solved_with}
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
    def plain(self) -> Part:
        """The members on the features alone."""
        return self._parts[0]

    @property
    def common(self) -> AffineModel:
        """Everybody's candidate, of the members that need no rows of a client."""
        return self._mixed(self._all_of(part.common for part in self._parts), self.settings)

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
        losses = choosing_bytes(self.candidates, len(self._parts), prior=self.task.prior == "client")
        losses += sum(SCORES_BYTES for part in self._parts[:-1] if part.federation.fold_betas)
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
        return {**previous().settings, **self._solved_with}

    def kept(self, known: Mapping[str, object], prior: PriorChoice) -> PriorChoice:
        """With the candidate that the client has; of one that is new, none."""
        names = [name_of(at, self.candidates) for at in range(len(self.candidates))]
        chosen = known.get("choice")
        name = chosen.get("model") if isinstance(chosen, dict) else None
        return replace(prior, model=names.index(name) if name in names else -1)

    def taken(self, client: str) -> str:
        """The candidate that a client has taken; everybody's, of one that had no rows to choose by."""
        found = self._choose()
        return name_of(found.chosen.get(client, self.usual), self.candidates)

    def right(self, client: str, candidate: str) -> Tensor:
        """Which of a client's rows (N_k,) a candidate has right, a row left out."""
        return self._choose().hits[client][:, self.candidates.index(tuple(candidate.split("+")))]

    # --- choosing

    @property
    def _solved_with(self) -> dict[str, float]:
        """What follows from the sum: LDA's shrinkage, and the β of features beside a lift."""
        plain_beta = {"plain_beta": self._parts[0].federation.beta} if self.task.kept else {}
        return {**self._all_of(part.settings for part in self._parts), **plain_beta}

    @staticmethod
    def _all_of(parts: Iterable[Mapping[str, T]]) -> dict[str, T]:
        return {name: value for part in parts for name, value in part.items()}

    @cached_property
    def _members(self) -> dict[str, Members]:
        """Every client's members, by name."""
        first, *rest = (part.members() for part in self._parts)
        return {name: reduce(or_, (part[name] for part in rest), found) for name, found in first.items()}

    # --- what a client computes, with what all clients have said before

    def discriminant_losses(self, client: Client) -> Tensor:
        """Of LDA's scores of its rows left out, over LDA's temperatures."""
        return torch.cat([part.discriminant_losses(client) for part in self._parts])

    def member_losses(self, client: Client) -> Tensor:
        """(MEMBER_LOSSES,) of its members' scores of rows left out, over the temperatures of each."""
        labels, found = self.task.tensors(client.train)[1], []
        for name, member in self._members[client.name].found.items():
            known = ~member.scores.gather(1, labels[:, None])[:, 0].isneginf()
            found.append(calibration.log_losses(member.scores[known], labels[known], self._grids[name]).cpu())
        return calibration.on_grid(torch.cat(found))

    def deviations(self, client: Client) -> Tensor:
        """(C, 2) of every candidate that can have a prior: squared deviations of its scores, and how many they are."""
        found = [deviations(self.local_only(client, scores)) for scores in self._judged(client)]
        return torch.tensor(found, dtype=torch.float64)

    def prior_losses(self, client: Client) -> list[FoldLosses]:
        """Of every candidate that can have a prior, by scores that were judged by what others chose."""
        task, everybody = self.task, self.federation.grid.counts
        labels, own, groups = task.tensors(client.train)[1], task.counts(client), client.group_tensor
        judged = [scores / scale for scores, scale in zip(self._judged(client), self._scales, strict=True)]
        found: list[FoldLosses] = []
        for models in _same_rows_known(judged, labels):
            of = LeftOut(models).losses(labels, own, everybody, 1.0, task.only_local_classes, groups).on_grid()
            found += [of.of_model(at) for at in range(len(models))]
        return [one.scaled(scale) for one, scale in zip(found, self._scales, strict=True)]

    def hits(self, client: Client) -> Tensor:
        """(N_k, C) of its rows those that each candidate has right, with its prior."""
        labels, members = self.task.tensors(client.train)[1], self._members[client.name]
        found = []
        for at, of in enumerate(self.candidates):
            if of == (MAJORITY,):
                found.append(self._majority_hits(client, labels))
                continue
            choice = self._priors[client.name].get(at, NO_CHOICE)
            scores = self.nested(
                client, [self._scores(members, at, judged=True)] * FOLDS, choice.fold_priors or (NO_PRIOR,) * FOLDS
            )
            assert scores is not None  # noqa: S101  (priors of folds are there)
            found.append(self.local_only(client, scores).argmax(dim=1) == labels)
        return torch.stack(found, dim=1)

    def shares(self, client: Client) -> HeldOut:
        """What it tells of its rows right."""
        _ = self._members, self._temperatures, self._priors
        return HeldOut.of_client(self.hits(client))

    def _judged(self, client: Client) -> Iterator[Tensor]:
        """Scores (N_k, d) of every candidate that can have a prior."""
        members = self._members[client.name]
        return (self._scores(members, at, judged=True) for at in with_prior(self.candidates))

    # --- what is decided from everybody's sums

    def _everybodys(self, known: T | None, of: Callable[[Client], T], added: Callable[[T, T], T] = add) -> T:
        """A sum over all clients: as it came, or of the task's."""
        return known if known is not None else reduce(added, in_order(of, self.task.training, self.task.device))

    @cached_property
    def _temperatures(self) -> dict[str, float]:
        """One of each member, by everybody's losses on rows left out."""
        if self._settings is not None:
            return {name: self._settings[f"{name}_temperature"] for name in self._grids}
        _ = self._members  # once, before clients are looked at side by side; so below
        losses = self._everybodys(self._sums.members, self.member_losses)
        every = torch.split(losses, [len(grid) for grid in self._grids.values()])
        return {
            name: choose_temperature(part, grid) for part, (name, grid) in zip(every, self._grids.items(), strict=True)
        }

    @cached_property
    def _scales(self) -> list[float]:
        """What the temperatures of priors are multiples of, of every candidate that can have one."""
        _ = self._members, self._temperatures
        return [scale_from(*found) for found in self._everybodys(self._sums.scales, self.deviations).tolist()]

    @cached_property
    def _priors(self) -> dict[str, dict[int, PriorChoice]]:
        """Every client's prior with each candidate, by its own losses and everybody's; none where nobody asks."""
        training = self.task.training
        if self.task.prior == "none" or not training:
            return {client.name: {} for client in training}
        own, _ = [], self._scales
        for done, part in enumerate(in_order(self.prior_losses, training, self.task.device), start=1):
            own.append(part)
            self.task.report("candidate priors", done, len(training))
        places, pooled = with_prior(self.candidates), self._sums.priors
        if pooled is None:
            pooled = [reduce(add, (part[at].every for part in own)) for at in range(len(places))]
        return {
            client.name: {at: choose_nested(one, every) for at, one, every in zip(places, part, pooled, strict=True)}
            for client, part in zip(training, own, strict=True)
        }

    def _choose(self) -> _Choice:
        """Every client's candidate and prior, by everybody's rows."""
        if "_chosen" not in self.__dict__:
            self._chosen = self._chosen_by_all()
        return self._chosen

    def _chosen_by_all(self) -> _Choice:
        training = self.task.training
        _ = self._members, self._temperatures, self._priors
        found = in_order(self.hits, training, self.task.device)
        hits = dict(zip((client.name for client in training), found, strict=True))
        self.held_out = every = self._sums.held_out or HeldOut.of(list(hits.values()))
        usual, anybody = self.usual, self._best(for_anybody(self.candidates))
        chosen = {client.name: self._leaves(client, hits[client.name], usual, anybody) for client in training}
        priors = {client.name: self._priors[client.name].get(chosen[client.name], NO_CHOICE) for client in training}
        corner = corners(self.candidates)
        best = partial(self._best, None)
        expected = {c.name: nested_right_of(hits[c.name], c.group_tensor, every, best, corner) for c in training}
        return _Choice(self._members, chosen, priors, hits, expected, self._federation_settings(anybody))

    @property
    def usual(self) -> int:
        """Everybody's candidate, once it is chosen."""
        return self._best(None)

    def _best(self, among: Sequence[int] | None, held_out: HeldOut | None = None) -> int:
        """Everybody's candidate of some, by what all have told, or by this."""
        told = held_out or self.held_out
        assert told is not None  # noqa: S101  (everybody has told)
        return everybodys(told, self.candidates, int(self.federation.grid.counts.sum()), among)

    @property
    def unjudged(self) -> list[str]:
        """The clients with a single row, or a single group of rows: they take the federation's model."""
        return [client.name for client in self.task.training if _judges(client) < _LEAST_ROWS]

    def _leaves(self, client: Client, hits: Tensor, usual: int, anybody: int) -> int:
        """The client's candidate; one without rows to judge by takes the federation's model."""
        if _judges(client) < _LEAST_ROWS:
            return anybody
        return leaves_for(hits, usual, client.group_tensor, corners(self.candidates))

    def _keep(self, priors: Mapping[str, PriorChoice]) -> _Choice:
        """Every client's candidate and prior as they are; a new one has no prior, and chooses by its own rows."""
        training = self.task.training
        usual = self._usual
        self._priors = {client.name: {} for client in training}
        _ = self._members, self._temperatures
        hits = dict(zip((c.name for c in training), in_order(self.hits, training, self.task.device), strict=True))
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
        return self.candidates.index(self._of_everybody)

    @property
    def _of_everybody(self) -> tuple[str, ...]:
        """The members of the federation's model."""
        return tuple(name for name in _common_names(self._parts) if self.settings[name])

    def _federation_settings(self, candidate: int) -> dict[str, float]:
        weights = {name: float(name in self.candidates[candidate]) for name in _common_names(self._parts)}
        temperatures = {f"{name}_temperature": value for name, value in self._temperatures.items()}
        return {**weights, **temperatures, **self._solved_with}

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
            for name in self.candidates[candidate]
            for member in (members.found[name],)
        ]
        return torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]

    def _common_scores(self, members: Members) -> Tensor:
        """The same by the federation's model."""
        scores = [members.common[name] / self._temperatures[name] for name in self._of_everybody]
        return torch.stack(scores).sum(dim=0)

    def _own(self, client: Client, found: _Choice) -> Personalized:
        """A client's model of its candidate, and what its rows left out say of it."""
        members, candidate = found.members[client.name], found.chosen[client.name]
        prior, statistics = found.priors[client.name], self.statistics(client)
        self._settings = dict(found.settings)
        of = self.candidates[candidate]
        labels = self.task.tensors(client.train)[1]
        made = {name: float(name in of) for name in (*self._grids, MAJORITY)}
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
        names = [name_of(at, self.candidates) for at in range(len(self.candidates))]
        right = {} if hits is None else {name: int(n) for name, n in zip(names, hits.sum(dim=0), strict=True)}
        expected = found.expected.get(client.name)
        estimate = None if expected is None else expected / len(labels)
        return replace(personal, estimate=estimate, choice=Chosen(names[candidate], settings, right)), prior.prior

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
        grid = self.federation.grid
        if settings.get(MAJORITY):
            n = statistics.counts.to(torch.float64)
            weights = torch.zeros((grid.num_features, grid.num_classes), dtype=torch.float64, device=n.device)
            return AffineModel(weights, n / n.sum().clamp(min=1.0))
        found = (part.models(client, statistics, alpha, settings) for part in self._parts)
        return self._mixed(self._all_of(found), settings)

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


def _same_rows_known(scores: Sequence[Tensor], labels: Tensor) -> Iterator[list[Tensor]]:
    """Scores (N, d) one after the other, those together that know the labels of the same rows."""
    known = [part.gather(1, labels[:, None]).isneginf() for part in scores]
    first = 0
    for at in range(1, len(scores) + 1):
        if at == len(scores) or not torch.equal(known[at], known[first]):
            yield list(scores[first:at])
            first = at


def _judges(client: Client) -> int:
    """How many rows, or groups of rows, a client has to judge by."""
    groups = client.group_tensor
    return len(client.train[1]) if groups is None else len(set(groups.tolist()))


def _common_names(parts: Iterable[Part]) -> list[str]:
    """The members that need no rows of a client."""
    return [part.prefix + name for part in parts for name in (GLOBAL, LDA)]
