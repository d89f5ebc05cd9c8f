"""What is reproduced: data, methods, grids and protocols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedhip import methods
from fedhip.data import Dataset, FeatureSet
from fedhip.errors import InputError
from fedhip.methods.engine.protocol import Network, Protocol
from fedhip.reproduce import paper
from fedhip.simulation.lifting import LiftPlan
from fedhip.simulation.priors import PriorOption
from fedhip.utils.nearest import did_you_mean

Regime = Literal["paper", "tuned"]
REGIMES: tuple[Regime, ...] = ("paper", "tuned")
STUDIES = ("table1", "alpha", "beta", "efficiency", "invariance")
#: Rows and classes of the small version.
QUICK_CLASSES, QUICK_ROWS = 15, 40


@dataclass(frozen=True, eq=False)
class Source:
    """A data set as features, what to call it, the backbone that made them (None where they were given), and a lift."""

    name: str
    features: FeatureSet
    backbone: str | None = None
    lift: LiftPlan | None = None

    @property
    def title(self) -> str:
        """The name as the paper writes it."""
        title = paper.TITLES.get(self.name, self.name)
        return title if self.lift is None else f"{title}, {self.lift.title}"

    @property
    def is_the_papers(self) -> bool:
        """Whether the paper has figures for this data set with this backbone."""
        return self.name in paper.TITLES and self.backbone == paper.BACKBONE and self.lift is None

    @property
    def identity(self) -> dict[str, Any]:
        """What of it decides a number; a lift, which is newer than kept results, only where there is one."""
        lift = {} if self.lift is None else {"lift": self.lift.identity}
        return {"data": self.name, "features": self.features.fingerprint, "backbone": self.backbone, **lift}


@dataclass(frozen=True)
class Settings:
    """The grids of the studies, and how methods are run. By default the paper's, with three seeds."""

    methods: tuple[str, ...]
    clients: tuple[int, ...] = paper.CLIENTS
    concentrations: tuple[float, ...] = paper.CONCENTRATIONS
    seeds: tuple[int, ...] = (0, 1, 2)
    regimes: tuple[Regime, ...] = ("paper",)
    rounds: int = 200
    head: Network = "linear"
    only_local_classes: bool = False
    prior: PriorOption = "none"
    budget: int = 8
    tuning_rounds: int = 50
    moved_concentrations: tuple[float, ...] = (0.05, 0.1, 0.5, 1.0, 10.0, 100.0)
    quick: bool = False

    def protocol(self, seed: int) -> Protocol:
        """How methods that train by gradients are run: the paper's way, tested twenty times on the way."""
        return Protocol(
            rounds=self.rounds,
            head=self.head,
            seed=seed,
            evaluate_every=max(1, self.rounds // 20),
            only_local_classes=self.only_local_classes,
            prior=self.prior,
        )

    def tuning_protocol(self, seed: int) -> Protocol:
        """How settings are compared: fewer rounds, tested once."""
        return replace(self.protocol(seed), rounds=min(self.tuning_rounds, self.rounds), evaluate_every=0)


def subset(
    rows: Dataset | FeatureSet, classes: int = QUICK_CLASSES, per_class: int = QUICK_ROWS
) -> Dataset | FeatureSet:
    """The rows of a small version: the first of the first classes, in their order, the classes numbered anew."""
    first = np.unique(rows.labels)[:classes]
    kept = np.sort(np.concatenate([np.flatnonzero(rows.labels == label)[:per_class] for label in first]))
    common: dict[str, Any] = {
        "labels": np.searchsorted(first, rows.labels[kept]),
        "class_names": tuple(rows.class_names[label] for label in first),
        "clients": None if rows.clients is None else rows.clients[kept],
        "split": None if rows.split is None else rows.split[kept],
    }
    if isinstance(rows, FeatureSet):
        return replace(rows, features=rows.features[kept], **common)
    if isinstance(rows.images, np.ndarray):
        return replace(rows, images=rows.images[kept], **common)
    return replace(rows, images=replace(rows.images, names=tuple(rows.images.names[row] for row in kept)), **common)


def known_methods() -> Mapping[str, Any]:
    """Every method by name, in the order of the paper's table; then those that the paper does not have."""
    known: Mapping[str, Any] = methods.METHODS
    first = [name for name in paper.ROWS if name in known and name != "fedhip"]
    others = [name for name in known if name not in paper.ROWS]
    return {name: known[name] for name in [*first, *others, *(["fedhip"] if "fedhip" in known else [])]}


def choose_methods(names: Iterable[str]) -> tuple[str, ...]:
    """These methods in the order of the table; all of them for `all`."""
    known = known_methods()
    wanted = [name.strip().lower() for name in names if name.strip()]
    if not wanted:
        raise InputError(f"no method given; choose all, or among {', '.join(known)}")
    if "all" in wanted:
        return tuple(known)
    for name in wanted:
        require_known("method", name, known)
    return tuple(name for name in known if name in wanted)


def choose_regimes(name: str) -> tuple[Regime, ...]:
    """The protocols that `paper`, `tuned` or `both` stands for."""
    require_known("protocol", name, (*REGIMES, "both"))
    return tuple(regime for regime in REGIMES if name in (regime, "both"))


def choose_studies(name: str) -> tuple[str, ...]:
    """The studies that a name or `all` stands for."""
    require_known("study", name, (*STUDIES, "all"))
    return STUDIES if name == "all" else (name,)


def require_known(kind: str, name: str, known: Iterable[str]) -> None:
    """An error with the nearest right name, unless the name is known."""
    known = list(known)
    if name in known:
        return
    raise InputError(f"there is no {kind} {name!r}; choose among {', '.join(known)}{did_you_mean(name, known)}")
