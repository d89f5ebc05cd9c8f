"""The run folder, opened as a `Run`; `draft.py` writes it.

results.json    accuracies, costs, configuration          config.toml     what repeats the run
details.json    what the report shows of each client      report.html     the report
models/         each client's model, or packs of them     global.safetensors
statistics/     each client's statistics                  total.safetensors
ledger.jsonl    what happened to the run                   receipts/       its lines, to be given to the clients
partition.json  who held which rows                       columns.toml     what a table's columns hold, of a table
public.safetensors  with differential privacy: what is public of rows
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedhip.core.choice.conformal import classes_within
from fedhip.core.choice.prior import NO_PRIOR, Prior
from fedhip.core.exact.columns import Columns
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.targets import Targets
from fedhip.data import FeatureSet, feature_set
from fedhip.data.partitions.manifest import stored_split, unpacked
from fedhip.data.tables import Description, is_table, read_labelled, read_rows
from fedhip.errors import FileError, InputError
from fedhip.features.lifts.lift import Lift
from fedhip.features.text_columns import TextColumns
from fedhip.heads import HEADS, Head
from fedhip.heads.model import RIDGE, Model
from fedhip.privacy.mechanism import Mechanism
from fedhip.privacy.public import PublicMap
from fedhip.runs.ledger import Ledger
from fedhip.runs.models import answering, scores_of
from fedhip.runs.names import file_name, unknown_client
from fedhip.runs.packs.pack import Pack, names_of, pack_name
from fedhip.simulation.alone import MAJORITY
from fedhip.simulation.client import Client
from fedhip.simulation.encoding import RowEncoding
from fedhip.simulation.federation import Federation
from fedhip.simulation.options import RidgeOptions
from fedhip.simulation.private import PrivateFederation
from fedhip.simulation.tasks import Task, targets_of_scores, task_named, thresholds_of
from fedhip.utils.files import write_private
from fedhip.utils.progress import ReportProgress

if TYPE_CHECKING:
    from fedhip.runs.change import Change
    from fedhip.runs.influence import Influence
    from fedhip.runs.report import RunRecord
    from fedhip.runs.verify import Check

SCHEMA = 1
#: What is public of rows, in a run with differential privacy.
PUBLIC = "public.safetensors"
#: Coverages whose thresholds go with a model.
EXPORTED_COVERAGES = (0.8, 0.9, 0.95, 0.99)

_Kinds = Mapping[str, type | UnionType]
_RESULTS: _Kinds = {
    "config": dict,
    "methods": dict,
    "title": str,
    "num_clients": int,
    "num_classes": int,
    "feature_dim": int,
    "fraction_bits": int,
    "beta": int | float,
    "seconds": dict,
    "leave_one_out": dict | None,
    "stale": str | None,
}
_CONFIG: _Kinds = {"alpha": str | int | float, "beta": str | int | float, "seed": int}
_METHOD: _Kinds = {"accuracy": dict, "per_client": list}
_DETAILS: _Kinds = {
    "clients": dict,
    "class_names": list,
    "alphas": list,
    "examples": list,
    "temperature": dict,
    "temperatures": list,
}
_CLIENT: _Kinds = {
    "alpha": int | float | None,
    "own": str | None,
    "loo_accuracy": list | None,
    "loo_chosen": int | float | None,
    "log_losses": list | None,
    "global_log_losses": list | None,
}


class Run:
    """A run on disk. Files are read when they are asked for, and checked then.

    `fedhip.run` makes one and `fedhip.open_run` opens one. Whatever changes it is what the command of that name does,
    and tells what it did in a `Change`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run at this path, if there is one that this version can read."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise FileError(f"there is no run folder {path}; make one with: fedhip run … --out {path}")
        if not (folder.path / "results.json").is_file():
            raise FileError(f"{path} is not a run folder: it has no results.json; give the folder of a run")
        schema = folder.results.get("schema")
        if schema != SCHEMA or isinstance(schema, bool):
            raise FileError(
                f"{path} is a run of schema version {str(schema)[:20]}, and this fedhip reads {SCHEMA}; "
                "use the version that wrote it, or run again"
            )
        _require_shape(folder.results, _RESULTS, f"{path}/results.json")
        _require_shape(folder.config, _CONFIG, f"{path}/results.json: config")
        for name, method in folder.results["methods"].items():
            _require_shape(method, _METHOD, f"{path}/results.json: {name}")
        if (head := folder.results.get("head", RIDGE)) not in HEADS:
            raise FileError(
                f"{path} holds models of a head {str(head)[:20]!r}, and this fedhip knows {', '.join(HEADS)}; "
                "use the version that wrote it, or run again"
            )
        return folder

    def predict(self, features: Any, client: str | None = None) -> NDArray[Any]:
        """The class of each row (N × m) by a client's model, or by the global one; whole numbers if all classes are.

        Of a regression the targets (N,), or (N, t) of several; of several labels 0 or 1 for each (N, L). Of a run that
        was made from a table, `features` may be one too: a frame, or the path of a file.
        """
        if self.task != "classification":
            return targets_of_scores(self._scores(features, client).numpy(), self.task)
        found: NDArray[Any] = np.array(self.class_names)[self._scores(features, client).argmax(dim=1).numpy()]
        return found.astype(np.int64) if all(_is_whole(name) for name in self.class_names) else found

    def proba(self, features: Any, client: str | None = None) -> NDArray[np.float64]:
        """Calibrated probabilities (N × d), in the order of `class_names`."""
        found: NDArray[np.float64] = self.model(client).probabilities_of(self._scores(features, client)).numpy()
        return found

    def predict_set(
        self, features: ArrayLike, client: str | None = None, *, coverage: float = 0.9
    ) -> NDArray[np.bool_]:
        """Which classes (N × d) an answer of this coverage holds, in the order of `class_names`; never none of them."""
        if self.task != "classification":
            raise InputError(f"a {self.task} has no sets of classes; ask for predict_interval")
        (q,) = self.thresholds(client, coverage)
        found: NDArray[np.bool_] = classes_within(self._scores(features, client), q).numpy()
        return found

    def predict_interval(
        self, features: ArrayLike, client: str | None = None, *, coverage: float = 0.9
    ) -> NDArray[np.float64]:
        """The least and the largest value of each target (N × t × 2) in an answer of this coverage."""
        if self.task != "regression":
            raise InputError(f"a {self.task} has no intervals; ask for predict_set")
        q = np.array(self.thresholds(client, coverage))
        middle = self._scores(features, client).numpy()
        return np.stack((middle - q, middle + q), axis=2)

    def thresholds(self, client: str | None = None, coverage: float = 0.9) -> list[float]:
        """What an answer of this coverage holds: all that is missed by no more, of classes or of each target.

        See `fedhip.core.choice.conformal`. An infinite one says that there are too few rows to leave anything out.
        """
        if self.packs:
            raise InputError(f"{self.path} is of so many clients that it keeps no rows left out: there are no sets")
        if client is not None:
            self.require_client(client)
            chosen = "choice" in self.details["clients"][client]  # its rows left out were scored with the prior
            if not chosen and not self.priors(client).get(self.head.method, NO_PRIOR).is_none:
                raise InputError(
                    f"client {client!r} answers with a prior, and rows left out were scored without it: there are no "
                    "sets; run without --prior client"
                )
        return thresholds_of(self.details["clients"], client, coverage)

    def _scores(self, features: Any, client: str | None) -> torch.Tensor:
        rows = (
            read_rows(features, self.require_table(), texts=self.text_encoder())[1] if is_table(features) else features
        )
        return scores_of(self, rows, client)

    def join(
        self,
        client: str,
        features: Any,
        labels: ArrayLike | None = None,
        *,
        split: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        rows: FeatureSet | None = None,
        report: ReportProgress | None = None,
    ) -> Change:
        """Add a client: one more term of the sum, and a model for it; `groups` and `weights` as in `fedhip.run`.

        `split` says which rows train (0) and which test (1); without it, eight of ten train. `rows` are those of all
        other clients, which a logistic head needs. A table, of a run that was made from one, brings its labels with it.
        """
        from fedhip.runs import life

        joining, drawn = self._client(client, features, labels, split, groups, weights)
        return self._changed(life.join(self, joining, split=drawn, rows=self._others(rows), report=report))

    def update(
        self,
        client: str,
        features: Any,
        labels: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        rows: FeatureSet | None = None,
        report: ReportProgress | None = None,
    ) -> Change:
        """Add training rows to a client; `groups`, `weights` and `rows` as in `join`."""
        from fedhip.runs import life

        more, _ = self._client(client, features, labels, None, groups, weights, test_rows=False)
        return self._changed(life.update(self, more, rows=self._others(rows), report=report))

    def forget(self, client: str, *, rows: FeatureSet | None = None, report: ReportProgress | None = None) -> Change:
        """Take a client out: every sum, model and picture as if it had never been there; `rows` as in `join`."""
        from fedhip.runs import life

        return self._changed(life.forget(self, client, rows=self._others(rows), report=report))

    def personalize(self, rows: FeatureSet, *, report: ReportProgress | None = None) -> Change:
        """Phase 3 again for the clients whose rows these are: α, model, accuracies."""
        from fedhip.runs import life
        from fedhip.runs.rows import clients_in

        return self._changed(life.personalize(self, clients_in(self, "what was given", rows), report=report))

    def influence(self, rows: FeatureSet, *, report: ReportProgress | None = None) -> list[Influence]:
        """What each client's rows do to all others: `rows` are those of the run, with `clients`."""
        from fedhip.runs.influence import influence_in
        from fedhip.runs.rows import clients_in

        return influence_in(self, clients_in(self, "what was given", rows), report)

    def verify(self, receipts: Sequence[Path] = (), report: ReportProgress | None = None) -> list[Check]:
        """Check every file, the sum, the models, the ledger, and receipts that clients hold."""
        from fedhip.runs.verify import verify

        return verify(self, receipts, report)

    def report(self, out: str | Path | None = None) -> Path:
        """Draw the report again: report.html of the run, or another file."""
        from fedhip.runs.report import render_report

        path = self.path / "report.html" if out is None else Path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        # For its owner alone: it shows images of test rows.
        write_private(path, render_report([self.record(self.path.absolute().name)]).encode())
        return path

    def _client(
        self,
        name: str,
        features: Any,
        labels: ArrayLike | None,
        split: ArrayLike | None,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        *,
        test_rows: bool = True,
    ) -> tuple[Client, NDArray[np.int8] | None]:
        from fedhip.runs.rows import client_and_rows, divided, in_classes_of

        what = f"what client {name!r} brings"
        if is_table(features):
            if labels is not None or groups is not None or weights is not None:
                raise InputError("a table brings labels, groups and weights with it; leave them out")
            rows = read_labelled(features, self.require_table(), name=what, task=self.task, texts=self.text_encoder())
            rows = rows if split is None else replace(rows, split=np.asarray(split))
        elif labels is None:
            raise InputError(f"{what} needs a label for each row; give labels")
        else:
            names = self.class_names if self.task != "classification" else None
            rows = feature_set(
                features, labels, split=split, groups=groups, weights=weights, class_names=names, task=self.task
            )
        _, chosen = client_and_rows(what, rows, name)
        known = in_classes_of(self, what, rows, chosen)
        part, together, counted = (
            None if values is None else values[chosen] for values in (rows.split, rows.groups, rows.weights)
        )
        return divided(self, name, rows.features[chosen], known, part, together, counted, test_rows=test_rows)

    def _others(self, rows: FeatureSet | None) -> dict[str, Client]:
        from fedhip.runs.rows import clients_in

        return {} if rows is None else clients_in(self, "'rows'", rows)

    def _changed(self, change: Change) -> Change:
        """What was read of the run is of before the change."""
        self.__dict__ = {"path": self.path}
        return change

    @cached_property
    def results(self) -> dict[str, Any]:
        """results.json."""
        return self._json("results.json")

    @cached_property
    def details(self) -> dict[str, Any]:
        """details.json."""
        details = self._json("details.json")
        _require_shape(details, _DETAILS, f"{self.path}/details.json")
        for name, client in details["clients"].items():
            _require_shape(client, _CLIENT, f"{self.path}/details.json: client {name!r}")
        return details

    @cached_property
    def ledger(self) -> Ledger:
        """ledger.jsonl, its chain checked."""
        return Ledger.read(self.path / "ledger.jsonl")

    @property
    def config(self) -> dict[str, Any]:
        """The run's options."""
        config: dict[str, Any] = self.results["config"]
        return config

    @property
    def head(self) -> type[Head]:
        """The head of its models."""
        return head_of(self.results)

    @property
    def task(self) -> Task:
        """What its models are for: "classification", "regression" or "multilabel"."""
        return task_named(self.results.get("task", "classification"))

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of the models' columns."""
        return tuple(self.details["class_names"])

    @cached_property
    def clients(self) -> list[str]:
        """The clients that have a model, in the order they came."""
        if self.packs:
            return [name for path in self.packs for name in names_of(path)]
        return [name for name, client in self.details["clients"].items() if client["alpha"] is not None]

    def require_personalized(self) -> None:
        """Refuse a run of other methods: its clients have no models that could follow a change."""
        if self.head.method not in self.results["methods"]:
            named = [name for name in self.results["methods"] if name != MAJORITY]
            raise FileError(
                f"{self.path} was run with --methods {','.join(named)}, so its clients have no "
                "models of their own; run again with fedhip among the methods"
            )

    def require_exact(self) -> None:
        """Refuse to change a run with differential privacy, whose sum was released once, or one that keeps packs."""
        if self.packs:
            raise FileError(f"{self.path} keeps nobody's statistics, of so many clients: nobody can come, go or change")
        if privacy := self.results.get("privacy"):
            raise FileError(
                f"{self.path} was run with epsilon = {privacy['epsilon']:g}: its sum was released once, with noise; "
                "nobody's part can be added, taken out or looked at again; run again, which costs as much once more"
            )

    def require_client(self, client: str) -> str:
        """The name, if a client has it."""
        self.require_personalized()
        if client not in self.clients:
            raise unknown_client(client, self.clients)
        return client

    def model(self, client: str | None) -> Model:
        """A client's model; the global one for None."""
        if client is None:
            return replace(
                self._model("global.safetensors"),
                temperature=self._temperature("global"),
                thresholds=self._stored_thresholds(None),
            )
        if self.packs:
            return replace(self.packed(client), temperature=self._temperature(self.head.method))
        model = self._model("models", file_name(self.require_client(client)))
        if model.client != client:
            raise FileError(
                f"{self.path}/models/{file_name(client)} is the model of client {model.client!r}, not of {client!r}; "
                "restore it"
            )
        prior = self.priors(client).get(self.head.method, NO_PRIOR)
        own = torch.tensor(self.details["clients"][client]["train_counts"])
        everybody = None if prior.is_none else self._class_counts
        answers = answering(model, self._temperature(self.head.method, client), prior, own, everybody)
        return replace(answers, thresholds=self._stored_thresholds(client))

    @cached_property
    def packs(self) -> list[Path]:
        """Where models are, of a run of very many clients (`fedhip.runs.packs`); empty where each has its own file."""
        number = self.results.get("packs", 0)
        return [self.path / "models" / pack_name(at) for at in range(number)]

    def packed(self, client: str) -> Model:
        """A client's model from its pack."""
        held = self.__dict__.get("_pack")
        if held is None or client not in held.with_model:
            self.require_personalized()
            holding = [path for path in self.packs if client in names_of(self._file("models", path.name))]
            if not holding:
                raise unknown_client(client, self.clients)
            held = self.__dict__["_pack"] = self.pack(holding[0])[0]
        return held.model(held.names.index(client))

    def pack(self, path: Path) -> tuple[Pack, str]:
        """A pack, and its digest."""
        return Pack.read(self._file("models", path.name), self._model("global.safetensors"))

    def _stored_thresholds(self, client: str | None) -> dict[str, list[float | None]]:
        """Those of a few coverages, for whoever takes the model elsewhere; none where nothing is known."""
        try:
            found = {f"{c:g}": self.thresholds(client, c) for c in EXPORTED_COVERAGES}
        except InputError:
            return {}
        return {c: [None if math.isinf(q) else q for q in every] for c, every in found.items()}

    @cached_property
    def table(self) -> Description | None:
        """What turns a table into the features of the run's models; None where they come from something else."""
        described = self.model(None).table
        return None if described is None else Description.from_dict(described, f"the model of {self.path}")

    def require_table(self) -> Description:
        """That description, or an error."""
        if self.table is None:
            raise InputError(
                f"{self.path} was not made from a table, so nobody knows how one becomes its features; give features"
            )
        return self.table

    def text_encoder(self, device: str | None = None, report: ReportProgress | None = None) -> TextColumns:
        """What makes features of text, in tables that come to the run."""
        return TextColumns(device=device, run=(self.ledger.run, self.path), report=report)

    @cached_property
    def lift(self) -> Lift | None:
        """What rows go through before they are summed or scored, if the run has one."""
        return self.model(None).lift

    @cached_property
    def encoding(self) -> RowEncoding:
        """How rows become part of the sum; before there were units of columns, all had the same."""
        columns, balance = self.details.get("columns"), self.results.get("balance")
        targets = self.details.get("targets")
        return RowEncoding(
            Columns.plain(self.results["feature_dim"]) if columns is None else Columns.from_dict(columns),
            self.results["fraction_bits"],
            None if balance is None else torch.tensor(balance["weights"], dtype=torch.float64).sqrt(),
            targets=None if targets is None else Targets.from_dict(targets),
            room=self.details.get("room"),
        )

    @property
    def ridge(self) -> RidgeOptions:
        """What the run's ridges are of; before there was a choice, the paper's."""
        return RidgeOptions(bool(self.results.get("standardize")), bool(self.results.get("intercept")))

    def federation(self, grid: GridStatistics | None = None, beta: float | None = None) -> Federation:
        """The run's sum, or another one on its grid, with the run's β or another one."""
        if "privacy" in self.results:
            return PrivateFederation(
                self.total() if grid is None else grid,
                float(self.results["beta"] if beta is None else beta),
                self.encoding,
                mechanism=Mechanism.from_dict(self.results["privacy"]),
                public=PublicMap.from_file(self._file(PUBLIC)),
            )
        return Federation(
            self.total() if grid is None else grid,
            float(self.results["beta"] if beta is None else beta),
            self.encoding,
            self.ridge.standardize,
            self.ridge.intercept,
            tuple(self.details.get("fold_betas", ())) if beta is None else (),
        )

    def _model(self, *parts: str) -> Model:
        path = self._file(*parts)
        model = Model.from_file(path)
        if model.head != self.head.name:
            raise FileError(f"{path} is of the head {model.head!r}, and the run's is {self.head.name!r}; restore it")
        return model

    @cached_property
    def _class_counts(self) -> torch.Tensor:
        """Everybody's training rows by class: of the sum, for a site of a federation has nobody else's."""
        return self.total().counts

    def priors(self, client: str) -> dict[str, Prior]:
        """What goes with the client's models, by method; nothing for one that joined later, or in a run without."""
        return {
            method: NO_PRIOR
            if found["smoothing"] is None
            else Prior(float(found["temperature"]), float(found["smoothing"]))
            for method, found in self.details["clients"][client].get("priors", {}).items()
        }

    def model_digest(self, client: str | None) -> str:
        """Of the file of a model, in which there is no temperature."""
        return replace(self.model(client), temperature=None).digest()

    def _temperature(self, method: str, client: str | None = None) -> float | None:
        """One for all clients; with differential privacy a client's own."""
        known = self.details if client is None else self.details["clients"][client]
        temperature = known.get("temperature", self.details.get("temperature", {})).get(method)
        return None if temperature is None else float(temperature)

    def split(self, client: str, rows: int) -> NDArray[np.int8] | None:
        """0 (train) or 1 (test) for so many rows of a client, as they were divided; None where that is not kept."""
        if (known := self.details["clients"].get(client)) is None:
            return None
        if "split" in known:  # of one that joined
            try:
                return unpacked(known["split"], rows, 2).astype(np.int8)
            except InputError:  # these are other rows
                return None
        path = self.path / "partition.json"
        found = stored_split(path, client) if path.is_file() else None  # a federation's run has none
        return found if found is not None and len(found) == rows else None

    def statistics(self, client: str) -> GridStatistics:
        """A client's statistics."""
        if not (self.path / "statistics").is_dir():
            raise FileError(
                f"{self.path} keeps no statistics of clients (a run with --no-statistics, or a site's result of a "
                "federation), so nobody can come, go or change; run again without it, or take part in another round"
            )
        return GridStatistics.from_file(self._file("statistics", file_name(self.require_client(client))))

    def total(self) -> GridStatistics:
        """The sum of the clients' statistics."""
        return GridStatistics.from_file(self._file("total.safetensors"))

    def config_text(self) -> str:
        """config.toml."""
        path = self._file("config.toml")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise FileError(f"{path} is not readable ({error}); restore it from a copy, or run again") from None

    def record(self, name: str) -> RunRecord:
        """Its files under this name, for a report."""
        from fedhip.runs.report import RunRecord

        return RunRecord(name, self.results, self.details, self.config_text(), list(self.ledger.entries))

    def _file(self, *parts: str) -> Path:
        path = self.path.joinpath(*parts)
        if not path.is_file():
            raise FileError(f"{path} is missing; restore it from a copy, or run again")
        return path

    def _json(self, name: str) -> dict[str, Any]:
        path = self._file(name)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise FileError(f"{path} is not readable ({error}); restore it from a copy, or run again") from None
        if not isinstance(content, dict):
            raise FileError(f"{path} holds no JSON object; restore it from a copy, or run again")
        return content


def _is_whole(name: str) -> bool:
    """Whether it is a whole number as Python writes it."""
    return name.removeprefix("-").isascii() and name.removeprefix("-").isdigit() and str(int(name)) == name


def head_of(results: Mapping[str, Any]) -> type[Head]:
    """The head of a run's models, from its results.json; the ridge, where none is named."""
    return HEADS[results.get("head", RIDGE)]


def _require_shape(content: Any, kinds: _Kinds, where: str) -> None:
    """Refuse what lacks a value, or has one of another kind, before it is used."""
    for key, kind in kinds.items():
        if not isinstance(content, dict) or key not in content or not isinstance(content[key], kind):
            raise FileError(f"{where}: '{key}' is missing or malformed; restore it from a copy, or run again")
