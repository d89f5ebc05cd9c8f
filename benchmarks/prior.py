"""What the client's prior is worth, and how far its choice is from the best in hindsight.

    fedhip extract sketches.npz --dataset sketches
    python benchmarks/prior.py sketches.npz

For every method accuracy (mean over clients) without a prior, with the chosen one, with a smoothing of 0.05 rows a
class fixed for all (at the best temperature), and with the one temperature and smoothing for all clients that is best
on the test rows, none included: hindsight, which no choice may use. `--rows` keeps so many rows of each class, for
clients with few.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fedhip.core.choice.prior import NO_PRIOR, SMOOTHINGS, TEMPERATURES, Prior
from fedhip.data import make_partition, read_features
from fedhip.methods import GRADIENT, METHODS, Protocol, run_method
from fedhip.methods.engine.laboratory import Laboratory
from fedhip.methods.engine.prior import WithPrior
from fedhip.methods.engine.training import like
from fedhip.reproduce.divisions import standardize
from fedhip.simulation.alone import local_model
from fedhip.simulation.beta import choose_beta
from fedhip.simulation.client import Client, clients_of
from fedhip.simulation.driver import federate
from fedhip.simulation.priors import choose_client_priors
from fedhip.simulation.testing import evaluate

Score = Callable[[Sequence[Prior]], float]


def mean(accuracies: Sequence[float | None]) -> float:
    """In percent, over clients that were tested."""
    return 100 * float(np.mean([value for value in accuracies if value is not None]))


def of_gradients(
    name: str, clients: list[Client], classes: int, protocol: Protocol
) -> tuple[Score, list[Prior], float]:
    """The accuracy of the trained models with any priors, those that are chosen, and a scale for temperatures."""
    lab = Laboratory(clients, classes, protocol)
    both = WithPrior.around(GRADIENT[name], lab, clients, METHODS[name].defaults)
    state = both.start()
    for number in range(protocol.rounds):
        state, _ = both.round(state, number, range(lab.size))
    models = both.models(state, protocol.rounds)
    assert models.priors is not None
    plain = both.method.models(like(both._fresh[0], state.own), protocol.rounds)
    scale = min(p.temperature for p in models.priors) / TEMPERATURES[7]
    return lambda priors: mean(lab.accuracies(replace(plain, priors=list(priors)))), models.priors, scale


def of_ridges(name: str, clients: list[Client], classes: int) -> tuple[Score, list[Prior], float]:
    """The same of a ridge; with the priors' α, whatever the priors."""
    federation = choose_beta(federate(clients, classes), clients, "loo", lambda *_: None)
    _ = federation.common
    chosen = choose_client_priors(federation, clients, (name,), "loo", False, lambda *_: None)
    models = []
    for client in clients:
        alpha = chosen[client.name][name][0]
        own = federation.on_raw(federation.path(client).weights(alpha))
        models.append(local_model(client, classes) if name == "local" else own)

    def score(priors: Sequence[Prior]) -> float:
        counts = federation.grid.counts
        tested = zip(clients, models, priors, strict=True)
        return mean(
            [evaluate(c, {name: m}, None, classes, False, {name: p}, counts).accuracy[name] for c, m, p in tested]
        )

    return score, [chosen[client.name][name][1].prior for client in clients], classes**-0.5


def main() -> None:
    """A line for each method and λ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features")
    parser.add_argument("--methods", default="global,fedhip,local,fedavg,ditto", help="default: %(default)s")
    parser.add_argument("--concentrations", nargs="+", type=float, default=[0.1, 0.5, 1.0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rows", type=int, help="of each class")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    data = read_features(args.features)
    if args.rows is not None:
        kept = np.sort(np.concatenate([np.flatnonzero(data.labels == c)[: args.rows] for c in np.unique(data.labels)]))
        data = replace(data, features=data.features[kept], labels=data.labels[kept], clients=None, split=None)
    classes = data.num_classes
    protocol = Protocol(rounds=args.rounds, learning_rate=args.rate, seed=args.seed, prior="client")
    print(f"{'method':10} {'λ':>5} {'none':>7} {'chosen':>7} {'fixed':>7} {'hindsight':>9}  without a prior")
    for concentration in args.concentrations:
        partition = make_partition(data.labels, "dirichlet", args.clients, seed=args.seed, concentration=concentration)
        clients = [client for client in clients_of(data, partition) if len(client.train[1])]
        standard = standardize(clients)
        for name in args.methods.split(","):
            if METHODS[name].gradient:
                score, chosen, scale = of_gradients(name, standard, classes, protocol)
            else:
                score, chosen, scale = of_ridges(name, clients, classes)
            # Among what every client might have chosen, and its neighbours.
            temperatures = [scale * t for t in TEMPERATURES[2:11:2]]
            every = [Prior(t, a) for t in temperatures for a in SMOOTHINGS[::2]]
            middle = float(np.median([prior.temperature for prior in chosen]))
            every += [Prior(middle, a) for a in SMOOTHINGS[:-1]]
            size = len(clients)
            none = score([NO_PRIOR] * size)
            if name == "fedhip":  # whose α without a prior is another
                none = mean(run_method(name, clients, classes, replace(protocol, prior="none")).accuracy)
            fixed = max(score([Prior(t, 0.05 * classes)] * size) for t in temperatures)
            best = max(none, *(score([prior] * size) for prior in every))
            without = sum(prior.is_none for prior in chosen)
            found = score(chosen)
            print(
                f"{name:10} {concentration:5g} {none:7.2f} {found:7.2f} {fixed:7.2f} {best:9.2f}  {without} of {size}",
                flush=True,
            )


if __name__ == "__main__":
    main()
