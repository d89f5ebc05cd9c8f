"""Very many clients on one machine: seconds, processor time and memory of `fedhip run`, and whether its sum is exact.

    python benchmarks/many.py                                            10,000 clients × 10 rows × 64 features
    python benchmarks/many.py --clients 1000000
    python benchmarks/many.py --rows 50 --width 768
    python benchmarks/many.py --clients 1000 --files                     a file for each client, as of few clients

Rows are drawn around class means, by shares of classes of each client's own. Memory is the process's own (anonymous
pages), and with the pages of the files that it has mapped, which the system takes back when it needs them.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.data import read_features
from fedhip.runs import Run

_PART = 2**16


def main() -> None:
    """Make the rows, run, print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--files", action="store_true", help="a file for each client, whatever their number")
    parser.add_argument("--verify", action="store_true", help="fedhip verify afterwards, and the sum of all rows anew")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    given = parser.parse_args()
    with TemporaryDirectory(dir=given.folder) as folder:
        data, out = Path(folder) / "rows.npz", Path(folder) / "run"
        write_rows(data, given.clients, given.rows, given.width, given.classes)
        words = [sys.executable, "-m", "fedhip", "run", "--features", str(data), "--out", str(out), "--head", "ridge"]
        # With a ridge that is named, and training alone beside it, models are written one by one.
        words += ["--methods", "local,global,fedhip" if given.files else "global,fedhip", "--no-statistics"]
        wall, processor, own, mapped = measured(words)
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        print(
            f"{given.clients:,} clients × {given.rows} × {given.width}: {wall:.0f} s, processor {processor:.0f} s, "
            f"{own:.2f} GB of its own, {mapped:.2f} GB with mapped files; {size / 1e9:.2f} GB written"
        )
        print({phase: round(seconds, 1) for phase, seconds in Run.open(out).results["seconds"].items()})
        if given.verify:
            check(data, out)


def write_rows(path: Path, clients: int, rows: int, width: int, classes: int) -> None:
    """A feature file, two of ten rows of each client to test on."""
    random = np.random.default_rng(0)
    means = (0.35 * random.normal(size=(classes, width))).astype(np.float32)
    features, labels = np.empty((clients * rows, width), np.float32), np.empty(clients * rows, np.int64)
    for start in range(0, clients, _PART):
        some = slice(start * rows, min(start + _PART, clients) * rows)
        shares = random.dirichlet(np.full(classes, 0.5), size=min(_PART, clients - start)).cumsum(axis=1)
        drawn = (random.random((len(shares), rows, 1)) < shares[:, None]).argmax(axis=2).reshape(-1)
        labels[some], features[some] = drawn, means[drawn]
        features[some] += random.standard_normal((len(drawn), width), np.float32)
    digits = len(str(clients - 1))
    names = np.repeat(np.array([f"c{k:0{digits}}" for k in range(clients)]), rows)
    split = np.tile((np.arange(rows) >= round(0.8 * rows)).astype(np.int8), clients)
    np.savez(path, features=features, labels=labels, clients=names, split=split)


def measured(words: list[str]) -> tuple[float, float, float, float]:
    """Seconds by the clock and of processors, and gigabytes: its own, and with mapped files."""
    begin, before, own, mapped = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN), 0, 0
    with subprocess.Popen(words) as process:  # noqa: S603
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            except OSError:
                break
            held = {name: int(kilobytes) for name, kilobytes in re.findall(r"(RssAnon|VmHWM):\s+(\d+)", status)}
            own, mapped = max(own, held.get("RssAnon", 0)), max(mapped, held.get("VmHWM", 0))
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit(process.returncode)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begin, processor, own / 1e6, mapped / 1e6


def check(data: Path, out: Path) -> None:
    """Verify the run, and sum all training rows as if they were one client's: the ridge of all."""
    rows, run = read_features(data), Run.open(out)
    train = np.flatnonzero(rows.split == 0)
    parts = (train[start : start + _PART] for start in range(0, len(train), _PART))
    total = sum(
        GridStatistics.from_data(
            run.encoding.features((rows.features[part], rows.labels[part])), rows.labels[part], rows.num_classes,
            fraction_bits=run.encoding.fraction_bits,
        )
        for part in parts
    )  # fmt: skip
    print("the sum is that of one ridge of all rows:", total == run.total())
    begin = time.perf_counter()
    wrong = [each for each in run.verify() if each.problem]
    print(f"verify: {wrong or 'all is well'}, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
