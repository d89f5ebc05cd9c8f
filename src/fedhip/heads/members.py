"""The members that candidates are made of: models of one sum, on all of its columns or on some.

A *part* is four members on the same columns. Features that are not lifted are one part; those that are kept beside a
lift of them are one, and all columns, lift and features, are the other, "wide" one. Their sums are pieces of one sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.choice import calibration
from fedhip.core.choice.selection import FOLDS, fold_of, pick, without_fold
from fedhip.core.exact.columns import Columns
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.ridge.alone import RidgePath
from fedhip.core.ridge.path import REFOLDED
from fedhip.heads.head import AHEAD
from fedhip.heads.lda import TEMPERATURES as LDA_TEMPERATURES
from fedhip.heads.lda import Lda, LdaChoice
from fedhip.heads.model import Model
from fedhip.heads.ridge import Ridge
from fedhip.heads.task import Task
from fedhip.simulation.alone import local_path
from fedhip.simulation.beta import choose_beta
from fedhip.simulation.client import Client, LabelledRows
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import Alpha
from fedhip.simulation.personalization import choose_alpha
from fedhip.utils.candidates import ALONE, GLOBAL, LDA, RIDGE
from fedhip.utils.parallel import in_order

#: What scores are made log-probabilities of with, by member.
GRIDS: Mapping[str, Sequence[float]] = {
    RIDGE: calibration.TEMPERATURES,
    GLOBAL: calibration.TEMPERATURES,
    LDA: LDA_TEMPERATURES,
    ALONE: calibration.TEMPERATURES,
}


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

    def __or__(self, other: Members) -> Members:
        """With those of another part; α and its curve are the first's."""
        return replace(self, found={**self.found, **other.found}, common={**self.common, **other.common})


