"""Pictures of metrics: gains of clients, reliability and ROC curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedhip.runs.report.figures import PANEL, WIDE, axes_of, percent_axis
from fedhip.runs.report.measured import Gain, MethodCurve
from fedhip.runs.report.svg import colour, inline
from fedhip.utils.text import short
from fedhip.utils.words import decimal, points

#: A bin with a smaller share of the rows is a mark, and no part of the line: its height is chance.
_FEW = 0.01
#: More clients than this have no name on the axis.
_NAMED = 30


def gains_by_client(
    gain: Gain, width: int, label: str = "gain in points", shown: Callable[[float], str] = points
) -> str:
    """The difference of each client with its 95 % interval, most first; filled where it is beyond chance."""
    lines = gain.lines
    figure, axes = axes_of(width, 340 if width == WIDE else 300)
    axes.axhline(0, color=colour("muted"), linewidth=1)
    for place, line in enumerate(lines):
        ink = colour("fedhip" if line.beyond else "local")
        if line.low is not None and line.high is not None:
            axes.plot([place, place], [line.low, line.high], color=ink, linewidth=1.4, alpha=0.55)
    for beyond, ink in ((False, "local"), (True, "fedhip")):
        found = [(at, line.difference) for at, line in enumerate(lines) if line.beyond == beyond]
        if found:
            size = 30 if len(lines) <= 60 else 14
            at, difference = zip(*found, strict=True)
            axes.scatter(at, difference, s=size, color=colour(ink), linewidths=0, zorder=3)
    if len(lines) <= (_NAMED if width == WIDE else 10):
        axes.set_xticks(range(len(lines)), [short(line.client, 14) for line in lines], rotation=45, ha="right")
    else:
        axes.set(xticks=[], xlabel=f"{len(lines):,} clients, by their gain")
    axes.set_xlim(-0.8, len(lines) - 0.2)
    if gain.edge is not None:
        axes.set_ylim(-gain.edge, gain.edge)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(lambda value, _: shown(value).removesuffix(".0"))
    return inline(figure, f"gains-{gain.key}-{width}")


def reliability(curves: Sequence[MethodCurve]) -> str:
    """The share right against the probability of the answer; below, how many rows have that probability."""
    figure, axes = axes_of(PANEL, 400)
    axes.plot([0, 1], [0, 1], color=colour("muted"), linewidth=1, linestyle=(0, (4, 3)))
    for curve in reversed(curves):
        ink = colour(curve.method.colour)
        known = curve.weight >= _FEW
        axes.plot(curve.x[known], curve.y[known], color=ink, linewidth=1.6, alpha=0.8)
        axes.scatter(
            curve.x, curve.y, s=12 + 300 * curve.weight, marker=curve.method.marker, color=ink, alpha=0.75,
            linewidths=0, label=f"{short(curve.method.title, 18)}, error {decimal(curve.summary)}",
        )  # fmt: skip
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="predicted probability", ylabel="accuracy")
    percent_axis(axes)
    percent_axis(axes, axis="x")
    _legend(axes, "upper left")
    return inline(figure, "reliability")


def roc(curves: Sequence[MethodCurve]) -> str:
    """The share of the second class's rows found against the share of others taken for it."""
    figure, axes = axes_of(PANEL, 400)
    axes.plot([0, 1], [0, 1], color=colour("muted"), linewidth=1, linestyle=(0, (4, 3)))
    for curve in reversed(curves):
        label = f"{short(curve.method.title, 18)}, AUC {decimal(curve.summary)}"
        axes.plot(curve.x, curve.y, color=colour(curve.method.colour), linewidth=2.2, label=label)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="false positive rate", ylabel="true positive rate")
    percent_axis(axes)
    percent_axis(axes, axis="x")
    _legend(axes, "lower right")
    return inline(figure, "roc")


def _legend(axes: object, place: str) -> None:
    axes.legend(  # type: ignore[attr-defined]
        loc=place, frameon=False, labelcolor=colour("ink"), fontsize=11, reverse=True, handletextpad=0.5,
        markerscale=0.8,
    )  # fmt: skip
