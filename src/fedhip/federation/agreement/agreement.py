"""`federation.toml`: what the sites of a federation agree on before anything is computed.

Everybody holds the same file. What is compared is its `digest`, taken over the values and not over the file's bytes,
so that a comment or another order of lines changes nothing, and any value does.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from fedhip.data.errors import WindowError
from fedhip.data.images.window import Window
from fedhip.features.reference import BackboneReference
from fedhip.federation.agreement.names import (
    near,
    require_class_names,
    require_federation_name,
    require_site_names,
    shown,
)
from fedhip.federation.agreement.toml import parse_toml, read_toml, require_known, require_table
from fedhip.federation.errors import (
    AgreementError,
    AgreementVersionError,
    FederationError,
    RosterError,
    SiteDataError,
    SiteNameError,
)
from fedhip.federation.sums.vector import Layout
from fedhip.utils.toml import Table, write_toml

if TYPE_CHECKING:
    from fedhip.federation.agreement.roster import Roster

SCHEMA = 1
FILE = "federation.toml"

_HEADING = """The agreement of this federation, the same for the server and every site.
A changed value changes the digest that everybody compares, and the round is refused."""

LIFT_FIELDS = ("lift", "lift_width", "lift_seed", "lift_bandwidth")
#: Table and key of each field, in the order in which they are written.
_KEYS = {
    "federation": {"name": "name", "sites": "sites"},
    "classes": {"names": "classes"},
    "features": {
        "width": "width",
        "columns": "columns",
        "column_offsets": "column_offsets",
        "column_exponents": "column_exponents",
        "largest_feature": "largest_feature",
        **{name: name for name in LIFT_FIELDS},
        "encoder_digest": "encoder_digest",
        "encoder_size": "encoder_size",
        "backbone": "backbone",
    },
    "round": {
        name: name
        for name in (
            *(
                "head",
                "gradient_rounds",
                "prior",
                "alpha",
                "beta",
                "standardize",
                "intercept",
                "seed",
                "fraction_bits",
                "only_local_classes",
            ),
            *("secure_sum", "quorum", "threshold", "dishonest_sites", "few_rows", "deadline", "max_rows"),
        )
    },
}
_OPTIONAL = (
    *("encoder_digest", "encoder_size", "backbone", "columns", "column_offsets", "column_exponents", *LIFT_FIELDS[1:]),
    *("head", "gradient_rounds", "prior", "standardize", "intercept", "dishonest_sites", "few_rows"),
)
_DIGEST = re.compile("[0-9a-f]{64}")
_LIMIT = 1 << 63
_LARGEST_OFFSET = 2.0**64  # as features
_SURVEYED = 1 << 33  # rows whose survey, of numbers of 30 bits, cannot wrap round
_MOST_BITS = 33  # squares of a column in its own units add up to 2^29 at most (`fedhip.core.exact.columns`)
_BACKBONE = {
    "name": str,
    "identity": str,
    "precision": str,
    "pooling": str,
    "mask_ratio": float,
    "mask_seed": int,
    "window": list,
}
_PRECISIONS = ("float32", "bfloat16", "float16")

Head = Literal["ridge", "lda", "logistic"]
HEADS: tuple[Head, ...] = ("ridge", "lda", "logistic")
LiftOption = Literal["none", "relu", "fourier", "nystroem"]
LIFTS: tuple[LiftOption, ...] = ("none", "relu", "fourier", "nystroem")
#: How the units of the columns are known: by a first sum, as they are written here, or all the same.
ColumnsOption = Literal["sum", "given", "plain"]
COLUMNS: tuple[ColumnsOption, ...] = ("sum", "given", "plain")
PriorOption = Literal["none", "client"]
PRIORS: tuple[PriorOption, ...] = ("none", "client")
#: As many as `fedhip run` asks of the logistic head.
DEFAULT_GRADIENT_ROUNDS = 5
_MOST_GRADIENT_ROUNDS = 100
#: Bytes that a site takes of an encoder whose size is not agreed on, and that can be agreed on.
USUAL_ENCODER, LARGEST_ENCODER = 2 << 30, 16 << 30


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The values of federation.toml, checked.

    `columns` is how the units of the features' columns are known (`fedhip.core.exact.columns`): "sum", by a first sum
    over the sites; "given", by `column_offsets` and `column_exponents`; "plain", all the same. Then `largest_feature`
    bounds the absolute value of a feature and `max_rows` the rows of one site, with which a sum of all sites cannot
    wrap round the grid, where under masks nobody would notice. A site checks both before it sends, and in any case the
    room that its own numbers leave to the others'.

    `standardize` and `intercept` are of the ridge; an agreement that says nothing of them is of before there were any.

    `width` is that of the features that sites bring. Where these are lifted, the statistics are of `lift_width`, and
    `fraction_bits` is their scale; the seed travels here, and the matrix never.

    `dishonest_sites` is against how many sites that work together with the server the `threshold` must hold
    (`least_threshold`); where it is not given, against a third of them.

    `few_rows` leaves out the census, a sum of the rows of each class before any other: by it a site goes on only if the
    others have at least as many rows as there are features, for of fewer a sum can be taken apart.

    `gradient_rounds` is how many sums of gradients a site gives at most; only the logistic head has any. An agreement
    on a ridge says nothing of heads, as it did before there were others, and one without priors nothing of these.
    """

    name: str
    sites: tuple[str, ...]
    classes: tuple[str, ...]
    width: int
    backbone: BackboneReference | None = None
    encoder_digest: str | None = None
    encoder_size: int | None = None
    columns: ColumnsOption = "sum"
    column_offsets: tuple[float, ...] | None = None
    column_exponents: tuple[int, ...] | None = None
    largest_feature: float = 16.0
    lift: LiftOption = "none"
    lift_width: int | None = None
    lift_seed: int | None = None
    lift_bandwidth: float | None = None
    head: Head = "ridge"
    gradient_rounds: int | None = None
    prior: PriorOption = "none"
    alpha: float | Literal["loo"] = "loo"
    beta: float | Literal["auto", "gcv"] = "auto"
    standardize: bool = True
    intercept: bool = True
    seed: int = 0
    fraction_bits: int
    only_local_classes: bool = False
    secure_sum: bool = True
    quorum: int
    threshold: int
    dishonest_sites: int | None = None
    few_rows: bool = False
    deadline: float = 600.0
    max_rows: int

    def __post_init__(self) -> None:
        put = object.__setattr__
        require_federation_name(self.name)
        put(self, "sites", tuple(sorted(require_site_names(self.sites))))
        put(self, "classes", require_class_names(self.classes))
        require_whole("width", self.width, 1, 1 << 20)
        put(self, "largest_feature", require_number("largest_feature", self.largest_feature, above=0.0))
        self._check_lift()
        self._check_columns()
        self._check_encoder()
        self._check_head()
        for field, *words in (("alpha", "loo"), ("beta", "auto", "gcv")):
            if getattr(self, field) not in words:
                put(self, field, require_number(field, getattr(self, field), word="' or '".join(words)))
        require_whole("seed", self.seed, 0, _LIMIT - 1)
        require_whole("fraction_bits", self.fraction_bits, 0, 62)
        for field in ("only_local_classes", "secure_sum", "standardize", "intercept", "few_rows"):
            if not isinstance(getattr(self, field), bool):
                raise AgreementError(f"{field} is {shown(getattr(self, field))}; give true or false")
        put(self, "deadline", require_number("deadline", self.deadline, above=0.0))
        self._check_counts()
        self._check_room()

    def _check_lift(self) -> None:
        """The lift, and what belongs to lifts only, or to some."""
        if self.lift not in LIFTS:
            raise AgreementError(f"lift is {shown(self.lift)}; give {', '.join(LIFTS[:-1])} or {LIFTS[-1]}")
        if self.lift == "none":
            if given := [field for field in LIFT_FIELDS[1:] if getattr(self, field) is not None]:
                raise AgreementError(f"{given[0]} is given, and there is no lift; leave it out, or agree on a lift")
            return
        require_whole("lift_width", self.lift_width, 1, 1 << 20)
        require_whole("lift_seed", self.lift_seed, 0, _LIMIT - 1)
        if self.lift != "relu":
            bandwidth = require_number("lift_bandwidth", self.lift_bandwidth, above=0.0)
            object.__setattr__(self, "lift_bandwidth", bandwidth)
        elif self.lift_bandwidth is not None:
            raise AgreementError("lift_bandwidth is given, and the lift 'relu' has no kernel; leave it out")

    def _check_columns(self) -> None:
        """How the units of the columns are known."""
        if self.columns not in COLUMNS:
            raise AgreementError(f"columns is {shown(self.columns)}; give {', '.join(COLUMNS[:-1])} or {COLUMNS[-1]}")
        for field, check in (("column_offsets", _require_offset), ("column_exponents", _require_exponent)):
            values = getattr(self, field)
            if (values is None) == (self.columns == "given"):
                raise AgreementError(
                    f"columns is {shown(self.columns)}, and {field} is {'missing' if values is None else 'given'}; it "
                    "belongs to columns = 'given', and to nothing else: give both or neither"
                )
            if values is None:
                continue
            if not isinstance(values, tuple) or len(values) != self.width:
                found = f"has {len(values)} numbers" if isinstance(values, tuple) else f"is {shown(values)}"
                raise AgreementError(f"{field} {found}, and features are {self.width} wide; give one for each column")
            object.__setattr__(self, field, tuple(map(check, values)))
        if self.columns == "given" and not (self.intercept or self.standardize) and any(self.column_offsets or ()):
            raise AgreementError(
                "column_offsets are not all 0, and the ridge has no intercept and is not on standardised features; "
                "give zeros, or agree on one of the two"
            )
        if self.columns == "sum" and self.lift == "nystroem":
            raise AgreementError(
                "the first sum of the lift 'nystroem' is of products, for which the columns' units must be known: "
                "agree on columns = 'given', or 'plain' where all are alike"
            )

    def _check_encoder(self) -> None:
        if self.backbone is not None and not isinstance(self.backbone, BackboneReference):
            raise AgreementError(f"backbone is {shown(self.backbone)}; give the reference of a backbone")
        if self.encoder_size is not None:
            require_whole("encoder_size", self.encoder_size, 1, LARGEST_ENCODER)
            if self.encoder_digest is None:
                raise AgreementError("encoder_size is given without an encoder_digest; give both or neither")
        if self.encoder_digest is None:
            return
        if not _is_digest(self.encoder_digest):
            raise AgreementError(f"encoder_digest is {shown(self.encoder_digest)}; give a SHA-256 in 64 hex digits")
        if self.backbone is None:
            raise AgreementError("encoder_digest is given without a backbone; name the backbone it belongs to")

    def _check_head(self) -> None:
        """The head, and what belongs to some heads only."""
        if self.head not in HEADS:
            raise AgreementError(f"head is {shown(self.head)}; give {', '.join(HEADS[:-1])} or {HEADS[-1]}")
        if self.head == "logistic":
            if self.gradient_rounds is None:
                object.__setattr__(self, "gradient_rounds", DEFAULT_GRADIENT_ROUNDS)
            require_whole("gradient_rounds", self.gradient_rounds, 1, _MOST_GRADIENT_ROUNDS)
        elif self.gradient_rounds is not None:
            raise AgreementError(
                f"gradient_rounds is {shown(self.gradient_rounds)}, and the head is {self.head!r}, which has no "
                "gradients; leave it out, or agree on the logistic head"
            )
        if self.prior not in PRIORS:
            raise AgreementError(f"prior is {shown(self.prior)}; give {' or '.join(PRIORS)}")
        if self.head == "lda" and self.alpha != "loo":
            raise AgreementError(f"alpha is {shown(self.alpha)}, and the head 'lda' has no α; leave it out")
        if self.head != "ridge" and self.beta != "auto":
            raise AgreementError(f"beta is {shown(self.beta)}, and the head {self.head!r} has no β; leave it out")

    def _check_counts(self) -> None:
        """threshold ≤ quorum ≤ number of sites, and under masks as many as `least_threshold` says."""
        sites, secure, dishonest = len(self.sites), self.secure_sum, self.dishonest_sites
        if dishonest is not None:
            if not secure:
                raise AgreementError("dishonest_sites is given, and there is no secure sum; leave it out")
            require_whole("dishonest_sites", dishonest, 0, sites - 1, why=f"there are {sites} sites")
        require_whole("quorum", self.quorum, 2 if secure else 1, sites, why=f"there are {sites} sites")
        least = least_threshold(sites, dishonest) if secure else 1
        for field, value in (("quorum", self.quorum), ("threshold", self.threshold)):
            if isinstance(value, int) and value < least:  # type: ignore[redundant-expr]  # of a file it may be anything
                remedy = "" if dishonest is not None else ", or state in dishonest_sites how many may be dishonest"
                raise AgreementError(
                    f"{field} is {value}: with fewer than {least} of {sites} sites a dishonest server with "
                    f"{'a few' if dishonest is None else dishonest} of them could read another; give {least} to "
                    f"{sites}{remedy}"
                )
        require_whole(
            "threshold", self.threshold, least, self.quorum, why=f"the quorum is {self.quorum} of {sites} sites"
        )

    def _check_room(self) -> None:
        sites = len(self.sites)
        require_whole("max_rows", self.max_rows, 1, _LIMIT - 1)
        if self.columns == "sum" and self.max_rows * sites >= _SURVEYED:
            most = (_SURVEYED - 1) // sites
            raise AgreementError(f"max_rows is {self.max_rows}: a survey of {sites} sites has room for {most} each")
        if self.columns == "sum" and self.lift == "none" and self.fraction_bits > _MOST_BITS:
            raise AgreementError(
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
        raise AgreementError(
            f"max_rows is {self.max_rows}: a sum of {sites} sites with features up to {largest:g} could "
            f"overflow the grid at fraction_bits={self.fraction_bits}; {fits}"
        )

    @property
    def layout(self) -> Layout:
        """Of the statistics."""
        return Layout(self.lift_width or self.width, len(self.classes))

    @property
    def methods(self) -> tuple[str, str, str]:
        """What a site tests: its rows alone, the federation's model, its own model by the name of the agreed head."""
        return "local", "global", "fedhip" if self.head == "ridge" else f"fedhip-{self.head}"

    @property
    def has_census(self) -> bool:
        """Whether a sum of the rows of each class comes before all others."""
        return self.secure_sum and not self.few_rows

    @property
    def has_first_sum(self) -> bool:
        """Whether a sum comes before that of the statistics: it says what the columns, or the lift, are."""
        return self.columns == "sum" or self.lift != "none"

    @property
    def sharers(self) -> int:
        """How many times a site's own numbers must fit on the grid; once, where units are of the survey of all rows.

        Such units leave room for the sum of all (`fedhip.core.exact.columns`), whoever has most of it.
        """
        return 1 if self.columns == "sum" and self.lift == "none" else len(self.sites)

    @property
    def chooses_beta(self) -> bool:
        """Whether the sites' rows say what β is."""
        return self.head == "ridge" and self.beta == "auto"

    @property
    def has_later_sums(self) -> bool:
        """Whether sums follow that of the statistics."""
        return self.head == "logistic" or self.prior == "client" or self.chooses_beta

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed, and yet should be known to everybody who takes part."""
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
        return cls._of(read_toml(path, AgreementError, f"get {FILE} from the coordinator"), str(path))

    @classmethod
    def from_text(cls, text: str, where: str) -> Self:
        """The agreement in the text of a file."""
        return cls._of(parse_toml(text, where, AgreementError), where)

    @classmethod
    def _of(cls, content: dict[str, Any], where: str) -> Self:
        require_known(content, _KEYS, where, AgreementError)
        head = require_table(content, "federation", where, AgreementError)
        schema = head.pop("schema", None)
        if schema != SCHEMA or isinstance(schema, bool):
            raise AgreementVersionError(
                f"{where} has schema {shown(schema)}, and this fedhip reads {SCHEMA}; use the version that wrote it"
            )
        fields: dict[str, Any] = {}
        for title, keys in _KEYS.items():
            table = require_table(content, title, where, AgreementError)
            require_known(table, keys, f"{where}: [{title}]", AgreementError)
            for key, field in keys.items():
                if key in table:
                    fields[field] = table[key]
                elif key not in _OPTIONAL:
                    raise AgreementError(f"{where}: [{title}] {key} is missing; restore the file")
        try:
            for field in ("sites", "classes"):
                if not isinstance(fields[field], list):
                    raise AgreementError(f"{field} is {shown(fields[field])}; give a list of names")
                fields[field] = tuple(fields[field])
            if "backbone" in fields:
                fields["backbone"] = backbone_reference(fields["backbone"])
            for field in ("column_offsets", "column_exponents"):
                if isinstance(fields.get(field), list):
                    fields[field] = tuple(fields[field])
            # What a file says nothing of is as it was before there was a choice.
            return cls(**{"columns": "plain", "standardize": False, "intercept": False, **fields})
        except FederationError as error:
            raise type(error)(f"{where}: {error}") from None

    def to_text(self) -> str:
        """federation.toml."""
        return write_toml(self._content(), _HEADING)

    def digest(self) -> str:
        """SHA-256 of the values, in one form whatever the file looks like."""
        text = json.dumps(self._content(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(b"fedhip.agreement\n" + text.encode("ascii")).hexdigest()

    def require_site(self, name: str) -> str:
        """The name, if a site of this federation has it."""
        if name not in self.sites:
            raise SiteNameError(f"the federation {self.name!r} has no site {shown(name)}{near(name, self.sites)}")
        return name

    def require_roster(self, roster: Roster) -> None:
        """Refuse a roster of another federation, or of other sites."""
        if roster.federation != self.name:
            raise RosterError(
                f"the roster is that of the federation {roster.federation!r}, and the agreement that of {self.name!r}; "
                "get both from the same coordinator"
            )
        if missing := [name for name in self.sites if name not in roster.keys]:
            raise RosterError(f"the roster has no key of the site {missing[0]!r}; get the roster of this agreement")
        if more := [name for name in roster.names if name not in self.sites]:
            raise RosterError(f"the roster has a site {more[0]!r} that nobody agreed on; get the right roster")

    def require_rows(self, rows: int, largest: float) -> None:
        """At a site, before it sends: refuse rows or features beyond what the grid has room for."""
        if rows > self.max_rows:
            raise SiteDataError(
                f"there are {rows} rows here, and the agreement allows {self.max_rows} a site (max_rows); "
                "take fewer, or agree on more"
            )
        if self.columns == "plain" and not largest <= self.largest_feature:
            raise SiteDataError(
                f"a feature here is as large as {largest:g}, and the agreement allows {self.largest_feature:g} "
                "(largest_feature); rescale the features at all sites, or agree on more"
            )

    def _content(self) -> Table:
        """As in the file, without what is absent."""
        values = {field: getattr(self, field) for keys in _KEYS.values() for field in keys.values()}
        values |= {"sites": list(self.sites), "classes": list(self.classes)}
        values["head"] = None if self.head == "ridge" else self.head
        values["prior"] = None if self.prior == "none" else self.prior
        values["columns"] = None if self.columns == "plain" else self.columns
        for field in ("column_offsets", "column_exponents"):
            values[field] = None if values[field] is None else list(values[field])
        for field in ("standardize", "intercept", "few_rows"):
            values[field] = values[field] or None
        if self.backbone is not None:
            described = self.backbone.to_dict()
            values["backbone"] = {key: described[key] for key in _BACKBONE if described.get(key) is not None}
        content = {
            title: {key: values[field] for key, field in keys.items() if values[field] is not None}
            for title, keys in _KEYS.items()
        }
        content["federation"] = {"schema": SCHEMA, **content["federation"]}
        return content


def rows_that_fit(largest_feature: float, fraction_bits: int) -> int:
    """How many rows, of all sites together, cannot overflow the int64 grid.

    An entry of the Gram matrix is at most rows · q² and one of the class sums rows · q, for q the largest feature in
    steps of 2^-(fraction_bits/2), as `GridStatistics.from_data` rounds it.
    """
    feature_bits = fraction_bits // 2
    q = math.floor(Fraction(largest_feature) * (1 << feature_bits) + Fraction(1, 2))
    steps = max(q * q << (fraction_bits - 2 * feature_bits), q << (fraction_bits - feature_bits), 1)
    return (_LIMIT - 1) // steps


def largest_lifted(lift: LiftOption, width: int) -> float:
    """How large a lifted feature is, for the scale of the grid: of ReLU about, of the others at most.

    √(2/w) for Fourier's, 1 for Nyström's, whose rows are no longer than that. A ReLU's inputs are normal for a row as
    far from the mean as rows usually are; 32 is for one five times as far. Whoever has a larger one finds that out
    before it sends anything: the vector must leave room for all sites' (`fedhip.federation.sums.vector.require_room`).
    """
    unit = math.sqrt(2.0 / width)
    return {"relu": 32.0 * unit, "fourier": unit, "nystroem": 1.0}[lift]


def least_threshold(sites: int, dishonest: int | None = None) -> int:
    """The least t > (n + c)/2, or more than two thirds, ⌊2n/3⌋ + 1, where nobody says what c is.

    A site reveals shares for one list of survivors. A server with c sites, who reveal theirs for any, that shows two
    lists to two halves of the n − c others has t shares for each of them if t − c ≤ (n − c)/2: both kinds of shares of
    one site, and with them its vector.
    """
    return 2 * sites // 3 + 1 if dishonest is None else (sites + dishonest) // 2 + 1


def backbone_reference(content: object) -> BackboneReference:
    """A backbone as `BackboneReference.to_dict` gives it, checked.

    Its path of a weights file is left out: it means nothing on another machine. The identity tells the weights.
    """
    if not isinstance(content, Mapping):
        raise AgreementError(f"backbone is {shown(content)}; give a table with its name, identity and precision")
    values = {key: value for key, value in content.items() if value is not None and key != "weights"}
    require_known(values, _BACKBONE, "backbone", AgreementError)
    for key in ("name", "precision"):
        if not values.get(key):
            raise AgreementError(f"backbone: {key} is missing; give it")
    for key, value in values.items():
        if key == "mask_ratio":
            values[key] = require_number("backbone: mask_ratio", value)
        elif key == "window":
            values[key] = _window(value)
        elif not isinstance(value, _BACKBONE[key]) or isinstance(value, bool):
            kind = "a whole number" if _BACKBONE[key] is int else "text"
            raise AgreementError(f"backbone: {key} is {shown(value)}; give {kind}")
    if values["precision"] not in _PRECISIONS:
        raise AgreementError(
            f"backbone: precision is {shown(values['precision'])}; use one of {', '.join(_PRECISIONS)}"
        )
    return BackboneReference(**{"identity": None, **values})


def _require_offset(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _LARGEST_OFFSET:
        raise AgreementError(f"a number of column_offsets is {shown(value)}; give a finite number below 2^64 in size")
    return float(value) + 0.0  # −0 is 0


def _require_exponent(value: object) -> int:
    return require_whole("a number of column_exponents", value, -200, 200)


def _window(value: object) -> Window:
    if not isinstance(value, list | tuple) or len(value) != 2 or any(type(end) not in (int, float) for end in value):
        raise AgreementError(f"backbone: window is {shown(value)}; give two numbers, [LOW, HIGH]")
    try:
        return Window(*value)
    except WindowError as error:
        raise AgreementError(f"backbone: {error}") from None


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def require_whole(field: str, value: object, least: int, most: int, why: str = "") -> int:
    """The value, if it is a whole number in this range."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        span = f"from {least} to {most}" if most < _LIMIT - 1 else f"of at least {least}"
        raise AgreementError(f"{field} is {shown(value)}{f', and {why}' if why else ''}; give a whole number {span}")
    return value


def require_number(field: str, value: object, *, above: float | None = None, word: str | None = None) -> float:
    """The value, if it is finite and not negative; `above` excludes itself, `word` is named as the alternative."""
    finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    if not finite or value < 0.0 or value == above:  # type: ignore[operator]
        span = "of at least 0" if above is None else f"above {above:g}"
        other = f"'{word}' or " if word else ""
        raise AgreementError(f"{field} is {shown(value)}; give {other}a finite number {span}")
    try:
        return abs(float(value))  # type: ignore[arg-type]  # −0 is 0
    except OverflowError:
        raise AgreementError(f"{field} is too large; give a smaller number") from None
