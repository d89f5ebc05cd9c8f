"""The page: findings and pictures put into the templates, everything that came from outside escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhip.errors import InputError, MissingExtraError
from fedhip.runs.measures import title_of_metric
from fedhip.runs.report import curves, figures
from fedhip.runs.report.comparison import Comparison, compare
from fedhip.runs.report.findings import Findings, Method, read_runs, standard_error, thirds
from fedhip.runs.report.measured import (
    Gain,
    gains_of_run,
    metrics_of,
    reliability_curves,
    roc_curves,
    values_of,
)
from fedhip.runs.report.record import RunRecord
from fedhip.runs.report.regression import TargetPage
from fedhip.utils import text, words

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent


def render_report(runs: Sequence[RunRecord]) -> str:
    """The report as HTML: of one run, or of several side by side. Equal input gives equal bytes."""
    if not runs:
        raise ValueError("there is no run to report on; give at least one")
    read = read_runs(runs)
    if any(run.results.get("task", "classification") != "classification" for run in runs):
        if len(read) > 1:
            raise InputError("runs are compared by accuracy, and a regression has none; report on it alone")
        return _target_page(read[0])
    if len(read) == 1:
        run, gains = read[0], gains_of_run(read[0])
        return _render(
            "run.html.j2",
            run=run,
            pictures=run_pictures(run, gains),
            thirds=_thirds(run),
            gains=gains,
            metrics=[(name, title_of_metric(name, run.class_names)) for name in metrics_of(run)],
            values=values_of(run),
            reliability=reliability_curves(run),
            roc=roc_curves(run),
        )
    comparison = compare(read)
    return _render("comparison.html.j2", comparison=comparison, pictures=comparison_pictures(comparison))


def _target_page(run: Findings) -> str:
    """Of real targets, or of several labels."""
    page, picture, gains = TargetPage(run), None, gains_of_run(run)
    with figures.style():
        if any(row.values.get(run.main_method) is not None for row in page.clients):
            picture = _twice(page.picture)
        drawn = {gain.key: _twice(page.gain_picture, gain) for gain in gains if len(gain.lines) > 1}
    return _render("regression.html.j2", run=run, page=page, picture=picture, gains=gains, drawn=drawn)


def run_pictures(run: Findings, gains: Sequence[Gain] = ()) -> dict[str, str | tuple[str, str]]:
    """The pictures that the run has data for, by name."""
    with figures.style():
        drawn: dict[str, str | tuple[str, str]] = {}
        if run.hero and any(row.accuracy[run.hero.key] is not None for row in run.clients):
            drawn["accuracy"] = _twice(figures.accuracy_by_client, run)
        if run.tested and len(run.methods) > 1:
            drawn["spread"] = _twice(figures.spread_of_methods, run)
        if run.candidates:
            drawn["candidates"] = _twice(figures.candidates, run)
        for gain in gains:
            drawn[f"gains_{gain.key}"] = _twice(curves.gains_by_client, gain)
        if found := reliability_curves(run):
            drawn["reliability"] = curves.reliability(found)
        if found := roc_curves(run):
            drawn["roc"] = curves.roc(found)
        for what in ("train", "skew"):
            if figures.gain_pairs(run, what):
                drawn[f"gain_{what}"] = figures.gain_against(run, what)
        if len(run.alphas):
            drawn["alphas"] = figures.alphas_chosen(run)
        if len(run.loo_mean):
            drawn["loo"] = figures.leave_one_out_curve(run)
        if run.counts.any():
            drawn["partition"] = figures.partition(run)
        if run.worst_classes:
            drawn["confusion"] = figures.confusion(run)
        if run.seconds:
            drawn["seconds"] = figures.seconds_by_phase(run)
    return drawn


def comparison_pictures(comparison: Comparison) -> dict[str, tuple[str, str]]:
    """The pictures of several runs, by name."""
    with figures.style():
        drawn = {}
        if any(run.tested for run in comparison.runs):
            methods = [run.methods for run in comparison.runs]
            drawn["means"] = _twice(figures.means_of_runs, comparison.names, methods, comparison.key)
        if comparison.same_clients and any(comparison.differences):
            names = comparison.names[1:]
            drawn["differences"] = _twice(figures.differences_of_clients, names, comparison.differences)
    return drawn


def _twice(draw: Callable[..., str], *values: Any) -> tuple[str, str]:
    """The picture for a desk, and for a phone."""
    return draw(*values, figures.WIDE), draw(*values, figures.NARROW)


def _thirds(run: Findings) -> dict[str, Any]:
    pairs = {what: figures.gain_pairs(run, what) for what in ("train", "skew")}
    return {what: thirds([x for x, _ in found], [gain for _, gain in found]) for what, found in pairs.items()}


def _render(template: str, **values: Any) -> str:
    environment = _environment()
    script = _text("table.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values |= {"script": script, "script_hash": f"sha256-{digest}", "css": _text("style.css")}
    return environment.get_template(template).render(values)


def _environment() -> Environment:
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the report needs jinja2; install it with: pip install jinja2") from error
    return _templates()


@cache
def _templates() -> Environment:
    """Kept: compiling them takes a tenth of the time of a report, and a run of commands in one process writes many."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        word.__name__: word
        for word in (
            *(words.number, words.percent, words.points, words.weight, words.decimal, words.whole, words.size),
            *(words.duration, words.count, words.listed, text.plain, text.short, text.verbatim, text.readable),
            *(words.chance, interval, standard_error),
        )
    }
    return environment


def interval(method: Method) -> str:
    """A method's 95 % interval as 81.2 to 84.0%."""
    if method.low is None or method.high is None:
        return words.NOTHING
    return f"{100 * method.low:.1f} to {words.percent(method.high)}"


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
