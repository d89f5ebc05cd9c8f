"""Differential privacy in an agreement: how large each site's share of the noise is, and what is public of rows.

The noise is that of `fedhip.privacy.mechanism`. A sum is of at least `threshold` sites, for no site unmasks a sum of
fewer; of these `dishonest_sites` may tell the server their share of the noise, and at least one is known to who looks,
who is a site itself. So `threshold` less these are surely honest survivors, and their shares alone reach σ. Without
masks every site's part is seen by itself, and its own noise must reach σ (`local_noise`).

All that rows are clipped and projected by follows from the agreement (a length, or ranges of columns) or comes with the
package (the moments of the embedded backbone): `clipping` is its digest, so that a site where it is another refuses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedhip.errors import InputError
from fedhip.federation.errors import SetupError

if TYPE_CHECKING:
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.privacy.mechanism import Mechanism
    from fedhip.privacy.public import PublicMap

#: What says nothing without ε.
BESIDE = ("delta", "unit", "unit_rows", "clip", "public", "directions", "clipping")


def colluders(sites: int, dishonest: int | None) -> int:
    """How many sites may put what they know together: as agreed, or a third, and at least the one that looks."""
    return max(1, sites // 3 if dishonest is None else dishonest)


def mechanism_for(
    *,
    epsilon: float,
    delta: float,
    unit: Any,
    unit_rows: int | None,
    directions: int,
    sites: int,
    threshold: int,
    dishonest: int | None,
    secure_sum: bool,
) -> Mechanism:
    """The noise of a federation's sum."""
    from fedhip.privacy.mechanism import Mechanism

    known = colluders(sites, dishonest) if secure_sum else sites - 1
    missing = sites - threshold if secure_sum else 0
    rows = 1 if unit_rows is None else unit_rows
    try:
        return Mechanism(epsilon, delta, unit, rows, directions, sites, known + missing, missing)
    except InputError as error:
        raise SetupError(str(error)) from None


def mechanism_of(agreement: Agreement) -> Mechanism:
    """The agreed noise, of all sites; see `Mechanism.of_survivors`."""
    assert agreement.epsilon is not None and agreement.delta is not None  # noqa: S101, PT018  (who asks has looked)
    assert agreement.directions is not None  # noqa: S101
    return mechanism_for(
        epsilon=agreement.epsilon,
        delta=agreement.delta,
        unit=agreement.unit,
        unit_rows=agreement.unit_rows,
        directions=agreement.directions,
        sites=len(agreement.sites),
        threshold=agreement.threshold,
        dishonest=agreement.dishonest_sites,
        secure_sum=agreement.secure_sum,
    )


def public_map(
    epsilon: float, width: int, *, clip: float | None, public: str | None, table: Any, backbone: Any
) -> PublicMap:
    """What is public of features so wide, as `fedhip run` finds it."""
    from fedhip.runs.privacy import PrivacySettings

    try:
        settings = PrivacySettings.asked(epsilon, {"clip": clip, "public": public})
        return settings.with_public(width, table=table, backbone=backbone).public
    except InputError as error:
        raise SetupError(str(error)) from None


def public_of(agreement: Agreement) -> PublicMap:
    """The same of an agreement; refused where it is not what everybody agreed on."""
    assert agreement.epsilon is not None  # noqa: S101  (who asks has looked)
    found = public_map(
        agreement.epsilon,
        agreement.width,
        clip=agreement.clip,
        public=agreement.public,
        table=agreement.table,
        backbone=agreement.backbone,
    )
    if found.digest != agreement.clipping:
        raise SetupError(
            f"rows would be clipped here by {found.source} as digest {found.digest[:12]}… has it, and the agreement "
            f"says {str(agreement.clipping)[:12]}…: this fedhip is of another version than the coordinator's; have the "
            "same everywhere"
        )
    return found


def draft_privacy(given: Mapping[str, Any], sites: int, threshold: int) -> dict[str, Any]:
    """What follows from ε and what is given beside it: clipping, directions, scale of the grid, rows, fills."""
    from fedhip.features.backbones import EMBEDDED
    from fedhip.privacy.accounting import require_delta, require_epsilon
    from fedhip.privacy.mechanism import DEFAULT_DELTA
    from fedhip.runs.privacy import filled_publicly

    try:
        epsilon, delta = require_epsilon(given["epsilon"]), require_delta(given.get("delta", DEFAULT_DELTA))
        table = filled_publicly(given["table"]) if "table" in given else None
    except InputError as error:
        raise SetupError(str(error)) from None
    if given.get("public", EMBEDDED) != EMBEDDED:
        raise SetupError(
            f"public is {given['public']!r}, which the sites have not; in a federation give {EMBEDDED!r}, whose "
            "moments come with fedhip, or the length that rows are cut to (--clip LENGTH)"
        )
    for name in ("columns", "fraction_bits", "largest_feature"):
        if name in given:
            raise SetupError(f"{name} is given, and with epsilon it follows from the noise; leave it out")
    public = public_map(
        epsilon,
        given["width"],
        clip=given.get("clip"),
        public=given.get("public"),
        table=table,
        backbone=given.get("backbone"),
    )
    unit = given.get("unit", "row")
    if unit != "row":
        require_unit_rows(unit, given.get("unit_rows"))
    mechanism = mechanism_for(
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        unit_rows=given.get("unit_rows"),
        directions=public.width,
        sites=sites,
        threshold=threshold,
        dishonest=given.get("dishonest_sites"),
        secure_sum=given.get("secure_sum", True),
    )
    return {
        "epsilon": epsilon,
        "delta": delta,
        "unit": unit,
        "head": given.get("head", "ridge"),
        "columns": "plain",
        "largest_feature": 1.0,
        "directions": public.width,
        "clipping": public.digest,
        "fraction_bits": mechanism.fraction_bits,
        **({} if table is None else {"table": table}),
        **({} if "max_rows" in given else {"max_rows": most_rows(delta, sites)}),
    }


