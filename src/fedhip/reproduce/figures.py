"""The figures, as SVG and PDF: for print, on white, the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhip.utils.files import whole_file
from fedhip.utils.style import INK, MUTED, OTHERS, OWN, drawing
from fedhip.utils.text import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID = "#e4e9ee"
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "p")
_WIDTH = 7.16  # inches: two columns of the paper


@dataclass(frozen=True)
class Picture:
    """A figure by name, made when it is written."""

    name: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class LineStyle:
    """How a method is drawn."""

    colour: str
    mark: str
    dashes: Any
    own: bool


def line_styles(methods: Sequence[str]) -> dict[str, LineStyle]:
    """FedHiP in its own colour; the others in turn, the second time round dashed."""
    found, place = {}, 0
    for method in methods:
        if method == "fedhip":
            found[method] = LineStyle(OWN, "*", "-", True)
            continue
        turn, colour = divmod(place, len(OTHERS))
        found[method] = LineStyle(
            OTHERS[colour], _MARKS[(colour + 3 * turn) % len(_MARKS)], "--" if turn else "-", False
        )
        place += 1
    return found


def write_pictures(folder: Path, pictures: Sequence[Picture]) -> list[Path]:
    """Each as NAME.svg and NAME.pdf."""
    metadata: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    paths = []
    with drawing(**{"pdf.fonttype": 42, "font.size": 8.0}):
        for picture in pictures:
            figure = picture.draw()
            for kind in ("svg", "pdf"):
                path = folder / f"{picture.name}.{kind}"
                with whole_file(path) as temporary:
                    figure.savefig(temporary, metadata=metadata[kind])
                paths.append(path)
    return paths


@dataclass(frozen=True)
class Dots:
    """One panel of the comparison: for each method its accuracy at each λ (None: diverged), and deviations."""

    title: str
    means: dict[str, list[float | None]]
    deviations: dict[str, list[float | None]]


def comparison(panels: Sequence[Dots], titles: dict[str, str], concentrations: Sequence[float], heading: str) -> Figure:
    """Table I as dots: a row for each method, a shade for each λ; methods in order of their mean in the first panel."""
    methods = sorted(titles, key=lambda method: (_mean(panels[0].means[method]), method))
    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    figure = _figure(_WIDTH, lines * (0.75 + 0.2 * len(methods)) + 0.35)
    axes = figure.subplots(lines, columns, sharex="row", sharey=True, squeeze=False)
    marks = ("o", "s", "^", "D", "v", "P")
    for panel, ax in zip(panels, axes.flat, strict=False):
        _plain(ax)
        for place, method in enumerate(methods):
            own = method == "fedhip"
            known = [mean for mean in panel.means[method] if mean is not None]
            if own:
                ax.axhspan(place - 0.5, place + 0.5, color=OWN, alpha=0.07, linewidth=0, zorder=0)
            if known:
                ax.plot([min(known), max(known)], [place, place], color=GRID, linewidth=2.4, zorder=1)
            else:
                ax.annotate("diverged", (0.02, place), xycoords=("axes fraction", "data"), va="center", color=MUTED)
            for i, mean in enumerate(panel.means[method]):
                if mean is None:
                    continue
                deviation = panel.deviations[method][i]
                shade = 1.0 - 0.55 * i / max(1, len(concentrations) - 1)
                colour = _mixed(OWN if own else OTHERS[0], shade)
                if deviation is not None:
                    ax.plot([mean - deviation, mean + deviation], [place, place], color=colour, linewidth=1.1, zorder=2)
                ax.scatter(
                    [mean], [place], s=26, marker=marks[i % len(marks)], color=colour, linewidths=0.5,
                    edgecolors="white", zorder=3 + len(concentrations) - i,
                )  # fmt: skip
        ax.set_title(panel.title, loc="left", fontsize=8.5, color=INK)
        ax.set_yticks(range(len(methods)), [short(titles[method], 22) for method in methods])
        ax.set_ylim(-0.6, len(methods) - 0.4)
        ax.tick_params(axis="y", labelcolor=INK)
        for label, method in zip(ax.get_yticklabels(), methods, strict=False):  # none on panels to the right
            if method == "fedhip":
                label.set(color=OWN, fontweight="bold")
        ax.grid(visible=False, axis="y")
        _percent(ax.xaxis)
    for ax in axes[-1]:
        ax.set_xlabel("accuracy, mean over clients")
    for ax in list(axes.flat)[len(panels) :]:
        ax.set_visible(False)
    handles: list[Any] = [
        axes[0, 0].scatter(
            [], [], s=26, marker=marks[i % len(marks)], linewidths=0,
            color=_mixed("#39424c", 1.0 - 0.55 * i / max(1, len(concentrations) - 1)),
        )
        for i in range(len(concentrations))
    ]  # fmt: skip
    figure.legend(
        handles, [f"λ = {value:g}" for value in concentrations], loc="outside upper right", ncols=len(handles),
        frameon=False, handletextpad=0.1, columnspacing=1.0, labelcolor=INK, title=None,
    )  # fmt: skip
    figure.suptitle(heading, x=0.012, ha="left", fontsize=9.5, fontweight="bold", color=INK)
    return figure


@dataclass(frozen=True)
class Bars:
    """One panel of real federations: for each method its accuracy, or its error, and the interval around it.

    None: the method diverged, or does not know what is to be predicted.
    """

    title: str
    means: dict[str, float | None]
    intervals: dict[str, tuple[float, float] | None]
    error: bool = False


def federations(panels: Sequence[Bars], titles: dict[str, str], heading: str) -> Figure:
    """A row for each method, a panel for each federation; bars are intervals."""
    methods = list(reversed(titles))
    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    figure = _figure(_WIDTH, lines * (0.6 + 0.17 * len(methods)) + 0.35)
    axes = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for panel, ax in zip(panels, axes.flat, strict=False):
        _plain(ax)
        for place, method in enumerate(methods):
            own = method.startswith("fedhip") or method == "auto"
            mean, interval = panel.means[method], panel.intervals[method]
            if own:
                ax.axhspan(place - 0.5, place + 0.5, color=OWN, alpha=0.07, linewidth=0, zorder=0)
            if mean is None:
                why = "classes only" if panel.error else "diverged"
                ax.annotate(why, (0.02, place), xycoords=("axes fraction", "data"), va="center", color=MUTED)
                continue
            colour = OWN if own else OTHERS[0]
            if interval is not None:
                ax.plot(interval, [place, place], color=colour, linewidth=1.2, zorder=2)
            ax.scatter([mean], [place], s=22, color=colour, linewidths=0.5, edgecolors="white", zorder=3)
        ax.set_title(panel.title, loc="left", fontsize=8.5, color=INK)
        ax.set_yticks(range(len(methods)), [short(titles[method], 26) for method in methods])
        ax.set_ylim(-0.6, len(methods) - 0.4)
        ax.tick_params(axis="y", labelcolor=INK)
        ax.grid(visible=False, axis="y")
        if not panel.error:
            _percent(ax.xaxis)
        ax.set_xlabel(f"{'RMSE, less is better' if panel.error else 'accuracy'}, mean over clients")
    for ax in list(axes.flat)[len(panels) :]:
        ax.set_visible(False)
    figure.suptitle(heading, x=0.012, ha="left", fontsize=9.5, fontweight="bold", color=INK)
    return figure


@dataclass(frozen=True)
class Curve:
    """Accuracy over a grid at one λ, the accuracy of what is chosen without test rows, and the paper's curve."""

    label: str
    values: Sequence[float]
    means: Sequence[float | None]
    deviations: Sequence[float | None]
    chosen: float | None
    published: Sequence[float | None]


