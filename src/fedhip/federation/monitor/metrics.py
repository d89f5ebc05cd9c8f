"""The same for Prometheus, in its text format (version 0.0.4): gauges, and no label that a site makes up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from fedhip.federation.status_codes import SiteCode

Sample = tuple[Mapping[str, str], float]


def metrics(shown: Mapping[str, Any]) -> str:
    """What `look` shows, as numbers."""
    sites, current, result = shown["sites"], shown["round"], shown["result"]
    codes = Counter(refused["code"] or "failed" for refused in shown["refusals"])
    steps = shown["steps"]
    lines = [
        *_gauge("up", "Whether the engine answers.", [({}, shown["serving"])]),
        *_gauge(
            "site_connected",
            "Whether a site is connected.",
            [({"site": site["site"]}, site["state"] == "connected") for site in sites],
        ),
        *_gauge(
            "site_left_out",
            "Whether a site was left out of the latest round.",
            [({"site": site["site"]}, site["code"] not in ("", SiteCode.OK)) for site in sites],
        ),
        *_gauge("quorum", "Sites that a round needs to go on.", [({}, shown["quorum"])]),
        *_gauge("round_under_way", "Whether a round is under way.", [({}, current["state"] == "under way")]),
        *_gauge("round_failed", "Whether the latest round failed.", [({}, current["state"] == "failed")]),
        *_gauge("round_finished", "Whether the latest round finished.", [({}, current["state"] == "finished")]),
        *_gauge("round_sum", "The number of the sum in the latest round.", [({}, current["sum"])]),
        *_gauge("round_seconds", "How long the latest round has taken.", [({}, current["seconds"])]),
        *_gauge(
            "step_seconds",
            "How long a step of the latest round has taken, over all its sums.",
            _added((step["step"], step["seconds"]) for step in steps),
        ),
        *_gauge(
            "step_answers",
            "Answers in a step of the latest round, over all its sums.",
            _added((step["step"], len(step["answered"])) for step in steps),
        ),
        *_gauge(
            "round_refusals",
            "Refusals in the latest round, by code.",
            [({"code": code}, number) for code, number in sorted(codes.items())],
        ),
        *_gauge(
            "run_bytes",
            "Bytes of a run, to sites and from them.",
            [
                ({"run": str(run["run"]), "direction": way}, run[f"bytes_{way}_sites"])
                for run in shown["runs"]
                for way in ("to", "from")
            ],
        ),
        *_gauge("result_sites", "Sites in the finished sum.", [({}, len(result["sites"]) if result else 0)]),
        *_gauge(
            "certificate_not_after_seconds",
            "Until when a certificate is valid, as Unix time.",
            [
                ({"certificate": name}, datetime.fromisoformat(until).timestamp())
                for name, until in shown["certificates"].items()
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


def _added(pairs: Iterable[tuple[str, float]]) -> list[Sample]:
    total: Counter[str] = Counter()
    for step, value in pairs:
        total[step] += value  # type: ignore[assignment]
    return [({"step": step}, value) for step, value in sorted(total.items())]


def _gauge(name: str, told: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"fedhip_{name}{_labels(labels)} {float(value)!r}" for labels, value in samples]
    return [f"# HELP fedhip_{name} {told}", f"# TYPE fedhip_{name} gauge", *lines] if lines else []


def _labels(labels: Mapping[str, str]) -> str:
    """In braces; of a value backslashes, quotes and line breaks are escaped."""
    pairs = [f'{name}="{_escaped(value)}"' for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
