"""Give the commands, file formats and messages odd input, and see that none of it ends in a traceback or a lie.

    python -m scripts.fuzz --seconds 60 --seed 1

What a command is given may be options, a configuration file, a feature file, a table, a run's folder or a parcel of a
federation that was changed at random. Whatever it is, the command must

- end within some seconds, with an exit code of docs/cli.md and no exception of another kind than ours;
- say why in one line, and print nothing else, where it refuses;
- refuse what can never be right: a number that is none, infinite, or empty;
- print JSON without NaN where it succeeds.

A finding is printed with the seed and number that make it again (`--seed S --only N`). The exit code is 1 if there are
any.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
from safetensors.numpy import load_file, save_file

from fedhip.cli.common.parser import subparser
from fedhip.cli.main import build_parser, main
from fedhip.errors import FedHiPError

#: Seconds of processor time that any one input may take, and seconds by the clock, if it waits for something.
PATIENCE, WAITING = 30, 600
#: Of no number, whatever the option.
NEVER = ("nan", "inf", "-inf", "1e999", "", " ", "x", "0x10", "1,5", "٣x")
#: Of some.
ODD = (
    *(
        "-1",
        "0",
        "1",
        "2",
        "1e308",
        "1e-308",
        "-0.0",
        "99999999999999999999",
        "3.7",
        "1e30",
        "auto",
        "loo",
        "none",
        "all",
    ),
    *(
        "..",
        "/",
        "/dev/null",
        "\n",
        "a\nb",
        "--",
        "-",
        "café",
        "😀",
        "\udcff",
        "a" * 5000,
        "%s",
        "{}",
        "x,y",
        ",",
        "=",
        "a=1",
    ),
)
#: What a value in JSON or TOML may be replaced by.
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**70, -(2**63), 1e308, -1e308, 0.5, "", "x", "nan", "é" * 300, [], {}, [[]], {"": None}),
    *([1, "a"], "../x", "\u2028"),
)
EXIT_CODES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Place:
    """Things that are right, to be spoilt: made once, and copied for each input."""

    root: Path

    def copy(self, to: Path) -> Path:
        """A copy that may be spoilt."""
        return Path(shutil.copytree(self.root, to))


def make_place(root: Path) -> Place:
    """Feature files, a table, a run of each, and a federation's folder."""
    root.mkdir(parents=True)
    rng = np.random.default_rng(0)
    labels = np.arange(36) % 3
    features = (rng.normal(size=(36, 4)) + 2.0 * np.eye(3, 4)[labels]).astype(np.float64)
    clients = np.array(["north", "south", "west"])[np.arange(36) // 12]
    np.savez(root / "f.npz", features=features, labels=np.array(["a", "b", "c"])[labels], clients=clients)
    save_file({"features": features, "labels": labels.astype(np.int64)}, root / "f.safetensors")
    np.savez(root / "east.npz", features=features[:9] + 0.1, labels=np.array(["a", "b", "c"])[labels[:9]])
    lines = ["age,sex,score,when,site,diagnosis"] + [
        f"{30 + i},{'mf'[i % 2]},{features[i, 0]:.3f},2026-01-{1 + i % 28:02},{clients[i]},{'ny'[i % 2]}"
        for i in range(36)
    ]
    (root / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (root / "c.toml").write_text('features = "f.npz"\nalpha = 1.5\nbeta = 2\nseed = 3\nmethods = ["fedhip"]\n')
    with inside(root):
        for words in (
            "run --features f.npz --out run",
            "run --data t.csv --label diagnosis --client site --out table",
            "describe t.csv columns.toml --label diagnosis --client site",
            "federation init fed --name demo --site a --site b --site c --classes x,y --width 4",
            "federation init far --name demo --site a --site b --site c --classes x,y --width 4 --host example.org",
        ):
            code, _, err = call(words.split())
            if code != 0:
                raise RuntimeError(f"{words}: {err}")
    return Place(root)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class TookTooLong(BaseException):
    """No `Exception`: nothing that waits for errors of its own may swallow it."""


@contextmanager
def patience() -> Iterator[None]:
    """An end to whatever hangs; by processor time, so that a busy machine is no finding."""

    def stop(_: int, __: FrameType | None) -> None:
        raise TookTooLong

    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    signal.alarm(WAITING)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def call(words: Sequence[str]) -> tuple[int, str, str]:
    """A command: its exit code, and what it printed and said."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with patience():
                code = main(list(words))
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 99
    return code, out.getvalue(), err.getvalue()


def fault_of(words: Sequence[str], must_fail: bool) -> str | None:
    """What a command did wrong, or None."""
    try:
        code, out, err = call(words)
    except TookTooLong:
        return f"hung: {PATIENCE} s of processor time, or {WAITING} s by the clock"
    except BaseException:
        return traceback.format_exc()
    said = [line for line in err.splitlines() if "█" not in line and "warning:" not in line and "░" not in line]
    if code not in EXIT_CODES:
        return f"exit code {code}"
    if code in (2, 3):
        if len(said) < 1 or not said[-1].startswith("fedhip"):
            return f"refused without a line: {err!r}"
        if len(said) > 1 and not all(line.startswith("fedhip: ") for line in said):
            return f"refused in more than a line: {err!r}"
        if out:
            return f"refused, and printed {out[:200]!r}"
    elif must_fail and code == 0:
        return f"succeeded: {out[:200]!r}"
    elif "--json" in words and code == 0:
        try:
            json.loads(out, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
        except ValueError as error:
            return f"printed no JSON ({error}): {out[:200]!r}"
    return None


# Options.

#: Words with which each command works, or nearly; those that would start a server or take long are stopped short.
BASE = {
    "run": "run --features f.npz --out new --json --no-recommend",
    "show": "show run",
    "describe": "describe t.csv --label diagnosis",
    "report": "report run",
    "predict": "predict run --features east.npz --json",
    "export": "export run new.onnx --head-only --client nobody",
    "join": "join run --client east --features east.npz",
    "update": "update run --client north --features east.npz",
    "forget": "forget run --client north",
    "personalize": "personalize run",
    "influence": "influence run --json",
    "verify": "verify run --json",
    "audit": "audit --features east.npz --seconds 0.2 --json",
    "reproduce": "reproduce table1 --features f.npz --quick --methods none",
    "partition": "partition --features f.npz --json",
    "extract": "extract new.npz --dataset nothing",
    "pretrain": "pretrain --pool nothing --out new --steps 1",
    "list": "list datasets",
    "cache list": "cache list --json",
    "cache clear": "cache clear --site fed",
    "doctor": "doctor --json",
    "completion": "completion bash",
    "federation init": "federation init new --name demo --site a --site b --site c --classes x,y --width 4 --json",
    "federation accept": "federation accept far/parcels/a.json --json",
    "federation enroll": "federation enroll fed nothing.json",
    "federation rotate-key": "federation rotate-key fed/site-nobody",
    "federation fingerprint": "federation fingerprint fed",
    "federation serve": "federation serve nothing",
    "federation site": "federation site nothing --features f.npz",
    "federation run": "federation run fed",
    "federation status": "federation status fed --json",
    "federation stop": "federation stop fed",
    "federation renew": "federation renew fed",
    "federation revoke": "federation revoke fed nobody",
    "federation export-log": "federation export-log fed log.jsonl --json",
    "federation verify-log": "federation verify-log log.jsonl fed --json",
    "federation open-commitment": "federation open-commitment fed/site-a opening",
    "verify-commitment": "verify-commitment opening commitment.json --federation fed",
}
#: What is given to whoever asks; and what makes a run slow and not wrong.
_SPARED = (
    "--help",
    "--help-all",
    "--version",
    "--background",
    "--resume",
    "--device",
    "--jobs",
    "--methods",
    "--rounds",
    "--seconds",
)


def spoil_options(rng: np.random.Generator, folder: Path) -> tuple[list[str], bool]:
    """A command with one odd option or argument, and whether it must fail."""
    name = str(rng.choice(list(BASE)))
    words = BASE[name].split()
    parser = subparser(_PARSER, *name.split())
    options = [
        a
        for a in parser._actions
        if a.option_strings and a.nargs in (None, "+") and not set(a.option_strings) & set(_SPARED)
    ]
    if not options or rng.random() < 0.1:  # an argument
        places = [i for i, word in enumerate(words) if i >= len(name.split()) and not word.startswith("-")]
        if places:
            words[int(rng.choice(places))] = str(rng.choice(ODD))
        return words, False
    action = options[int(rng.integers(len(options)))]
    option = next(string for string in action.option_strings if string.startswith("--"))
    number = action.type in (int, float) or getattr(action.type, "__name__", "") == "parse"
    never = number and rng.random() < 0.6
    value = str(rng.choice(NEVER if never else ODD))
    return [*words, f"{option}={value}"], bool(never)


# Files.


def spoil_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """Flip, cut, repeat, insert."""
    if not data:
        return b"\0"
    kind, at = int(rng.integers(6)), int(rng.integers(len(data)))
    length = int(rng.integers(1, max(2, len(data) // 4)))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + data[at + length :]
    if kind == 3:
        return data[:at] + data[at : at + length] * 3 + data[at + length :]
    if kind == 4:
        return data[:at] + rng.bytes(length) + data[at:]
    return b"" if rng.random() < 0.3 else rng.bytes(int(rng.integers(1, 200)))


def spoil_json(rng: np.random.Generator, value: Any) -> Any:
    """The value with something in it replaced, left out or put twice."""
    if rng.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return VALUES[int(rng.integers(len(VALUES)))]
    if isinstance(value, dict):
        key = str(rng.choice(sorted(value)))
        if rng.random() < 0.2:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: spoil_json(rng, value[key])}
    at = int(rng.integers(len(value)))
    return [*value[:at], spoil_json(rng, value[at]), *value[at + (rng.random() < 0.8) :]]


def spoil_array(rng: np.random.Generator, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Another shape, kind or content."""
    kind = int(rng.integers(9))
    if kind == 0:
        return values[: int(rng.integers(len(values)))]
    if kind == 1:
        return values[None]
    if kind == 2:
        return np.zeros_like(values) if values.dtype.kind in "iuf" else np.full_like(values, "")
    if kind == 3 and values.dtype.kind in "iuf":
        return values.astype(np.float64) * float(rng.choice([np.nan, np.inf, 1e308, 1e-320, -1e200]))
    if kind == 4:
        return values.astype(np.str_)
    if kind == 5 and values.dtype.kind in "iuf":
        return values.astype(str(rng.choice(["float16", "int8", "complex64", "bool", "uint64", ">f8"])))
    if kind == 6:
        return np.array(rng.choice(["x", ""]))
    if kind == 7:
        return np.repeat(values[:1], len(values), axis=0)
    spoilt = values.copy()
    odd: Any = (
        float(rng.choice([np.nan, np.inf, -1e300]))
        if values.dtype.kind == "f"
        else -5
        if values.dtype.kind in "iu"
        else "\n"
    )
    spoilt[int(rng.integers(len(values)))] = odd
    return spoilt


def spoil_features(rng: np.random.Generator, folder: Path) -> tuple[list[str], bool]:
    """A feature file, to run, to predict, to join, to divide."""
    name = str(rng.choice(["f.npz", "f.safetensors", "east.npz"]))
    path = folder / name
    if rng.random() < 0.4:
        path.write_bytes(spoil_bytes(rng, path.read_bytes()))
    else:
        if path.suffix == ".npz":
            with np.load(path) as stored:
                arrays = dict(stored)
        else:
            arrays = load_file(path)
        chosen = str(rng.choice(sorted(arrays)))
        if rng.random() < 0.1:
            del arrays[chosen]
        else:
            arrays[chosen] = spoil_array(rng, arrays[chosen])
        if path.suffix == ".npz":
            np.savez(path, **arrays)
        else:
            kept = {
                key: np.ascontiguousarray(a)
                for key, a in arrays.items()
                if a.dtype.kind in "iufb" and a.dtype.byteorder != ">"
            }
            save_file(kept, path)
    commands = (
        f"run --features {name} --out new --json --clients 2 --partition iid",
        f"run --features {name} --out new --json --head lda",
        f"run --features {name} --out new --json --task regression",
        f"predict run --features {name} --json",
        f"join run --client east --features {name} --json",
        f"update run --client north --features {name} --json",
        f"partition --features {name} --json",
        f"audit --features {name} --seconds 0.2 --json --client north",
    )
    return commands[int(rng.integers(len(commands)))].split(), False


def spoil_table(rng: np.random.Generator, folder: Path) -> tuple[list[str], bool]:
    """A CSV file, cell by cell or byte by byte."""
    path = folder / "t.csv"
    if rng.random() < 0.4:
        path.write_bytes(spoil_bytes(rng, path.read_bytes()))
    else:
        lines = path.read_text(encoding="utf-8").splitlines()
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(len(lines)))
            cells = lines[at].split(",")
            cells[int(rng.integers(len(cells)))] = str(rng.choice([*ODD[:-4], *NEVER, '"', "NA", "1970-13-45"]))
            lines[at] = ",".join(cells)
        path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    commands = (
        "run --data t.csv --label diagnosis --client-column site --out new --json",
        "audit --data t.csv --label diagnosis --seconds 0.2 --json",
        "run --data t.csv --label age --task regression --clients 2 --out new --json",
        "run --data t.csv --columns columns.toml --out new --json",
        "describe t.csv --label diagnosis --json",
        "predict table t.csv --json",
        "join table --client east --data t.csv --json",
        "partition --data t.csv --label diagnosis --clients 2 --json",
    )
    return commands[int(rng.integers(len(commands)))].split(), False


def spoil_toml(rng: np.random.Generator, folder: Path) -> tuple[list[str], bool]:
    """A configuration, or what a table's columns hold."""
    name, words = (
        ("c.toml", "run c.toml --out new --json")
        if rng.random() < 0.6
        else ("columns.toml", "run --data t.csv --columns columns.toml --out new --json")
    )
    path = folder / name
    if rng.random() < 0.4:
        path.write_bytes(spoil_bytes(rng, path.read_bytes()))
    else:
        lines = path.read_text(encoding="utf-8").splitlines()
        at = int(rng.integers(len(lines)))
        key = lines[at].partition("=")[0].strip() or "alpha"
        value = VALUES[int(rng.integers(len(VALUES)))]
        lines[at] = f"{key} = {json.dumps(value)}" if value is not None else f"{key} ="
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return words.split(), False


def spoil_run(rng: np.random.Generator, folder: Path) -> tuple[list[str], bool]:
    """A file of a run; `verify` must not call it sound."""
    run = folder / str(rng.choice(["run", "table"]))
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.suffix != ".html")
    path = files[int(rng.integers(len(files)))]
    before = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.7:
        path.write_text(json.dumps(spoil_json(rng, json.loads(before)), ensure_ascii=True), encoding="utf-8")
    else:
        path.write_bytes(spoil_bytes(rng, before))
    commands = (
        f"verify {run.name} --json",
        f"show {run.name}",
        f"report {run.name} --json",
        f"predict {run.name} --features east.npz --client north --json",
        f"forget {run.name} --client north --json",
        f"join {run.name} --client east --features east.npz --json",
        f"personalize {run.name} --json",
    )
    words = commands[int(rng.integers(len(commands)))].split()
    return words, words[0] == "verify" and not _says_the_same(path, before)


