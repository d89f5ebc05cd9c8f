"""The pictures of the report. Each gives <svg> for the inside of the page, drawn by matplotlib.

Widths and font sizes are the page's pixels: pictures are drawn about as wide as they are shown, those that stand on a
phone's width too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhip.data.partitions.picture import partition_figure
from fedhip.runs.report.findings import ClientRow, Findings, Method, thirds
from fedhip.runs.report.svg import colour, inline
from fedhip.utils.style import Colours, drawing
from fedhip.utils.text import short
from fedhip.utils.words import count, duration, percent, points, weight

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, PANEL, NARROW = 960, 464, 400
_FONT = 12.0
_SHOWN_METHODS = 3
_MOST_DOTS = 150  # more clients than this are drawn as curves
_MOST_BUBBLES = 120  # more clients or classes than this are drawn as shades
_HEAT = (0x3B, 0x82, 0xC4)  # pixels cannot follow the page: a blue that stands out from white and from black


def style() -> Any:
    """The context to draw in: letters stay letters, so that they can be read aloud, searched and copied."""
    return drawing(**{"svg.fonttype": "none", "font.size": _FONT})


def accuracy_by_client(findings: Findings, width: int) -> str:
    """Accuracy of each client by method, clients in order of the first method's; curves where there are many."""
    figure, axes = axes_of(width, 380 if width == WIDE else 340)
    methods = findings.methods[:_SHOWN_METHODS]
    rows = [row for row in findings.clients if row.accuracy[methods[0].key] is not None]
    rows.sort(key=lambda row: (row.accuracy[methods[0].key] or 0.0, row.name))
    if len(rows) <= _MOST_DOTS:
        _ranked_dots(axes, rows, methods, 6.5 if width == WIDE else 4.5)
        axes.set_xlabel(f"{count(len(rows), 'client')}, by {short(methods[0].title, 24)} accuracy")
    else:
        for method in reversed(methods):
            values = sorted(v for row in rows if (v := row.accuracy[method.key]) is not None)
            axes.plot(np.linspace(0, len(rows) - 1, len(values)), values, color=colour(method.colour), linewidth=2.2)
        axes.set_xlabel(f"{len(rows):,} clients, each curve in its own order")
    axes.set(xlim=(-0.8, len(rows) - 0.2), xticks=[])
    percent_axis(axes)
    if width == WIDE:
        _label_means(axes, methods)
    else:
        handles = [_mark(axes, method) for method in methods]
        axes.legend(
            handles, [short(m.title, 14) for m in methods], loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3,
            frameon=False, labelcolor=colour("ink"), handletextpad=0.2, columnspacing=1.0, borderpad=0.2,
        )  # fmt: skip
    return inline(figure, f"accuracy-{width}")


def _ranked_dots(axes: Axes, rows: Sequence[ClientRow], methods: Sequence[Method], diameter: float) -> None:
    for place, row in enumerate(rows):
        values = [v for m in methods if (v := row.accuracy[m.key]) is not None]
        axes.plot([place, place], [min(values), max(values)], color=colour("grid"), linewidth=2.0, zorder=1)
    for method in reversed(methods):
        found = [(i, v) for i, row in enumerate(rows) if (v := row.accuracy[method.key]) is not None]
        first = method is methods[0]
        axes.scatter(
            [i for i, _ in found], [v for _, v in found], s=(diameter * (1.15 if first else 0.85)) ** 2,
            marker=method.marker, color=colour(method.colour), linewidths=0, zorder=3 if first else 2,
        )  # fmt: skip


def _mark(axes: Axes, method: Method) -> Any:
    return axes.scatter([], [], s=40, marker=method.marker, color=colour(method.colour), linewidths=0)


