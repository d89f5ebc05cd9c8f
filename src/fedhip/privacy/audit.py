"""The audit of one site: attacks on its own upload, on a sum it is part of and on its model, held against its rows."""

from __future__ import annotations

import functools
import operator
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedhip.core import personalize_from_statistics, solve_global
from fedhip.core.exact.columns import COLUMN_BITS, Columns, Survey
from fedhip.core.exact.fixedpoint import GridStatistics, decode, round_features
from fedhip.errors import InputError
from fedhip.privacy.attacks import (
    MOST_ROWS,
    RecoveredRows,
    Upload,
    class_means,
    recover_rows,
    share_inside,
    single_rows,
    trace_of_model,
)
from fedhip.privacy.findings import FEW, Finding, in_the_noisy_sum, in_the_sum, of_the_model, of_the_upload
from fedhip.privacy.lattice import rank_of
from fedhip.privacy.mechanism import Mechanism
from fedhip.privacy.public import PublicMap
from fedhip.utils.progress import ReportProgress

__all__ = ["Audit", "AuditedSite", "Finding", "SitesInSum", "audit_site"]

Real = NDArray[np.floating[Any]]

#: The model that is looked at: α = 20 is the paper's, β = 1 a usual one.
ALPHA, BETA = 20.0, 1.0

_BLOCK = 4096  # stand-ins made at a time
_ENOUGH = 2  # times the width: stand-ins for one other site


@dataclass(frozen=True)
class AuditedSite:
    """The rows of a site: those it would train on, those it keeps to test on, and what to call each of the first."""

    name: str
    features: Real
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    row_names: tuple[str, ...]
    held_out: Real

    def __post_init__(self) -> None:
        if len(self.features) == 0:
            raise InputError(f"site {self.name!r} has no rows to train on, so its upload would be empty; give it rows")