def _says_the_same(path: Path, before: bytes) -> bool:
    """Whether a file still means what it meant; of receipts and configurations, as they are read."""
    after = path.read_bytes()
    readers: dict[str, Callable[[bytes], Any]] = {
        ".json": json.loads,
        ".toml": lambda data: tomllib.loads(data.decode()),
    }
    read = readers.get(path.suffix)
    if read is None or path.name in ("results.json", "details.json", "partition.json"):
        return after == before
    try:
        return bool(read(after) == read(before))
    except ValueError:
        return False


def spoil_federation(rng: np.random.Generator, folder: Path) -> tuple[list[str], bool]:
    """A parcel, an agreement, a roster, a policy."""
    files = sorted(
        p
        for p in (*folder.glob("far/**/*"), *folder.glob("fed/**/*"))
        if p.is_file() and p.suffix in (".json", ".toml")
    )
    path = files[int(rng.integers(len(files)))]
    if path.suffix == ".json" and rng.random() < 0.7:
        path.write_text(json.dumps(spoil_json(rng, json.loads(path.read_text()))), encoding="utf-8")
    else:
        path.write_bytes(spoil_bytes(rng, path.read_bytes()))
    commands = (
        *(
            f"federation {command} {at} --json"
            for command in ("fingerprint", "status", "stop", "renew")
            for at in ("fed", "far")
        ),
        f"federation accept {path.relative_to(folder)} --json",
        f"federation fingerprint {path.relative_to(folder)}",
        "federation fingerprint fed/site-a",
        "federation status fed/site-a --json",
        f"federation enroll far {path.relative_to(folder)}",
    )
    return commands[int(rng.integers(len(commands)))].split(), False