def _label_means(axes: Axes, methods: Sequence[Method]) -> None:
    """Name and mean of each method to the right of the picture, as near to its mean as the letters allow."""
    found = sorted(((m.mean, m) for m in methods if m.mean is not None), key=lambda pair: pair[0])
    low, high = axes.get_ylim()
    gap = 0.105 * (high - low)
    places = [mean for mean, _ in found]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    excess = max(0.0, places[-1] + gap / 2 - high) if places else 0.0
    for i in reversed(range(len(places))):
        ceiling = places[i + 1] - gap if i + 1 < len(places) else places[i] - excess
        places[i] = min(places[i], ceiling)
    right = axes.get_xlim()[1]
    for (mean, method), place in zip(found, places, strict=True):
        ink = colour(method.colour)
        axes.axhline(mean, color=ink, linewidth=1.0, alpha=0.45, zorder=0)
        axes.annotate(
            percent(mean), (right, place), (8, 0), textcoords="offset points", va="bottom", color=ink,
            fontsize=14, fontweight="bold", annotation_clip=False,
        )  # fmt: skip
        axes.annotate(
            short(method.title, 18), (right, place), (8, -1), textcoords="offset points", va="top", color=ink,
            fontsize=11, annotation_clip=False,
        )  # fmt: skip


def spread_of_methods(findings: Findings, width: int) -> str:
    """Mean of each method with its 95 % interval; behind it, all but the lowest and the highest tenth of clients."""
    methods = sorted((m for m in findings.methods if m.mean is not None), key=lambda m: (m.mean or 0.0, m.key))
    figure, axes = axes_of(width, 90 + 30 * len(methods))
    for place, method in enumerate(methods):
        ink, mean = colour(method.colour), method.mean or 0.0
        values = [v for row in findings.clients if (v := row.accuracy[method.key]) is not None]
        if len(values) > 2:
            ends = np.quantile(values, (0.1, 0.9))
            axes.plot(ends, [place, place], color=ink, linewidth=9, alpha=0.16, solid_capstyle="butt")
        if method.low is not None and method.high is not None:
            axes.plot([method.low, method.high], [place, place], color=ink, linewidth=2.4)
        axes.scatter([mean], [place], s=70, color=ink, marker=method.marker, linewidths=0, zorder=3)
        axes.annotate(
            percent(mean), (mean, place), (0, 9), textcoords="offset points", ha="center", color=colour("ink"),
            fontsize=10,
        )  # fmt: skip
    axes.set_yticks(range(len(methods)), [short(m.title, width // 28) for m in methods])
    axes.set_ylim(-0.6, len(methods) - 0.3)
    axes.grid(visible=False, axis="y")
    percent_axis(axes, axis="x")
    axes.set_xlabel("accuracy")
    return inline(figure, f"spread-{width}")


def candidates(findings: Findings, width: int) -> str:
    """What each candidate had right of the rows held out, with its standard error; in colour what was chosen."""
    found = sorted(findings.candidates, key=lambda candidate: candidate.held_out)
    figure, axes = axes_of(width, 90 + 26 * len(found))
    for place, candidate in enumerate(found):
        ink, value = colour("fedhip" if candidate.chosen else "bubble"), candidate.held_out
        if candidate.error is not None:
            ends = [value - candidate.error, value + candidate.error]
            axes.plot(ends, [place, place], color=ink, linewidth=2.4)
        axes.scatter([value], [place], s=60, color=ink, linewidths=0, zorder=3)
        axes.annotate(
            percent(value), (value, place), (0, 7), textcoords="offset points", ha="center", color=colour("ink"),
            fontsize=9,
        )  # fmt: skip
    axes.set_yticks(range(len(found)), [short(candidate.title, width // 18) for candidate in found])
    axes.set_ylim(-0.6, len(found) - 0.2)
    axes.grid(visible=False, axis="y")
    percent_axis(axes, axis="x")
    axes.set_xlabel("training rows right, held out")
    return inline(figure, f"candidates-{width}")


def gain_against(findings: Findings, what: str) -> str:
    """The gain of each client against its training rows (`train`) or its skew (`skew`), with the mean of each third."""
    figure, axes = axes_of(PANEL, 300)
    pairs = gain_pairs(findings, what)
    x, gains = [a for a, _ in pairs], [b for _, b in pairs]
    axes.axhline(0, color=colour("muted"), linewidth=1)
    many = len(x) > _MOST_DOTS
    axes.scatter(
        x, gains, s=14 if many else 30, color=colour("fedhip"), alpha=0.3 if many else 0.6, linewidths=0, zorder=2
    )
    for third in thirds(x, gains):
        axes.plot([third.low, third.high], [third.gain] * 2, color=colour("ink"), linewidth=2.5, zorder=3)
    if what == "train":
        if min(x) > 0 and max(x) > 10 * min(x):
            axes.set_xscale("log")
            axes.minorticks_off()
            axes.set_xticks(_round_ticks(min(x), max(x)))
        axes.set_xlabel("training rows of the client")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    else:
        axes.set_xlabel("skew of the client")
        axes.locator_params(axis="x", nbins=6)
    axes.set_ylabel("gain in points")
    axes.yaxis.set_major_formatter(lambda value, _: points(value).removesuffix(".0"))
    return inline(figure, f"gain-{what}")


def gain_pairs(findings: Findings, what: str) -> list[tuple[float, float]]:
    """(x, gain) of every client that has both; nothing where x is the same for all."""
    rows = [(getattr(row, what), row.gain) for row in findings.clients]
    pairs = [(float(x), gain) for x, gain in rows if x is not None and gain is not None]
    return pairs if len({x for x, _ in pairs}) > 1 else []


def alphas_chosen(findings: Findings) -> str:
    """How many clients have an α of about each size, a quarter of a decade to a bar."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = axes_of(PANEL, 300)
    places, numbers = np.unique([_quarter(alpha) for alpha in findings.alphas], return_counts=True)
    axes.bar(places, numbers, width=0.21, color=colour("fedhip"), linewidth=0)
    _alpha_axis(axes, findings)
    axes.set_ylabel("clients")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False, axis="x")
    return inline(figure, "alpha")


def leave_one_out_curve(findings: Findings) -> str:
    """Mean leave-one-out accuracy had every client used one α, its spread over clients, and that of their own α."""
    figure, axes = axes_of(PANEL, 300)
    places = [_place(alpha) for alpha in findings.grid]
    if len(findings.loo_clients) > 2:
        low, high = np.quantile(findings.loo_clients, (0.1, 0.9), axis=0)
        axes.fill_between(places, low, high, color=colour("fedhip"), alpha=0.12, linewidth=0)
    axes.plot(places, findings.loo_mean, color=colour("fedhip"), linewidth=2.2)
    if findings.loo_chosen is not None:
        axes.axhline(findings.loo_chosen, color=colour("ink"), linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate(
            f"each its own α: {percent(findings.loo_chosen)}", (places[0], findings.loo_chosen), (0, 4),
            textcoords="offset points", color=colour("ink"), fontsize=11,
        )  # fmt: skip
    _alpha_axis(axes, findings)
    percent_axis(axes)
    return inline(figure, "loo")


def _place(alpha: float) -> float:
    """Where α stands on the axis: its logarithm, and zero half a decade below a tenth."""
    return float(np.log10(alpha)) if alpha > 0 else -1.5


def _quarter(alpha: float) -> float:
    return round(4 * _place(alpha)) / 4


def _alpha_axis(axes: Axes, findings: Findings) -> None:
    values = [*findings.grid, *findings.alphas]
    places = [_place(value) for value in values]
    low, high = min(places, default=0.0), max(places, default=0.0)
    ticks = [0.0] if 0.0 in values else []
    ticks += [10.0**power for power in range(int(np.ceil(max(low, -1 if ticks else low))), int(np.floor(high)) + 1)]
    axes.set_xticks([_place(tick) for tick in ticks], [weight(tick) for tick in ticks])
    axes.set(xlim=(low - 0.25, high + 0.25), xlabel="α, the extra weight of a client's own rows")


def partition(findings: Findings) -> str:
    """Training rows by client and class: bubbles, or shades where there are very many."""
    names = tuple(short(name, 24) for name in findings.class_names)
    clients = tuple(short(name, 24) for name in findings.names)
    if max(findings.counts.shape) > _MOST_BUBBLES:
        return _shades(findings.counts)
    colours = Colours(*map(colour, ("ink", "muted", "grid", "bubble")))
    with drawing(**{"svg.fonttype": "none"}):  # in its own size of letters
        figure = partition_figure(findings.counts, class_names=names, client_names=clients, title=None, colours=colours)
        return inline(figure, "partition", zoom=1.25)


def _shades(counts: NDArray[np.int64]) -> str:
    """The share of each class in each client's rows; clients in order of their largest class."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    pixels = np.empty((*counts.shape, 4), dtype=np.uint8)
    pixels[..., :3] = _HEAT
    pixels[..., 3] = np.round(255 * np.sqrt(shares[order] / shares.max()))
    figure, axes = axes_of(WIDE, 560)
    axes.grid(visible=False)
    axes.imshow(pixels, aspect="auto", interpolation="none")
    axes.set(xlabel="class", ylabel="clients, by their largest class", yticks=[])
    return inline(figure, "partition")


def confusion(findings: Findings) -> str:
    """Test rows of the worst classes by the class they are taken for; shade by share of the row's class."""
    from matplotlib.patches import Rectangle

    worst, columns = findings.worst_classes, findings.confused_with
    figure, axes = axes_of(210 + 46 * len(columns), 130 + 30 * len(worst))
    for i, row in enumerate(worst):
        for j, label in enumerate(columns):
            errors = row.right if label == row.label else row.taken_for.get(label, 0)
            own = label == row.label
            if errors and not own:
                shade = 0.14 + 0.36 * min(1.0, 2 * errors / row.test)
                cell = Rectangle((j - 0.48, i - 0.46), 0.96, 0.92, facecolor=colour("fedhip"), alpha=shade, linewidth=0)
                axes.add_patch(cell)
            axes.text(
                j, i, f"{errors:,}" if errors else "·", ha="center", va="center",
                color=colour("ink" if errors and not own else "muted"), fontstyle="italic" if own else "normal",
            )  # fmt: skip
    axes.grid(visible=False)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(worst) - 0.5, -0.5))
    axes.set_yticks(range(len(worst)), [f"{short(c.name, 20)}  {percent(c.right / c.test)}" for c in worst])
    axes.set_xticks(range(len(columns)), [short(findings.class_names[c], 20) for c in columns], rotation=40, ha="left")
    axes.tick_params(axis="x", top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.tick_params(axis="both", labelcolor=colour("ink"))
    return inline(figure, "confusion")


def seconds_by_phase(findings: Findings) -> str:
    """Seconds of each phase, in the order they were taken."""
    phases = list(findings.seconds.items())
    figure, axes = axes_of(PANEL, 30 + 32 * len(phases))
    places = range(len(phases))
    longest = max(value for _, value in phases) or 1.0
    axes.barh(places, [value for _, value in phases], height=0.55, color=colour("bubble"), linewidth=0)
    for place, (_, value) in zip(places, phases, strict=True):
        axes.annotate(
            duration(value),
            (value, place),
            (5, 0),
            textcoords="offset points",
            va="center",
            color=colour("ink"),
            fontsize=11,
        )
    axes.set(xlim=(0, 1.22 * longest), ylim=(len(phases) - 0.5, -0.5), xticks=[])
    axes.set_yticks(places, [short(phase, 30) for phase, _ in phases])
    axes.grid(visible=False)
    axes.tick_params(axis="y", labelcolor=colour("ink"))
    return inline(figure, "seconds")


def means_of_runs(names: Sequence[str], runs: Sequence[Sequence[Method]], common: str | None, width: int) -> str:
    """Mean accuracy of every method in every run, a line for each run; of the common one the interval too."""
    shown = list(dict.fromkeys((m.key, short(m.title, 20), m.colour, m.marker) for methods in runs for m in methods))
    columns = max(1, int(width / (34 + 7.5 * max(len(title) for _, title, *_ in shown))))
    figure, axes = axes_of(width, 60 + 20 * -(-len(shown) // columns) + 34 * len(runs))
    for place, methods in enumerate(runs):
        means = [m.mean for m in methods if m.mean is not None]
        if means:
            axes.plot([min(means), max(means)], [place, place], color=colour("grid"), linewidth=3, zorder=1)
        for m in methods:
            if m.key == common and m.low is not None and m.high is not None:
                axes.plot([m.low, m.high], [place, place], color=colour(m.colour), linewidth=1.6, zorder=2)
    for key, title, ink, marker in reversed(shown):
        found = [(m.mean, i) for i, methods in enumerate(runs) for m in methods if m.key == key and m.mean is not None]
        axes.scatter(
            [x for x, _ in found], [y for _, y in found], s=80 if key == "fedhip" else 55, marker=marker,
            color=colour(ink), linewidths=0, label=title, zorder=3 if key == "fedhip" else 2,
        )  # fmt: skip
    axes.set_yticks(range(len(names)), [short(name, width // 28) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", labelcolor=colour("ink"))
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, frameon=False,
        labelcolor=colour("ink"), reverse=True, handletextpad=0.2, columnspacing=1.2,
    )  # fmt: skip
    axes.grid(visible=False, axis="y")
    percent_axis(axes, axis="x")
    axes.set_xlabel("accuracy, mean over clients")
    return inline(figure, f"means-{width}")


def differences_of_clients(names: Sequence[str], differences: Sequence[Sequence[float]], width: int) -> str:
    """For each run the difference of each client to the first run, and their mean."""
    figure, axes = axes_of(width, 70 + 70 * len(names))
    axes.axvline(0, color=colour("muted"), linewidth=1)
    for place, values in enumerate(differences):
        heights = _stacked(values)
        axes.scatter(values, place + 0.3 - heights, s=26, color=colour("fedhip"), alpha=0.6, linewidths=0)
        if len(values):
            mean = float(np.mean(values))
            axes.plot([mean, mean], [place - 0.4, place + 0.4], color=colour("ink"), linewidth=2.5)
    axes.set_yticks(range(len(names)), [short(name, width // 28) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", labelcolor=colour("ink"))
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(lambda value, _: points(value).removesuffix(".0"))
    axes.set_xlabel("difference in points, client by client")
    return inline(figure, f"differences-{width}")


def _stacked(values: Sequence[float]) -> NDArray[np.float64]:
    """Heights in [0, 0.7] that put dots of about the same value on top of each other."""
    bins = np.round(np.array(values) / 0.005).astype(int)
    floors = np.array([(bins[:i] == b).sum() for i, b in enumerate(bins)], dtype=np.float64)
    return floors * min(0.1, 0.7 / max(1.0, float(floors.max(initial=0.0))))


def axes_of(width: int, height: int) -> tuple[Figure, Axes]:
    """An empty picture, so large on the page."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02)  # type: ignore[call-arg, union-attr]
    axes = figure.add_subplot()
    axes.tick_params(labelcolor=colour("muted"), length=0, labelsize=11)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=colour("muted"), fontsize=11.5)
    axes.grid(color=colour("grid"), linewidth=1, zorder=0)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure, axes


def percent_axis(axes: Axes, axis: str = "y") -> None:
    """Shares as percentages."""
    chosen = axes.yaxis if axis == "y" else axes.xaxis
    chosen.set_major_formatter(lambda value, _: f"{100 * value:.0f}%" if -1e-9 <= value <= 1 + 1e-9 else "")


def _round_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, … between the two."""
    steps = [step * 10.0**power for power in range(12) for step in (1, 2, 5)]
    inside = [step for step in steps if low <= step <= high]
    return inside if len(inside) <= 6 else inside[:: -(-len(inside) // 6)]
