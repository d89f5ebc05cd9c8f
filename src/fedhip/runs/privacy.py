"""Differential privacy as every door takes it: ε and what goes with it, and where the public bounds come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhip.data import Dataset, FeatureSet, read_features
from fedhip.data.one_by_one import divide_one_by_one
from fedhip.data.tables import Description, TableRows
from fedhip.errors import InputError
from fedhip.features.backbones import EMBEDDED, embedded_moments
from fedhip.features.reference import BackboneReference
from fedhip.privacy.accounting import require_delta, require_epsilon
from fedhip.privacy.mechanism import DEFAULT_DELTA, UNITS, Unit
from fedhip.privacy.public import PublicMap, PublicMoments
from fedhip.simulation.private import PrivacyOptions

_Rows = TypeVar("_Rows", FeatureSet, TableRows)

#: At a larger ε nothing is promised: the chance of anything may differ by a factor of e^ε.
MOST_EPSILON = 100.0


@dataclass(frozen=True)
class PrivacySettings:
    """What was asked for.

    Parameters
    ----------
    epsilon, delta : float
    unit : "row", "group" or "client"
    unit_rows : int, optional
        How many rows of a group or of a client count.
    clip : float, optional
        The length that rows are cut to, where nothing else is known of them.
    public : path of a feature file, (N, m) array, or "fedhip-vit", optional
        Rows that are public, of the same backbone; or the backbone, whose public moments come with the package.
    """

    epsilon: float
    delta: float = DEFAULT_DELTA
    unit: Unit = "row"
    unit_rows: int | None = None
    clip: float | None = None
    public: str | Path | ArrayLike | None = None

    @classmethod
    def of(cls, epsilon: float | None, given: Mapping[str, Any]) -> PrivacySettings | None:
        """From options, None where they are not given; None without ε, beside which the others say nothing."""
        said = {name: value for name, value in given.items() if value is not None}
        if epsilon is None:
            if said:
                name = next(iter(said)).replace("_", "-")
                raise InputError(f"--{name} is of differential privacy; give --epsilon too, or leave it out")
            return None
        return cls.asked(epsilon, said)

    @classmethod
    def asked(cls, epsilon: float, given: Mapping[str, Any]) -> PrivacySettings:
        """The same where ε is given."""
        said = {name: value for name, value in given.items() if value is not None}
        if require_epsilon(epsilon) > MOST_EPSILON:
            raise InputError(
                f"epsilon is {epsilon:g}, which protects nobody; give at most {MOST_EPSILON:g} (1 is usual), or "
                "leave it out"
            )
        if "delta" in said:
            said["delta"] = require_delta(said["delta"])
        if said.get("unit", "row") not in UNITS:
            raise InputError(f"unit is {said['unit']!r}; give one of {', '.join(UNITS)}")
        if "clip" in said and "public" in said:
            raise InputError("public rows say how far out rows lie; give --public or --clip, not both")
        if "clip" in said:
            PublicMap.of_length(1, said["clip"])
        return cls(float(epsilon), **said)

    @property
    def options(self) -> dict[str, Any]:
        """For the configuration that repeats the run; rows that were given as an array cannot be named in it."""
        public = str(self.public) if isinstance(self.public, str | Path) else None
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "unit_rows": self.unit_rows,
            "clip": self.clip,
            "public": public if public in (None, EMBEDDED) else str(Path(str(public)).absolute()),
        }

    def with_public(
        self, width: int, *, table: Description | None = None, backbone: BackboneReference | None = None
    ) -> PrivacyOptions:
        """With what is public of features so wide: given, agreed in a table's description, or of the backbone."""
        if self.clip is not None:
            found = PublicMap.of_length(width, self.clip)
        elif self.public is not None:
            found = PublicMap.of_moments(self._moments(self.public), "public rows")
        elif table is not None:
            found = map_of_table(table)
        elif backbone is not None and _is_embedded(backbone):
            found = PublicMap.of_moments(self._moments(EMBEDDED), f"the public images that {EMBEDDED} learned from")
        else:
            what = "these features" if backbone is None else f"features of {backbone.name}"
            raise InputError(
                f"nothing public is known of {what}, and a bound from private rows would give them away; give features "
                "of public rows, made alike (--public FILE), or the length that rows are cut to (--clip LENGTH)"
            )
        found.require_width(width)
        return PrivacyOptions(self.epsilon, found, self.delta, self.unit, self.unit_rows)

    def require_others_rows(self, rows: NDArray[Any]) -> None:
        """Refuse public rows that are among those to be protected: what is public would be read off these."""
        if self.public is None or (isinstance(self.public, str) and self.public == EMBEDDED):
            return
        public = np.asarray(read_features(self.public).features if isinstance(self.public, str | Path) else self.public)
        if public.ndim != 2 or public.shape[1] != rows.shape[1]:
            return  # refused where it is read
        # In float32, as half of all files are.
        known = {row.tobytes() for row in public.astype(np.float32)}
        if found := sum(row.tobytes() in known for row in rows.astype(np.float32)):
            raise InputError(
                f"{found:,} of the rows to be protected are among the public ones, and how rows are clipped would be "
                "read off them; give rows that are nobody's (--public FILE)"
            )

    @staticmethod
    def _moments(public: str | Path | ArrayLike) -> PublicMoments:
        if isinstance(public, str) and public == EMBEDDED:
            return PublicMoments.from_file(embedded_moments())
        rows = read_features(public).features if isinstance(public, str | Path) else np.asarray(public)
        return PublicMoments.of(rows)


