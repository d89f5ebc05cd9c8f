"""An agreement in words, for the people of a site who decide whether to take part."""

from __future__ import annotations

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.policy import Policy
from fedhip.federation.sums.later import Ask

_SUMS = {
    Ask.CENSUS: "how many rows there are of each class",
    Ask.MOMENTS: "what the columns are like",
    Ask.STATISTICS: "the statistics",
    Ask.BETA: "which β is best",
    Ask.TEMPERATURE: "a temperature",
    Ask.GRADIENT: "gradients",
    Ask.PENALTY: "a penalty",
    Ask.SCALE: "the scores' scale",
    Ask.PRIOR: "priors",
}


def sums_of(agreement: Agreement) -> dict[Ask, int]:
    """How many sums of each kind a site gives at most, in their order."""
    prior, head = agreement.prior == "client", agreement.head
    gradients = agreement.gradient_rounds or 0
    counts = {
        Ask.CENSUS: int(agreement.has_census),
        Ask.MOMENTS: int(agreement.has_first_sum),
        Ask.STATISTICS: 1,
        Ask.BETA: int(agreement.chooses_beta),
        Ask.TEMPERATURE: int(head == "logistic" or (head == "lda" and prior)),
        Ask.GRADIENT: gradients,
        Ask.PENALTY: int(gradients >= 2),
        Ask.SCALE: int(prior and head != "ridge"),
        Ask.PRIOR: int(prior),
    }
    return {ask: count for ask, count in counts.items() if count}


def in_words(agreement: Agreement, policy: Policy, site: str) -> list[str]:
    """Who takes part, what is fitted, how many sums, and how many sites each needs."""
    n, sums = len(agreement.sites), sums_of(agreement)
    backbone = "" if agreement.backbone is None else f" of {agreement.backbone.name}"
    listed = ", ".join(_SUMS[ask] if count == 1 else f"{count} of {_SUMS[ask]}" for ask, count in sums.items())
    said = [
        f"federation: {agreement.name}; this site is {site!r}",
        f"takes part: {n} sites, {', '.join(agreement.sites)}",
        f"head: {agreement.head}, {len(agreement.classes)} classes, {agreement.width} features{backbone}",
        f"sums: {'up to ' if Ask.GRADIENT in sums else ''}{sum(sums.values())} ({listed})",
    ]
    if not agreement.secure_sum:
        return [*said, "masks: none; the server sees what each site sends"]
    return [
        *said,
        f"threshold: {agreement.threshold} of {n} sites unmask a sum, and a round needs {agreement.quorum}",
        f"smallest cohort: this site refuses a sum of fewer than {policy.minimum_cohort} sites",
    ]
