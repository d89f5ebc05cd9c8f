"""Are lies noticed, and do they harm? `python -m benchmarks.lies`: small random federations, some of liars.

Each round is of ten clients (or `--clients`) with 60 rows of four classes. Liars flip labels, shuffle the columns of
their features, send statistics times 100, or have a backdoor: a feature far out that goes with the first class.

A round is noticed by the clients (`fedhip.simulation.trust.doubt`) where more than a quarter have a veto, one is odd,
or the sum is askew. A liar may answer as its own rows say, or hide: have no veto, and say the same as the median of the
others. What honest clients lose is on 200 test rows of each: their personalized model, or the one alone that their veto
leaves them with, less the ridge of their rows alone.

With `--groups`: would sums of groups of clients tell more? The clients are dealt to three groups, each with a sum and a
ridge of its own. Of each two models the rows of the third group say which is better (exact sign test, 1 %), and a group
is odd whose model is worse than both others. A round is noticed where a group is odd.

With `--influence`: are the liars named by their influence (`fedhip.runs.influence`)? A round is noticed where a client
is said to harm, and the liar is named where it is one of those.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.paired import compare_rows
from fedhip.runs.influence import influences
from fedhip.simulation.alone import local_model
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate
from fedhip.simulation.federation import Federation
from fedhip.simulation.personalization import Personalization
from fedhip.simulation.trust.doubt import VETO_SHARE, Doubt, Verdict, doubt_of
from fedhip.utils.parallel import one_thread

CLIENTS, ROWS, TEST, WIDTH, CLASSES = 10, 60, 200, 10, 4
GROUPS = 3
MEASURED = ("calibration", "leverage", "shape")
LIES = ("flipped labels", "shuffled features", "statistics x 100", "backdoor")


@dataclass(frozen=True)
class Sites:
    """How honest clients differ: λ of their classes (Dirichlet), how far their means lie apart, in deviations.

    And how many there are, liars among them.
    """

    concentration: float | None = None
    shift: float = 0.3
    clients: int = CLIENTS


ALIKE = Sites()


def federation_of(seed: int, liars: int, lie: str, sites: Sites = ALIKE) -> list[Client]:
    """Honest clients that differ by so much, and liars among the first; test rows are honest."""
    rng, fresh = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    skew = np.random.default_rng((seed, 2))
    means = rng.normal(size=(CLASSES, WIDTH))
    clients = []
    for k in range(sites.clients):
        labels, tested = rng.integers(0, CLASSES, ROWS), fresh.integers(0, CLASSES, TEST)
        if sites.concentration is not None:
            shares = skew.dirichlet(np.full(CLASSES, sites.concentration))
            labels, tested = skew.choice(CLASSES, ROWS, p=shares), fresh.choice(CLASSES, TEST, p=shares)
        shift = sites.shift * rng.normal(size=WIDTH)
        F = means[labels] + shift + rng.normal(size=(ROWS, WIDTH))
        T = means[tested] + shift + fresh.normal(size=(TEST, WIDTH))
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
        clients.append(Client(str(k), (F, labels), (T, tested)))
    return clients


def round_of(
    seed: int, liars: int = 0, lie: str = "", sites: Sites = ALIKE
) -> tuple[Federation, list[Client], dict[str, GridStatistics]]:
    """The sum, the clients, and what each has sent."""
    uploads: dict[str, GridStatistics] = {}
    clients = federation_of(seed, liars, lie, sites)
    federation = federate(clients, CLASSES, 1.0, uploads=uploads)
    if lie == "statistics x 100":
        for name in map(str, range(liars)):
            own = uploads[name]
            uploads[name] = GridStatistics(own.gram * 100, own.cross * 100, own.counts * 100, own.fraction_bits)
        total = sum(list(uploads.values())[1:], start=uploads["0"])
        federation = Federation(total, 1.0, federation.encoding)
    return federation, clients, uploads


def verdict_of(doubts: Sequence[Doubt], hidden: int = 0) -> Verdict:
    """What all say, where some of the first hide."""
    honest = doubts[hidden:]
    median = {name: float(np.median([getattr(each, name) for each in honest])) for name in MEASURED}
    calm = Doubt("calm", ROWS, ROWS, 0, 1.0, **median)
    return Verdict.of(np.sum([each.to_vector() for each in (*honest, *[calm] * hidden)], axis=0))


def is_noticed(verdict: Verdict) -> bool:
    """By vetoes, by an odd client, or by a sum that is askew."""
    return verdict.stops(VETO_SHARE) or verdict.is_suspicious


def losses(federation: Federation, clients: Sequence[Client], doubts: Sequence[Doubt]) -> list[float]:
    """What each of these clients loses against its rows alone, in points."""
    found = []
    for client, doubt in zip(clients, doubts, strict=True):
        own, (T, tested) = Personalization.of(federation, client), client.test
        alone = local_model(client, CLASSES)
        right = [
            100.0 * float(np.mean((T @ model.weights.numpy() + model.bias.numpy()).argmax(axis=1) == tested))
            for model in (alone, alone if doubt.vetoes else own.model)
        ]
        found.append(right[0] - right[1])
    return found


def harmful(seed: int, liars: int = 0, lie: str = "") -> tuple[set[str], float]:
    """Who is said to harm, and what the others gain by the first client."""
    federation, clients, uploads = round_of(seed, liars, lie)
    if lie == "statistics x 100":
        clients = clients[liars:]  # whose rows are no longer those behind their statistics
    found = influences(federation, clients, {name: partial(uploads.__getitem__, name) for name in uploads})
    return {each.client for each in found if each.verdict == "harms"}, found[0].difference


def by_clients(rounds: int, honest: int, tested: int, sites: Sites) -> None:
    """What clients notice, and what they lose; as CSV."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(
        ("liars", "lie", "rounds", "noticed", "noticed where liars hide", "stopped", "rounds tested",
         "honest lose, points", "most in a round, points")
    )  # fmt: skip
    for liars in (1, 2):
        for at, lie in enumerate(LIES):
            noticed = hidden = stopped = 0
            lost = []
            for seed in range(rounds):
                federation, clients, _ = round_of(10_000 * (1 + at) + seed, liars, lie, sites)
                doubts = [doubt_of(federation, client) for client in clients]
                verdict = verdict_of(doubts)
                noticed, stopped = noticed + is_noticed(verdict), stopped + verdict.stops(VETO_SHARE)
                hidden += is_noticed(verdict_of(doubts, liars))
                if seed < tested:
                    lost.append(float(np.mean(losses(federation, clients[liars:], doubts[liars:]))))
            table.writerow(
                (liars, lie, rounds, noticed, hidden, stopped, len(lost), f"{np.mean(lost):.2f}", f"{max(lost):.2f}")
            )
            sys.stdout.flush()
    alarms = stopped = 0
    for seed in range(honest):
        federation, clients, _ = round_of(seed, sites=sites)
        verdict = verdict_of([doubt_of(federation, client) for client in clients])
        alarms, stopped = alarms + is_noticed(verdict), stopped + verdict.stops(VETO_SHARE)
    table.writerow((0, "none", honest, alarms, alarms, stopped, "", "", ""))


