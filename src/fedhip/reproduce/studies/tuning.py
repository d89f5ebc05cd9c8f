"""The tuned protocol: for every method the same number of settings, tried on a part of the training rows.

For every λ one division (the first number of clients, the first seed) and fewer rounds; a fifth of every client's
training rows is held out to compare on, the features are standardised with the rest, and the clients' test rows
are not there. First the learning rate (for closed forms the penalty β), then, at the best, the method's own parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedhip.reproduce.bench import Bench, Setting, cell_of
from fedhip.reproduce.cells import Cell, PlannedCell
from fedhip.reproduce.divisions import divide, validation_order
from fedhip.reproduce.settings import Source, known_methods
from fedhip.simulation.client import Client
from fedhip.simulation.hold_out import hold_out

#: In the order they are tried; a budget takes the first of them.
RATES = (0.005, 0.02, 0.001, 0.1, 0.5, 0.05, 0.01, 0.002, 0.2, 0.0005, 1.0, 2.0)
#: A gradient method's own parameter, and its values beside the default.
OWN: dict[str, tuple[str, tuple[float, ...]]] = {
    "fedavg-ft": ("finetune_epochs", (1.0, 10.0)),
    "fedprox": ("mu", (0.001, 0.1)),
    "fedprox-ft": ("mu", (0.001, 0.1)),
    "ditto": ("mu", (0.1, 0.01)),
    "fedala": ("ala_rate", (0.1, 10.0)),
    "feddbe": ("momentum", (0.1, 0.5)),
    "fedas": ("align_rate", (0.001, 0.1)),
    "fedpcl": ("temperature", (0.2, 1.0)),
    "fedselect": ("percent", (5.0, 50.0)),
}


def _each(option: str, *values: float | None) -> tuple[Mapping[str, float], ...]:
    """Settings of one option; None is the method's own choice or default."""
    return tuple({} if value is None else {option: value} for value in values)


_BETAS = _each("beta", None, 1e-3, 1e-4, 1e-2, 1e-5, 3e-3, 3e-4, 3e-2, 3e-5, 1e-1, 1e-6, 3e-1)
#: What is tried of a method in closed form, in this order. A β is a share of the number of rows.
CLOSED: Mapping[str, tuple[Mapping[str, float], ...]] = {
    "fedhip": _BETAS,
    "global": _BETAS,
    "global-oll": _BETAS,
    "pfedfda": _each("shrinkage", None, 1e-3, 1e-2, 1e-5, 1e-1, 3e-3, 3e-2, 3e-4, 1e-6, 3e-1),
    "fedcof": (
        *_each("gamma", None, 0.1, 0.01, 10.0, 0.0),
        *({"gamma": gamma, "parts": parts} for gamma, parts in ((0.1, 2.0), (0.1, 4.0), (0.01, 4.0))),
    ),
    "fedcgs": _each("shrinkage", None, 1e-2, 1e-3, 0.1, 1e-4, 0.3, 0.5),
    "gh-nb": _each("floor", None, 0.01, 0.1, 1.0, 10.0, 1e-3),
    "gh-lda": _each("shrinkage", None, 0.01, 0.1, 0.3, 0.5, 1e-3),
    "gh-qda": _each("shrinkage", None, 0.3, 0.5, 0.8, 0.05, 0.01),
    "fedpft": (
        *_each("rate", None, 1e-3, 1e-2),
        {"rate": 1e-3, "components": 5.0},
        {"rate": 1e-3, "diagonal": 1.0},
        {"rate": 1e-2, "diagonal": 1.0},
        {"rate": 1e-3, "epochs": 200.0},
    ),
    "deepafl": (
        *_each("blocks", None, 5.0, 1.0),
        {"blocks": 5.0, "penalty": 100.0},
        {"blocks": 1.0, "penalty": 100.0},
        {"penalty": 100.0},
        {"blocks": 5.0, "block_penalty": 1.0},
        {"blocks": 5.0, "width": 2048.0},
    ),
    "safle": (
        *_each("penalty", None, 1.0, 10.0, 0.01),
        {"penalty": 1.0, "thresholds": 1.0, "group": 4.0},
        {"penalty": 1.0, "thresholds": 2.0, "group": 4.0},
        {"penalty": 1.0, "group": 6.0},
        {"penalty": 0.1, "thresholds": 1.0, "group": 4.0},
    ),
    "apfl": (
        *_each("beta", None, 1e-3, 1e-2, 1e-1),
        {"width": 2048.0},
    ),
}


@dataclass(frozen=True)
class TunedSetting:
    """The setting of highest accuracy on the held-out rows, all that were tried, and whether it is the outermost."""

    setting: Setting
    tried: tuple[tuple[Setting, float | None], ...]
    at_edge: bool