# Messages.


def spoil_message(rng: np.random.Generator) -> str | None:
    """A letter of the federation, of which nothing but a MessageError may come."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from fedhip.federation.errors import MessageError
    from fedhip.federation.transport.wire import Envelope, Letter, RoundStep, by_site, from_records, to_records

    letter = Letter(
        Envelope(bytes(32), "a" * 64, "b" * 64, RoundStep.MASK),
        {"secure": True, "number": 3, "real": 0.5, "text": "north", **by_site("shares", {"a": b"1", "b": b""})},
        {"vector": np.arange(4, dtype=np.uint64)},
    )
    records: Any = to_records(letter)
    odd: tuple[Any, ...] = (
        "",
        "x",
        b"",
        b"\xff" * 40,
        -1,
        0,
        2**62,
        1.5,
        True,
        float("nan"),
        ["a", "a"],
        [b""],
        "é" * 400,
    )
    which = str(rng.choice(["fedhip", "body", "arrays", "records"]))
    value = odd[int(rng.integers(len(odd)))]
    if which in ("fedhip", "body"):
        fields = dict(records[which])
        key = str(rng.choice([*fields, "more"]))
        fields = {**fields, key: value} if rng.random() < 0.8 else {k: v for k, v in fields.items() if k != key}
        records = RecordDict({**records, which: ConfigRecord(fields)})
    elif which == "arrays":
        kind, length = str(rng.choice(["uint64", "float64", "object", "uint8"])), int(rng.integers(0, 40))
        array = Array(
            kind, (int(rng.integers(-1, 6)),) * int(rng.integers(0, 3)), "fedhip.little-endian", rng.bytes(length)
        )
        records = RecordDict({**records, "arrays": ArrayRecord({"vector": array})})
    else:
        records = RecordDict({name: each for name, each in records.items() if rng.random() < 0.5})
    try:
        with patience():
            read = from_records(records)
            for ask in (read.text, read.data, read.number, read.real, read.flag, read.names, read.mapping, read.array):
                for name in (*read.body, "shares", "vector"):
                    try:
                        ask(name)
                    except MessageError:
                        continue
            read.digest()
    except MessageError:
        return None
    except BaseException:
        return traceback.format_exc()
    return None


def spoil_wire(rng: np.random.Generator) -> str | None:
    """Bytes of the secure aggregation, of which nothing but an error of ours may come."""
    from fedhip.federation.secure_sum.encoding import pack, unpack, unpack_mapping
    from fedhip.federation.secure_sum.terms import Terms
    from fedhip.federation.sums.vector import from_bytes

    data = spoil_bytes(rng, pack([b"a", b"", rng.bytes(40)]))
    for read in (unpack, unpack_mapping, Terms.from_bytes, from_bytes):
        try:
            with patience():
                read(data)
        except FedHiPError:
            continue
        except ValueError as error:
            if read is not from_bytes:  # its length is checked by who reads it
                return f"{read}: {error!r}\n{traceback.format_exc()}"
        except BaseException:
            return traceback.format_exc()
    return None


Spoil = Callable[[np.random.Generator, Path], tuple[list[str], bool]]
COMMANDS: tuple[Spoil, ...] = (
    *(
        spoil_options,
        spoil_options,
        spoil_options,
        spoil_features,
        spoil_table,
        spoil_toml,
        spoil_run,
        spoil_federation,
    ),
)
MESSAGES = (spoil_message, spoil_wire)
_PARSER = build_parser()


def one(place: Place, seed: int, number: int, scratch: Path) -> tuple[str, str] | None:
    """Input `number` of a seed: None if all is well, else the input and what is wrong."""
    rng = np.random.default_rng([seed, number])
    if number % 4 == 3:
        spoil = MESSAGES[int(rng.integers(len(MESSAGES)))]
        fault = spoil(rng)
        return None if fault is None else (spoil.__name__, fault)
    folder = place.copy(scratch / str(number))
    try:
        with inside(folder):
            words, must_fail = COMMANDS[int(rng.integers(len(COMMANDS)))](rng, folder)
            words = [word for word in words if "\0" not in word]
            fault = fault_of(words, must_fail)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None if fault is None else ("fedhip " + " ".join(map(ascii, words)), fault)


@contextmanager
def prepared() -> Iterator[tuple[Place, Path]]:
    """The things to be spoilt, in a folder of their own; reports whole but for their drawing."""
    with tempfile.TemporaryDirectory() as root:
        own = {"FEDHIP_CACHE": f"{root}/cache", "FEDHIP_STATE": f"{root}/state"}
        with (
            patch.dict(os.environ, own),
            patch("fedhip.runs.report.render_report", lambda _: "<html></html>"),
            patch("os.fsync", lambda _: None),
        ):
            (Path(root) / "scratch").mkdir()
            yield make_place(Path(root) / "place"), Path(root) / "scratch"


def findings(seed: int, numbers: Iterator[int], seconds: float) -> Iterator[tuple[int, str, str]]:
    """What goes wrong, for so many seconds of processor time."""
    with prepared() as (place, scratch):
        end = time.process_time() + seconds
        for number in numbers:
            if time.process_time() > end:
                return
            found = one(place, seed, number, scratch)
            if found is not None:
                yield number, *found


def run(argv: Sequence[str] | None = None) -> int:
    """Look for a while, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: another each time")
    parser.add_argument("--only", type=int, metavar="N", help="this input alone")
    args = parser.parse_args(argv)
    numbers = iter(range(sys.maxsize)) if args.only is None else iter([args.only])
    seen = 0

    def counted() -> Iterator[int]:
        nonlocal seen
        for number in numbers:
            seen = number
            yield number

    bad = 0
    for number, what, fault in findings(args.seed, counted(), args.seconds):
        bad += 1
        print(f"--seed {args.seed} --only {number}: {what}\n{fault.strip()}\n", flush=True)
    print(f"seed {args.seed}: {seen + 1:,} inputs, {bad} findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(run())
