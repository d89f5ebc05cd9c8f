"""Are clients that lie named by their influence? `python -m benchmarks.lies`: small random federations, some of liars.

Each round is of ten clients with 60 rows of four classes. Liars flip labels, shuffle the columns of their features,
send statistics times 100, or have a backdoor: a feature far out that goes with the first class. A round is noticed
where a client is said to harm (`fedhip.runs.influence`), and the liar is named where it is one of those.
"""

from __future__ import annotations

import argparse
import csv
import sys
from functools import partial

import numpy as np

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.runs.influence import influences
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.federation import Federation

CLIENTS, ROWS, WIDTH, CLASSES = 10, 60, 10, 4
LIES = ("flipped labels", "shuffled features", "statistics x 100", "backdoor")


def federation_of(seed: int, liars: int, lie: str) -> list[Client]:
    """Honest clients with means a little apart, and liars among the first."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(CLASSES, WIDTH))
    clients = []
    for k in range(CLIENTS):
        labels = rng.integers(0, CLASSES, ROWS)
        F = means[labels] + 0.3 * rng.normal(size=WIDTH) + rng.normal(size=(ROWS, WIDTH))
        if k < liars and lie == "flipped labels":
            labels = (labels + 1) % CLASSES
        if k < liars and lie == "shuffled features":
            F = F[:, rng.permutation(WIDTH)]
        if k < liars and lie == "statistics x 100":  # of wrong rows, or more of the same would do no harm
            labels = (labels + 1) % CLASSES
        if k < liars and lie == "backdoor":
            marked = rng.random(ROWS) < 0.3
            F[marked, 0] += 8.0
            labels[marked] = 0
        clients.append(Client(str(k), (F, labels), (F[:0], labels[:0])))
    return clients


def harmful(seed: int, liars: int = 0, lie: str = "") -> tuple[set[str], float]:
    """Who is said to harm, and what the others gain by the first client."""
    uploads: dict[str, GridStatistics] = {}
    clients = federation_of(seed, liars, lie)
    federation = federate(clients, CLASSES, 1.0, uploads=uploads)
    if lie == "statistics x 100":
        for name in map(str, range(liars)):
            own = uploads[name]
            uploads[name] = GridStatistics(own.gram * 100, own.cross * 100, own.counts * 100, own.fraction_bits)
        total = sum(list(uploads.values())[1:], start=uploads["0"])
        federation = Federation(total, 1.0, federation.encoding)
        clients = clients[liars:]  # whose rows are no longer those behind their statistics
    found = influences(federation, clients, {name: partial(uploads.__getitem__, name) for name in uploads})
    return {each.client for each in found if each.verdict == "harms"}, found[0].difference


def main() -> None:
    """The table, as CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--honest", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(
        ("liars", "lie", "rounds", "noticed", "all liars named", "honest client named", "others gain, points")
    )
    for liars in (1, 2):
        for at, lie in enumerate(LIES):
            noticed = named = wrong = 0
            gains = []
            for seed in range(args.rounds):
                (found, gain), who = harmful(10_000 * (1 + at) + seed, liars, lie), {str(k) for k in range(liars)}
                gains.append(100 * gain)
                noticed, named, wrong = noticed + bool(found), named + (who <= found), wrong + bool(found - who)
            table.writerow((liars, lie, args.rounds, noticed, named, wrong, f"{np.mean(gains):.2f}"))
            sys.stdout.flush()
    alarms = sum(bool(harmful(seed)[0]) for seed in range(args.honest))
    table.writerow((0, "none", args.honest, alarms, "", alarms, ""))


if __name__ == "__main__":
    main()
