"""`federation.toml`: what the sites of a federation agree on before anything is computed.

Everybody holds the same file. What is compared is its `digest`, taken over the values and not over the file's bytes,
so that a comment or another order of lines changes nothing, and any value does.
"""

# ruff: noqa: RUF009  (`declare` makes fields of a dataclass)

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from fedhip.data.tables.description import Description
from fedhip.features.lifts.kinds import COMPETING, KINDS, LANDMARKS, LiftKind
from fedhip.features.reference import BackboneReference
from fedhip.federation.agreement import fields
from fedhip.federation.agreement.backbone import backbone_reference, require_reference, to_table
from fedhip.federation.agreement.columns import check_competing_lift, require_description, terms_with_lift
from fedhip.federation.agreement.fields import (
    check_fields,
    choice,
    declare,
    flag,
    number,
    require_number,
    require_whole,
    whole,
)
from fedhip.federation.agreement.limits import largest_lifted, least_threshold, rows_that_fit
from fedhip.federation.agreement.names import (
    near,
    require_class_names,
    require_federation_name,
    require_site_names,
    shown,
)
from fedhip.federation.agreement.privacy import check_privacy, guarantee_of
from fedhip.federation.errors import SetupError
from fedhip.federation.sums.vector import Layout
from fedhip.utils.bounds import LARGEST
from fedhip.utils.candidates import KNOWN, for_anybody, is_wide
from fedhip.utils.toml import Table, write_toml

if TYPE_CHECKING:
    from fedhip.federation.agreement.roster import Roster

SCHEMA = 1
FILE = "federation.toml"

_HEADING = """The agreement of this federation, the same for the server and every site.
A changed value changes the digest that everybody compares, and the round is refused."""

HeadOption = Literal["ridge", "lda", "logistic", "auto"]
LiftOption = Literal["none"] | LiftKind
#: How the units of the columns are known: by a first sum, as they are written here, or all the same.
ColumnsOption = Literal["sum", "given", "plain"]
PriorOption = Literal["none", "client"]
#: What differential privacy protects.
UnitOption = Literal["row", "group", "client"]
HEADS: tuple[HeadOption, ...] = get_args(HeadOption)
LIFTS: tuple[LiftOption, ...] = ("none", *KINDS)
COLUMNS: tuple[ColumnsOption, ...] = get_args(ColumnsOption)
PRIORS: tuple[PriorOption, ...] = get_args(PriorOption)
UNITS: tuple[UnitOption, ...] = get_args(UnitOption)
LIFT_FIELDS = ("lift", "lift_width", "lift_seed", "lift_bandwidth")
COMPETING_FIELDS = ("competing_lift", "competing_width")

#: As many as `fedhip run` asks of the logistic head.
DEFAULT_GRADIENT_ROUNDS = 5
#: Bytes that a site takes of an encoder whose size is not agreed on, and that can be agreed on.
USUAL_ENCODER, LARGEST_ENCODER = 2 << 30, 16 << 30
_DIGEST = re.compile("[0-9a-f]{64}")
_LARGEST_OFFSET = 2.0**64  # as features
_SURVEYED = 1 << 33  # rows whose survey, of numbers of 30 bits, cannot wrap round
_MOST_BITS = 33  # squares of a column in its own units add up to 2^29 at most (`fedhip.core.exact.columns`)


# Checks of single fields; what depends on several is checked in `Agreement`.


def _names(check: Any) -> fields.Check:
    def checked(name: str, value: Any) -> Any:
        if not isinstance(value, tuple | list):
            raise SetupError(f"{name} is {shown(value)}; give a list of names")
        return tuple(check(value))

    return checked


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 200 or not value.isprintable():
        raise SetupError(f"{name} is {shown(value)}; give one line of at most 200 characters")
    return value.strip()


