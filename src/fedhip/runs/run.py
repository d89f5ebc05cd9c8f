"""The main door: what `fedhip run` and `fedhip.run` do, one round from features to a run folder.

Options are checked in `round/settings.py`, rows are prepared in `round/prepare.py`, models fitted in
`round/fitting.py`, and the folder is written by `round/recording.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.data import Dataset, FeatureSet, Partition
from fedhip.data.tables import Description, TableRows
from fedhip.engines import EngineName, engine_device, on_engine, require_engine
from fedhip.errors import InputError
from fedhip.features import resolve_device
from fedhip.features.cache import note_run
from fedhip.features.lifts.kinds import COMPETING_WIDTH, NARROW, NO_LIFT, LiftKind
from fedhip.features.reference import BackboneReference
from fedhip.features.text_columns import DEFAULT_TEXT_BACKBONE, TextColumns
from fedhip.heads.budget import bytes_of
from fedhip.heads.choice import AUTO
from fedhip.privacy.mechanism import Unit
from fedhip.runs import Run, new_run, require_place
from fedhip.runs.packs.recording import is_many, record_many
from fedhip.runs.privacy import PrivacySettings, divided_one_by_one, with_public_fills
from fedhip.runs.round.fitting import OF_RIDGES, fit_privately, fit_round, require_private
from fedhip.runs.round.prepare import Described, columns_given, rows_given
from fedhip.runs.round.recording import Given, record_round
from fedhip.runs.round.repeats import warn_of_repeats
from fedhip.runs.round.settings import LEFT_OPEN, ROUNDS, RoundSettings, methods_beside
from fedhip.simulation.client import Client, clients_of, places_of
from fedhip.simulation.lifting import LiftSettings
from fedhip.simulation.options import Alpha, Beta, RidgeOptions
from fedhip.simulation.outcome import Outcome
from fedhip.simulation.priors import PriorOption
from fedhip.simulation.tasks import Task as TaskName
from fedhip.simulation.tasks import divide, require_classes, require_ridge, task_named

Json = dict[str, Any]


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
    rounds: int = ROUNDS,
    head: str | None = None,
    head_options: Mapping[str, float] | None = None,
    max_rounds: int = 1,
    budget: str | int | None = None,
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
    engine: EngineName = "local",
    ray_address: str | None = None,
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
    engine : "local" or "ray"
        Where clients' work runs: in threads here, or as tasks of a Ray cluster, to the same bits.
    ray_address : str, optional
        "HOST:PORT" of the cluster, or "auto"; without it, one of this machine's cores, or the one this process is in.

    Everything else is the option of that name of the command.

    Returns
    -------
    Run
        With `predict`, `proba`, `join`, `update`, `forget`, `personalize`, `verify`, `report`, and `results`.
    """
    place = Path(out) if out is not None else Path("runs") / f"rows-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    require_place(place, force)
    require_engine(engine, ray_address, private=epsilon is not None)
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
    where, kept = engine_device(engine, resolve_device(device), device), list[Path]()
    texts = TextColumns(
        backbone or DEFAULT_TEXT_BACKBONE, pooling=pooling, device=str(where), cache=cache, kept=kept, report=report
    )
    described, units = columns_given(columns)
    arrays = {
        "labels": labels,
        "clients": owners,
        "split": split,
        "class_names": class_names,
        "groups": groups,
        "weights": weights,
    }
    rows = rows_given(features, arrays, named, task, described, texts)
    given = {"concentration": concentration, "shards_per_client": shards, "min_rows": min_rows, "seed": seed}
    beside = {"delta": delta, "unit": unit, "unit_rows": unit_rows, "clip": clip, "public": public}
    privacy = PrivacySettings.of(epsilon, beside)
    division = divide(rows, partition, number, owner=client, **given)
    table = None
    if isinstance(rows, TableRows):
        rows = rows if privacy is None else divided_one_by_one(with_public_fills(rows), seed)
        rows, table = Described.divided(rows, division)
    elif privacy is not None:
        rows = divided_one_by_one(rows, seed)
    wider = lift != NO_LIFT
    widened = None if lift is None or lift == NO_LIFT else LiftSettings(lift) if isinstance(lift, str) else lift
    settings = RoundSettings(
        alpha=alpha,
        beta=beta,
        methods=methods_beside(methods, head),
        rounds=rounds,
        only_local_classes=only_local_classes,
        prior=prior,
        ridge=RidgeOptions(standardize, intercept, balance, fraction_bits, units),
        keep_statistics=statistics,
        head=head,
        head_options=head_options or {},
        lift=widened,
        wider=wider,
        max_rounds=max_rounds,
        budget=None if budget is None else bytes_of(budget),
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
        "budget": None if budget is None else str(budget),
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
        engine=engine,
        ray_address=ray_address,
        force=force,
        report=report,
    )
    if kept:
        note_run(kept, found.ledger.run, found.path)
    return found


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
    engine: str = "local",
    ray_address: str | None = None,
    force: bool = False,
    report: Callable[[str, int, int], None] | None = None,
) -> tuple[Run, Outcome]:
    """Simulate the round, and write everything about it to the folder `out`, whole or not at all.

    `config` are the options that repeat it, `seconds` what was spent before, `images` those behind the features, for
    the report's examples, `table` what made the features of a table. With differential privacy the folder keeps the
    noisy sum, and nobody's own statistics.
    """
    budget = settings.budget
    if budget is not None:
        rows = [len(client.train[1]) for client in clients_of(features, partition)]
        settings = settings.within_budget(features.features.shape[1], features.num_classes, rows)
    resolved = settings.resolved(features.task, weighted=features.weights is not None)
    if budget is not None and resolved.head != AUTO:
        raise InputError("--budget is kept by the choice, which is of classes of rows that count alike; leave it out")
    require_ridge(
        task_named(features.task),
        features.weights is not None,
        head=resolved.head,
        methods=resolved.methods,
        ridges=OF_RIDGES,
        prior=resolved.prior,
        only_local_classes=settings.only_local_classes,
        balance=settings.ridge.balance,
    )
    require_classes(features)
    given = Given(features, partition, (), settings, resolved, title, config, seconds or {}, images, backbone, table)
    largest = 0 if is_many(given) else int(np.bincount(partition.assignment).max())
    elsewhere = on_engine(engine, ray_address, width=_widest(given), largest=largest, report=report)
    if is_many(given):
        with elsewhere, new_run(out, force=force) as draft:
            outcome = record_many(draft, given, report)
        return Run.open(out), outcome
    clients = clients_of(features, partition)
    given = replace(given, clients=clients)
    privacy = None
    if settings.privacy is None:
        warn_of_repeats(clients)
    else:
        require_private(clients, features, settings.privacy.unit)
        described = None if table is None else table.description
        settings.privacy.require_others_rows(features.features)
        privacy = settings.privacy.with_public(features.features.shape[1], table=described, backbone=backbone)
    with elsewhere as lend, new_run(out, force=force) as draft:
        lend(clients, features.features, places_of(features, partition))

        def keep(client: Client, statistics: GridStatistics) -> None:
            draft.write_statistics(client.name, statistics)

        if privacy is not None:
            fitted = fit_privately(clients, features, settings, resolved, privacy, report=report)
        else:
            fitted = fit_round(
                clients, features, settings, resolved, seed=config["seed"],
                keep_statistics=keep if settings.keep_statistics else None, device=device, report=report,
            )  # fmt: skip
        record_round(draft, out, given, fitted)
    return Run.open(out), fitted.outcome


def _widest(given: Given) -> int:
    """How wide the features are that anything is computed of."""
    settings, width = given.settings, int(given.features.features.shape[1])
    if settings.lift is not None:
        return settings.lift.plan(width, given.features.num_classes).width
    competes = given.resolved.head == AUTO and settings.wider and width <= NARROW
    return COMPETING_WIDTH + width if competes else width
