"""A round between real processes on this machine: seconds, bytes on the wire, and memory of each kind of process.

    python -m benchmarks.federation [--sites 4 16] [--width 768] [--rows 500] [--classes 10] [--alpha 5]
                                    [--no-secure-sum] [--head logistic] [--gradient-rounds 5] [--apart 0.05]
                                    [--columns plain] [--beta gcv] [--idle 70] [--crowd]

TLS, keys, the proxy in front, and the sum under masks; random features. The sites choose α by leave-one-out, which on
these features may well be 0, the global model; `--alpha` has every site solve a model of its own. With `--columns plain
--beta gcv` there is one sum, else three. Seconds are those of the whole machine: the load beside it, printed too, makes
them longer. Processor seconds are of all processes that were started, from `serve` to the end of the round: by kind of
process, and by step of the round, from what was used at each look, ten times a second. Interpreters and forks are those
that were seen. With `--crowd` all sites are threads of one process, whose forks answer. What the programs load is
compiled and kept before, as pip does at an installation: an environment that forbids it (PYTHONDONTWRITEBYTECODE) would
have every program compile torch and the engine anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedhip.federation.agreement.agreement import HEADS
from fedhip.federation.agreement.init import init
from fedhip.federation.operations import background, process_registry, round_control, serving
from fedhip.federation.operations.paths import ServerPaths, StatePaths
from fedhip.federation.transport import engine
from fedhip.federation.transport.control import Control

#: What the programs of a federation load.
_LOADED = (
    *(f"fedhip.federation.transport.{name}" for name in ("link", "executor", "node", "proxy")),
    *(f"fedhip.federation.operations.{name}" for name in ("background", "joining", "serving")),
    *(f"fedhip.{name}" for name in ("federation.server_app", "federation.client_app", "heads.auto", "runs.report")),
    *("flwr.superlink.cli.flower_superlink", "matplotlib.backends.backend_svg"),
)


class Watch(threading.Thread):
    """Looks, ten times a second, at what each kind of process takes."""

    def __init__(self, folders: list[Path]) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, float] = defaultdict(float)
        self.used: list[tuple[float, dict[str, float]]] = []  # at a time, processor seconds by kind of process
        self.seen: set[int] = set()
        self.interpreters: set[int] = set()
        self.done = threading.Event()
        self._folders = folders

    def run(self) -> None:
        """Until done."""
        while not self.done.wait(0.1):
            self.look()

    def look(self) -> None:
        """Now."""
        records = [process_registry.recorded(StatePaths(folder / "state").pids) for folder in self._folders]
        used: dict[str, float] = defaultdict(float)
        now = time.time()
        for process in _processes({record.pid for several in records for record in several}):
            self.peaks[process.name] = max(self.peaks[process.name], process.peak)
            used[process.name] += process.seconds
            self.seen.add(process.pid)
            if not process.is_fork:
                self.interpreters.add(process.pid)
        self.used.append((now, dict(used)))

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Processor seconds by kind of process between two times."""
        before, after = self._at(begin), self._at(end)
        return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}

    def _at(self, when: float) -> dict[str, float]:
        return max((look for look in self.used if look[0] <= when), key=lambda look: look[0], default=(0.0, {}))[1]


class _Process(NamedTuple):
    pid: int
    name: str
    peak: float  # MB
    seconds: float  # of the processor, its own and that of its children that have ended
    is_fork: bool  # of a process with the same command


def _processes(sessions: Collection[int]) -> Iterator[_Process]:
    """The processes of sessions."""
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if not entry.name.isdecimal() or int(fields[3]) not in sessions:
                continue
            command = (entry / "cmdline").read_text()
            memory = next(line for line in (entry / "status").read_text().splitlines() if line.startswith("VmHWM"))
            is_fork = Path(f"/proc/{fields[1]}/cmdline").read_text() == command
        except (OSError, StopIteration, IndexError):
            continue
        seconds = sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
        words = command.split("\0")
        name = next((Path(word).name for word in words if "flwr-" in word or "flower-" in word), "")
        name = name or next((word.rpartition(".")[2] for word in words if word.startswith("fedhip.")), "other")
        name += " app" if is_fork or "app" in words else ""
        yield _Process(int(entry.name), name, int(memory.split()[1]) / 1024, seconds, is_fork)


