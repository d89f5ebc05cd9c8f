"""The whole choice: on which features, and then which model of theirs for each client (`fedhip.heads.auto`).

Where features are narrow, a lift of them is put beside them: Nyström's, which needs the sum of their products before
the round. One upload is of both, and candidates are of the features alone or of both. Where the features alone are
taken, a second upload is of them as they came, and nobody has a lift.

What may be expected of all this is counted with everything chosen by rows that the row has no part in, nor any model
that judged them: of small federations, half of everybody's rows choose features and candidates in a round of their own,
and the rows of the other half count by these. Where there are more rows, those of a client count by what the others
chose (`fedhip.core.choice.candidates`), though their models have seen them.

With enough rounds the logistic head competes with what is best in one. Its leave-one-out is of first order and promises
too much, so both are then trained without a fold of the training rows and counted right on the fold, five times; the
logistic head is taken where it is ahead by more than a standard error of the clients' differences.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedhip.core.choice.candidates import HeldOut
from fedhip.core.choice.selection import FOLDS
from fedhip.core.exact.columns import Columns
from fedhip.errors import InputError
from fedhip.features.lifts.kinds import COMPETING, COMPETING_BITS, COMPETING_ROWS, COMPETING_WIDTH, NARROW
from fedhip.features.lifts.lift import Lift
from fedhip.heads.auto import Auto
from fedhip.heads.head import Head, Personalized
from fedhip.heads.logistic import Logistic
from fedhip.heads.options import options_of
from fedhip.heads.round import fitted, run_head
from fedhip.heads.task import Task
from fedhip.simulation.client import Client
from fedhip.simulation.federation import Federation
from fedhip.simulation.hold_out import hold_out_fold
from fedhip.simulation.lifting import LiftPlan, LiftSettings, lift_clients
from fedhip.simulation.options import Alpha
from fedhip.utils.candidates import WIDE, is_wide, name_of
from fedhip.utils.progress import silent

#: What `--head` takes for the choice.
AUTO = Auto.name
#: Up to so many training rows of all clients, what is expected is counted by what the other half chooses.
HALVED = 2048
#: What the logistic head takes.
LOGISTIC_ROUNDS = 8
#: How candidates' features are called that are as they came.
PLAIN = "as they are"


@dataclass(frozen=True, eq=False)
class Tried:
    """A head on the features as they are, or on a lift of them, with every client's model."""

    head: Head
    owns: Mapping[str, Personalized]
    seconds: float
    #: Of each client the share (K,) of rows held out that are right, by which features are compared.
    shares: NDArray[np.float64]
    plan: LiftPlan | None = None
    lift: Lift | None = None
    #: The same share (K,) by models that were trained without folds, where the logistic head competes.
    judged: NDArray[np.float64] | None = None

    @property
    def features(self) -> str:
        """What its features are called."""
        return PLAIN if self.lift is None else f"{self.lift.kind} {self.lift.drawn}"

    @property
    def mean(self) -> float:
        """Over the clients of which something may be expected; −∞ where there are none."""
        known = self.shares[np.isfinite(self.shares)]
        return float(known.mean()) if len(known) else float("-inf")

    @property
    def title(self) -> str:
        """Its features, and its head where that is another."""
        return self.features if self.head.name == AUTO else f"{self.features}, {self.head.name}"

    @property
    def expected(self) -> float | None:
        """What it is compared by, in the mean over clients, by folds where there are any; None where nothing is."""
        found = self.mean if self.judged is None else float(np.nanmean(self.judged))
        return found if np.isfinite(found) else None

    @property
    def traffic(self) -> tuple[int, int, int]:
        """Rounds and bytes, the lift's exchange among them."""
        rounds, up, down = self.head.traffic
        first = 0 if self.plan is None else self.plan.exchange
        return rounds, up + first, down + first


