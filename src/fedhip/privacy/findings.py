"""What measured leaks mean, in words, and what to do about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: From worst to best. critical: rows were recovered; high: parts of rows, or rows under a condition that may well hold;
#: moderate: facts about the data, or rows if others act together; low: looked for and not found.
SEVERITIES = ("critical", "high", "moderate", "low")

#: Classes of at most this many rows are few: their mean is near each of them.
FEW = 3

_NEVER_PLAIN = "Never send a plain upload: take part only under the secure sum (require_secure_sum = true)."
_MERGE = "Merge classes of fewer than {} rows with others, or leave their rows out."
_MORE_SITES = "Ask for at least 3 sites, better 5 or more (minimum_cohort), who do not act together."
_ONE_SUM = (
    "Take part in one sum only (allow_other_sums = false); after a join or a forget, change several sites at once."
)
_LESS_EPSILON = "Agree on a smaller epsilon."
_ENOUGH_ROWS = (
    "Take part only where the sites, any one of them left out, have clearly more rows than the {:,} features; "
    "or use fewer features."
)
_KEEP_MODEL = "Treat the personalized model like the rows: keep it at the site, give out predictions, not weights."


@dataclass(frozen=True)
class Finding:
    """How bad, who sees it, what was found, and what to do ('' where nothing is to be done)."""

    severity: str
    about: str
    finding: str
    advice: str = ""

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return SEVERITIES.index(self.severity)

    def to_dict(self) -> dict[str, str]:
        """For machines."""
        return {"severity": self.severity, "about": self.about, "finding": self.finding, "advice": self.advice}


def of_the_upload(plain: dict[str, Any]) -> list[Finding]:
    """What the receiver of a plain upload has."""
    return [_single(plain), *_few(plain), _lattice(plain["lattice"]), _rank(plain["gram_rank"])]


def in_the_sum(plain: dict[str, Any], total: dict[str, Any]) -> list[Finding]:
    """What stays visible when only the sum is known."""
    sites, features = total["sites"], total["features"]
    near = total["with_one_honest_other"]
    findings = []
    if sites == 2:
        text = "with two sites, the other one subtracts its own statistics and has your plain upload, bit for bit"
        findings.append(Finding("critical", "secure sum", text, _MORE_SITES))
    else:
        findings.append(_seen(total))
        text = f"the other {sites - 1} sites together have your plain upload"
        if near["colluding"] > 1:
            text += (
                f"; {near['colluding']} of them have the sum of you and one more site, {near['rows']:,} "
                f"rows{_against(near['rows'], features)}"
            )
        findings.append(Finding("moderate", "secure sum", text, _MORE_SITES))
    if single := plain["single_rows"]:
        names = _names([row["class"] for row in single])
        text = (
            f"if no other site has rows of {names}, the sum's column of that class is your one row, for every "
            "site to read; if exactly one other site has, that site reads it"
        )
        findings.append(Finding("high", "secure sum", text, _MERGE.format(FEW + 1)))
    findings += [
        Finding(
            "moderate", "secure sum",
            "two sums that differ by your site alone (you join later, or are forgotten) differ by your plain upload, "
            "bit for bit", _ONE_SUM,
        ),
        Finding(
            "moderate", "secure sum",
            "every site learns how many rows the others have of each class together: the sum's counts less its own",
        ),
    ]  # fmt: skip
    return findings


def in_the_noisy_sum(plain: dict[str, Any], total: dict[str, Any], guarantee: str) -> list[Finding]:
    """What the same attacks find under noise, and what holds whatever is tried."""
    found = []
    alone = {row["row"] for row in (*plain["single_rows"], *plain["lattice"]["recovered"])}
    for about, rows, what in (
        ("noisy sum", len(total["lattice"]["recovered"]), "the sum, as another site sees it without its own rows"),
        ("noisy upload", len(alone), "your part with your own share of the noise, if all others told theirs"),
    ):
        text = f"{rows} of {plain['lattice']['rows']:,} rows recovered from {what}"
        found.append(Finding("critical" if rows else "low", about, text, _LESS_EPSILON if rows else ""))
    return [*found, Finding("low", "noisy sum", f"whatever is tried: {guarantee}")]


def _seen(total: dict[str, Any]) -> Finding:
    """The sum as another site sees it: without its own rows."""
    seen, features, lattice = total["seen_by_another_site"]["rows"], total["features"], total["lattice"]
    whose = ", if the others have as many each as you" if total["assumed"] else ""
    text = f"another site takes its own rows out of the sum and is left with {seen:,} rows{whose}"
    advice = _ENOUGH_ROWS.format(features)
    if seen >= features:
        return Finding("low", "secure sum", f"{text}: too many for single rows to be found among {features:,} features")
    text += f", fewer than the {features:,} features"
    if lattice["recovered"]:
        found = len(lattice["recovered"])
        text += (
            f": {found} of your rows were recovered from it in {lattice['seconds']:.1f} s, though not whose they are"
        )
        return Finding("critical", "secure sum", text, advice)
    return Finding("high", "secure sum", f"{text}, which determine every single row; {_effort(lattice)}", advice)


def of_the_model(model: dict[str, Any]) -> list[Finding]:
    """What the weights of the site's personalized model tell one who knows the sum, as every site does."""
    recognised, share = model["told_apart"], model["own_rows_inside"]
    text = (
        f"your model less the global one, times the sum's Gram matrix, is {model['combinations']} combinations of your "
        f"rows; of a row of yours {share:.1%} lies in their span (median)"
    )
    if recognised is None:
        severity = "high" if share > 0.999 else "moderate"
    else:
        text += (
            f", of a row that was held out {model['held_out_inside']:.1%}: who has a row can tell "
            f"whether you trained on it (right in {recognised:.0%} of pairs)"
        )
        severity = "high" if recognised > 0.8 else "moderate" if recognised > 0.6 else "low"
    return [Finding(severity, "published model", text, _KEEP_MODEL)]