def write_rows(path: Path, rows: int, width: int, classes: int, seed: int, apart: float) -> None:
    """A site's features: overlapping classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    means = np.random.default_rng(0).normal(size=(classes, width)).astype(np.float32)
    features = apart * means[labels] + rng.standard_normal((rows, width), dtype=np.float32)
    np.savez(path, features=features, labels=np.array([f"class {label}" for label in labels]))


def main() -> None:
    """Measure one round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 16])
    for name, usual in {"width": 768, "rows": 500, "classes": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--secure-sum", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--head", choices=HEADS, default="ridge")
    parser.add_argument("--gradient-rounds", type=int)
    parser.add_argument("--columns", choices=("sum", "plain"), default="sum")
    parser.add_argument("--beta", choices=("auto", "gcv"), default="auto")
    parser.add_argument("--apart", type=float, default=0.3, help="of the classes; at 0.05 a logistic head has doubts")
    parser.add_argument("--crowd", action="store_true", help="all sites in one process: for a hundred and more")
    parser.add_argument("--idle", type=float, default=0.0, help="seconds after the round until memory is looked at")
    args = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", f"import {', '.join(_LOADED)}"], check=True)  # noqa: S603
    for count in args.sites:
        with tempfile.TemporaryDirectory() as scratch:
            measure(args, count, Path(scratch))


def measure(args: argparse.Namespace, count: int, scratch: Path) -> None:
    """From `init` to the round's end."""
    os.environ["FEDHIP_STATE"] = str(scratch / "ledger")  # these sums are none of the user's, and may be made again
    sites = [f"s{number}" for number in range(count)]
    for number, site in enumerate(sites):
        write_rows(scratch / f"{site}.npz", args.rows, args.width, args.classes, number + 1, args.apart)
    begin, load = time.time(), os.getloadavg()[0]
    made = init(
        scratch / "fed",
        name="benchmark",
        sites=sites,
        classes=[f"class {number}" for number in range(args.classes)],
        width=args.width,
        port=engine.free_port(),
        alpha="loo" if args.alpha is None else args.alpha,
        secure_sum=args.secure_sum,
        columns=args.columns,
        beta=args.beta,
        head=args.head,
        gradient_rounds=args.gradient_rounds,
        deadline=3600.0,
    )
    serving.write_endpoint(made.directory, made.address)
    place = ServerPaths.open(made.directory)
    folders = list(made.for_sites.values())
    if not args.secure_sum:
        for folder in folders:
            policy = folder / "site.toml"
            policy.write_text(policy.read_text().replace("require_secure_sum = true", "require_secure_sum = false"))
    watch = Watch([made.directory, *(folders[:1] if args.crowd else folders)])
    stack = contextlib.ExitStack()
    watch.start()
    try:
        background.apart("serve", {"folder": str(made.directory), "bind": None, "port": None, "proxy": True})
        served = time.time()
        data = [str(scratch / f"{site}.npz") for site in sites]
        if args.crowd:
            stack.enter_context(_crowd(folders, data))
        else:
            joined = [{"folder": str(folder), "settings": {"data": d}} for folder, d in zip(folders, data, strict=True)]
            with ThreadPoolExecutor() as pool:
                list(pool.map(background.apart, ["site"] * len(sites), joined))
        came = time.time()
        round_control.run(place, say=lambda _: None)
        over = time.time()
        watch.look()
        with Control(place.control_port(), place.authority, place.state.secret) as control:
            (run,) = control.runs()
        time.sleep(args.idle)
        idle = _memory(folders[0])
    finally:
        watch.done.set()
        watch.join()
        stack.close()
        round_control.stop(made.directory)
    results: dict[str, Any] = json.loads((place.state.path / "result" / "results.json").read_text(encoding="utf-8"))
    cores = f"{os.cpu_count()} cores, load before {load:.1f}"
    print(f"{args.head}: {count} sites, m = {args.width}, {args.rows} rows each; {cores}")
    if results["dropped"]:
        print(f"left out         {results['dropped']}")
    print(f"seconds          serve {served - begin:.1f}, sites {came - served:.1f}, round {over - came:.1f}", end="")
    print(f", together {over - begin:.1f}")
    print(f"seconds by step  {_listed(results['seconds'], 1, ordered=False)}")
    used, phases = (
        watch.between(begin, over),
        {"serve": (begin, served), "sites": (served, came), "round": (came, over)},
    )
    spent = {phase: sum(watch.between(*times).values()) for phase, times in phases.items()}
    print(f"processor s      {_listed(spent, 1, ordered=False)}, together {sum(used.values()):.1f}", end="")
    print(
        f", in {len(watch.interpreters)} interpreters and {len(watch.seen - watch.interpreters)} forks that were seen"
    )
    print(f"  by process     {_listed(used, 1)}")
    for step, (seconds, used) in _by_step(place.progress, came, over, watch).items():
        print(f"  {step:<14} {seconds:5.1f} s, processor {sum(used.values()):4.1f}: {_listed(used, 1)}")
    up, down = (size / 1e6 / count for size in (run.received, run.sent))
    print(f"MB of each site  up {up:.2f}, down {down:.2f}")
    print(f"MB after {args.idle:.0f} s     {_listed(idle)}, together {sum(idle.values()):.0f} (shared pages in parts)")
    print(f"peak MB          {_listed(watch.peaks)}", flush=True)