def divided_one_by_one(rows: _Rows, seed: int, images: Dataset | None = None) -> _Rows:
    """The rows with a division by which none decides about another, unless they bring one: as at a site.

    `images` are those that they are features of.
    """
    return rows if rows.split is not None else replace(rows, split=divide_one_by_one(images or rows, seed))


def with_public_fills(rows: TableRows) -> TableRows:
    """The table whose missing values are filled by the middle of the agreed range, and not by anybody's mean."""
    if rows.drafted:
        raise InputError(
            f"{rows.source}: what its columns hold was read off its rows, which differential privacy is to protect; "
            "agree on a description with 'low' and 'high' (fedhip describe drafts one to be corrected) and give it "
            "with --columns columns.toml"
        )
    return replace(rows, description=filled_publicly(rows.description))


def filled_publicly(description: Description) -> Description:
    """With the middle of the agreed range for what is missing in a column, unless something else is agreed on."""
    fills = {}
    for column in description.values:
        low, high = _range(column.name, column.kind, column.low, column.high)
        if column.fill is None:
            fills[column.name] = (low + high) / 2.0
    return description.with_fills(fills)


def map_of_table(description: Description) -> PublicMap:
    """Numbers from low to high become −1 to 1; a category is 1 in one place.

    Rows are clipped to the length of one whose numbers are spread evenly over their ranges: a third of the square for
    each number, and 1 for whatever is yes or no.
    """
    low, high, square = [], [], 0.0
    for column in description.used:
        if column.is_value:
            ends = _range(column.name, column.kind, column.low, column.high)
            low.append(ends[0])
            high.append(ends[1])
            square += 1.0 if column.kind == "boolean" else 1.0 / 3.0
        else:
            square += 1.0
        # What says yes or no of many is mostly no, and counts from 0.
        others = len(column.features) - column.is_value
        low += [-1.0] * others
        high += [1.0] * others
    return PublicMap.of_ranges(low, high, float(np.sqrt(square)), "the ranges agreed in columns.toml")


def _range(name: str, kind: str, low: float | None, high: float | None) -> tuple[float, float]:
    if kind == "boolean":
        return 0.0, 1.0
    if low is None or high is None or low >= high:
        raise InputError(
            f"column {name!r} has no range: with differential privacy its description needs 'low' and 'high', which "
            "everybody knows beforehand and nobody read off the rows"
        )
    return low, high


def _is_embedded(backbone: BackboneReference) -> bool:
    """Whether features are those that the package's public moments are of."""
    plain = backbone.pooling is None and backbone.weights is None and not backbone.mask_ratio
    return backbone.name == EMBEDDED and plain
