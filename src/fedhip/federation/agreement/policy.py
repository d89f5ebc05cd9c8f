"""`site.toml`: what a site permits, whatever the server asks.

The file belongs to the site. What it does not say is decided for the site's protection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.fields import (
    check_fields,
    declarations,
    declare,
    flag,
    from_tables,
    number,
    read_toml,
    whole,
)
from fedhip.federation.agreement.limits import least_threshold
from fedhip.federation.agreement.names import class_positions, same_class, shown
from fedhip.federation.agreement.privacy import colluders
from fedhip.federation.errors import PolicyError, SetupError
from fedhip.federation.status_codes import SiteRefusalError
from fedhip.utils.toml import write_toml

FILE = "site.toml"


def _mapping(_: str, value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise SetupError(f"class_names is {shown(value)}; give a table of names")
    seen = set()
    for own, agreed in value.items():
        if not isinstance(agreed, str) or not agreed:
            raise SetupError(f"[class_names] maps {shown(own)} to {shown(agreed)}; give the agreed name as text")
        if same_class(own) in seen:
            raise SetupError(f"[class_names] has {shown(own)} twice, in two spellings; keep one")
        seen.add(same_class(own))
    return value


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The values of site.toml, checked. Each is written with its help as a comment."""

    require_secure_sum: bool = declare(
        "", flag, default=True, absent=True,
        help="Refuse a sum without masks, in which the server would see this site's statistics.",
    )  # fmt: skip
    minimum_cohort: int = declare(
        "", whole(2), default=3, absent=3,
        help="Refuse a sum of fewer sites: the sum of two tells each of them about the other.",
    )  # fmt: skip
    minimum_difference: int = declare(
        "", whole(1), default=3, absent=3,
        help="Refuse a sum that differs by fewer sites from an earlier one with some of the same rows.",
    )  # fmt: skip
    dishonest_sites: int = declare(
        "", whole(0), default=1, absent=1,
        help="Refuse a threshold t that a server and so many sites could get round: t > (n + this)/2 of n.",
    )  # fmt: skip
    smallest_class: int = declare(
        "", whole(1), default=2, absent=2,
        help="Leave out, here, rows of a class that has fewer: the sum may be of them alone, for that class.",
    )  # fmt: skip
    allow_few_rows: bool = declare(
        "", flag, default=False, absent=False,
        help="Take part without a census: a sum of fewer rows than features can be taken apart into rows.",
    )  # fmt: skip
    tell_accuracy: bool = declare(
        "", flag, default=False, absent=False,
        help="Tell the server the accuracy on this site's test rows, and how many there are.",
    )  # fmt: skip
    allow_other_sums: bool = declare(
        "", flag, default=False, absent=False,
        help="Take part in a second sum of the same agreement: the difference of two sums may be one site.",
    )  # fmt: skip
    allow_leavers: bool = declare(
        "", flag, default=False, absent=False,
        help="Go on when a site has left between two sums: their difference tells of its rows.",
    )  # fmt: skip
    require_noise: bool = declare(
        "", flag, default=False, absent=False,
        help="Refuse a federation without differential privacy (epsilon): its sums are exact.",
    )  # fmt: skip
    max_epsilon: float = declare(
        "", number(above=0.0, most=100.0), default=8.0, absent=8.0,
        help="With differential privacy: refuse a sum by which all that had rows of this site would be at more than "
        "this ε, at max_delta, together.",
    )  # fmt: skip
    max_delta: float = declare("", number(above=0.0, most=0.5), default=1e-5, absent=1e-5, help="At this δ.")
    class_names: Mapping[str, str] = declare(
        "", _mapping, default={}, absent={},
        help='Classes that have another name here than in federation.toml: "name here" = "agreed name".',
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The policy in this file; a key that is absent has its default."""
        path = Path(path)
        try:
            content = read_toml(path, "an empty file of this name has the safe values")
            values = from_tables(cls, content, str(path))
        except SetupError as error:
            raise PolicyError(str(error)) from None
        try:
            return cls(**values)
        except SetupError as error:
            raise PolicyError(f"{path}: {error}") from None

    def to_text(self) -> str:
        """site.toml, each value with its reason."""
        text = "# This file is the site's own: it holds whatever the server asks. Edit it before you take part.\n"
        for name, declared in declarations(self).items():
            value = getattr(self, name)
            if isinstance(value, Mapping):
                text += f"\n# {declared.help}\n{write_toml(value, path=(name,))}"
            else:
                text += f"\n{write_toml({name: value}, declared.help)}"
        return text

    def require_agreement(self, agreement: Agreement) -> None:
        """Refuse, before anything is computed, an agreement that this site does not permit."""
        if self.require_noise and agreement.epsilon is None:
            raise PolicyError(
                "the agreement has no epsilon, and this site requires differential privacy (require_noise); ask the "
                "coordinator for it, or, if exact sums may be known, set require_noise = false in site.toml"
            )
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
        known = colluders(len(agreement.sites), agreement.dishonest_sites)
        if agreement.epsilon is not None and agreement.secure_sum and known < self.dishonest_sites:
            raise PolicyError(
                f"the agreement's noise holds against a server with {known} other sites, and this site's policy wants "
                f"{self.dishonest_sites} (dishonest_sites); ask the coordinator for more (--dishonest-sites), or lower "
                "it in site.toml if you trust the others"
            )
        if agreement.epsilon is not None and agreement.secure_sum and self.allow_other_sums:
            raise PolicyError(
                "allow_other_sums is true, and the agreement has epsilon: of two sums with the same noise, the "
                "difference is one site's numbers with its own share alone; set allow_other_sums = false in site.toml"
            )
        for own, agreed in self.class_names.items():
            try:
                class_positions([agreed], agreement.classes, {})
            except SiteRefusalError:
                raise PolicyError(
                    f"[class_names] maps {shown(own)} to {shown(agreed)}, which is no agreed class; "
                    "see the names in federation.toml"
                ) from None
