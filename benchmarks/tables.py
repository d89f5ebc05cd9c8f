"""A large table from file to report: seconds of each part and the most memory that was held.

    python -m benchmarks.tables --rows 1000000 --columns 50 --out FOLDER

Numbers, categories, dates and missing values for 20 clients; the same rows as Parquet and as CSV.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

_CHILD = """
import json, resource, sys, time
import fedhip
from fedhip.data.tables import load_table
begin = time.perf_counter()
rows = load_table(sys.argv[1], label="label", client="site")
loaded, after_load = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin = time.perf_counter()
run = fedhip.run(rows, out=sys.argv[2], force=True)
spent = time.perf_counter() - begin
cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
print(json.dumps({
    "load_seconds": loaded, "run_seconds": spent, "processor_seconds": cpu,
    "load_gb": after_load / 1e6, "most_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    "features": run.results["feature_dim"], "accuracy": run.results["methods"]["fedhip"]["accuracy"]["mean"],
}))
"""


def main() -> None:
    """Make the table, load and run it in a process of its own, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50, help="besides label and client")
    parser.add_argument("--format", choices=("csv", "parquet"), nargs="+", default=["csv", "parquet"])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for kind in args.format:
        path = args.out / f"table.{kind}"
        make(args.rows, args.columns, path)
        begin = time.perf_counter()
        done = subprocess.run(  # noqa: S603 (our own program)
            [sys.executable, "-c", _CHILD, str(path), str(args.out / f"run-{kind}")],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        found = json.loads(done.stdout.splitlines()[-1])
        size = path.stat().st_size / 1e6
        whole = time.perf_counter() - begin
        print(
            f"{kind}: {args.rows:,} rows × {args.columns} columns ({size:,.0f} MB) → {found['features']} features; "
            f"load {found['load_seconds']:.0f} s, run and report {found['run_seconds']:.0f} s, in all {whole:.0f} s "
            f"({found['processor_seconds']:.0f} s of processor time); memory {found['load_gb']:.1f} GB after loading, "
            f"at most {found['most_gb']:.1f} GB; accuracy {found['accuracy']:.3f}"
        )


def make(rows: int, columns: int, path: Path) -> None:
    """A table whose label depends on some of its columns, and on the site."""
    import polars as pl

    random = np.random.default_rng(0)
    site = random.integers(0, 20, rows)
    signal = np.zeros(rows)
    made: dict[str, pl.Series] = {"site": pl.Series(site).cast(pl.String)}
    for i in range(columns):
        if i % 10 == 8:
            codes = random.integers(0, 5, rows)
            signal += 0.3 * (codes == site % 5)
            made[f"c{i}"] = pl.Series(np.array(["red", "green", "blue", "white", "black"]))[codes]
        elif i % 10 == 9:
            days = random.integers(0, 9000, rows)
            made[f"d{i}"] = pl.Series(days.astype("datetime64[D]"))
        else:
            values = random.normal(10.0 * i, 1.0 + i, rows).round(4)
            signal += random.normal() * (values - values.mean()) / values.std()
            gone = random.random(rows) < (0.05 if i % 3 == 0 else 0.0)
            made[f"x{i}"] = pl.Series(np.where(gone, np.nan, values)).fill_nan(None)
    made["label"] = pl.Series(np.where(signal + random.normal(size=rows) > 0, "yes", "no"))
    frame = pl.DataFrame(made)
    if path.suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)


if __name__ == "__main__":
    main()
