"""How many rows lattice reduction gets back from a Gram matrix on the integer grid, and in what time.

    python benchmarks/lattice.py
    python benchmarks/lattice.py --sizes 12x128 90x400 --seconds 60

Random rows of 14 bits. "Found" means every row, up to its sign, to the last bit.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np

from fedhip.privacy.lattice import factor

SIZES = ("12x13", "12x14", "12x16", "12x18", "12x128", "48x144", "80x400", "90x400")


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="ROWSxFEATURES")
    parser.add_argument("--seconds", type=float, default=60.0, help="patience with each (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(f"{'rows':>5}{'features':>10}  found    seconds")
    for size in args.sizes:
        rows, features = map(int, size.split("x"))
        drawn = np.random.default_rng(args.seed).integers(-(2**13), 2**13, (rows, features))
        gram = drawn.T @ drawn
        began = time.perf_counter()
        found = factor(gram, rows, go_on=partial(_before, began + args.seconds))
        seconds = time.perf_counter() - began
        same = found is not None and _up_to_sign(found.rows) == _up_to_sign(drawn)
        print(f"{rows:5}{features:10}  {'all' if same else 'no':<5}{seconds:11.2f}", flush=True)


def _before(end: float) -> bool:
    return time.perf_counter() < end


def _up_to_sign(rows: np.ndarray) -> set[tuple[int, ...]]:
    """Rows as a set, each with the sign that makes its first number other than 0 positive."""
    return {tuple((row * np.sign(row[np.flatnonzero(row)[0]])).tolist()) for row in rows}


if __name__ == "__main__":
    main()
