"""A run on disk.

    results.json    accuracies, costs, configuration          config.toml     what repeats the run
    details.json    what the report shows of each client      report.html     the report
    models/         each client's model                       global.safetensors
    statistics/     each client's statistics                  total.safetensors
    ledger.jsonl    what happened to the run                   receipts/       its lines, to be given to the clients
    partition.json  who held which rows

A run is written to a folder beside its place and then takes it, whole. A change is a new version of the folder, in
which the files that did not change are the same files (hard links): a reader finds the old run or the new one.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

from fedhip.core.errors import FileFormatError
from fedhip.core.fixedpoint import GridStatistics
from fedhip.data.files import write_text
from fedhip.features.devices import require_folder
from fedhip.models import Model
from fedhip.runs.errors import NoSpaceError, RunChangedError, RunExistsError, RunFolderError, RunVersionError
from fedhip.runs.ledger import Ledger
from fedhip.runs.names import file_name, unknown_client

SCHEMA = 1


class RunFolder:
    """A run to read from. Files are read when they are asked for, and checked then."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """The run at this path, if there is one that this version can read."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise RunFolderError(f"there is no run folder {path}; make one with: fedhip run … --out {path}")
        if not (folder.path / "results.json").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no results.json; give the folder of a run")
        schema = folder.results.get("schema")
        if schema != SCHEMA or isinstance(schema, bool):
            raise RunVersionError(
                f"{path} is a run of schema version {str(schema)[:20]}, and this fedhip reads {SCHEMA}; "
                "use the version that wrote it, or run again"
            )
        for key, kind in (("config", dict), ("methods", dict), ("num_clients", int), ("num_classes", int)):
            if not isinstance(folder.results.get(key), kind):
                raise RunFolderError(f"{path}/results.json: '{key}' is missing or malformed; restore it or run again")
        return folder

    @cached_property
    def results(self) -> dict[str, Any]:
        """results.json."""
        return self._json("results.json")

    @cached_property
    def details(self) -> dict[str, Any]:
        """details.json."""
        details = self._json("details.json")
        if not isinstance(details.get("clients"), dict) or not isinstance(details.get("class_names"), list):
            raise RunFolderError(f"{self.path}/details.json is malformed; restore it or run again")
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
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of the models' columns."""
        return tuple(self.details["class_names"])

    @cached_property
    def clients(self) -> list[str]:
        """The clients that have a model, in the order they came."""
        return [name for name, client in self.details["clients"].items() if client["alpha"] is not None]

    def require_client(self, client: str) -> str:
        """The name, if a client has it."""
        if client not in self.clients:
            raise unknown_client(client, self.clients)
        return client

    def model(self, client: str | None) -> Model:
        """A client's model; the global one for None."""
        if client is None:
            return replace(Model.from_file(self._file("global.safetensors")), temperature=self._temperature("global"))
        model = Model.from_file(self._file("models", file_name(self.require_client(client))))
        if model.client != client:
            raise FileFormatError(
                f"{self.path}/models/{file_name(client)} is the model of client {model.client!r}, not of {client!r}; "
                "restore it"
            )
        return replace(model, temperature=self._temperature("fedhip"))

    def model_digest(self, client: str | None) -> str:
        """Of the file of a model, in which there is no temperature."""
        return replace(self.model(client), temperature=None).digest()

    def _temperature(self, method: str) -> float | None:
        temperature = self.details.get("temperature", {}).get(method)
        return None if temperature is None else float(temperature)

    def statistics(self, client: str) -> GridStatistics:
        """A client's statistics."""
        if not (self.path / "statistics").is_dir():
            raise RunFolderError(
                f"{self.path} keeps no statistics of its clients (it was run with --no-statistics), so that no client "
                "can be taken out or changed; run again without that option"
            )
        return GridStatistics.from_file(self._file("statistics", file_name(self.require_client(client))))

    def total(self) -> GridStatistics:
        """The sum of the clients' statistics."""
        return GridStatistics.from_file(self._file("total.safetensors"))

    def config_text(self) -> str:
        """config.toml."""
        return self._file("config.toml").read_text(encoding="utf-8")

    def _file(self, *parts: str) -> Path:
        path = self.path.joinpath(*parts)
        if not path.is_file():
            raise RunFolderError(f"{path} is missing; restore it from a copy, or run again")
        return path

    def _json(self, name: str) -> dict[str, Any]:
        path = self._file(name)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise RunFolderError(f"{path} is not readable ({error}); restore it from a copy, or run again") from None
        if not isinstance(content, dict):
            raise RunFolderError(f"{path} holds no JSON object; restore it from a copy, or run again")
        return content


