"""With how many neighbours a site would have to mask, if not with all others, and what that would save.

    python -m benchmarks.neighbours [--sites 51 100 200 500 1000] [--bits 40]

The sites stand in a circle, in an order that nobody chooses, and each has a mask in common with the k/2 on either side
(Bell et al. 2020, who take this graph). Masks hide all but the sum while the honest sites that are left hang together:
a group that does not is a sum of its own. The server has c accomplices, whose places are random, and says last who is
gone: it knows the circle by then, and each site accepts any d = n - t sites that are gone. To cut the circle it takes
two gaps of k/2 places. So it succeeds just where two such stretches have d honest sites together at most. The least k
is that for which a bound on the probability of this, over all pairs of stretches, is below 2^-bits.

Of seconds: what a mask takes for 768 features and 10 classes, measured here.
"""

from __future__ import annotations

import argparse
import os
import time
from math import comb, log2

import numpy as np

from fedhip.federation.agreement.limits import least_threshold
from fedhip.federation.secure_sum.masks import apply_masks


def failure_bits(sites: int, accomplices: int, gone: int, neighbours: int) -> float:
    """-log2 of a bound on the probability that a server can cut the circle; infinite where it never can.

    Of 2 · (k/2) places in a random order, at least k - d must be accomplices'; over all pairs of stretches.
    """
    ways = sum(
        comb(accomplices, those) * comb(sites - accomplices, neighbours - those)
        for those in range(max(0, neighbours - gone), min(accomplices, neighbours) + 1)
    )
    pairs = comb(sites, 2)
    return log2(comb(sites, neighbours)) - log2(pairs * ways) if ways else float("inf")


def least_neighbours(sites: int, accomplices: int, gone: int, bits: float) -> int:
    """The least even k, or all others."""
    enough = (k for k in range(2, sites - 1, 2) if failure_bits(sites, accomplices, gone, k) >= bits)
    return next(enough, sites - 1)


def seconds_of_a_mask(width: int = 768, classes: int = 10) -> float:
    """Processor seconds for one mask of a vector."""
    vector = np.zeros(width * (width + 1) // 2 + width * classes + classes, dtype=np.uint64)
    keys = [os.urandom(32) for _ in range(500)]
    begin = time.process_time()
    apply_masks(vector, keys, [])
    return (time.process_time() - begin) / len(keys)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[51, 100, 200, 500, 1000])
    parser.add_argument("--bits", type=float, default=40.0)
    args = parser.parse_args()
    each = seconds_of_a_mask()
    print(f"a mask of 768 features and 10 classes: {1e3 * each:.1f} ms of processor time")
    for said, shares in {"by default": None, "a twentieth dishonest": 20}.items():
        for n in args.sites:
            c = n // 3 if shares is None else n // shares
            t = least_threshold(n) if shares is None else max(least_threshold(n, c), n - n // 5)
            k = least_neighbours(n, c, n - t, args.bits)
            saved = (n - 1 - k) * each
            print(f"{said}: {n} sites, {c} dishonest, {n - t} may be gone: {k} neighbours, {saved:.2f} s saved a sum")


if __name__ == "__main__":
    main()
