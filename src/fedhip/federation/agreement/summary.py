"""An agreement in words, for the people of a site who decide whether to take part."""

from __future__ import annotations

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.policy import Policy
from fedhip.federation.agreement.privacy import costs_in_words, guarantee_of
from fedhip.federation.sums.table import GRADIENT, sums_of


def in_words(agreement: Agreement, policy: Policy, site: str) -> list[str]:
    """Who takes part, what is fitted, how many sums, and how many sites each needs."""
    n, sums = len(agreement.sites), sums_of(agreement)
    backbone = "" if agreement.backbone is None else f" of {agreement.backbone.name}"
    if agreement.table is not None:
        backbone = f" of {len(agreement.table.used)} columns of a table"
    listed = ", ".join(kind.title if count == 1 else f"{count} of {kind.title}" for kind, count in sums.items())
    said = [
        f"federation: {agreement.name}; this site is {site!r}",
        f"takes part: {n} sites, {', '.join(agreement.sites)}",
        f"head: {agreement.head}, {len(agreement.classes)} classes, {agreement.width} features{backbone}",
        f"sums: {'up to ' if GRADIENT in sums or agreement.wide is not None else ''}{sum(sums.values())} ({listed})",
    ]
    if agreement.candidates is not None:
        said.append(f"models are chosen among: {', '.join(agreement.candidates)}")
    if agreement.wide is not None:
        said.append(
            f"a lift competes: each of these stands once more with {agreement.lift_title} beside the features, where "
            "there are rows enough for that many columns"
        )
    if agreement.table is not None:
        names = ", ".join(f"{column.name} ({column.kind})" for column in agreement.table.used)
        said.append(f"columns: {names}; predicted: {agreement.table.labels[0]}")
    if agreement.veto_share is not None:
        said.append(f"veto: the round stops where more than {agreement.veto_share:g} of the sites find the sum worse")
    if agreement.auditor is not None:
        said.append(f"auditor: {agreement.auditor}, to whom this site may be asked to show what it masked")
    if agreement.epsilon is not None:
        said += [f"privacy: {guarantee_of(agreement)}", f"noise: {costs_in_words(agreement)}"]
    if not agreement.secure_sum:
        return [*said, "masks: none; the server sees what each site sends"]
    return [
        *said,
        f"threshold: {agreement.threshold} of {n} sites unmask a sum, and a round needs {agreement.quorum}",
        f"smallest cohort: this site refuses a sum of fewer than {policy.minimum_cohort} sites",
    ]