def odd_groups(seed: int, liars: int = 0, lie: str = "", sites: Sites = ALIKE) -> tuple[set[int], set[int]]:
    """Of three groups those whose model is worse than both others by the rows of the third, and those with a liar."""
    federation, clients, uploads = round_of(seed, liars, lie, sites)
    dealt = np.random.default_rng((seed, 9)).permutation(sites.clients) % GROUPS
    hits = []
    for group in range(GROUPS):
        sums = [uploads[str(k)] for k in np.flatnonzero(dealt == group)]
        model = Federation(sum(sums[1:], start=sums[0]), 1.0, federation.encoding).common
        W, bias = model.weights.numpy(), model.bias.numpy()
        hits.append([(F @ W + bias).argmax(axis=1) == y for F, y in (client.train for client in clients)])

    def is_worse(one: int, other: int) -> bool:
        judges = np.flatnonzero((dealt != one) & (dealt != other))
        mine, theirs = (np.concatenate([hits[group][k] for k in judges]).astype(float) for group in (one, other))
        return bool(mine.sum() < theirs.sum()) and compare_rows(mine, theirs).p <= 0.01

    odd = {one for one in range(GROUPS) if all(is_worse(one, other) for other in range(GROUPS) if other != one)}
    return odd, set(dealt[:liars].tolist())


def by_groups(rounds: int, honest: int, sites: Sites) -> None:
    """What a comparison of groups' models tells; as CSV."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(("liars", "lie", "rounds", "noticed", "a group without a liar named"))
    for liars in (1, 2):
        for at, lie in enumerate(LIES):
            found = [odd_groups(10_000 * (1 + at) + seed, liars, lie, sites) for seed in range(rounds)]
            noticed, wrong = sum(bool(odd) for odd, _ in found), sum(bool(odd - lying) for odd, lying in found)
            table.writerow((liars, lie, rounds, noticed, wrong))
            sys.stdout.flush()
    alarms = sum(bool(odd_groups(seed, sites=sites)[0]) for seed in range(honest))
    table.writerow((0, "none", honest, alarms, alarms))


def by_influence(rounds: int, honest: int) -> None:
    """Whom influence names; as CSV."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(
        ("liars", "lie", "rounds", "noticed", "all liars named", "honest client named", "others gain, points")
    )
    for liars in (1, 2):
        for at, lie in enumerate(LIES):
            noticed = named = wrong = 0
            gains = []
            for seed in range(rounds):
                (found, gain), who = harmful(10_000 * (1 + at) + seed, liars, lie), {str(k) for k in range(liars)}
                gains.append(100 * gain)
                noticed, named, wrong = noticed + bool(found), named + (who <= found), wrong + bool(found - who)
            table.writerow((liars, lie, rounds, noticed, named, wrong, f"{np.mean(gains):.2f}"))
            sys.stdout.flush()
    alarms = sum(bool(harmful(seed)[0]) for seed in range(honest))
    table.writerow((0, "none", honest, alarms, "", alarms, ""))


def main() -> None:
    """One of the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--influence", action="store_true", help="whom influence names, instead")
    parser.add_argument("--groups", action="store_true", help="what sums of groups would tell, instead")
    parser.add_argument("--honest", type=int, default=1000, help="honest rounds")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each lie")
    parser.add_argument("--tested", type=int, default=20, help="of these, rounds whose models are tested")
    parser.add_argument("--concentration", type=float, help="λ of the classes of clients (default: all alike)")
    parser.add_argument("--shift", type=float, default=ALIKE.shift, help="how far means of clients lie apart")
    parser.add_argument("--clients", type=int, default=CLIENTS, help=f"in a federation (default: {CLIENTS})")
    args = parser.parse_args()
    sites = Sites(args.concentration, args.shift, args.clients)
    if args.influence and sites != ALIKE:
        parser.error("--influence is measured of ten clients that are alike; leave out the others")
    with one_thread():
        if args.influence:
            by_influence(args.rounds, args.honest)
        elif args.groups:
            by_groups(args.rounds, args.honest, sites)
        else:
            by_clients(args.rounds, args.honest, args.tested, sites)


if __name__ == "__main__":
    main()