def most_rows(delta: float, sites: int, usual: int = 100_000) -> int:
    """Rows of one site, so that δ is below 1/rows of all of them, whatever they bring."""
    return max(1, min(usual, (math.ceil(1.0 / delta) - 1) // sites))


def require_unit_rows(unit: str, unit_rows: int | None) -> None:
    """Refuse a unit of any number of rows."""
    if unit_rows is None:
        raise SetupError(
            f"the unit is a {unit}, which may have any number of rows; say how many of one count at most (--unit-rows "
            "N): noise grows with them"
        )


def check_privacy(agreement: Agreement) -> None:
    """Refuse what takes a sum without noise, and noise that does not protect, or buries everything."""
    if agreement.epsilon is None:
        given = [name for name in BESIDE if getattr(agreement, name) is not None]
        if given or agreement.local_noise:
            name = given[0] if given else "local_noise"
            raise SetupError(f"{name} is of differential privacy; give epsilon too (--epsilon), or leave it out")
        return
    from fedhip.privacy.accounting import require_delta, require_epsilon

    for found, name in (
        (agreement.head != "ridge", f"the head {agreement.head!r}"),
        (agreement.prior != "none", "prior = 'client'"),
        (agreement.lift != "none", "the lift"),
        (agreement.columns != "plain", "units of columns"),
        (not (agreement.standardize and agreement.intercept), "--no-standardize or --no-intercept"),
        (agreement.beta == "gcv", "beta = 'gcv'"),
        (agreement.few_rows, "few_rows"),
        (agreement.veto_share is not None, "veto_share, which is a sum without noise"),
        (agreement.auditor is not None, "the auditor, who would see sums with a share of the noise alone"),
    ):
        if found:
            raise SetupError(
                "with epsilon there is one sum, with noise, of rows as they are agreed on, and the ridge from it; "
                f"leave out {name}"
            )
    if not agreement.secure_sum and not agreement.local_noise:
        raise SetupError(
            "epsilon is given, and there is no secure sum: the server sees what each site sends, with a share of the "
            "noise that protects nobody; take the secure sum, or have each site add all of the noise (--local-noise: "
            f"the sum's is then {math.sqrt(len(agreement.sites)):.3g} times as large)"
        )
    if agreement.secure_sum and agreement.local_noise:
        raise SetupError("local_noise is of sums without masks; leave it out, or the secure sum (--no-secure-sum)")
    if agreement.directions is None or agreement.clipping is None or agreement.delta is None or agreement.unit is None:
        raise SetupError("epsilon is given without delta, unit, directions or clipping; make the agreement with init")
    if agreement.unit == "row" and agreement.unit_rows not in (None, 1):
        raise SetupError(
            f"unit_rows is {agreement.unit_rows}, and the unit is a row; leave it out, or take another unit"
        )
    if agreement.unit != "row":
        require_unit_rows(agreement.unit, agreement.unit_rows)
    rows = agreement.max_rows * len(agreement.sites)
    try:
        require_epsilon(agreement.epsilon)
        require_delta(agreement.delta, rows)
    except InputError as error:
        more = "" if rows * agreement.delta < 1.0 else f"; or let sites bring fewer (max_rows is {agreement.max_rows})"
        raise SetupError(f"{error}{more}") from None
    mechanism = mechanism_of(agreement)
    if agreement.fraction_bits != mechanism.fraction_bits:
        raise SetupError(
            f"fraction_bits is {agreement.fraction_bits}, and the noise asks for {mechanism.fraction_bits}: on another "
            "grid its low bits would be exact, or rows lost; make the agreement with init"
        )
    if rows < (needed := mechanism.least_rows(len(agreement.classes))):
        raise SetupError(
            f"the federation is too small for epsilon = {agreement.epsilon:g}: its sites bring {rows:,} rows at most "
            f"(max_rows = {agreement.max_rows}), and the noise weighs as much as {needed:,.0f}; with that many rows it "
            f"would do, or with epsilon = {mechanism.larger_epsilon(rows, len(agreement.classes)):g}"
        )


def guarantee_of(agreement: Agreement) -> str | None:
    """What the sites are promised, in one sentence; None without ε."""
    return None if agreement.epsilon is None else mechanism_of(agreement).sentence("site")


def costs_in_words(agreement: Agreement) -> str:
    """What the noise weighs, and what of it is due to sites that may drop out or tell their share."""
    mechanism = mechanism_of(agreement)
    return (
        f"each site adds 1/{mechanism.honest} of the noise's variance, for {mechanism.honest} of {mechanism.clients} "
        f"sites are surely there and honest; the sum of all has σ = {mechanism.total_sigma:.3g}, and says nothing of "
        f"fewer than {mechanism.least_rows(len(agreement.classes)):,.0f} training rows together"
    )