@contextlib.contextmanager
def _crowd(folders: list[Path], data: list[str]) -> Iterator[None]:
    """All sites in one process (`benchmarks.crowd`), once they are connected."""
    command = [sys.executable, "-m", "benchmarks.crowd"]
    environment = engine.environment(StatePaths(folders[0] / "state").home)
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as crowd:
        try:
            assert crowd.stdin is not None
            assert crowd.stdout is not None
            process_registry.record(StatePaths(folders[0] / "state").pids, "site", crowd.pid)
            json.dump([(str(folder), rows) for folder, rows in zip(folders, data, strict=True)], crowd.stdin)
            crowd.stdin.write("\n")
            crowd.stdin.flush()
            here = 0
            while here < len(folders):  # the engine may say something in between
                said = crowd.stdout.readline()
                if not said:
                    raise SystemExit("the sites have ended")
                here += said == "here\n"
            yield
        finally:
            crowd.kill()


def _by_step(progress: Path, begin: float, over: float, watch: Watch) -> dict[str, tuple[float, dict[str, float]]]:
    """Seconds, and processor seconds by kind of process, of each step: from its question until the next."""
    marks = [(begin, "start")]
    for line in progress.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if "asked" in event or event["step"] in ("sum", "finished"):
            marks.append((datetime.fromisoformat(event["time"]).timestamp(), event["step"]))
    found: dict[str, tuple[float, dict[str, float]]] = {}
    for (start, step), (end, _) in pairwise([*marks, (over, "")]):
        seconds, used = found.get(step, (0.0, {}))
        new = watch.between(start, end)
        found[step] = seconds + end - start, {name: used.get(name, 0.0) + new.get(name, 0.0) for name in {*used, *new}}
    return found


def _memory(folder: Path) -> dict[str, float]:
    """MB of a site's processes, pages that several share counted in parts."""
    found: dict[str, float] = defaultdict(float)
    for record in process_registry.recorded(StatePaths(folder / "state").pids):
        for process in _processes({record.pid}):
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
                found[process.name] += int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024
    return found


def _listed(numbers: Mapping[str, float], digits: int = 0, *, ordered: bool = True) -> str:
    pairs = sorted(numbers.items(), key=lambda item: -item[1]) if ordered else list(numbers.items())
    return ", ".join(f"{name} {number:.{digits}f}" for name, number in pairs if not ordered or round(number, digits))


if __name__ == "__main__":
    main()
