"""A run folder in the making: it takes its place whole, or not at all.

A run is written to a folder beside its place and then takes it. A change is a new version of the folder, in which the
files that did not change are the same files (hard links): a reader finds the old run or the new one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import FileError, RunChangedError, RunExistsError
from fedhip.heads.model import Model
from fedhip.runs.folder import Run
from fedhip.runs.ledger import Ledger
from fedhip.runs.models import models_digest
from fedhip.runs.names import file_name
from fedhip.runs.packs.pack import Pack, pack_name
from fedhip.simulation.federation import Federation
from fedhip.utils.files import private_folder, require_folder, write_private
from fedhip.utils.text import json_text


class Draft:
    """A folder in the making."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Digests of the models written, by client; the global one goes by no name.
        self.models: dict[str | None, str] = {}
        for name in ("models", "receipts"):
            (path / name).mkdir(mode=0o700, exist_ok=True)

    def write_model(self, model: Model) -> None:
        """A client's model, or the global one."""
        parts = ("global.safetensors",) if model.client is None else ("models", file_name(model.client))
        model.to_file(self.path.joinpath(*parts))
        self.models[model.client] = model.digest()

    def write_pack(self, number: int, pack: Pack) -> None:
        """The models of up to a thousand clients; it counts as one."""
        name = pack_name(number)
        self.models[name] = pack.write(self.path / "models" / name)

    def write_statistics(self, client: str, statistics: GridStatistics) -> None:
        """A client's statistics."""
        (self.path / "statistics").mkdir(mode=0o700, exist_ok=True)
        statistics.to_file(self.path / "statistics" / file_name(client))

    def write_json(self, name: str, content: dict[str, Any]) -> str:
        """A JSON file; the SHA-256 of its bytes."""
        text = json_text(content, indent=1) + "\n"
        self.write_text(name, text)
        return hashlib.sha256(text.encode()).hexdigest()

    def write_text(self, name: str, text: str) -> None:
        """A text file."""
        write_private(self.path / name, text.encode())

    def record(
        self,
        ledger: Ledger,
        event: str,
        federation: Federation,
        results: dict[str, Any],
        details: dict[str, Any],
        config: str,
        *,
        clients: Mapping[str, str],
        client: str | None = None,
        term: GridStatistics | None = None,
        sites: Sequence[str] | None = None,
        dropped: Mapping[str, str] | None = None,
        partition: str | None = None,
    ) -> tuple[Ledger, str]:
        """The sum, results, details, options, and what binds them and the models: the ledger's next entry.

        `clients` are the digests of everybody's part of the sum; of a change, `client` and `term` say whose rows came
        or went; of a federation, `sites` and `dropped` say who was in the sum and who was not, and why. `partition` is
        the digest of partition.json. The ledger, and the name of the entry's receipt.
        """
        federated: dict[str, Any] = {} if sites is None else {"sites": list(sites)}
        federated |= {} if dropped is None else {"dropped": dict(dropped)}
        divided: dict[str, Any] = {} if partition is None else {"partition": partition}
        federation.grid.to_file(self.path / "total.safetensors")
        changed = 0 if term is None else term.num_samples
        ledger = ledger.with_entry(
            event,
            client=client,
            rows=federation.grid.num_samples if event == "run" else changed,
            term=None if term is None else term.digest(),
            clients=dict(clients),
            **federated,
            total=federation.digest,
            beta=federation.beta,
            models=models_digest(self.models),
            results=self.write_json("results.json", results),
            details=self.write_json("details.json", details),
            **divided,
        )
        receipt = f"receipts/{len(ledger.entries) - 1:04d}-{event}.json"
        self.write_text("config.toml", config)
        self.write_text("ledger.jsonl", ledger.to_text())
        self.write_json(receipt, ledger.receipt())
        return ledger, receipt

    def write_report(self, place: Path) -> None:
        """The report of what is here, of a run that is to be at this place."""
        from fedhip.runs.report import render_report

        self.write_text("report.html", render_report([Run(self.path).record(place.resolve().name)]))

    def remove_client(self, client: str) -> None:
        """A client's files."""
        for folder in ("models", "statistics"):
            (self.path / folder / file_name(client)).unlink(missing_ok=True)


def require_place(path: Path, force: bool) -> None:
    """Before any work: refuse a place that the run cannot take."""
    require_folder(path.resolve().parent)
    _require_outside(path)
    if path.is_mount():
        raise RunExistsError(f"{path} is a disk of its own, which no folder can replace; choose a folder on it")
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not force:
        raise RunExistsError(f"{path} exists; choose another --out, or replace the run there with --force")
    # Other programs write a results.json too.
    if not all((path / name).is_file() for name in ("results.json", "ledger.jsonl")):
        raise RunExistsError(f"{path} is not a run folder, and --force replaces runs only; choose another --out")


def _require_outside(path: Path) -> None:
    """Refuse the folder that the command was started in: its replacement would be another, and this one gone."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return
    if here.is_relative_to(path.resolve()):
        raise RunExistsError(
            f"{path} is the folder you are in, and a new version takes its place: go out of it first (cd ..)"
        )


@contextmanager
def new_run(path: Path, *, force: bool = False) -> Iterator[Draft]:
    """Write a run; it takes its place when the block succeeds, and leaves nothing behind when it does not."""
    require_place(path, force)
    with temporary_folder(path) as temporary:
        yield Draft(temporary)
        require_place(path, force)
        _take_place(temporary, path)


@contextmanager
def changed_run(run: Run) -> Iterator[Draft]:
    """Write the next version of a run; the same files but for those that the block writes or removes."""
    _require_outside(run.path)
    for folder in (run.path, *(path for path in run.path.iterdir() if path.is_dir())):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise FileError(f"{folder} cannot be written to, so the run cannot change; give yourself the right to")
    head = run.ledger.head
    with temporary_folder(run.path) as temporary:
        _link_tree(run.path, temporary)
        yield Draft(temporary)
        _take_place(temporary, run.path, head)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A fresh folder beside the path, removed in the end if it is still there, and so are folders made for it."""
    path = path.resolve()
    made = [parent for parent in path.parents if not parent.exists()]
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        private_folder(temporary)  # models tell of rows, statistics hold them, and the report shows some
        yield temporary
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FileError(
                f"there is no space left to write {path}; nothing was changed: make room, or choose another disk"
            ) from error
        raise
    finally:
        with _uninterrupted():
            shutil.rmtree(temporary, ignore_errors=True)
            if not path.exists():
                for parent in made:
                    with suppress(OSError):
                        parent.rmdir()


def _take_place(new: Path, path: Path, head: str | None = None) -> None:
    """Put a folder where another may be; with `head`, only if that is still the ledger's."""
    path = path.resolve()
    old = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    with _uninterrupted():
        try:
            path.rename(old)
        except FileNotFoundError:
            if head is not None:
                raise _changed(path) from None
        try:
            # Looked at where nobody else looks for it: what is there now is what is replaced.
            if head is not None and Ledger.read(old / "ledger.jsonl").head != head:
                raise _changed(path)
            new.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _changed(path: Path) -> RunChangedError:
    return RunChangedError(f"{path} was changed by somebody else meanwhile; nothing was done: try again")


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


def _link_tree(source: Path, target: Path) -> None:
    """The same files in another folder, open to the same people."""
    for path in source.iterdir():
        if path.is_dir():
            (target / path.name).mkdir(mode=0o700)
            _link_tree(path, target / path.name)
        else:
            _link(path, target / path.name)
    shutil.copymode(source, target)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        shutil.copy2(source, target)  # a file system without hard links
