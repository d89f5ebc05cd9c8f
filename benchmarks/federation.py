"""A round between real processes on this machine: seconds, bytes on the wire, and memory of each kind of process.

    python benchmarks/federation.py [--sites 4] [--width 768] [--rows 500] [--classes 10] [--alpha 5] [--no-secure-sum]
                                    [--head logistic] [--gradient-rounds 5] [--apart 0.05]
                                    [--columns plain] [--beta gcv]

TLS, keys, the proxy in front, and the sum under masks; random features. The sites choose α by leave-one-out, which on
these features may well be 0, the global model; `--alpha` has every site solve a model of its own. With `--columns plain
--beta gcv` there is one sum, else three. Seconds are those of the whole machine: the load beside it, printed too, makes
them longer. Processor seconds are of all processes that were started.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fedhip.federation.agreement.agreement import HEADS
from fedhip.federation.agreement.init import init
from fedhip.federation.operations import background, process_registry, round_control, serving
from fedhip.federation.operations.paths import ServerPaths, StatePaths
from fedhip.federation.transport import engine
from fedhip.federation.transport.control import Control

_TICK = os.sysconf("SC_CLK_TCK")


class Watch(threading.Thread):
    """Looks, twice a second, at what each kind of process takes."""

    def __init__(self, folders: list[Path]) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, float] = defaultdict(float)
        self.processor: dict[tuple[str, int], float] = {}
        self.done = threading.Event()
        self._folders = folders

    def run(self) -> None:
        """Until done."""
        while not self.done.wait(0.5):
            for folder in self._folders:
                for record in process_registry.recorded(StatePaths(folder / "state").pids):
                    self._look(record.pid)

    def _look(self, session: int) -> None:
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if not entry.name.isdecimal() or int(fields[3]) != session:
                    continue
                words = (entry / "cmdline").read_text().split("\0")
                memory = next(line for line in (entry / "status").read_text().splitlines() if line.startswith("VmHWM"))
            except (OSError, StopIteration, IndexError):
                continue
            name = next((Path(word).name for word in words if "flwr-" in word or "flower-" in word), "")
            name = name or next((word.rpartition(".")[2] for word in words if word.startswith("fedhip.")), "other")
            self.peaks[name] = max(self.peaks[name], int(memory.split()[1]) / 1024)
            self.processor[name, int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICK


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
    for name, usual in {"sites": 4, "width": 768, "rows": 500, "classes": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--secure-sum", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--head", choices=HEADS, default="ridge")
    parser.add_argument("--gradient-rounds", type=int)
    parser.add_argument("--columns", choices=("sum", "plain"), default="sum")
    parser.add_argument("--beta", choices=("auto", "gcv"), default="auto")
    parser.add_argument("--apart", type=float, default=0.3, help="of the classes; at 0.05 a logistic head has doubts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measure(args, Path(scratch))


def measure(args: argparse.Namespace, scratch: Path) -> None:
    """From `init` to the round's end."""
    sites = [f"s{number}" for number in range(args.sites)]
    for number, site in enumerate(sites):
        write_rows(scratch / f"{site}.npz", args.rows, args.width, args.classes, number + 1, args.apart)
    begin, load = time.perf_counter(), os.getloadavg()[0]
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
    )
    serving.write_endpoint(made.directory, made.address)
    place = ServerPaths.open(made.directory)
    folders = list(made.for_sites.values())
    if not args.secure_sum:
        for folder in folders:
            policy = folder / "site.toml"
            policy.write_text(policy.read_text().replace("require_secure_sum = true", "require_secure_sum = false"))
    watch = Watch([made.directory, *folders])
    watch.start()
    try:
        background.apart("serve", {"folder": str(made.directory), "bind": None, "port": None, "proxy": True})
        served = time.perf_counter()
        joined = [
            {"folder": str(folder), "settings": {"data": str(scratch / f"{site}.npz")}}
            for site, folder in zip(sites, folders, strict=True)
        ]
        with ThreadPoolExecutor() as pool:
            list(pool.map(background.apart, ["site"] * len(sites), joined))
        came = time.perf_counter()
        round_control.run(place, say=lambda _: None)
        over = time.perf_counter()
        with Control(place.control_port(), place.authority, place.state.secret) as control:
            (run,) = control.runs()
    finally:
        watch.done.set()
        watch.join()
        round_control.stop(made.directory)
    cores = f"{os.cpu_count()} cores, load before {load:.1f}"
    print(f"{args.head}: {args.sites} sites, m = {args.width}, {args.rows} rows each; {cores}")
    print(f"seconds          serve {served - begin:.0f}, sites {came - served:.0f}, round {over - came:.0f}", end="")
    print(f", together {over - begin:.0f}")
    spent: dict[str, float] = defaultdict(float)
    for (name, _), seconds in watch.processor.items():
        spent[name] += seconds
    print(f"processor s      {_listed(spent)}, together {sum(spent.values()):.0f}")
    up, down = (size / 1e6 / args.sites for size in (run.received, run.sent))
    print(f"MB of each site  up {up:.2f}, down {down:.2f}")
    print(f"peak MB          {_listed(watch.peaks)}")


def _listed(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name} {number:.0f}" for name, number in sorted(numbers.items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    main()
