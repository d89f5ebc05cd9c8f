"""`site.toml`: what a site permits, whatever the server asks.

The file belongs to the site. What it does not say is decided for the site's protection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from fedhip.federation.agreement.agreement import Agreement, least_threshold
from fedhip.federation.agreement.names import class_positions, same_class, shown
from fedhip.federation.agreement.toml import read_toml, require_known
from fedhip.federation.errors import ClassNameError, PolicyError
from fedhip.utils.toml import write_toml

FILE = "site.toml"

_SWITCHES = ("allow_few_rows", "require_secure_sum", "tell_accuracy", "allow_other_sums", "allow_leavers")
_NOTES = {
    "require_secure_sum": "Refuse a sum without masks, in which the server would see this site's statistics.",
    "minimum_cohort": "Refuse a sum of fewer sites: the sum of two tells each of them about the other.",
    "minimum_difference": "Refuse a sum that differs by fewer sites from an earlier one with some of the same rows.",
    "dishonest_sites": "Refuse a threshold t that a server and so many sites could get round: t > (n + this)/2 of n.",
    "smallest_class": "Leave out, here, rows of a class that has fewer: the sum may be of them alone, for that class.",
    "allow_few_rows": "Take part without a census: a sum of fewer rows than features can be taken apart into rows.",
    "tell_accuracy": "Tell the server the accuracy on this site's test rows, and how many there are.",
    "allow_other_sums": "Take part in a second sum of the same agreement: the difference of two sums may be one site.",
    "allow_leavers": "Go on when a site has left between two sums: their difference tells of its rows.",
}


@dataclass(frozen=True)
class Policy:
    """The values of site.toml, checked."""

    require_secure_sum: bool = True
    minimum_cohort: int = 3
    dishonest_sites: int = 1
    tell_accuracy: bool = False
    allow_other_sums: bool = False
    allow_leavers: bool = False
    class_names: Mapping[str, str] = field(default_factory=dict)
    minimum_difference: int = 3
    smallest_class: int = 2
    allow_few_rows: bool = False

    def __post_init__(self) -> None:
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise PolicyError(f"{name} is {shown(getattr(self, name))}; give true or false")
        _require_least("minimum_cohort", self.minimum_cohort, 2)
        _require_least("minimum_difference", self.minimum_difference, 1)
        _require_least("dishonest_sites", self.dishonest_sites, 0)
        _require_least("smallest_class", self.smallest_class, 1)
        _require_mapping(self.class_names)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The policy in this file; a key that is absent has its default."""
        path = Path(path)
        content = read_toml(path, PolicyError, "an empty file of this name has the safe values")
        require_known(content, (item.name for item in fields(cls)), str(path), PolicyError)
        try:
            return cls(**content)
        except PolicyError as error:
            raise PolicyError(f"{path}: {error}") from None

    def to_text(self) -> str:
        """site.toml, each value with its reason."""
        values: dict[str, Any] = {name: getattr(self, name) for name in _NOTES}
        text = "# This file is the site's own: it holds whatever the server asks. Edit it before you take part.\n"
        for name, value in values.items():
            text += f"\n{write_toml({name: value}, _NOTES[name])}"
        text += '\n# Classes that have another name here than in federation.toml: "name here" = "agreed name".\n'
        return text + write_toml(self.class_names, path=("class_names",))

    def require_agreement(self, agreement: Agreement) -> None:
        """Refuse, before anything is computed, an agreement that this site does not permit."""
        if self.require_secure_sum and not agreement.secure_sum:
            raise PolicyError(
                "the agreement has secure_sum = false, and this site requires the secure sum; ask the coordinator for "
                "it, or, if the server may see this site's statistics, set require_secure_sum = false in site.toml"
            )
        if agreement.secure_sum and self.minimum_cohort > len(agreement.sites):
            raise PolicyError(
                f"minimum_cohort is {self.minimum_cohort}, and the federation has {len(agreement.sites)} sites; "
                "lower it in site.toml if a sum of so few may be known"
            )
        if agreement.secure_sum and agreement.few_rows and not self.allow_few_rows:
            raise PolicyError(
                "the agreement has few_rows = true, and so no census of rows before the sums; ask the coordinator for "
                "one, or, if the sum may be one of few rows, set allow_few_rows = true in site.toml"
            )
        least = least_threshold(len(agreement.sites), self.dishonest_sites)
        if agreement.secure_sum and agreement.threshold < least:
            raise PolicyError(
                f"the agreement's threshold is {agreement.threshold} of {len(agreement.sites)} sites, and against a "
                f"server with {self.dishonest_sites} dishonest sites (dishonest_sites) {least} are needed; ask the "
                "coordinator for more, or lower it in site.toml if you trust the others"
            )
        for own, agreed in self.class_names.items():
            try:
                class_positions([agreed], agreement.classes, {})
            except ClassNameError:
                raise PolicyError(
                    f"[class_names] maps {shown(own)} to {shown(agreed)}, which is no agreed class; "
                    "see the names in federation.toml"
                ) from None

    def class_positions(self, own: Sequence[str], agreement: Agreement) -> tuple[int, ...]:
        """Where each of the site's classes stands among the agreed ones; an unknown one is refused by name."""
        return class_positions(own, agreement.classes, self.class_names)


def _require_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise PolicyError(f"{name} is {shown(value)}; give a whole number of at least {least}")


def _require_mapping(value: object) -> None:
    if not isinstance(value, Mapping):
        raise PolicyError(f"class_names is {shown(value)}; give a table of names")
    seen = set()
    for own, agreed in value.items():
        if not isinstance(agreed, str) or not agreed:
            raise PolicyError(f"[class_names] maps {shown(own)} to {shown(agreed)}; give the agreed name as text")
        if same_class(own) in seen:
            raise PolicyError(f"[class_names] has {shown(own)} twice, in two spellings; keep one")
        seen.add(same_class(own))