def sensitivity(panels: Sequence[tuple[str, Sequence[Curve]]], letter: str, chosen_by: str, heading: str) -> Figure:
    """A panel for each data set, a curve for each λ; dashed: what is chosen without test rows."""
    figure = _figure(min(_WIDTH, 4.9 * len(panels)), 3.0)
    axes = figure.subplots(1, len(panels), squeeze=False)
    paper_shown = False
    for (title, curves), ax in zip(panels, axes.flat, strict=True):
        _plain(ax)
        ends = []
        for place, curve in enumerate(curves):
            colour = (OWN, *OTHERS)[place % (1 + len(OTHERS))]
            x = [value for value, mean in zip(curve.values, curve.means, strict=True) if mean is not None]
            y = np.array([mean for mean in curve.means if mean is not None])
            if not len(x):
                continue
            spread = np.array(
                [d or 0.0 for d, mean in zip(curve.deviations, curve.means, strict=True) if mean is not None]
            )
            if spread.any():
                ax.fill_between(x, y - spread, y + spread, color=colour, alpha=0.13, linewidth=0)
            ax.plot(x, y, color=colour, linewidth=1.6, marker=_MARKS[place % len(_MARKS)], markersize=3.6)
            if curve.chosen is not None:
                ax.axhline(curve.chosen, color=colour, linewidth=1.1, linestyle=(0, (4, 2.5)), alpha=0.9, zorder=1)
            theirs = [(v, p) for v, p in zip(curve.values, curve.published, strict=True) if p is not None]
            if theirs:
                paper_shown = True
                ax.plot(
                    *zip(*theirs, strict=True), color=colour, linewidth=0.9, linestyle=":", marker="x", markersize=3
                )
            ends.append((float(y[-1]), curve.label, colour))
        _end_labels(ax, ends)
        ax.set_xlabel(letter)
        ax.set_title(title, loc="left", fontsize=8.5, color=INK)
        _percent(ax.yaxis)
    axes[0, 0].set_ylabel("accuracy, mean over clients")
    handles: list[Any] = [
        axes[0, 0].plot([], [], color=MUTED, linewidth=1.6, marker="o", markersize=3.6)[0],
        axes[0, 0].plot([], [], color=MUTED, linewidth=1.1, linestyle=(0, (4, 2.5)))[0],
    ]
    names = [f"one {letter} for all", chosen_by]
    if paper_shown:
        handles.append(axes[0, 0].plot([], [], color=MUTED, linewidth=0.9, linestyle=":", marker="x", markersize=3)[0])
        names.append("the paper")
    figure.legend(handles, names, loc="outside lower left", ncols=3, frameon=False, labelcolor=INK, handlelength=2.4)
    figure.suptitle(heading, x=0.012, ha="left", fontsize=9.5, fontweight="bold", color=INK)
    return figure