@dataclass(frozen=True, eq=False)
class Choice:
    """What was tried, one after the other, and what is best of it by rows held out."""

    tried: Sequence[Tried]

    @property
    def best(self) -> Tried:
        """The last of one round: what was tried before it spoke for it. The logistic head where it is clearly ahead."""
        best = [found for found in self.tried if found.head.name == AUTO][-1]
        for other in self.tried:
            if other.head.name != AUTO and other.judged is not None and best.judged is not None:
                gaps = other.judged - best.judged
                gaps = gaps[np.isfinite(gaps)]
                error = gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
                if len(gaps) and gaps.mean() > error:
                    return other
        return best

    @property
    def traffic(self) -> tuple[int, int, int]:
        """Rounds of what is taken, and bytes of everything that was tried."""
        up, down = (sum(found.traffic[way] for found in self.tried) for way in (1, 2))
        return self.best.traffic[0], up, down

    def to_dict(self) -> dict[str, Any]:
        """For results.json."""
        best = self.best
        entries: list[dict[str, Any]] = []
        for found in self.tried:
            taken = [own.choice.name for own, _ in found.owns.values() if own.choice is not None]
            if not isinstance(found.head, Auto) or found.head.held_out is None:
                shares = found.shares if found.judged is None else found.judged
                entries.append({"features": found.features, "model": found.head.name, **_mean_and_error(shares)})
                continue
            for entry in judged(found.features, found.head.candidates, found.head.held_out, found.head.usual):
                clients = {"clients": taken.count(entry["model"])} if found is best else {}
                entries.append(entry | clients)
        unjudged = best.head.unjudged if isinstance(best.head, Auto) else []
        of_choice = [found.traffic for found in self.tried if found is not best]
        return {
            "features": best.features,
            "model": _usual_of(best),
            "head": best.head.name,
            "expected": {found.title: found.expected for found in self.tried},
            "rows": sum(len(client.train[1]) for client in best.head.task.training),
            "candidates": entries,
            **({"unjudged": unjudged} if unjudged else {}),
            "rounds": best.traffic[0],
            "upload_bytes_per_client": sum(up for _, up, _ in of_choice),
            "download_bytes_per_client": sum(down for *_, down in of_choice),
        }  # fmt: skip


def judged(features: str, candidates: Sequence[tuple[str, ...]], held_out: HeldOut, usual: int) -> list[dict[str, Any]]:
    """For results.json: of candidates on these features the share right, and which of them is everybody's."""
    entries, shares = [], held_out.shares
    for at, mean in enumerate(held_out.means.tolist()):
        # The others' shares are not known where each is at a place of its own.
        told = {"held_out": mean, "error": None} if shares is None else _mean_and_error(shares[:, at].numpy())
        entry = {"features": features, "model": name_of(at, candidates), **told}
        entries.append(entry | ({"usual": True} if at == usual else {}))
    return entries


def _usual_of(found: Tried) -> str:
    """Everybody's candidate."""
    if isinstance(found.head, Auto) and found.head.held_out is not None:
        return name_of(found.head.usual, found.head.candidates)
    return found.head.name


def _mean_and_error(shares: NDArray[np.float64]) -> dict[str, float | None]:
    """Of the share right, the mean over clients and its standard error."""
    known = shares[np.isfinite(shares)]
    error = float(known.std(ddof=1) / len(known) ** 0.5) if len(known) > 1 else None
    return {"held_out": float(known.mean()) if len(known) else None, "error": error}