class Part:
    """Four members on some columns of a sum: everybody's, and each client's.

    Parameters
    ----------
    federation : Federation
        The sum of its columns, with its β.
    task : Task
        Clients with rows of all columns.
    prefix : str
        What its members' names begin with.
    before : int
        How many of the first columns it is not of.
    temperature : float, optional
        LDA's, where it is known.
    """

    def __init__(
        self, federation: Federation, task: Task, prefix: str = "", before: int = 0, temperature: float | None = None
    ) -> None:
        self.federation, self.prefix, self._before = federation, prefix, before
        if before:
            clients = [cut_client(client, before) for client in task.clients]
            task = replace(task, clients=clients, uploads={}, looked={})
        self.task = task
        known = {} if temperature is None else {"temperature": temperature}
        self.lda = Lda.fit(federation, replace(task, prior="none", options=known))

    @property
    def settings(self) -> dict[str, float]:
        """LDA's shrinkage."""
        return {self.prefix + name: value for name, value in self.lda.settings.items()}

    @property
    def common(self) -> dict[str, AffineModel]:
        """The federation's own members."""
        found = {GLOBAL: self.federation.common, LDA: self.lda.common}
        return {self.prefix + name: self.widened(model) for name, model in found.items()}

    def members(self) -> dict[str, Members]:
        """Every client's, by its name."""
        training = self.task.training
        choices = self.lda._choices(training)
        found = in_order(
            lambda client: self._members_of(client, choices[client.name]), training, self.task.device, AHEAD
        )
        every = {}
        for done, (client, members) in enumerate(zip(training, found, strict=True), start=1):
            every[client.name] = members
            self.task.report("candidates", done, len(training))
        return every

    def discriminant_losses(self, client: Client) -> Tensor:
        """Of LDA's scores of a client's rows left out, over LDA's temperatures."""
        own = cut_client(client, self._before) if self._before else client
        (scores,) = self.lda.left_out(own)["global"].scores
        return torch.tensor(self.lda.losses(scores, torch.tensor(client.train[1])), dtype=torch.float64)

    def models(
        self, client: str, statistics: GridStatistics, alpha: float, settings: Mapping[str, float]
    ) -> dict[str, AffineModel]:
        """A client's members, those that its model is made of, from its statistics of all columns."""
        own, federation, prefix = cut_statistics(statistics, self._before), self.federation, self.prefix
        found: dict[str, AffineModel] = {}
        if settings.get(prefix + RIDGE):
            weight = settings[f"{prefix}alpha"] if prefix else alpha
            found[RIDGE] = federation.model(own, weight, client=client)
        if settings.get(prefix + GLOBAL):
            found[GLOBAL] = federation.common
        if settings.get(prefix + LDA):
            found[LDA] = self.lda.refit(client, own, settings[f"{prefix}means"], _nobody)
        if settings.get(prefix + ALONE):
            alone = replace(federation, grid=own, beta=settings[f"{prefix}penalty"], fold_betas=())
            found[ALONE] = alone.common
        return {prefix + name: self.widened(model) for name, model in found.items()}

    def widened(self, model: AffineModel) -> AffineModel:
        """On all columns: those that the part is not of weigh nothing."""
        if not self._before:
            return model
        nothing = model.weights.new_zeros((self._before, model.weights.shape[1]))
        return AffineModel(torch.cat((nothing, model.weights)), model.bias)

    def _members_of(self, client: Client, discriminant: LdaChoice) -> Members:
        groups, task, prefix = client.group_tensor, self.task, self.prefix
        alpha: Alpha = task.options.get("alpha", "loo")
        tried = sorted(Ridge.alphas if task.alphas is None else task.alphas) if alpha == "loo" else [float(alpha)]
        looked = task.looked.get(client.name) or choose_alpha(self.federation, client, tried, task.only_local_classes)
        fold = fold_of(len(looked.scores), groups).to(looked.scores.device)
        by_fold = torch.stack(discriminant.fold_scores)[fold, torch.arange(len(fold), device=fold.device)]
        found = {
            RIDGE: Member(looked.scores, looked.by_others, {f"{prefix}alpha": looked.alpha} if prefix else {}),
            GLOBAL: Member(looked.common, looked.common, {}),
            LDA: Member(discriminant.loo_scores, by_fold, {f"{prefix}means": float(discriminant.personal)}),
            ALONE: self._alone(client),
        }
        return Members(
            looked.alpha,
            looked.curve if alpha == "loo" and task.alphas is None else None,
            {prefix + name: member for name, member in found.items()},
            {prefix + GLOBAL: looked.common, prefix + LDA: discriminant.common},
        )

    def _alone(self, client: Client) -> Member:
        """The ridge of the client's rows alone, its penalty by leave-one-out on them."""
        path, groups = self._path(client), client.group_tensor
        penalties = path.penalties()
        credit = path.credit(penalties)
        chosen = penalties[pick(credit)]
        known = {chosen: path.loo_scores(chosen)}
        judged = known[chosen].clone()
        for fold in range(FOLDS):
            others = without_fold(len(credit), fold, groups).to(credit.device)
            if len(credit) <= REFOLDED and bool(others.any()):
                penalty = self._path(client.testing((~others).cpu().numpy())).select(penalties)
            else:
                penalty = penalties[pick(credit[others])]
            if penalty not in known:
                known[penalty] = path.loo_scores(penalty)
            judged[~others] = known[penalty][~others]
        return Member(known[chosen], judged, {f"{self.prefix}penalty": chosen})

    def _path(self, client: Client) -> RidgePath:
        grid, of = self.federation.grid, self.federation
        return local_path(client, grid.num_classes, of.standardize, of.intercept, grid.device)


def kept_federation(
    federation: Federation, task: Task, beta: float | None = None, fold_betas: tuple[float, ...] = ()
) -> Federation:
    """The sum of the features that a lift keeps as its last columns; β is given, or chosen as for all columns."""
    before, columns = federation.grid.num_features - task.kept, federation.encoding.columns
    encoding = replace(federation.encoding, columns=Columns(columns.offset[before:], columns.exponent[before:]))
    grid = cut_statistics(federation.grid, before)
    found = replace(federation, grid=grid, encoding=encoding, beta=0.0, fold_betas=())
    given = task.options.get("beta") if beta is None else beta
    if given is not None:
        return found.with_beta(given, fold_betas)
    alpha: Alpha = task.options.get("alpha", "loo")
    return choose_beta(found, [cut_client(client, before) for client in task.training], alpha, task.report)


def cut_statistics(statistics: GridStatistics, before: int) -> GridStatistics:
    """Without those of the first columns."""
    if not before:
        return statistics
    gram, cross = statistics.gram[before:, before:].contiguous(), statistics.cross[before:].contiguous()
    return GridStatistics(gram, cross, statistics.counts, statistics.fraction_bits)


def cut_client(client: Client, before: int) -> Client:
    """A client without the first columns of its rows."""

    def cut(rows: LabelledRows) -> LabelledRows:
        return rows[0][:, before:], rows[1]

    return replace(client, train=cut(client.train), test=cut(client.test))


def _nobody() -> Model:
    raise AssertionError("a discriminant is solved from statistics")