def _sha256(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise SetupError(f"{name} is {shown(value)}; give a SHA-256 in 64 hex digits")
    return value


def _listed(_: str, value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _offset(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _LARGEST_OFFSET:
        raise SetupError(f"a number of column_offsets is {shown(value)}; give a finite number below 2^64 in size")
    return float(value) + 0.0  # −0 is 0


def _exponent(value: object) -> int:
    return require_whole("a number of column_exponents", value, -200, 200)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The values of federation.toml, checked.

    `columns` is how the units of the features' columns are known (`fedhip.core.exact.columns`): "sum", by a first sum
    over the sites; "given", by `column_offsets` and `column_exponents`; "plain", all the same. Then `largest_feature`
    bounds the absolute value of a feature and `max_rows` the rows of one site, with which a sum of all sites cannot
    wrap round the grid, where under masks nobody would notice. A site checks both before it sends, and in any case the
    room that its own numbers leave to the others'.

    `table` says how the tables that sites bring become features (`fedhip.data.tables`).

    `standardize` and `intercept` are of the ridge; an agreement that says nothing of them is of before there were any.

    `width` is that of the features that sites bring. Where these are lifted, the statistics are of `lift_width`, and
    `fraction_bits` is their scale; the seed travels here, and the matrix never.

    `dishonest_sites` is against how many sites that work together with the server the `threshold` must hold
    (`least_threshold`); where it is not given, against a third of them.

    `few_rows` leaves out the census, a sum of the rows of each class before any other: by it a site goes on only if the
    others have at least as many rows as there are features, for of fewer a sum can be taken apart.

    `candidates` are what the head "auto" chooses among, by name (`fedhip.utils.candidates`), from the simplest. With a
    `competing_lift`, `competing_width` wide, each with members stands once more with all of them on the features and
    the lift beside these (`wide`), where there are rows enough (`fedhip.federation.sums.wide`).

    `gradient_rounds` is how many sums of gradients a site gives at most; only the logistic head has any. An agreement
    on a ridge says nothing of heads, as it did before there were others, and one without priors nothing of these.

    `veto_share` is which share of sites may find the sum worse than their own rows alone; more stop the round. An
    `auditor` is to whom a site may be asked to show what it masked: sites then sign a commitment to it.

    With `epsilon` there is one sum, which has noise in it (`fedhip.federation.agreement.privacy`): no census, no survey
    and no sum for β. `clip` or `public` say what rows are clipped by, where neither the table nor the backbone does;
    `directions` is how many features are left, `clipping` the digest of how.
    """

    name: str = declare("federation", lambda _, value: require_federation_name(value))
    sites: tuple[str, ...] = declare("federation", _names(lambda names: sorted(require_site_names(names))))
    classes: tuple[str, ...] = declare("classes", _names(require_class_names), key="names")

    width: int = declare("features", whole(1, 1 << 20), help="the width, where sites bring feature files", metavar="M")
    columns: ColumnsOption = declare("features", choice(*COLUMNS), default="sum", absent="plain")
    column_offsets: tuple[float, ...] | None = declare("features", _listed, default=None, absent=None)
    column_exponents: tuple[int, ...] | None = declare("features", _listed, default=None, absent=None)
    largest_feature: float = declare(
        "features", number(above=0.0), default=16.0,
        help="bound on |feature|, with --columns plain (default: 16)", metavar="X",
    )  # fmt: skip
    lift: LiftOption = declare("features", choice(*LIFTS), default="none")
    lift_width: int | None = declare("features", default=None, absent=None)
    lift_seed: int | None = declare("features", default=None, absent=None)
    lift_bandwidth: float | None = declare("features", default=None, absent=None)
    competing_lift: Literal["nystroem-axes"] | None = declare("features", choice(COMPETING), default=None, absent=None)
    competing_width: int | None = declare("features", whole(1, 1 << 20), default=None, absent=None)
    encoder_digest: str | None = declare("features", _sha256, default=None, absent=None)
    encoder_size: int | None = declare("features", whole(1, LARGEST_ENCODER), default=None, absent=None)
    backbone: BackboneReference | None = declare(
        "features", require_reference, default=None, absent=None, dump=to_table
    )
    table: Description | None = declare(
        "features", require_description, default=None, absent=None, dump=Description.to_dict
    )

    clip: float | None = declare(
        "features", number(above=0.0), default=None, absent=None, metavar="LENGTH",
        help="with --epsilon: the length that rows are cut to; it must not come from private rows",
    )  # fmt: skip
    public: Literal["fedhip-vit"] | None = declare(
        "features", choice("fedhip-vit"), default=None, absent=None,
        help="with --epsilon, where sites bring feature files: the backbone whose public moments come with fedhip",
    )  # fmt: skip
    directions: int | None = declare("features", whole(1, 1 << 20), default=None, absent=None)
    clipping: str | None = declare("features", _sha256, default=None, absent=None)

    epsilon: float | None = declare(
        "round", number(above=0.0), default=None, absent=None, metavar="ε",
        help="differential privacy: noise in the sum, so that it says almost nothing of any one row; less is more "
        "private, and 1 is a usual choice (docs/howto/with-differential-privacy.md; default: none)",
    )  # fmt: skip
    delta: float | None = declare(
        "round", number(above=0.0), default=None, absent=None, metavar="δ",
        help="with --epsilon: how often the promise may fail, below 1/rows of all sites (default: 1e-5)",
    )  # fmt: skip
    unit: UnitOption | None = declare(
        "round", choice(*UNITS), default=None, absent=None, help="with --epsilon: what is protected (default: row)"
    )
    unit_rows: int | None = declare(
        "round", whole(1), default=None, absent=None, metavar="N",
        help="with --unit group or client: how many rows of one count",
    )  # fmt: skip
    local_noise: bool = declare(
        "round", flag, default=False, absent=False,
        help="with --epsilon and --no-secure-sum: each site adds all of the noise (default: no)",
    )  # fmt: skip

    head: HeadOption = declare(
        "round", choice(*HEADS), default="ridge", absent="ridge",
        help="what is fitted: auto has each site's model chosen by rows held out, ridge and LDA and averages of them, "
        "in five sums more (default: auto, or ridge with --beta, --epsilon, --no-standardize or --no-intercept)",
    )  # fmt: skip
    candidates: tuple[str, ...] | None = declare("round", _listed, default=None, absent=None)
    gradient_rounds: int | None = declare(
        "round", default=None, absent=None,
        help="sums of gradients, of the logistic head (default: 5)", metavar="N",
    )  # fmt: skip
    prior: PriorOption = declare(
        "round", choice(*PRIORS), default="none", absent="none",
        help="client: each site's class frequencies are part of its answers, where rows left out say so; one sum more "
        "for a ridge, two for the logistic head, three for lda, two of those of auto (default: client with auto, else "
        "none)",
    )  # fmt: skip
    alpha: float | Literal["loo"] = declare(
        "round", number("loo", most=LARGEST), default="loo", help="a number, or loo (default)", metavar="α"
    )
    beta: float | Literal["auto", "gcv"] = declare(
        "round", number("auto", "gcv", most=LARGEST), default="auto", metavar="β",
        help="a number; auto, by the sites' rows left out, one sum more (default); gcv, from the sum alone",
    )  # fmt: skip
    standardize: bool = declare(
        "round", flag, default=True, absent=False, help="the ridge is on standardised features (default: yes)"
    )
    intercept: bool = declare(
        "round", flag, default=True, absent=False, help="the ridge has an intercept (default: yes)"
    )
    seed: int = declare(
        "round", whole(0), default=0, help="of the sites' division in training and test rows (default: 0)"
    )
    fraction_bits: int = declare("round", whole(0, 62))
    only_local_classes: bool = declare("round", flag, default=False, help="a site's model knows only its own classes")
    secure_sum: bool = declare("round", flag, default=True, help="secure aggregation: sum under masks (default: yes)")
    quorum: int = declare("round", help="sites needed to go on (default: over two thirds)", metavar="N")
    threshold: int = declare("round", help="sites needed to unmask (default: as the quorum)", metavar="N")
    dishonest_sites: int | None = declare(
        "round", default=None, absent=None, metavar="C",
        help="of n sites, how many may conspire with the server: the threshold is above (n + C)/2 (default: a third)",
    )  # fmt: skip
    few_rows: bool = declare(
        "round", flag, default=False, absent=False,
        help="no census: do not look first whether there are as many rows as features (default: look)",
    )  # fmt: skip
    veto_share: float | None = declare(
        "round", number(most=1.0), default=None, absent=None, metavar="SHARE",
        help="one sum more: each site says, under its mask, whether the sum is worse than its own rows alone, and the "
        "round stops where more than this share of sites say so (default: nobody is asked)",
    )  # fmt: skip
    auditor: str | None = declare("federation", _text, default=None, absent=None)
    deadline: float = declare(
        "round", number(above=0.0), default=600.0, help="seconds for each step (default: 600)", metavar="S"
    )
    max_rows: int = declare(
        "round", whole(1), metavar="N",
        help="bound on a site's rows (default: 100,000, or what the grid allows)",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_lift()
        self._check_columns()
        self._check_encoder()
        self._check_table()
        self._check_head()
        check_competing_lift(self)
        self._check_counts()
        check_privacy(self)
        self._check_room()

    def _check_lift(self) -> None:
        """The lift, and what belongs to lifts only, or to some."""
        if self.lift == "none":
            if given := [field for field in LIFT_FIELDS[1:] if getattr(self, field) is not None]:
                raise SetupError(f"{given[0]} is given, and there is no lift; leave it out, or agree on a lift")
            return
        require_whole("lift_width", self.lift_width, 1, 1 << 20)
        require_whole("lift_seed", self.lift_seed, 0)
        if self.lift != "relu":
            bandwidth = require_number("lift_bandwidth", self.lift_bandwidth, above=0.0)
            object.__setattr__(self, "lift_bandwidth", bandwidth)
        elif self.lift_bandwidth is not None:
            raise SetupError("lift_bandwidth is given, and the lift 'relu' has no kernel; leave it out")

    def _check_columns(self) -> None:
        """How the units of the columns are known."""
        for field, check in (("column_offsets", _offset), ("column_exponents", _exponent)):
            values = getattr(self, field)
            if (values is None) == (self.columns == "given"):
                raise SetupError(
                    f"columns is {shown(self.columns)}, and {field} is {'missing' if values is None else 'given'}; it "
                    "belongs to columns = 'given', and to nothing else: give both or neither"
                )
            if values is None:
                continue
            if not isinstance(values, tuple) or len(values) != self.width:
                found = f"has {len(values)} numbers" if isinstance(values, tuple) else f"is {shown(values)}"
                raise SetupError(f"{field} {found}, and features are {self.width} wide; give one for each column")
            object.__setattr__(self, field, tuple(map(check, values)))
        if self.columns == "given" and not (self.intercept or self.standardize) and any(self.column_offsets or ()):
            raise SetupError(
                "column_offsets are not all 0, and the ridge has no intercept and is not on standardised features; "
                "give zeros, or agree on one of the two"
            )
        if self.columns == "sum" and self.lift in LANDMARKS:
            raise SetupError(
                f"the first sum of the lift {self.lift!r} is of products, for which the columns' units must be known: "
                "agree on columns = 'given', or 'plain' where all are alike"
            )

    def _check_encoder(self) -> None:
        if self.encoder_size is not None and self.encoder_digest is None:
            raise SetupError("encoder_size is given without an encoder_digest; give both or neither")
        if self.encoder_digest is not None and self.backbone is None:
            raise SetupError("encoder_digest is given without a backbone; name the backbone it belongs to")

    def _check_table(self) -> None:
        """The description of tables, where sites bring these."""
        if self.table is None:
            return
        if self.backbone is not None:
            raise SetupError("backbone is of images, and table of tables; agree on one of them")
        if len(self.table.labels) != 1:
            raise SetupError(
                f"table names {len(self.table.labels)} labels, and a federation sums classes of one; name one label"
            )
        if self.table.weight is not None:
            raise SetupError(
                f"table has the weight {self.table.weight!r}, and rows of a federation weigh alike; leave it out"
            )
        if unknown := [column.name for column in self.table.texts if not (column.width and column.identity)]:
            raise SetupError(
                f"table: the text {unknown[0]!r} has no width or no identity; draft it with init --columns"
            )
        if self.table.width != self.width:
            raise SetupError(f"width is {self.width}, and the columns of table make {self.table.width} features")

    def _check_head(self) -> None:
        """The head, and what belongs to some heads only."""
        if self.head == "logistic":
            if self.gradient_rounds is None:
                object.__setattr__(self, "gradient_rounds", DEFAULT_GRADIENT_ROUNDS)
            require_whole("gradient_rounds", self.gradient_rounds, 1, 100)
        elif self.gradient_rounds is not None:
            raise SetupError(
                f"gradient_rounds is {shown(self.gradient_rounds)}, and the head is {self.head!r}, which has no "
                "gradients; leave it out, or agree on the logistic head"
            )
        if self.head == "lda" and self.alpha != "loo":
            raise SetupError(f"alpha is {shown(self.alpha)}, and the head 'lda' has no α; leave it out")
        if self.head in ("lda", "logistic") and self.beta != "auto":
            raise SetupError(f"beta is {shown(self.beta)}, and the head {self.head!r} has no β; leave it out")
        self._check_candidates()

    def _check_candidates(self) -> None:
        """What is chosen among, of an agreement that chooses: in their order, known here, one of them for anybody."""
        if self.head != "auto":
            if self.candidates is not None:
                raise SetupError(
                    f"candidates are given, and the head is {self.head!r}, which chooses nothing; leave them out, or "
                    "agree on the head 'auto'"
                )
            return
        known, named = list(map("+".join, KNOWN)), self.candidates
        if not isinstance(named, tuple) or not named:
            raise SetupError(f"candidates is {shown(named)}, and the head 'auto' chooses among some; restore the list")
        for name in named:
            if name not in known:
                raise SetupError(
                    f"candidates has {shown(name)}, which this fedhip does not know{near(str(name), known)}; use the "
                    "version that wrote it, or make a new agreement"
                )
        if [name for name in known if name in named] != list(named):
            raise SetupError("candidates has a name twice, or not from the simplest; restore the list")
        if not for_anybody(self.members_of_candidates):
            raise SetupError("candidates has none that a site without rows could have; add 'global' or 'lda'")

    def _check_counts(self) -> None:
        """threshold ≤ quorum ≤ number of sites, and under masks as many as `least_threshold` says."""
        sites, secure, dishonest = len(self.sites), self.secure_sum, self.dishonest_sites
        if dishonest is not None:
            if not secure:
                raise SetupError("dishonest_sites is given, and there is no secure sum; leave it out")
            require_whole("dishonest_sites", dishonest, 0, sites - 1, why=f"there are {sites} sites")
        require_whole("quorum", self.quorum, 2 if secure else 1, sites, why=f"there are {sites} sites")
        least = least_threshold(sites, dishonest) if secure else 1
        for field, value in (("quorum", self.quorum), ("threshold", self.threshold)):
            if isinstance(value, int) and value < least:  # type: ignore[redundant-expr]  # of a file it may be anything
                remedy = "" if dishonest is not None else ", or state in dishonest_sites how many may be dishonest"
                raise SetupError(
                    f"{field} is {value}: with fewer than {least} of {sites} sites a dishonest server with "
                    f"{'a few' if dishonest is None else dishonest} of them could read another; give {least} to "
                    f"{sites}{remedy}"
                )
        require_whole(
            "threshold", self.threshold, least, self.quorum, why=f"the quorum is {self.quorum} of {sites} sites"
        )

    def _check_room(self) -> None:
        sites = len(self.sites)
        if self.columns == "sum" and self.max_rows * sites >= _SURVEYED:
            most = (_SURVEYED - 1) // sites
            raise SetupError(f"max_rows is {self.max_rows}: a survey of {sites} sites has room for {most} each")
        if self.columns == "sum" and self.lift == "none" and self.fraction_bits > _MOST_BITS:
            raise SetupError(
                f"columns in units of their own could overflow the grid at fraction_bits={self.fraction_bits}; give at "
                f"most {_MOST_BITS}"
            )
        if self.columns != "plain" and self.lift == "none":
            return  # features have no common size: each site looks at the room that its own numbers leave
        largest = self.largest_feature if self.lift == "none" else largest_lifted(self.lift, self.layout.m)
        room = rows_that_fit(largest, self.fraction_bits) // sites
        if self.max_rows <= room:
            return
        bits = max((b for b in range(63) if rows_that_fit(largest, b) // sites >= self.max_rows), default=None)
        remedies = [f"max_rows={room}"] * (room > 0) + [f"fraction_bits={bits}"] * (bits is not None)
        fits = f"{' or '.join(remedies)} fits" if remedies else "rescale the features"
        raise SetupError(
            f"max_rows is {self.max_rows}: a sum of {sites} sites with features up to {largest:g} could "
            f"overflow the grid at fraction_bits={self.fraction_bits}; {fits}"
        )

    @property
    def layout(self) -> Layout:
        """Of the statistics; with noise, of what rows are projected to and of a constant."""
        if self.directions is not None:
            return Layout(self.directions + 1, len(self.classes))
        return Layout(self.lift_width or self.width, len(self.classes))

    @cached_property
    def wide(self) -> Agreement | None:
        """What is agreed on features with the competing lift beside them, as of a lift; None where none competes."""
        if self.competing_lift is None:
            return None
        found = copy.copy(self)
        found.__dict__.update(terms_with_lift(self))
        return found

    @property
    def lift_title(self) -> str:
        """The lift that competes, or did where this is of features with it."""
        if self.competing_lift is not None:
            return f"{self.competing_lift} {self.competing_width}"
        return f"{self.lift} {self.layout.m - self.kept}"

    @property
    def kept(self) -> int:
        """How many of the last columns are the features themselves, beside a lift of them."""
        return self.width if any(map(is_wide, self.members_of_candidates)) else 0

    @property
    def methods(self) -> tuple[str, ...]:
        """What a site tests: its rows alone, the federation's model, its own model by the name of the agreed head.

        Where models are chosen, the global ridge and the personalized one, and then what was chosen.
        """
        if self.head == "auto":
            return "local", "global", "fedhip", "auto"
        return "local", "global", "fedhip" if self.head == "ridge" else f"fedhip-{self.head}"

    @property
    def members_of_candidates(self) -> tuple[tuple[str, ...], ...]:
        """What each candidate is made of."""
        return tuple(tuple(name.split("+")) for name in self.candidates or ())

    @property
    def open_fills(self) -> tuple[str, ...]:
        """The columns of tables whose means, for missing values, are found by a sum."""
        values = () if self.table is None else self.table.values
        return tuple(column.name for column in values if column.fill is None)

    @property
    def has_census(self) -> bool:
        """Whether a sum of the rows of each class comes before all others: not where noise protects few rows, too."""
        return self.secure_sum and not self.few_rows and self.epsilon is None

    @property
    def surveys_columns(self) -> bool:
        """Whether a sum before that of the statistics says what the columns, or the lift, are."""
        return self.columns == "sum" or self.lift != "none"

    @property
    def sharers(self) -> int:
        """How many times a site's own numbers must fit on the grid; once, where units are of the survey of all rows.

        Such units leave room for the sum of all (`fedhip.core.exact.columns`), whoever has most of it; so do those of
        features beside a lift (`fedhip.features.lifts.kinds`).
        """
        return 1 if (self.columns == "sum" and self.lift == "none") or self.kept else len(self.sites)

    @property
    def chooses_beta(self) -> bool:
        """Whether the sites' rows say what β is."""
        return self.head in ("ridge", "auto") and self.beta == "auto" and self.epsilon is None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed, and yet should be known to everybody who takes part."""
        if self.epsilon is not None:
            return ()  # these are of what exact sums tell
        if not self.secure_sum:
            return (
                "the secure sum is off (secure_sum = false): the server sees the statistics of each site, from which "
                "single rows can be recovered",
            )
        found = []
        if len(self.sites) == 2:
            found.append("there are two sites, so each can infer the other's statistics: they are the sum less its own")
        elif self.quorum == 2:
            found.append(
                f"the quorum is 2 of {len(self.sites)} sites: if only two are left, each can infer the other's "
                "statistics; sites whose minimum_cohort is 3 will refuse"
            )
        if self.few_rows:
            found.append(
                "there is no census (few_rows = true): nobody looks whether the sites have as many rows together as "
                "there are features, and the sum of fewer can be taken apart into rows"
            )
        if self.head == "logistic":
            found.append(
                "the head is logistic, so the server chooses weights and learns sums of gradients at them: one that "
                "makes weights up can single out rows that lie far out, though not whose they are; lda leaves it no "
                "such choice"
            )
        return tuple(found)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The agreement in this file."""
        path = Path(path)
        return cls._of(fields.read_toml(path, f"get {FILE} from the coordinator"), str(path))

    @classmethod
    def from_text(cls, text: str, where: str) -> Self:
        """The agreement in the text of a file."""
        return cls._of(fields.parse_toml(text, where), where)

    @classmethod
    def _of(cls, content: dict[str, Any], where: str) -> Self:
        fields.require_known(content, (each.table for each in fields.declarations(cls).values()), where)
        fields.require_schema(fields.require_table(content, "federation", where).pop("schema", None), SCHEMA, where)
        values = fields.from_tables(cls, content, where)
        try:
            if values["backbone"] is not None:
                values["backbone"] = backbone_reference(values["backbone"])
            return cls(**values)
        except SetupError as error:
            raise SetupError(f"{where}: {error}") from None

    def to_text(self) -> str:
        """federation.toml."""
        promised = guarantee_of(self)
        return write_toml(self._content(), _HEADING if promised is None else f"{_HEADING}\n{promised}")

    def digest(self) -> str:
        """SHA-256 of the values, in one form whatever the file looks like."""
        return fields.digest_of("agreement", self._content())

    def require_site(self, name: str) -> str:
        """The name, if a site of this federation has it."""
        if name not in self.sites:
            raise SetupError(f"the federation {self.name!r} has no site {shown(name)}{near(name, self.sites)}")
        return name

    def require_roster(self, roster: Roster) -> None:
        """Refuse a roster of another federation, or of other sites."""
        if roster.federation != self.name:
            raise SetupError(
                f"the roster is that of the federation {roster.federation!r}, and the agreement that of {self.name!r}; "
                "get both from the same coordinator"
            )
        if missing := [name for name in self.sites if name not in roster.keys]:
            raise SetupError(f"the roster has no key of the site {missing[0]!r}; get the roster of this agreement")
        if more := [name for name in roster.names if name not in self.sites]:
            raise SetupError(f"the roster has a site {more[0]!r} that nobody agreed on; get the right roster")

    def _content(self) -> Table:
        """As in the file, without what is absent."""
        content = fields.to_tables(self)
        return {**content, "federation": {"schema": SCHEMA, **content["federation"]}}
