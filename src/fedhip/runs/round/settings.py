"""What a round is asked for: checked, and what follows from what was left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedhip.core.solvers import require_alpha, require_beta
from fedhip.errors import InputError
from fedhip.heads import Auto, head_named
from fedhip.heads.budget import within
from fedhip.heads.choice import AUTO
from fedhip.heads.model import RIDGE
from fedhip.heads.options import options_of
from fedhip.heads.round import BALANCED, RIDGES
from fedhip.methods import GRADIENT, METHODS
from fedhip.runs.privacy import PrivacySettings
from fedhip.simulation.alone import MAJORITY
from fedhip.simulation.lifting import LiftSettings
from fedhip.simulation.options import STANDARD, Alpha, Beta, RidgeOptions
from fedhip.simulation.priors import PriorOption
from fedhip.utils.nearest import did_you_mean

#: Options that follow from the others where they are left out.
LEFT_OPEN = ("methods", "prior")
#: Rounds of the methods that train by gradients, as in the paper.
ROUNDS = 200


@dataclass(frozen=True)
class RoundSettings:
    """What the three phases are told, checked.

    `head` is whose models the run folder holds; its method is in the table, named or not. "auto" has them chosen on
    training rows (`fedhip.heads.choice`). Where a door leaves it open (None), it is "auto" unless something else is
    asked for: `methods` without it, or what is a ridge's alone. `head_options` are of the head's method (see
    `fedhip.methods.METHODS`). Where no `prior` is named, the choice has clients' priors among what it chooses, and
    nothing else has one. Where no `lift` is named, the choice has one among what it tries, unless it is not to try
    `wider` features. `max_rounds` is what the choice may take, `budget` what a client may send in all, in bytes
    (`fedhip.heads.budget`).
    """

    alpha: Alpha = "loo"
    beta: Beta = "auto"
    methods: tuple[str, ...] | None = None
    rounds: int = ROUNDS
    only_local_classes: bool = False
    prior: PriorOption | None = None
    ridge: RidgeOptions = STANDARD
    keep_statistics: bool = True
    head: str | None = RIDGE
    head_options: Mapping[str, float] = field(default_factory=dict)
    lift: LiftSettings | None = None
    wider: bool = True
    max_rounds: int = 1
    budget: int | None = None
    privacy: PrivacySettings | None = None

    def __post_init__(self) -> None:
        for name, value, words, check in (
            ("alpha", self.alpha, ("loo",), require_alpha),
            ("beta", self.beta, ("auto", "gcv"), require_beta),
        ):
            if value not in words:
                if isinstance(value, str):
                    raise InputError(f"{name} is {value!r}; give {' or '.join(map(repr, words))}, or a number")
                check(value)
        if self.prior not in (None, "none", "client"):
            raise InputError(f"prior is {self.prior!r}; give 'client' or 'none'")
        if self.methods is not None:
            object.__setattr__(self, "methods", methods_named(self.methods))
        if self.rounds != ROUNDS and not GRADIENT.keys() & set(self.methods or ()):
            raise InputError(
                f"{self.rounds} rounds are for methods that train by gradients, and none is named; leave them out, or "
                "name one among the methods, such as fedavg"
            )
        if self.head_options and self.head in (None, RIDGE, AUTO):
            raise InputError(
                "options of a head (--head-options) are of --head lda and --head logistic; a ridge has --alpha and "
                "--beta, and --head auto finds its own"
            )
        if self.max_rounds < 1:
            raise InputError(f"max_rounds is {self.max_rounds!r}; give a whole number of at least 1")
        if self.max_rounds > 1 and self._head != AUTO:
            raise InputError(
                f"--max-rounds is what the choice may take, and these models are of the head {self._head!r}; leave it "
                "out, or choose with --head auto"
            )
        if self.budget is not None:
            self._require_budget()
        options_of(head_named(self._head), self.alpha, self.head_options)
        if self.privacy is not None:
            self._require_private()
        if not self.ridge.balance:
            return
        if self.head not in (None, RIDGE):
            raise InputError(
                "balanced classes are for models of the ridge, whose sum is weighted in closed form; "
                f"leave out --head {self.head}, or --balance"
            )
        if others := [name for name in self.methods or () if name not in (MAJORITY, *RIDGES)]:
            raise InputError(
                f"balanced classes are for the methods {' and '.join(BALANCED)}, whose sum is weighted in closed form; "
                f"leave out {', '.join(others)}, or --balance"
            )
        if self.prior == "client":
            raise InputError(
                "a client's prior corrects for how often the federation has a class, and balanced classes are equally "
                "frequent by construction; give --balance or --prior client, not both"
            )

    def _require_budget(self) -> None:
        """Refuse what sends more than one upload, or says itself how wide that is."""
        others = [name for name in self.methods or () if name not in (MAJORITY, *RIDGES, Auto.method)]
        for given, name in (
            (self._head != AUTO, f"the head {self._head!r} (a budget is kept by --head auto)"),
            (bool(others), f"the method {', '.join(others)}"),
            (self.lift is not None or not self.wider, "--lift"),
            (self.max_rounds > 1, "--max-rounds"),
            (self.ridge.columns is not None, "--columns with units"),
            (self.privacy is not None, "--epsilon"),
        ):
            if given:
                raise InputError(
                    f"--budget is for the choice in one round, which finds its own upload; leave out {name}"
                )

    def within_budget(self, num_features: int, num_classes: int, rows: Sequence[int]) -> RoundSettings:
        """With what keeps to the budget, where there is one; `rows` are each client's for training."""
        if self.budget is None:
            return self
        prior = (self.prior or "client") == "client"
        found = within(self.budget, num_features, num_classes, rows, prior=prior)
        ridge = replace(self.ridge, room=found.room)
        return replace(self, budget=None, lift=found.lift, wider=found.wider, ridge=ridge)

    def _require_private(self) -> None:
        """Refuse what takes sums beside the one that has noise."""
        others = [name for name in self.methods or () if name not in (MAJORITY, *RIDGES)]
        for given, name in (
            (self.head not in (None, RIDGE), f"--head {self.head}"),
            (bool(others), f"the method {', '.join(others)}"),
            (self.prior == "client", "--prior client"),
            (self.ridge.balance, "--balance"),
            (self.lift is not None, "--lift"),
            (self.ridge.columns is not None, "--columns with units"),
            (self.ridge.fraction_bits is not None, "--fraction-bits"),
            (not (self.ridge.standardize and self.ridge.intercept), "--no-standardize or --no-intercept"),
            (self.beta == "gcv", "--beta gcv"),
        ):
            if given:
                raise InputError(
                    f"with --epsilon there is one sum, with noise, of rows as they are agreed on, and the ridge from "
                    f"it; leave out {name}"
                )

    @property
    def _head(self) -> str:
        """The head, of classes and rows that all weigh alike."""
        if self.head is not None:
            return self.head
        if self.privacy is not None:
            return RIDGE
        if self.methods is not None and Auto.method not in self.methods:
            return RIDGE
        ridge = self.ridge
        ridges_own = ridge.balance or not (ridge.standardize and ridge.intercept) or self.beta != "auto"
        return RIDGE if ridges_own and self.methods is None else AUTO

    def resolved(self, task: str = "classification", *, weighted: bool = False) -> Resolved:
        """What is done: of real targets and of rows with weights the ridge, unless another head was named."""
        only_ridge = self.head is None and (task != "classification" or weighted)
        head = RIDGE if only_ridge else self._head
        named = RIDGES if self.methods is None else self.methods
        if only_ridge:
            named = tuple(name for name in named if name != Auto.method)
        methods = dict.fromkeys((*named, *(() if head == RIDGE else (head_named(head).method,))))
        return Resolved(head, methods_named(tuple(methods)), self.prior or "none")