def choose(task: Task, federation: Federation | None = None, *, wider: bool = True, max_rounds: int = 1) -> Choice:
    """Try everything that is in reach for the task's clients; `federation` is their sum, where it is known.

    With `wider`, a lift competes where features are narrow. From 8 rounds on, so does the logistic head.
    """
    if max_rounds < 1:
        raise InputError(f"the rounds are {max_rounds!r}; give a whole number of at least 1 (--max-rounds)")
    tried = _in_one_round(task, federation, wider)
    best = Choice(tried).best
    # Where there is a lift, its head has the candidates of the features alone too.
    counted = by_halves(task, tried[0].head, best.owns, wider=tried[0].plan is not None)
    tried = [replace(each, owns=counted) if each is best else each for each in tried]
    # The logistic head leaves rows out one by one, and so knows no groups.
    if max_rounds >= LOGISTIC_ROUNDS and not any(client.groups is not None for client in task.clients):
        best = Choice(tried).best
        alpha: Alpha = task.options.get("alpha", "loo")
        options = options_of(Logistic, alpha, {})
        # What is shown beside is no part of the choice, nor are its bytes.
        of = replace(best.head.task, options=options, beside=(), uploads={}, looked={})
        ours, theirs = (_by_folds(kind, told) for kind, told in ((Auto, best.head.task), (Logistic, of)))
        found = replace(_try(Logistic, of, best.head.federation), plan=best.plan, lift=best.lift)
        tried = [replace(each, judged=ours) if each is best else each for each in tried]
        tried.append(replace(found, judged=theirs))
    return Choice(tried)


def _in_one_round(task: Task, federation: Federation | None, wider: bool) -> list[Tried]:
    """The choice on the features as they are; where they are narrow, with `wider`, on them and a lift first."""
    tried: list[Tried] = []
    width = task.clients[0].train[0].shape[1]
    rows = sum(len(client.train[1]) for client in task.training)
    if wider and width <= NARROW and width < rows <= COMPETING_ROWS:
        began = time.perf_counter()
        plan = LiftSettings(COMPETING, min(COMPETING_WIDTH, rows), keeps=True).plan(width, task.num_classes)
        lift = plan.draw(task.clients, task.device, task.report)
        clients = lift_clients(lift, task.clients, task.device)
        # Whatever grid was asked for is that of columns in units of their own. Everybody knows this one beforehand.
        grid = replace(task.ridge, columns=Columns.plain(plan.width), fraction_bits=COMPETING_BITS)
        both = _try(Auto, replace(task, clients=clients, ridge=grid, uploads={}, looked={}, kept=width))
        tried.append(replace(both, plan=plan, lift=lift, seconds=time.perf_counter() - began))
    if not tried or not is_wide(_usual_of(tried[0]).split("+")):
        tried.append(_try(Auto, task, federation))
    return tried


def by_halves(
    task: Task, head: Head, owns: Mapping[str, Personalized], *, wider: bool = False
) -> Mapping[str, Personalized]:
    """Every client's model, expected to do what the rows of each half do by what the other chose.

    `head` has all candidates of both. In large federations, and where no estimates are asked for, as they are.
    """
    right = dict.fromkeys((client.name for client in task.training), 0)
    if not task.estimates or sum(len(client.train[1]) for client in task.training) > HALVED:
        return owns
    for half in range(2):
        others = {client.name: _in_half(client, 1 - half) for client in task.clients}
        parts = [client.testing(others[client.name]) for client in task.clients]
        if not any(len(part.train[1]) for part in parts):
            return dict(owns)  # a single row of all
        alone = replace(task, clients=parts, uploads={}, looked={}, report=silent)
        with warnings.catch_warnings():  # all is said of the whole
            warnings.simplefilter("ignore")
            found = Choice(_in_one_round(alone, None, wider)).best
        assert isinstance(head, Auto) and isinstance(found.head, Auto)  # noqa: S101, PT018  (of one round)
        for name in right:
            right[name] += int(head.right(name, found.head.taken(name))[torch.from_numpy(others[name])].sum())
        task.report("both halves", half + 1, 2)
    rows = {client.name: len(client.train[1]) for client in task.training}
    return {name: (replace(own, estimate=right[name] / rows[name]), prior) for name, (own, prior) in owns.items()}


def _in_half(client: Client, half: int) -> NDArray[np.bool_]:
    """Which training rows (N,) are in one of two halves; rows of a group are in one."""
    groups = client.group_tensor
    places = np.arange(len(client.train[1])) if groups is None else groups.numpy()
    found: NDArray[np.bool_] = places % 2 == half
    return found


