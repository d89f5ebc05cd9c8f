"""What `fedhip run` and `fedhip.run` do: one round, from features to a run folder."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image

from fedhip.core.balance import class_weights
from fedhip.core.exact.columns import Columns
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.solvers import require_alpha, require_beta
from fedhip.data import (
    Dataset,
    FeatureSet,
    Partition,
    client_parts,
    feature_set,
    read_features,
    save_partition,
    split_of,
)
from fedhip.data.tables import Description, TableRows, is_table, load_table
from fedhip.errors import InputError
from fedhip.features import resolve_device
from fedhip.features.cache import note_run
from fedhip.features.lifts.kinds import NO_LIFT, LiftKind
from fedhip.features.lifts.lift import Lift
from fedhip.features.reference import BackboneReference
from fedhip.features.text_columns import DEFAULT_TEXT_BACKBONE, TextColumns
from fedhip.heads import Auto, Head, Ridge, head_named
from fedhip.heads.choice import AUTO, Choice, choose
from fedhip.heads.model import RIDGE
from fedhip.heads.options import options_of
from fedhip.heads.round import BALANCED, RIDGES, HeadRound, run_head, simulate, tested
from fedhip.heads.task import Task, check_clients
from fedhip.methods import METHODS, Protocol, run_method
from fedhip.methods.engine.closed import row_of
from fedhip.privacy.mechanism import Unit
from fedhip.runs import Ledger, Run, new_run, require_place
from fedhip.runs.draft import Draft
from fedhip.runs.folder import PUBLIC
from fedhip.runs.measures import gains_of, put_gains
from fedhip.runs.models import global_model, personal_model
from fedhip.runs.privacy import PrivacySettings, with_public_fills
from fedhip.runs.repeats import warn_of_repeats
from fedhip.runs.report import RunRecord
from fedhip.runs.report.findings import read_runs
from fedhip.runs.results import add_balance, add_lift, add_privacy, details_of, refresh, results_of, rival_entry
from fedhip.simulation.alone import MAJORITY
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.federation import Federation
from fedhip.simulation.lifting import LiftSettings, lift_clients, lifted_grid
from fedhip.simulation.options import STANDARD, Alpha, Beta, RidgeOptions
from fedhip.simulation.outcome import Outcome
from fedhip.simulation.personalization import Looked
from fedhip.simulation.priors import PriorOption
from fedhip.simulation.private import require_own_groups, simulate_privately
from fedhip.simulation.tasks import Task as TaskName
from fedhip.simulation.tasks import divide, require_classes, require_ridge, task_named
from fedhip.utils.nearest import did_you_mean
from fedhip.utils.progress import silent
from fedhip.utils.stopwatch import Stopwatch
from fedhip.utils.toml import write_toml
from fedhip.utils.words import listed

Json = dict[str, Any]
#: Options that follow from the others where they are left out.
LEFT_OPEN = ("methods", "prior")
#: Images shown of each of the worst classes, and their size in pixels.
EXAMPLES, THUMBNAIL = 2, 64


@dataclass(frozen=True)
class Described:
    """What turned a table into features, and what was done with each of its columns."""

    description: Description
    report: list[Json]

    @classmethod
    def divided(cls, rows: TableRows, partition: Partition) -> tuple[FeatureSet, Described]:
        """The rows of a table with missing values filled from training rows, and how they came about."""
        features, description = rows.divided(partition)
        return features, cls(description, rows.report(description))

    @property
    def title(self) -> str:
        """What the features were made from, for the title of a run."""
        names = dict.fromkeys(column.backbone for column in self.description.texts)
        return f"a table with text by {listed([*names])}" if names else "a table"


@dataclass(frozen=True)
class RoundSettings:
    """What the three phases are told, checked.

    `head` is whose models the run folder holds; its method is in the table, named or not. "auto" has them chosen on
    training rows (`fedhip.heads.choice`). Where a door leaves it open (None), it is "auto" unless something else is
    asked for: `methods` without it, or what is a ridge's alone. `head_options` are of the head's method (see
    `fedhip.methods.METHODS`). Where no `prior` is named, the choice has clients' priors among what it chooses, and
    nothing else has one. Where no `lift` is named, the choice has one among what it tries, unless it is not to try
    `wider` features. `max_rounds` is what the choice may take.
    """

    alpha: Alpha = "loo"
    beta: Beta = "auto"
    methods: tuple[str, ...] | None = None
    rounds: int = 200
    only_local_classes: bool = False
    prior: PriorOption | None = None
    ridge: RidgeOptions = STANDARD
    keep_statistics: bool = True
    head: str | None = RIDGE
    head_options: Mapping[str, float] = field(default_factory=dict)
    lift: LiftSettings | None = None
    wider: bool = True
    max_rounds: int = 1
    privacy: PrivacySettings | None = None

    def __post_init__(self) -> None:
        for name, value, words, check in (
            ("alpha", self.alpha, ("loo",), require_alpha),
            ("beta", self.beta, ("auto", "gcv"), require_beta),
        ):
            if value not in words:
                if isinstance(value, str):
                    raise InputError(f"{name} is {value!r}; give {' or '.join(map(repr, words))}, or a number")
                check(value)
        if self.prior not in (None, "none", "client"):
            raise InputError(f"prior is {self.prior!r}; give 'client' or 'none'")
        if self.methods is not None:
            object.__setattr__(self, "methods", methods_named(self.methods))
        if self.head_options and self.head in (None, RIDGE, AUTO):
            raise InputError(
                "options of a head (--head-options) are of --head lda and --head logistic; a ridge has --alpha and "
                "--beta, and --head auto finds its own"
            )
        if self.max_rounds < 1:
            raise InputError(f"max_rounds is {self.max_rounds!r}; give a whole number of at least 1")
        if self.max_rounds > 1 and self._head != AUTO:
            raise InputError(
                f"--max-rounds is what the choice may take, and these models are of the head {self._head!r}; leave it "
                "out, or choose with --head auto"
            )
        options_of(head_named(self._head), self.alpha, self.head_options)
        if self.privacy is not None:
            self._require_private()
        if not self.ridge.balance:
            return
        if self.head not in (None, RIDGE):
            raise InputError(
                "balanced classes are for models of the ridge, whose sum is weighted in closed form; "
                f"leave out --head {self.head}, or --balance"
            )
        if others := [name for name in self.methods or () if name not in (MAJORITY, *RIDGES)]:
            raise InputError(
                f"balanced classes are for the methods {' and '.join(BALANCED)}, whose sum is weighted in closed form; "
                f"leave out {', '.join(others)}, or --balance"
            )
        if self.prior == "client":
            raise InputError(
                "a client's prior corrects for how often the federation has a class, and balanced classes are equally "
                "frequent by construction; give --balance or --prior client, not both"
            )

    def _require_private(self) -> None:
        """Refuse what takes sums beside the one that has noise."""
        others = [name for name in self.methods or () if name not in (MAJORITY, *RIDGES)]
        for given, name in (
            (self.head not in (None, RIDGE), f"--head {self.head}"),
            (bool(others), f"the method {', '.join(others)}"),
            (self.prior == "client", "--prior client"),
            (self.ridge.balance, "--balance"),
            (self.lift is not None, "--lift"),
            (self.ridge.columns is not None, "--columns with units"),
            (self.ridge.fraction_bits is not None, "--fraction-bits"),
            (not (self.ridge.standardize and self.ridge.intercept), "--no-standardize or --no-intercept"),
            (self.beta == "gcv", "--beta gcv"),
        ):
            if given:
                raise InputError(
                    f"with --epsilon there is one sum, with noise, of rows as they are agreed on, and the ridge from "
                    f"it; leave out {name}"
                )

    @property
    def _head(self) -> str:
        """The head, of classes and rows that all weigh alike."""
        if self.head is not None:
            return self.head
        if self.privacy is not None:
            return RIDGE
        if self.methods is not None and Auto.method not in self.methods:
            return RIDGE
        ridge = self.ridge
        ridges_own = ridge.balance or not (ridge.standardize and ridge.intercept) or self.beta != "auto"
        return RIDGE if ridges_own and self.methods is None else AUTO

    def resolved(self, task: str = "classification", *, weighted: bool = False) -> Resolved:
        """What is done: of real targets and of rows with weights the ridge, unless another head was named."""
        only_ridge = self.head is None and (task != "classification" or weighted)
        head = RIDGE if only_ridge else self._head
        named = RIDGES if self.methods is None else self.methods
        if only_ridge:
            named = tuple(name for name in named if name != Auto.method)
        methods = dict.fromkeys((*named, *(() if head == RIDGE else (head_named(head).method,))))
        return Resolved(head, methods_named(tuple(methods)), self.prior or "none")


@dataclass(frozen=True)
class Resolved:
    """What follows from `RoundSettings`: whose models, the methods of the table, and the prior that all have."""

    head: str
    methods: tuple[str, ...]
    prior: PriorOption

    @property
    def table(self) -> tuple[str, ...]:
        """The methods of the table: beside training alone and the global model stands the majority class."""
        with_head_results = (MAJORITY,) if {"local", "global"} <= set(self.methods) else ()
        return tuple(dict.fromkeys((*with_head_results, *self.methods)))


def methods_named(names: Sequence[str]) -> tuple[str, ...]:
    """The methods of these names, or "all", in the order of tables: ridges first."""
    if isinstance(names, str):
        names = (names,)
    ordered = (MAJORITY, *RIDGES, *(method for method in METHODS if method not in RIDGES))
    known = (*METHODS, MAJORITY)
    for name in names:
        if name not in known and name != "all":
            guess = did_you_mean(name, known)
            raise InputError(f"there is no method {name!r}; choose among {', '.join(known)}{guess}")
    if not names:
        raise InputError(f"no method given; choose among {', '.join(known)}")
    return tuple(method for method in ordered if method in names or "all" in names)


def methods_beside(methods: Sequence[str] | None, head: str | None) -> tuple[str, ...] | None:
    """The methods that are asked for, with that of a head that is asked for; None where they are left open."""
    if methods is None:
        return None
    named = methods_named(methods)
    return named if head is None else methods_named((*named, head_named(head).method))


def open_run(path: str | Path) -> Run:
    """The run in this folder."""
    return Run.open(path)


def run(
    features: Any,
    labels: ArrayLike | None = None,
    clients: ArrayLike | int | None = None,
    *,
    label: str | Sequence[str] | None = None,
    client: str | None = None,
    group: str | None = None,
    weight: str | None = None,
    drop: Sequence[str] | None = None,
    text: str | Sequence[str] | None = None,
    backbone: str | None = None,
    pooling: str | None = None,
    cache: bool = True,
    split: ArrayLike | None = None,
    class_names: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    task: TaskName = "classification",
    partition: str | None = None,
    concentration: float | None = None,
    shards: int | None = None,
    min_rows: int = 1,
    seed: int = 0,
    out: str | Path | None = None,
    force: bool = False,
    alpha: Alpha = "loo",
    beta: Beta = "auto",
    standardize: bool = True,
    intercept: bool = True,
    balance: bool = False,
    methods: Sequence[str] | None = None,
    rounds: int = 200,
    head: str | None = None,
    head_options: Mapping[str, float] | None = None,
    max_rounds: int = 1,
    only_local_classes: bool = False,
    prior: PriorOption | None = None,
    lift: LiftSettings | LiftKind | Literal["none"] | None = None,
    columns: str | Path | Description | None = None,
    fraction_bits: int | None = None,
    statistics: bool = True,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: Unit | None = None,
    unit_rows: int | None = None,
    clip: float | None = None,
    public: str | Path | ArrayLike | None = None,
    device: str | None = None,
    report: Callable[[str, int, int], None] | None = None,
) -> Run:
    """One round of FedHiP: a model for every client. What `fedhip run` does, with the same defaults.

    Parameters
    ----------
    features : (N, m) array, FeatureSet, path of a feature file, or a table
        A FeatureSet and a file bring labels and clients with them. A table is a frame of pandas or polars, or the path
        of a .csv, .tsv or .parquet file.
    labels : (N,) whole numbers or strings
        Of a regression real targets, (N,) or (N, t); of several labels 0 and 1, (N, L).
    clients : (N,) whole numbers or strings, or int
        Whose row each is; or among how many clients the rows are divided, by the scheme `partition`.
    split : (N,) 0 or 1, optional
        Which rows train and which test; without it, eight of ten train.
    groups : (N,) whole numbers or strings, optional
        Rows that belong together, such as those of one patient. They are never divided: not by the split, not by
        leave-one-out, not by folds.
    weights : (N,) numbers of at least 0, optional
        What each row counts in training, as scikit-learn's `sample_weight`; test rows count alike.
    task : "classification", "regression" or "multilabel"
    label, client, group, weight : str, optional
        Of a table: the columns that say what is to be predicted, whose row it is, which rows belong together, and how
        much a row counts.
    drop : sequence of str
        Of a table: columns to leave out.
    text : str or sequence of str
        Of a table: columns of text.
    backbone, pooling : str, optional
        What makes features of text: "minilm" (default) or "hf:NAME", and how (--pooling).
    cache : bool
        Whether features of text are kept, and those used that were kept.
    columns : path or Description, optional
        Of a table: what its columns hold (`fedhip describe` drafts it; a .toml file). Else the units of the features'
        columns, as --columns.
    epsilon, delta : float, optional
        Differential privacy of the sum, off without `epsilon`; δ is 1e-5. `unit` is what is protected ("row", "group"
        or "client"), `unit_rows` how many rows of a group or client count.
    public : path of a feature file, or (n, m) array, optional
        With `epsilon`: rows that are public, by which private ones are scaled and clipped; `clip` is the length that
        they are cut to where there are none.
    out : path, optional
        The run folder; `runs/rows-DATE-TIME` if none is given. One that is there is replaced with `force` alone.
    device : str, optional
        "cuda" or "cpu"; a GPU where there is one.

    Everything else is the option of that name of the command.

    Returns
    -------
    Run
        With `predict`, `proba`, `join`, `update`, `forget`, `personalize`, `verify`, `report`, and `results`.
    """
    place = Path(out) if out is not None else Path("runs") / f"rows-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    require_place(place, force)
    number, owners = (int(clients), None) if isinstance(clients, int | np.integer) else (None, clients)
    path = Path(features).absolute() if isinstance(features, str | Path) else None
    read = [text] if isinstance(text, str) else [*(text or ())]
    named = {
        "label": label,
        "client": client,
        "group": group,
        "weight": weight,
        "drop": [*(drop or ())] or None,
        "text": read or None,
    }
    if (backbone is not None or pooling is not None) and not read:
        raise InputError("backbone and pooling are of text; name its columns with text=, or leave them out")
    where, kept = resolve_device(device), list[Path]()
    texts = TextColumns(
        backbone or DEFAULT_TEXT_BACKBONE, pooling=pooling, device=str(where), cache=cache, kept=kept, report=report
    )
    described, units = columns_given(columns)
    rows: FeatureSet | TableRows
    if isinstance(features, TableRows):
        rows = features
    elif is_table(features):
        if any(given is not None for given in (labels, owners, split, class_names, groups, weights)):
            raise InputError(
                "of a table, label=, client=, group= and weight= name columns; leave labels, clients, split, "
                "class_names, groups and weights out"
            )
        rows = load_table(
            features,
            label=label,
            client=client,
            group=group,
            weight=weight,
            drop=drop or (),
            description=described,
            task=task,
            text=read,
            texts=texts,
        )
    elif described is not None or any(value is not None for value in named.values()):
        raise InputError(
            "label, client, group, weight, drop, text and a description of columns are for tables; give a frame, or "
            "the path of a .csv, .tsv or .parquet file"
        )
    elif isinstance(features, FeatureSet | str | Path):
        rows = features if isinstance(features, FeatureSet) else read_features(features, task=task)
        if any(given is not None for given in (labels, owners, split, class_names, groups, weights)):
            raise InputError(
                "a FeatureSet and a feature file have labels, clients, split, class_names, groups and weights of their "
                "own; leave them out, or give features as an array"
            )
    elif labels is None:
        raise InputError("features need a label for each row; give labels, or the path of a feature file")
    else:
        rows = feature_set(
            features, labels, owners, split=split, class_names=class_names, groups=groups, weights=weights, task=task
        )
    given = {"concentration": concentration, "shards_per_client": shards, "min_rows": min_rows, "seed": seed}
    beside = {"delta": delta, "unit": unit, "unit_rows": unit_rows, "clip": clip, "public": public}
    privacy = PrivacySettings.of(epsilon, beside)
    division = divide(rows, partition, number, **given)
    table = None
    if isinstance(rows, TableRows):
        rows = rows if privacy is None else with_public_fills(rows)
        rows, table = Described.divided(rows, division)
    wider = lift != NO_LIFT
    widened = None if lift is None or lift == NO_LIFT else LiftSettings(lift) if isinstance(lift, str) else lift
    settings = RoundSettings(
        alpha=alpha,
        beta=beta,
        methods=methods_beside(methods, head),
        rounds=rounds,
        only_local_classes=only_local_classes,
        prior=prior,
        ridge=RidgeOptions(
            standardize,
            intercept,
            balance,
            fraction_bits,
            units,
        ),
        keep_statistics=statistics,
        head=head,
        head_options=head_options or {},
        lift=widened,
        wider=wider,
        max_rounds=max_rounds,
        privacy=privacy,
    )
    options = {
        "features" if table is None else "data": path and str(path),
        **named,
        "clients": number,
        "partition": partition,
        "concentration": concentration,
        "shards": shards,
        "min_rows": min_rows,
        "seed": seed,
        "alpha": alpha,
        "beta": beta,
        "standardize": standardize,
        "intercept": intercept,
        "task": None if rows.task == "classification" else rows.task,
        "methods": None,
        "head": head,
        "head_options": [f"{name}={value}" for name, value in (head_options or {}).items()] or None,
        "max_rounds": max_rounds if max_rounds > 1 else None,
        "rounds": rounds,
        "only_local_classes": only_local_classes,
        "prior": prior,
        "backbone": (backbone or DEFAULT_TEXT_BACKBONE) if read else None,
        "pooling": pooling,
        "columns": None if columns is None or isinstance(columns, Description) else str(Path(columns).absolute()),
        "fraction_bits": fraction_bits,
        "balance": balance or None,
        "lift": None if wider else NO_LIFT,
        **({} if widened is None else widened.options),
        "statistics": statistics,
        **({} if privacy is None else privacy.options),
    }
    made_by = f"{'given features' if table is None else table.title}, {rows.features.shape[1]} wide"
    if widened is not None:
        made_by += f", {widened.plan(rows.features.shape[1], rows.num_classes).title}"
    found, _ = run_round(
        place,
        rows,
        division,
        settings,
        title=f"{'rows' if path is None else path.stem} · {division.title} · {made_by}",
        config={name: value for name, value in options.items() if value is not None or name in LEFT_OPEN},
        table=table,
        device=where,
        force=force,
        report=report,
    )
    if kept:
        note_run(kept, found.ledger.run, found.path)
    return found


def columns_given(columns: str | Path | Description | None) -> tuple[Description | None, Columns | None]:
    """What is known of columns beforehand: what those of a table hold (a .toml file), or the units of features."""
    if columns is None or isinstance(columns, Description):
        return columns, None
    path = Path(columns)
    return (Description.from_file(path), None) if path.suffix == ".toml" else (None, Columns.from_file(path))


def run_round(
    out: Path,
    features: FeatureSet,
    partition: Partition,
    settings: RoundSettings,
    *,
    title: str,
    config: Json,
    images: Dataset | None = None,
    backbone: BackboneReference | None = None,
    seconds: Mapping[str, float] | None = None,
    table: Described | None = None,
    device: str | torch.device = "cpu",
    force: bool = False,
    report: Callable[[str, int, int], None] | None = None,
) -> tuple[Run, Outcome]:
    """Simulate the round, and write everything about it to the folder `out`, whole or not at all.

    `config` are the options that repeat it, `seconds` what was spent before, `images` those behind the features, for
    the report's examples, `table` what made the features of a table.
    """
    ridges = (MAJORITY, *RIDGES) if features.task == "classification" else RIDGES
    told = settings.resolved(features.task, weighted=features.weights is not None)
    require_ridge(
        task_named(features.task),
        features.weights is not None,
        head=told.head,
        methods=told.methods,
        ridges=ridges,
        prior=told.prior,
        only_local_classes=settings.only_local_classes,
        balance=settings.ridge.balance,
    )
    require_classes(features)
    clients = clients_of(features, partition)
    if settings.privacy is not None:
        return _run_privately(
            out, features, partition, settings, settings.privacy, clients, told,
            title=title, config=config, backbone=backbone, seconds=seconds, table=table, force=force, report=report,
        )  # fmt: skip
    warn_of_repeats(clients)
    lift, lifted, choice, watch, ridge = None, None, None, Stopwatch(), settings.ridge
    if settings.lift is not None:
        plan = settings.lift.plan(features.features.shape[1], features.num_classes)
        plan.require_memory(len(features))
        with watch("lift"):
            lift = plan.draw(clients, device, report)
            clients, lifted = lift_clients(lift, clients, device), plan.to_dict(lift)
        ridge = lifted_grid(clients, ridge)
    protocol = Protocol(
        rounds=settings.rounds,
        seed=config["seed"],
        only_local_classes=settings.only_local_classes,
        prior=told.prior,
    )
    head = head_named(told.head)
    task = _head_task(head, clients, features.num_classes, protocol, settings, device, report, ridge)
    with new_run(out, force=force) as draft:
        terms: dict[str, str] = {}

        def keep(client: Client, own: GridStatistics) -> None:
            terms[client.name] = own.digest()
            if settings.keep_statistics:
                draft.write_statistics(client.name, own)

        outcome = simulate(
            clients,
            features.num_classes,
            alpha=settings.alpha,
            beta=settings.beta,
            methods=[name for name in told.table if name in ridges],
            only_local_classes=settings.only_local_classes,
            prior=told.prior == "client",
            **vars(ridge),
            device=device,
            report=report,
            keep_statistics=keep,
            keep_looked=head is Auto,
        )
        rivals = [
            run_method(name, clients, features.num_classes, protocol, device=device, report=report, ridge=ridge)
            for name in told.methods
            if name not in (MAJORITY, *RIDGES, head.method)
        ]
        fitted = None
        own = outcome
        if head is Auto:
            with watch("choice"):
                choice = choose(
                    replace(task, looked=_looked(outcome), prior=settings.prior or "client"),
                    outcome.federation,
                    wider=settings.wider and settings.lift is None and settings.ridge.columns is None,
                    max_rounds=settings.max_rounds,
                )
            best = choice.best
            found = tested(best.head, best.owns, sum(each.seconds for each in choice.tried))
            fitted, own = found.head, with_head_results(outcome, found)
            rounds, up, down = choice.traffic
            row = row_of(found)
            rivals.append(
                replace(
                    row, name=Auto.method, rounds=rounds, upload_bytes_per_client=up, download_bytes_per_client=down
                )
            )
            head = type(fitted)
            if head is not Auto:  # its row goes on when clients come and go
                rivals.append(row)
            if best.plan is not None and best.lift is not None:
                lift, lifted = best.lift, best.plan.to_dict(best.lift)
                for client in fitted.task.training:
                    keep(client, fitted.statistics(client))
        elif head is not Ridge:
            found = run_head(head, task, outcome.federation)
            fitted, own = found.head, with_head_results(outcome, found)
            rivals.append(row_of(found))
        config = _filled(config, settings, told) | {"fraction_bits": outcome.federation.grid.fraction_bits}
        results = results_of(outcome, config=config, title=title, seconds={**(seconds or {}), **watch.seconds})
        for rival in rivals:
            results["methods"][rival.name] = rival_entry(rival, outcome.clients)
        if fitted is not None:
            results |= {"head": head.name, "settings": dict(fitted.settings)}
        if choice is not None:
            put_choice(results, choice, own.federation)
        if lifted is not None:
            results["lift"] = lifted
            if settings.lift is not None:
                add_lift(results, lifted)
        if ridge.balance:
            add_balance(results, class_weights(outcome.federation.grid.counts).tolist())
        if features.task != "classification":
            results["task"] = features.task
        put_gains(results, [gains_of(client.client, client.tested, head.method) for client in own.clients])
        details = details_of(own, features.class_names, head)
        if table is not None:
            details["table"] = table.report
            draft.write_text("columns.toml", table.description.to_toml())
        refresh(results, details)
        if images is not None and features.task == "classification":
            (findings,) = read_runs([RunRecord("", results, details, "", [])])
            worst = [found.label for found in findings.worst_classes]
            details["examples"] = worst_examples(own, worst, images, _test_rows(features, partition))
        save_partition(draft.path / "partition.json", partition, data_split=features.split)
        described = None if table is None else table.description.to_dict()
        _write_models(
            draft,
            own,
            features.class_names,
            settings.only_local_classes,
            backbone,
            fitted,
            lift,
            features.task,
            described,
        )
        draft.record(
            Ledger(),
            "run",
            own.federation,
            results,
            details,
            write_toml(config, f"{title}\nrepeat this run with: fedhip run config.toml --out FOLDER"),
            clients=terms,
            partition=hashlib.sha256((draft.path / "partition.json").read_bytes()).hexdigest(),
        )
        draft.write_report(out)
    return Run.open(out), own


def _run_privately(
    out: Path,
    features: FeatureSet,
    partition: Partition,
    settings: RoundSettings,
    privacy: PrivacySettings,
    clients: Sequence[Client],
    told: Resolved,
    *,
    title: str,
    config: Json,
    backbone: BackboneReference | None,
    seconds: Mapping[str, float] | None,
    table: Described | None,
    force: bool,
    report: Callable[[str, int, int], None] | None,
) -> tuple[Run, Outcome]:
    """The round with differential privacy. The folder keeps the noisy sum, and nobody's own statistics."""
    if features.task != "classification" or features.weights is not None:
        what = f"--task {features.task}" if features.task != "classification" else "rows with weights"
        raise InputError(
            f"--epsilon is for classes of rows that count alike, and not for {what}: leave one of them out"
        )
    check_clients(clients, features.num_classes)
    if privacy.unit == "group":
        require_own_groups(clients)
    described = None if table is None else table.description
    width = features.features.shape[1]
    options = privacy.with_public(width, table=described, backbone=backbone)
    with new_run(out, force=force) as draft:
        outcome, sent = simulate_privately(
            clients,
            features.num_classes,
            options,
            alpha=settings.alpha,
            beta=settings.beta,
            methods=told.table,
            only_local_classes=settings.only_local_classes,
            report=report,
        )
        federation = outcome.federation
        config = _filled(config, settings, told) | {"statistics": False}
        results = results_of(outcome, config=config, title=title, seconds=seconds or {})
        results |= {"feature_dim": width, "privacy": options.mechanism(_training(clients)).to_dict()}
        put_gains(results, [gains_of(client.client, client.tested, Ridge.method) for client in outcome.clients])
        details = details_of(outcome, features.class_names, Ridge)
        add_privacy(details)
        if table is not None:
            draft.write_text("columns.toml", table.description.to_toml())
        refresh(results, details)
        save_partition(draft.path / "partition.json", partition, data_split=features.split)
        options.public.to_file(draft.path / PUBLIC)
        _write_models(
            draft,
            outcome,
            features.class_names,
            settings.only_local_classes,
            backbone,
            None,
            None,
            features.task,
            None if described is None else described.to_dict(),
        )
        draft.record(
            Ledger(),
            "run",
            federation,
            results,
            details,
            write_toml(config, f"{title}\nrepeat this run with: fedhip run config.toml --out FOLDER"),
            clients=sent,
            partition=hashlib.sha256((draft.path / "partition.json").read_bytes()).hexdigest(),
        )
        draft.write_report(out)
    return Run.open(out), outcome


