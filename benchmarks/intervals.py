"""How often 95 % intervals of a mean over clients cover the truth: ours, and those by resampling.

    python -m benchmarks.intervals [--repeats N]

Clients' true accuracies are drawn from a Beta distribution, their test rows from these. Beside the interval of
`fedhip.core.intervals`: percentiles of a bootstrap that draws clients, and of one that draws clients and rows of each.
"""

from __future__ import annotations

import argparse

import numpy as np

from fedhip.core.intervals import SHARE, Estimate, over_clients, wilson

CLIENTS, ROWS, DRAWS = (2, 4, 8, 20, 50), (5, 20, 100), 400
TRUTHS = {"differ (8, 2)": (8.0, 2.0), "nearly all right (19, 1)": (19.0, 1.0), "all alike (450, 50)": (450.0, 50.0)}


def covered(clients: int, rows: int, a: float, b: float, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """The share of intervals with the truth in them, and their mean width."""
    rng, truth = np.random.default_rng(0), a / (a + b)
    inside = dict.fromkeys(("ours", "clients", "clients and rows"), 0.0)
    width = dict(inside)
    for _ in range(repeats):
        numbers = np.maximum(2, rng.poisson(rows, clients))
        shares = rng.binomial(numbers, rng.beta(a, b, clients)) / numbers
        pairs = zip(shares.tolist(), numbers.tolist(), strict=True)
        own = over_clients([Estimate(p, *wilson(p, n)) for p, n in pairs], SHARE)
        drawn = rng.integers(0, clients, (DRAWS, clients))
        again = rng.binomial(numbers[drawn], shares[drawn]) / numbers[drawn]
        ends = {
            "ours": (own["low"], own["high"]),
            "clients": np.quantile(shares[drawn].mean(axis=1), (0.025, 0.975)),
            "clients and rows": np.quantile(again.mean(axis=1), (0.025, 0.975)),
        }
        for name, (low, high) in ends.items():
            inside[name] += bool(low <= truth <= high) / repeats
            width[name] += float(high - low) / repeats
    return inside, width


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1000)
    repeats = parser.parse_args().repeats
    print("| accuracies of clients | clients | test rows | ours | bootstrap of clients | of clients and rows |")
    print("|---|---|---|---|---|---|")
    for words, (a, b) in TRUTHS.items():
        for clients in CLIENTS:
            for rows in ROWS:
                inside, width = covered(clients, rows, a, b, repeats)
                cells = (f"{100 * inside[name]:.0f} % ({width[name]:.2f})" for name in inside)
                print(f"| {words} | {clients} | {rows} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