def _by_folds(kind: type[Head], task: Task) -> NDArray[np.float64]:
    """Of each client with training rows the share right (K,) of all its folds, by models trained without the fold."""
    right, rows = np.zeros(len(task.clients)), np.zeros(len(task.clients))
    for fold in range(FOLDS):
        parts = [hold_out_fold(client, fold, task.seed) for client in task.clients]
        if not any(len(part.train[1]) for part in parts):
            continue
        held = replace(task, clients=parts, uploads={}, looked={}, estimates=False)
        for k, share in enumerate(run_head(kind, held).accuracy):
            number = len(parts[k].test[1])
            right[k], rows[k] = right[k] + number * (share or 0.0), rows[k] + number
        task.report(f"{kind.name} by folds", fold + 1, FOLDS)
    known = np.array([len(client.train[1]) > 0 for client in task.clients])
    found: NDArray[np.float64] = np.where(rows > 0, right / np.maximum(rows, 1), np.nan)[known]
    return found


def _try(kind: type[Head], task: Task, federation: Federation | None = None) -> Tried:
    began = time.perf_counter()
    head = fitted(kind, task, federation)
    owns = head.personalize()
    shares = np.array([np.nan if own.estimate is None else own.estimate for own, _ in owns.values()])
    return Tried(head, owns, time.perf_counter() - began, shares)


#: Candidates in words.
_WORDS = {
    "ridge": "its personalized ridge",
    "global": "the global ridge",
    "lda": "LDA",
    "alone": "its own ridge alone",
    "majority": "its most frequent class",
    "logistic": "the logistic head",
}


def in_words(model: str) -> str:
    """A candidate's name in a sentence."""
    names = model.split("+")
    parts = [_WORDS.get(name, name) for name in names if not name.startswith(WIDE)]
    words = parts[0] if len(parts) == 1 else f"the average of {', '.join(parts[:-1])} and {parts[-1]}"
    return f"{words}, on features and lift" if is_wide(names) else words


def describe(stored: Mapping[str, Any]) -> str:
    """What `Choice.to_dict` says, in sentences."""
    features, model = stored["features"], stored["model"]
    of = [entry for entry in stored["candidates"] if entry["features"] == features]
    (own, *_) = [entry for entry in of if entry["model"] == model]
    rest = [entry for entry in of if entry is not own and entry["held_out"] is not None]
    words = f"Chosen by cross-validation on {stored['rows']:,} training rows: {in_words(model)}"
    words += "" if features == PLAIN else f", on features widened by {features}"
    words += "" if own["held_out"] is None else f", {own['held_out']:.1%} correct"
    if rest:
        second = max(rest, key=lambda entry: entry["held_out"])
        words += f" (best of the others: {in_words(second['model'])}, {second['held_out']:.1%})"
    others = [
        f"{entry['clients']} {in_words(entry['model'])}" for entry in of if entry.get("clients") and entry is not own
    ]
    if others:
        clients = sum(entry.get("clients", 0) for entry in of)
        words += f". Of {clients} clients some get another model: {', '.join(others)}"
    if (taken := stored.get("taken")) not in (None, model):
        words += f". On this site's own rows another is best, and is used: {in_words(taken)}"
    if unjudged := stored.get("unjudged", ()):
        who = f"Client {unjudged[0]}" if len(unjudged) == 1 else f"{len(unjudged)} clients, {unjudged[0]} the first,"
        words += f". {who} with a single training row got the federation's model"
    title = features if stored["head"] == AUTO else f"{features}, {stored['head']}"
    elsewhere = {name: mean for name, mean in stored["expected"].items() if name != title and mean is not None}
    if elsewhere and stored["expected"][title] is not None:
        told = ", ".join(f"{name} {mean:.1%}" for name, mean in elsewhere.items())
        words += f". Features {title}: {stored['expected'][title]:.1%} correct on held-out rows; also tried: {told}"
    return words + "."