def _training(clients: Sequence[Client]) -> list[Client]:
    return [client for client in clients if len(client.train[1])]


def _head_task(
    head: type[Head],
    clients: Sequence[Client],
    num_classes: int,
    protocol: Protocol,
    settings: RoundSettings,
    device: str | torch.device,
    report: Callable[[str, int, int], None] | None,
    ridge: RidgeOptions,
) -> Task:
    check_clients(clients, num_classes)
    return Task(
        clients,
        num_classes,
        options_of(head, settings.alpha, settings.head_options),
        device,
        report or silent,
        ridge,
        only_local_classes=protocol.only_local_classes,
        prior=protocol.prior,
        seed=protocol.seed,
        beside=("local", "global"),
    )


def _filled(config: Json, settings: RoundSettings, told: Resolved) -> Json:
    """The options that repeat the run, with what follows from those that were left out."""
    if told.head == AUTO:
        found = {**config, "methods": list(told.methods)}
    else:
        found = {**config, "methods": list(settings.methods or RIDGES), "prior": told.prior}
    return {name: value for name, value in found.items() if value is not None}


def _looked(outcome: Outcome) -> dict[str, Looked]:
    """What the ridges' α were chosen by, by client."""
    return {
        result.client: result.personal.looked
        for result in outcome.clients
        if result.personal is not None and result.personal.looked is not None
    }