@dataclass(frozen=True)
class SitesInSum:
    """Who the sum is taken over: how many sites with this one, and the rows of the others together."""

    sites: int
    rows_of_others: int
    assumed: bool = False

    @property
    def rows_of_another(self) -> int:
        """Rows of one other site, if the others have equally many."""
        return -(-self.rows_of_others // (self.sites - 1))

    def __post_init__(self) -> None:
        if self.sites < 2:
            raise InputError(f"a sum of {self.sites} site is that site's upload; give --sites 2 or more")
        if self.rows_of_others < self.sites - 1:
            raise InputError(
                f"--rows-of-others {self.rows_of_others} is too few: {self.sites - 1} other sites have a row each"
            )


@dataclass(frozen=True)
class Noise:
    """Differential privacy of the sum: which noise, and what rows are clipped by."""

    mechanism: Mechanism
    public: PublicMap


@dataclass(frozen=True)
class Audit:
    """What was found. `plain`, `total` and `model` hold the measured numbers, `findings` what they mean."""

    site: AuditedSite
    cohort: SitesInSum
    fraction_bits: int
    plain: dict[str, Any]
    total: dict[str, Any]
    model: dict[str, Any]
    findings: tuple[Finding, ...] = field(default=())

    @property
    def advice(self) -> list[str]:
        """What to do, each thing once, the worst finding's first."""
        return list(dict.fromkeys(finding.advice for finding in self.findings if finding.advice))

    def to_dict(self) -> dict[str, Any]:
        """For machines; schema 1."""
        return {
            "schema": 1,
            "site": self.site.name,
            "rows": len(self.site.features),
            "features": self.site.features.shape[1],
            "classes": len(self.site.class_names),
            "fraction_bits": self.fraction_bits,
            "sites": self.cohort.sites,
            "rows_of_others": {"number": self.cohort.rows_of_others, "assumed": self.cohort.assumed},
            "worst": self.findings[0].severity,
            "findings": [finding.to_dict() for finding in self.findings],
            "advice": self.advice,
            "plain_upload": self.plain,
            "sum": self.total,
            "model": self.model,
        }


def audit_site(
    site: AuditedSite,
    cohort: SitesInSum,
    *,
    fraction_bits: int | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    noise: Noise | None = None,
    report: ReportProgress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Audit:
    """Attack the site's own upload, a sum of the cohort and the site's model, and say what was recovered.

    Each search for single rows by lattice reduction may take `seconds`. The others' rows are not here: stand-ins with
    this site's mean and deviation take their place. With `noise`, every site adds its share to what rows clipped and
    placed add up to; the true counts are given to the attacks for nothing.
    """
    bits = COLUMN_BITS if fraction_bits is None else fraction_bits
    if noise is None:
        site = _in_column_units(site)
    else:
        bits, site = noise.mechanism.fraction_bits, _placed(site, noise)
    grid = _upload(site.features, site.labels, len(site.class_names), bits)
    steps = torch.round(torch.as_tensor(site.features).double() * 2.0 ** (bits // 2)).to(torch.int64).numpy()
    truth = _Truth(site, steps)
    search = _Search(seconds, seed, report, clock)
    other, rest = _stand_ins(site, cohort, bits, seed)
    sent, of_another = _with_shares(grid, 1, noise), _with_shares(other, 1, noise)
    of_all = of_another if rest is None else of_another + _with_shares(rest, cohort.sites - 2, noise)
    plain = _plain(Upload.of(sent), truth, search)
    total = _total(sent, of_another, of_all, truth, cohort, search)
    model = _model(grid, other if rest is None else other + rest, site)
    if noise is None:
        findings = [*of_the_upload(plain), *in_the_sum(plain, total), *of_the_model(model)]
    else:
        findings = [*in_the_noisy_sum(plain, total, noise.mechanism.guarantee), *of_the_model(model)]
    findings.sort(key=lambda finding: finding.rank)  # stable: within a severity, in the order of the page
    return Audit(site, cohort, bits, plain, total, model, tuple(findings))


def _in_column_units(site: AuditedSite) -> AuditedSite:
    """The site with features as a round would sum them: every column in units of its own."""
    columns = Columns.of(Survey.of(site.features, client=site.name))
    scaled, held_out = (
        columns.features(torch.as_tensor(np.array(rows, np.float64))).numpy() for rows in (site.features, site.held_out)
    )
    return replace(site, features=scaled, held_out=held_out)


def _placed(site: AuditedSite, noise: Noise) -> AuditedSite:
    """The site with rows as they are summed under noise: clipped, in public directions, with a constant."""
    features, held_out = (
        noise.mechanism.placed(noise.public, torch.as_tensor(np.array(rows, np.float64))).numpy()
        for rows in (site.features, site.held_out)
    )
    return replace(site, features=features, held_out=held_out)


def _with_shares(part: GridStatistics, shares: int, noise: Noise | None) -> GridStatistics:
    """With the noise of so many sites; counts are left as they are."""
    if noise is None:
        return part
    return functools.reduce(operator.add, (noise.mechanism.noise(part.num_classes) for _ in range(shares)), part)


def _upload(features: Real, labels: NDArray[np.int64], classes: int, bits: int) -> GridStatistics:
    return GridStatistics.from_data(features, labels, classes, fraction_bits=bits)


@dataclass(frozen=True)
class _Truth:
    """The site's rows, to hold what was found against."""

    site: AuditedSite
    steps: NDArray[np.int64]

    def recovered(self, found: RecoveredRows | None) -> list[dict[str, Any]]:
        """The site's rows among those found: exact in every feature step, in the right class."""
        left = Counter() if found is None else Counter(_keys(found.rows, found.labels))
        listed = []
        for row, key in enumerate(_keys(self.steps, self.site.labels)):
            if left[key] > 0:
                left[key] -= 1
                listed.append({**self.row(row), "exact": True, "cosine": self._cosine(row)})
        return listed

    def row(self, row: int) -> dict[str, Any]:
        """What to call a row."""
        label = int(self.site.labels[row])
        return {"row": row, "name": self.site.row_names[row], "class": self.site.class_names[label]}

    def _cosine(self, row: int) -> float:
        """Between the feature itself and what was found, which was rounded to the grid."""
        return _cosine(self.site.features[row].astype(np.float64), self.steps[row].astype(np.float64))


@dataclass(frozen=True)
class _Search:
    """Lattice reduction within a budget, with progress."""

    seconds: float
    seed: int
    report: ReportProgress | None
    clock: Callable[[], float]

    def __call__(self, upload: Upload, what: str) -> tuple[RecoveredRows | None, dict[str, Any]]:
        """What was found, and how the search went."""
        singles = int((upload.counts == 1).sum())
        rows = upload.rows - singles
        tried = 0 < rows < upload.width and rank_of(upload.gram) - singles <= MOST_ROWS
        record = {"rows": upload.rows, "features": upload.width, "most_rows": MOST_ROWS, "budget_seconds": self.seconds}
        if not tried:
            return None, {**record, "tried": False, "seconds": 0.0, "complete": False}
        begin, whole = self.clock(), max(1, round(self.seconds))

        def go_on() -> bool:
            spent = self.clock() - begin
            if self.report is not None and int(spent) < whole:
                self.report(what, int(spent), whole)
            return spent < self.seconds

        found = recover_rows(upload, seed=self.seed, go_on=go_on)
        if self.report is not None:
            self.report(what, 1, 1)
        took = round(self.clock() - begin, 2)
        return found, {**record, "tried": True, "seconds": took, "complete": found is not None}


def _plain(upload: Upload, truth: _Truth, search: _Search) -> dict[str, Any]:
    """Attacks on what a plain upload would be."""
    site = truth.site
    few = []
    for label, mean in class_means(upload, FEW).items():
        cosines = [_cosine(row.astype(np.float64), mean) for row in site.features[site.labels == label]]
        few.append({"class": site.class_names[label], "rows": len(cosines), "cosine": [round(c, 4) for c in cosines]})
    found, record = search(upload, "lattice, upload")
    rank = rank_of(upload.gram)
    return {
        "single_rows": truth.recovered(single_rows(upload)),
        "few_rows": few,
        "counts": {site.class_names[c]: int(n) for c, n in enumerate(upload.counts) if n},
        "gram_rank": {"rank": rank, "features": upload.width, "rows": upload.rows, "tells_rows": rank == upload.rows},
        "lattice": {**record, "recovered": truth.recovered(found)},
    }


def _stand_ins(
    site: AuditedSite, cohort: SitesInSum, bits: int, seed: int
) -> tuple[GridStatistics, GridStatistics | None]:
    """Rows in place of the others' (one other site, the rest): this site's mean and deviation, any class."""
    generator = np.random.default_rng(seed)
    mean, deviation = site.features.mean(axis=0, dtype=np.float64), site.features.std(axis=0, dtype=np.float64)
    largest = float(np.abs(site.features).max())
    # A deviation of zero, as with a single row, would make every stand-in the same.
    spread = np.where(deviation > 0, deviation, 0.25 * largest)
    classes = len(site.class_names)
    # More rows than this change nothing that is looked for, and take time.
    everyone = min(cohort.rows_of_others, _ENOUGH * len(mean) * (cohort.sites - 1))
    one = -(-everyone // (cohort.sites - 1))

    def drawn(rows: int) -> GridStatistics:
        parts = []
        for start in range(0, rows, _BLOCK):
            number = min(_BLOCK, rows - start)
            block = np.clip(mean + spread * generator.standard_normal((number, len(mean))), -largest, largest)
            parts.append(_upload(block, generator.integers(0, classes, number), classes, bits))
        return functools.reduce(operator.add, parts)

    return drawn(one), drawn(everyone - one) if everyone > one else None


def _total(
    own: GridStatistics,
    other: GridStatistics,
    others: GridStatistics,
    truth: _Truth,
    cohort: SitesInSum,
    search: _Search,
) -> dict[str, Any]:
    """What is left to see when only the sum is known: to another site, which takes its own statistics out of it."""
    total = own + others
    seen = total - other
    mine, another = own.num_samples, cohort.rows_of_another
    found, record = search(Upload.of(seen), "lattice, sum") if cohort.sites > 2 else (None, {})
    return {
        "sites": cohort.sites,
        "rows": mine + cohort.rows_of_others,
        "features": own.num_features,
        "assumed": cohort.assumed,
        "stand_ins": others.num_samples,
        "seen_by_another_site": {"rows": mine + cohort.rows_of_others - another, "is_plain_upload": seen == own},
        "lattice": {**record, "recovered": truth.recovered(found)},
        "with_one_honest_other": {"colluding": cohort.sites - 2, "rows": mine + another},
        "difference_of_two_sums_is_upload": total - others == own,
    }


def _model(own: GridStatistics, others: GridStatistics, site: AuditedSite) -> dict[str, Any]:
    """What the site's model tells of its rows to one who knows the sum."""
    total = decode(own + others)
    G = solve_global(total, BETA)
    P = personalize_from_statistics(total, decode(own), ALPHA, BETA)
    span = trace_of_model(total, BETA, G, P)
    rounded, held_out = (
        round_features(torch.as_tensor(rows), own.fraction_bits).numpy() for rows in (site.features, site.held_out)
    )
    inside = share_inside(span, rounded)
    measured: dict[str, Any] = {
        "alpha": ALPHA,
        "beta": BETA,
        "combinations": span.shape[1],
        "own_rows_inside": round(float(np.median(inside)), 6),
        "held_out_rows": len(held_out),
        "held_out_inside": None,
        "told_apart": None,
    }
    if len(held_out):
        outside = share_inside(span, held_out)
        ordered = np.sort(outside)  # the share of pairs in which the site's own row lies deeper, ties by half
        below = np.searchsorted(ordered, inside, "left") + np.searchsorted(ordered, inside, "right")
        told_apart = float(below.mean()) / (2 * len(ordered))
        measured |= {"held_out_inside": round(float(np.median(outside)), 6), "told_apart": round(told_apart, 4)}
    return measured


def _keys(rows: NDArray[np.int64], labels: NDArray[np.int64]) -> list[tuple[int, bytes]]:
    return [(int(label), np.ascontiguousarray(row).tobytes()) for row, label in zip(rows, labels, strict=True)]


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-300))