@dataclass(frozen=True)
class EfficiencyCurve:
    """A method's accuracy after rounds, seconds and megabytes."""

    method: str
    title: str
    rounds: Sequence[float]
    seconds: Sequence[float]
    megabytes: Sequence[float]
    accuracy: Sequence[float]


def efficiency(ways: Sequence[EfficiencyCurve], heading: str) -> Figure:
    """Three panels, as in the paper: accuracy against rounds, seconds, and megabytes of one client."""
    figure = _figure(_WIDTH, 3.1 + 0.16 * -(-len(ways) // 5))
    axes = figure.subplots(1, 3, sharey=True)
    styles = line_styles([way.method for way in ways])
    what: tuple[tuple[str, str], ...] = (
        ("rounds", "rounds"), ("seconds", "seconds of the whole federation"),
        ("megabytes", "MB up and down, one client"),
    )  # fmt: skip
    handles = {}
    for ax, (name, label), part in zip(axes, what, "abc", strict=True):
        _plain(ax)
        for way in sorted(ways, key=lambda way: way.method == "fedhip"):
            look = styles[way.method]
            pairs = [(x, y) for x, y in zip(getattr(way, name), way.accuracy, strict=True) if x > 0 or name == "rounds"]
            if not pairs:
                continue
            x, y = zip(*pairs, strict=True)
            if name != "megabytes" or way.method == "fedhip" or len(pairs) > 1:
                ax.plot(
                    x, y, color=look.colour, linestyle=look.dashes, linewidth=1.2, alpha=0.9,
                    zorder=6 if look.own else 3,
                )  # fmt: skip
            ax.scatter(
                x[-1:], y[-1:], s=110 if look.own else 20, marker=look.mark, color=look.colour, linewidths=0.5,
                edgecolors="white", zorder=8 if look.own else 4,
            )  # fmt: skip
            if look.own:
                ax.axhline(y[-1], color=OWN, linewidth=0.8, linestyle=(0, (4, 2.5)), alpha=0.6, zorder=2)
        if name == "rounds":
            ax.set_xscale("symlog", linthresh=1.0)
            most = max((value for way in ways for value in way.rounds), default=1)
            ticks = [t for t in ((0, 1, 2, 5, 10, 20) if most <= 30 else (0, 1, 10, 100, 1000)) if t <= most]
            ax.set_xticks(ticks, [str(tick) for tick in ticks])
        else:
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.minorticks_off()
        ax.set_xlabel(label)
        ax.set_title(f"({part})", loc="left", fontsize=8.5, color=MUTED)
        _percent(ax.yaxis)
    for way in ways:
        look = styles[way.method]
        handles[short(way.title, 20)] = axes[0].plot(
            [], [], color=look.colour, linestyle=look.dashes, linewidth=1.2, marker=look.mark,
            markersize=9 if look.own else 4.5, markeredgewidth=0,
        )[0]  # fmt: skip
    axes[0].set_ylabel("accuracy, mean over clients")
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower left", ncols=5, frameon=False, labelcolor=INK,
        handlelength=2.2, columnspacing=1.2,
    )  # fmt: skip
    figure.suptitle(heading, x=0.012, ha="left", fontsize=9.5, fontweight="bold", color=INK)
    return figure


@dataclass(frozen=True)
class TradeOff:
    """A method's accuracy after bytes of one client, up and down: one point, or its way; on frozen features or not."""

    method: str
    title: str
    frozen: bool
    points: Sequence[tuple[float, float]]


def trade_off(panels: Sequence[tuple[str, Sequence[TradeOff]]], heading: str) -> Figure:
    """Accuracy against megabytes: stars on frozen features, ways where a network is trained; who sends nothing, a line.

    All panels have the same methods.
    """
    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    names = list(dict.fromkeys(way.method for _, ways in panels for way in ways))
    figure = _figure(_WIDTH if columns > 1 else 5.2, 2.7 * lines + 0.35 + 0.16 * -(-len(names) // 4))
    axes = figure.subplots(lines, columns, squeeze=False)
    frozen = {way.method for _, ways in panels for way in ways if way.frozen}
    colours = _in_turn([name for name in names if name not in frozen], OTHERS[:5])
    # The last is the tool's own.
    colours |= _in_turn([name for name in reversed(names) if name in frozen], (OWN, *OTHERS[5:], INK, MUTED))
    marks = dict(zip(names, (_MARKS[place % len(_MARKS)] for place in range(len(names))), strict=True))
    handles: dict[str, Any] = {}
    for (title, ways), ax in zip(panels, axes.flat, strict=False):
        _plain(ax)
        for way in ways:
            colour, mark = colours[way.method], "*" if way.frozen else marks[way.method]
            pairs = [(sent / 1e6, accuracy) for sent, accuracy in way.points if sent > 0]
            if pairs and pairs[0][0] == pairs[-1][0]:  # nothing more is sent after the first round
                pairs = pairs[-1:]
            if pairs:
                ax.plot(*zip(*pairs, strict=True), color=colour, linewidth=1.2, alpha=0.9)
                ax.scatter(
                    *zip(*pairs[-1:], strict=True), s=80 if way.frozen else 24, marker=mark, color=colour,
                    linewidths=0.5, edgecolors="white", zorder=4,
                )  # fmt: skip
            else:
                ax.axhline(way.points[-1][1], color=colour, linewidth=0.9, linestyle=(0, (4, 2.5)), alpha=0.8)
            handles.setdefault(
                short(way.title, 24),
                axes[0, 0].plot(
                    [], [], color=colour, linewidth=1.2, linestyle="-" if pairs else (0, (4, 2.5)),
                    marker=mark if pairs else "", markersize=9 if way.frozen else 4.5, markeredgewidth=0,
                )[0],
            )  # fmt: skip
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.minorticks_off()
        ax.set_title(title, loc="left", fontsize=8.5, color=INK)
        ax.set(xlabel="MB up and down, one client", ylabel="accuracy, mean over clients")
        _percent(ax.yaxis)
    for ax in list(axes.flat)[len(panels) :]:
        ax.set_visible(False)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower left", ncols=4, frameon=False, labelcolor=INK,
        handlelength=2.2, columnspacing=1.2,
    )  # fmt: skip
    figure.suptitle(heading, x=0.012, ha="left", fontsize=9.5, fontweight="bold", color=INK)
    return figure


def invariance(
    concentrations: Sequence[float],
    accuracies: Mapping[str, Sequence[float | None]],
    spreads: Mapping[str, float | None],
    titles: dict[str, str],
    heading: str,
) -> Figure:
    """The fixed client's accuracy less that at the first λ, over the λ of the others; and how far it moves."""
    figure = _figure(_WIDTH, max(2.9, 0.75 + 0.19 * len(accuracies)))
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    styles = line_styles(list(accuracies))
    for ax in (left, right):
        _plain(ax)
    places = range(len(concentrations))
    ranges: dict[str, float] = {}
    for method in sorted(accuracies, key=lambda method: method == "fedhip"):
        look, values = styles[method], accuracies[method]
        known = [value for value in values if value is not None]
        if len(known) < len(values) or not known:
            continue
        ranges[method] = 100 * (spreads[method] or 0.0)
        left.plot(
            places, [100 * (value - known[0]) for value in known], color=look.colour, linestyle=look.dashes,
            linewidth=2.2 if look.own else 1.1, marker=look.mark, markersize=9 if look.own else 3.8,
            markeredgecolor="white", markeredgewidth=0.4, zorder=6 if look.own else 3,
        )  # fmt: skip
    left.set_xticks(places, [f"{value:g}" for value in concentrations])
    left.set(xlabel="λ of the other clients", ylabel=f"points against λ = {concentrations[0]:g}")
    left.set_title("accuracy of the fixed client", loc="left", fontsize=8.5, color=INK)
    order = sorted(ranges, key=lambda method: (-ranges[method], method))
    for place, method in enumerate(order):
        look = styles[method]
        right.plot([0, ranges[method]], [place, place], color=look.colour, linewidth=1.4, alpha=0.35)
        right.scatter(
            [ranges[method]], [place], s=90 if look.own else 24, marker=look.mark, color=look.colour, linewidths=0,
            zorder=3, clip_on=False,
        )  # fmt: skip
    right.set_yticks(range(len(order)), [short(titles[method], 22) for method in order])
    right.tick_params(axis="y", labelcolor=INK)
    for label, method in zip(right.get_yticklabels(), order, strict=True):
        label.set_color(styles[method].colour)
        if method == "fedhip":
            label.set_fontweight("bold")
    right.set_xlim(left=0)
    right.set_ylim(-0.6, len(order) - 0.4)
    right.grid(visible=False, axis="y")
    right.set_xlabel("points")
    right.set_title("highest − lowest", loc="left", fontsize=8.5, color=INK)
    figure.suptitle(heading, x=0.012, ha="left", fontsize=9.5, fontweight="bold", color=INK)
    return figure


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.05, h_pad=0.05)  # type: ignore[call-arg, union-attr]
    return figure


def _plain(axes: Axes) -> None:
    axes.tick_params(labelcolor=MUTED, length=0, labelsize=7.5)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=MUTED, fontsize=8)
    axes.grid(color=GRID, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _percent(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%" if -1e-9 <= value <= 1 + 1e-9 else "")


def _end_labels(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Each curve's name at its right end, moved apart where they would touch."""
    low, high = axes.get_ylim()
    gap, place = 0.065 * (high - low), -np.inf
    for value, text, colour in sorted(ends):
        place = max(value, place + gap)
        axes.annotate(
            text, (1.0, place), (4, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
            color=colour, fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def _in_turn(names: Sequence[str], colours: Sequence[str]) -> dict[str, str]:
    return {name: colours[place % len(colours)] for place, name in enumerate(names)}


def _mixed(colour: str, share: float) -> str:
    """The colour mixed with white."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - channel)):02x}" for channel in channels)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else -1.0