def put_choice(results: Json, choice: Choice, federation: Federation) -> None:
    """The choice, its row first; and what of the folder's models is of the features that were chosen."""
    results["choice"] = choice.to_dict()
    methods = results["methods"]
    results["methods"] = {Auto.method: methods.pop(Auto.method), **methods}
    results |= {
        "feature_dim": federation.grid.num_features,
        "beta": federation.beta,
        "fraction_bits": federation.grid.fraction_bits,
    }


def with_head_results(outcome: Outcome, found: HeadRound) -> Outcome:
    """The outcome of a round with the models of another head as the clients' own, tested beside the others."""
    clients = [
        replace(
            own,
            accuracy=before.accuracy | own.accuracy,
            priors=before.priors | own.priors,
            tested=before.tested | own.tested,
            metrics=before.metrics | own.metrics,
        )
        for before, own in zip(outcome.clients, found.clients, strict=True)
    ]
    return replace(outcome, clients=clients, federation=found.head.federation)


def _write_models(
    draft: Draft,
    outcome: Outcome,
    class_names: tuple[str, ...],
    only_local_classes: bool,
    backbone: BackboneReference | None,
    head: Head | None,
    lift: Lift | None,
    task: str,
    table: Mapping[str, Any] | None,
) -> None:
    """Write the global model and every client's own."""
    models = [global_model(outcome.federation, class_names, backbone, head=head, lift=lift, task=task, table=table)]
    for result in outcome.clients:
        if (personal := result.personal) is not None:
            models.append(
                personal_model(
                    outcome.federation,
                    result.client,
                    personal.model,
                    personal.alpha,
                    personal.own,
                    personal.local_classes,
                    class_names=class_names,
                    only_local_classes=only_local_classes,
                    backbone=backbone,
                    head=head,
                    lift=lift,
                    task=task,
                    table=table,
                    settings=None if personal.choice is None else personal.choice.settings,
                )
            )
    for model in models:
        draft.write_model(model)


def _test_rows(features: FeatureSet, partition: Partition) -> dict[str, Sequence[int]]:
    """The rows of the data that each client was tested on."""
    parts = client_parts(partition, split_of(features.split, partition))
    return {client: test.tolist() for client, (_, test) in zip(partition.clients, parts, strict=True)}


def worst_examples(
    outcome: Outcome, worst_classes: Sequence[int], images: Dataset, test_rows: Mapping[str, Sequence[int]]
) -> list[Json]:
    """Test images of these classes that the personalized models get wrong."""
    room = dict.fromkeys(worst_classes, EXAMPLES)
    examples = []
    for result in outcome.clients:
        for place, predicted in result.mistakes:
            row = test_rows[result.client][place]
            true = int(images.labels[row])
            if room.get(true, 0) > 0:
                room[true] -= 1
                image = _data_url(images, row)
                examples.append({"client": result.client, "true": true, "predicted": predicted, "image": image})
    return examples


def _data_url(images: Dataset, row: int) -> str:
    buffer = io.BytesIO()
    Image.fromarray(images.read([row], THUMBNAIL)[0]).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