def _single(plain: dict[str, Any]) -> Finding:
    rows = plain["single_rows"]
    if not rows:
        return Finding("low", "plain upload", "no class has a single row: no column of cross is a row")
    which = _names([f"{row['class']} ({row['name']})" for row in rows])
    who = _plural(len(rows), "row, the only one of its class, is", "rows, the only ones of their class, are")
    text = f"{len(rows)} {who} read from cross exactly: {which}"
    return Finding("critical", "plain upload", text, _NEVER_PLAIN)


def _few(plain: dict[str, Any]) -> list[Finding]:
    few = plain["few_rows"]
    if not few:
        return []
    lowest = min(min(entry["cosine"]) for entry in few)
    which = _names([f"{entry['class']} ({entry['rows']})" for entry in few])
    text = (
        f"{len(few)} {_plural(len(few), 'class has', 'classes have')} 2 to {FEW} rows, whose mean is in cross: "
        f"{which}; cosine of mean and row at least {lowest:.3f}"
    )
    return [Finding("high", "plain upload", text, _MERGE.format(FEW + 1))]


def _lattice(lattice: dict[str, Any]) -> Finding:
    rows, features, found = lattice["rows"], lattice["features"], len(lattice["recovered"])
    if rows >= features:
        text = f"{rows:,} rows of {features:,} features: too many for gram and cross to determine each row"
        return Finding("low", "plain upload", text)
    if found:
        text = (
            f"{found} of {rows} rows recovered exactly, each with its class, from gram and cross by lattice "
            f"reduction in {lattice['seconds']:.1f} s"
        )
        return Finding("critical", "plain upload", text, _NEVER_PLAIN)
    text = f"{rows:,} rows of {features:,} features: gram and cross determine every single row; {_effort(lattice)}"
    return Finding("high", "plain upload", text, _NEVER_PLAIN)


def _rank(rank: dict[str, Any]) -> Finding:
    if rank["rank"] < rank["features"]:
        text = (
            f"gram has rank {rank['rank']} of {rank['features']:,}: the number of different rows, even without counts"
        )
        return Finding("moderate", "plain upload", text, _NEVER_PLAIN)
    text = f"gram has full rank, {rank['features']:,}: it does not tell the number of rows (the counts do)"
    return Finding("low", "plain upload", text)


def _effort(lattice: dict[str, Any]) -> str:
    if lattice["tried"]:
        return f"they were not found in {lattice['seconds']:.1f} s, which is no proof that they cannot be"
    return f"this audit tries up to {lattice['most_rows']} rows, a stronger search may find more"


def _against(rows: int, features: int) -> str:
    return f", fewer than the {features:,} features" if rows < features else ""


def _names(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _plural(number: int, one: str, many: str) -> str:
    return one if number == 1 else many