class Draft:
    """A folder in the making."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("models", "receipts"):
            (path / name).mkdir(exist_ok=True)

    def write_model(self, model: Model) -> None:
        """A client's model, or the global one."""
        parts = ("global.safetensors",) if model.client is None else ("models", file_name(model.client))
        model.to_file(self.path.joinpath(*parts))

    def write_statistics(self, client: str, statistics: GridStatistics) -> None:
        """A client's statistics."""
        (self.path / "statistics").mkdir(exist_ok=True)
        statistics.to_file(self.path / "statistics" / file_name(client))

    def write_total(self, total: GridStatistics) -> None:
        """The sum."""
        total.to_file(self.path / "total.safetensors")

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """A JSON file."""
        write_text(self.path / name, json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """A text file."""
        write_text(self.path / name, text)

    def write_ledger(self, ledger: Ledger) -> str:
        """The ledger, and a receipt of its last entry; the receipt's name."""
        write_text(self.path / "ledger.jsonl", ledger.to_text())
        entry = ledger.entries[-1]
        receipt = f"receipts/{entry['entry']:04d}-{entry['event']}.json"
        self.write_json(receipt, ledger.receipt())
        return receipt

    def remove_client(self, client: str) -> None:
        """A client's files."""
        for folder in ("models", "statistics"):
            (self.path / folder / file_name(client)).unlink(missing_ok=True)


def require_place(path: Path, force: bool) -> None:
    """Before any work: refuse a place that the run cannot take."""
    require_folder(path.absolute().parent)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not force:
        raise RunExistsError(f"{path} exists; choose another --out, or replace the run there with --force")
    if not (path / "results.json").is_file():
        raise RunExistsError(f"{path} is not a run folder, and --force replaces runs only; choose another --out")


@contextmanager
def new_run(path: Path, *, force: bool = False) -> Iterator[Draft]:
    """Write a run; it takes its place when the block succeeds, and leaves nothing behind when it does not."""
    require_place(path, force)
    with _beside(path) as temporary:
        yield Draft(temporary)
        require_place(path, force)
        _take_place(temporary, path)


@contextmanager
def changed_run(run: RunFolder) -> Iterator[Draft]:
    """Write the next version of a run; the same files but for those that the block writes or removes."""
    head = run.ledger.head
    with _beside(run.path) as temporary:
        shutil.copytree(run.path, temporary, copy_function=_link, dirs_exist_ok=True)
        yield Draft(temporary)
        if RunFolder.open(run.path).ledger.head != head:
            raise RunChangedError(f"{run.path} was changed by somebody else meanwhile; nothing was done: try again")
        _take_place(temporary, run.path)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A fresh folder beside the path, removed in the end if it is still there."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    temporary.mkdir()
    try:
        yield temporary
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(
                f"there is no space left to write {path}; nothing was changed: make room, or choose another disk"
            ) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _take_place(new: Path, path: Path) -> None:
    path = path.absolute()
    old = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    with _uninterrupted():
        replaced = path.exists()
        if replaced:
            path.rename(old)
        try:
            new.rename(path)
        except BaseException:
            if replaced:
                old.rename(path)
            raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block is done: between two renames there is no run at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting and callable(before):
            before(*waiting[0])


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        shutil.copy2(source, target)  # a file system without hard links