def describe(bench: Bench) -> str:
    """How settings were chosen, for a table's notes."""
    settings = bench.settings
    protocol = settings.tuning_protocol(settings.seeds[0])
    return (
        f"Tuned protocol: features standardised with the federation's mean and deviation of the training rows (with a "
        f"column of ones for the ridges, which have no bias). For every method up to {settings.budget} settings were "
        f"compared on 20 % of the training rows, held out, for every λ of one division (K = {settings.clients[0]}, "
        f"seed {settings.seeds[0]}) with {protocol.rounds} rounds; a method without "
        f"anything to choose has one. FedHiP's α by leave-one-out is no further setting. No test row of that division "
        f"was there; under other seeds and numbers of clients, some of its training rows are test rows."
    )


def steps(bench: Bench, source: Source, concentration: float, method: str) -> list[PlannedCell]:
    """The cells of the search; those of the second stage are made when the first is done.

    Where there is one setting, there is nothing to compare.
    """
    first, second = _numbers(bench, method)
    if first + second == 1:
        return []

    def step(stage: int, place: int) -> PlannedCell:
        def make() -> Cell:
            first_stage = _first_stage(source, method, first)
            settings = _second_stage(bench, source, concentration, method) if stage else first_stage
            return tuning_cell(bench, source, concentration, method, settings[place])

        return PlannedCell(f"tuning {method}", ("tuning", source.name, concentration, method, stage, place), make)

    return [*(step(0, place) for place in range(first)), *(step(1, place) for place in range(second))]


def choose(bench: Bench, source: Source, concentration: float, method: str) -> TunedSetting:
    """The best of the settings; the first of those that tie."""
    first, second = _numbers(bench, method)
    stage = _first_stage(source, method, first)
    if first + second == 1:
        return TunedSetting(stage[0], ((stage[0], None),), at_edge=False)
    stage += _second_stage(bench, source, concentration, method) if second else []
    tried = _tried(bench, source, concentration, method, stage)
    best = _best(tried)
    # Of a gradient method the learning rate, of a closed form its parameter.
    values = [
        s.learning_rate if s.learning_rate is not None else dict(s.options).get(_closed(method)) for s, _ in tried
    ]
    known = sorted({value for value in values if value is not None})
    at = best.learning_rate if best.learning_rate is not None else dict(best.options).get(_closed(method))
    return TunedSetting(best, tuple(tried), len(known) > 1 and at in (known[0], known[-1]))


def _closed(method: str) -> str:
    """The first option that is tried of a method in closed form."""
    return next((name for setting in CLOSED.get(method, ()) for name in setting), "")


def tuning_cell(bench: Bench, source: Source, concentration: float, method: str, setting: Setting) -> Cell:
    """A method with a setting, tested on the held-out part of the training rows."""
    s = bench.settings
    num_clients, seed = s.clients[0], s.seeds[0]

    def clients() -> list[Client]:
        return hold_out(divide(source, num_clients, concentration, seed), seed, validation_order)

    label = f"tuning {source.name} K={num_clients} λ={concentration:g} seed {seed} {method} {setting}"
    key = {
        "division": {"clients": num_clients, "concentration": concentration, "seed": seed},
        "tested_on": "held-out training rows",
    }
    return cell_of(bench, source, method, "tuned", s.tuning_protocol(seed), setting, label, key, clients)


def _numbers(bench: Bench, method: str) -> tuple[int, int]:
    """How many settings each stage tries."""
    info, budget = known_methods()[method], bench.settings.budget
    if not info.gradient:
        return min(budget, len(CLOSED.get(method, ({},)))), 0
    own = len(_own(info))
    second = min(own, budget // 3)
    return budget - second, second


def _own(info: Any) -> tuple[float, ...]:
    """Values of the method's own parameter to try; none if it has no such parameter."""
    name, values = OWN.get(info.name, ("", ()))
    if name not in info.defaults:
        return ()
    return tuple(value for value in values if value != info.defaults[name])


def _first_stage(source: Source, method: str, number: int) -> list[Setting]:
    if known_methods()[method].gradient:
        return [Setting(rate) for rate in RATES[:number]]
    rows = len(source.features)
    return [
        Setting(
            None,
            tuple((name, float(f"{value * rows:.3g}") if name == "beta" else value) for name, value in options.items()),
        )
        for options in CLOSED.get(method, ({},))[:number]
    ]


def _second_stage(bench: Bench, source: Source, concentration: float, method: str) -> list[Setting]:
    first, second = _numbers(bench, method)
    best = _best(_tried(bench, source, concentration, method, _first_stage(source, method, first)))
    name = OWN[method][0]
    return [Setting(best.learning_rate, ((name, value),)) for value in _own(known_methods()[method])[:second]]


def _tried(
    bench: Bench, source: Source, concentration: float, method: str, settings: list[Setting]
) -> list[tuple[Setting, float | None]]:
    cells = [tuning_cell(bench, source, concentration, method, setting) for setting in settings]
    return [(setting, bench.result(cell)["mean"]) for setting, cell in zip(settings, cells, strict=True)]


def _best(tried: list[tuple[Setting, float | None]]) -> Setting:
    """The setting of highest accuracy; one that diverged has none."""
    return max(tried, key=lambda pair: -1.0 if pair[1] is None else pair[1])[0]