@dataclass(frozen=True)
class Resolved:
    """What follows from `RoundSettings`: whose models, the methods of the table, and the prior that all have."""

    head: str
    methods: tuple[str, ...]
    prior: PriorOption

    @property
    def table(self) -> tuple[str, ...]:
        """The methods of the table: beside training alone and the global model stands the majority class."""
        with_head_results = (MAJORITY,) if {"local", "global"} <= set(self.methods) else ()
        return tuple(dict.fromkeys((*with_head_results, *self.methods)))


def methods_named(names: Sequence[str]) -> tuple[str, ...]:
    """The methods of these names, or "all", in the order of tables: ridges first."""
    if isinstance(names, str):
        names = (names,)
    ordered = (MAJORITY, *RIDGES, *(method for method in METHODS if method not in RIDGES))
    known = (*METHODS, MAJORITY)
    for name in names:
        if name not in known and name != "all":
            guess = did_you_mean(name, known)
            raise InputError(f"there is no method {name!r}; choose among {', '.join(known)}{guess}")
    if not names:
        raise InputError(f"no method given; choose among {', '.join(known)}")
    return tuple(method for method in ordered if method in names or "all" in names)


def methods_beside(methods: Sequence[str] | None, head: str | None) -> tuple[str, ...] | None:
    """The methods that are asked for, with that of a head that is asked for; None where they are left open."""
    if methods is None:
        return None
    named = methods_named(methods)
    return named if head is None else methods_named((*named, head_named(head).method))
