"""The picture of a partition: a bubble for each client and class, its area the number of rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import InputError
from fedhip.utils.files import whole_file
from fedhip.utils.style import Colours, drawing
from fedhip.utils.text import readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CELLS = 120  # up to so many cells in a row are square; more are squeezed into the page
_LONGEST_NAME = 24


def draw_partition(
    path: str | Path,
    counts: NDArray[np.int64],
    *,
    class_names: tuple[str, ...],
    client_names: tuple[str, ...],
    title: str,
) -> None:
    """Draw rows per client and class (K × d) into an .svg, .png or .pdf file; equal input, equal file."""
    path = Path(path)
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise InputError(f"{path}: a picture ends in .svg, .png or .pdf, not '{path.suffix}'")
    with drawing():
        figure = partition_figure(counts, class_names=class_names, client_names=client_names, title=title)
        metadata: Any = {".svg": {"Date": None}, ".png": {"Software": None}, ".pdf": {"CreationDate": None}}
        with whole_file(path) as temporary:
            figure.savefig(temporary, dpi=150, metadata=metadata[path.suffix])


def partition_figure(
    counts: NDArray[np.int64],
    *,
    class_names: tuple[str, ...],
    client_names: tuple[str, ...],
    title: str | None,
    colours: Colours = Colours(),  # noqa: B008 (frozen)
) -> "Figure":
    """Rows per client and class (K × d) as bubbles; without a title where the page around it has one."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    names = _readable(class_names), _readable(client_names)
    _draw(figure, counts, *names, None if title is None else readable(title), colours)
    return figure


def _readable(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(readable, names))


def _draw(
    figure: "Figure",
    counts: NDArray[np.int64],
    class_names: tuple[str, ...],
    client_names: tuple[str, ...],
    title: str | None,
    colours: Colours,
) -> None:
    clients, classes = counts.shape
    # Cells are square and as large as the picture allows: the more there are, the smaller.
    width, height = (float(np.clip(_cell(side) * side, 2.2, 15.0)) for side in (classes, clients))
    if max(clients, classes) <= _MOST_CELLS:
        cell = min(_cell(clients), _cell(classes))
        width, height = max(cell * classes, 2.2), max(cell * clients, 2.2)
    figure.set_size_inches(width + 1.9, height + 2.1)
    axes = figure.add_subplot()
    client, label = np.nonzero(counts)
    rows = counts[client, label]
    # Where cells are small most are empty, and bubbles may reach into the next one.
    cell = min(width / classes, height / clients)
    diameter = 72 * max(0.92 * cell, min(1.6 * cell, 0.25), 0.06)
    scale = diameter**2 / rows.max()
    axes.scatter(label, client, s=rows * scale, color=colours.bubble, alpha=0.8, linewidths=0, zorder=2)
    axes.set(xlim=(-0.8, classes - 0.2), ylim=(clients - 0.2, -0.8), xlabel="class", ylabel="client")
    _ticks(axes.xaxis, class_names, width / classes, rotate=classes > 6)
    _ticks(axes.yaxis, client_names, height / clients, rotate=False)
    _decorate(axes, colours)
    if title is not None:
        _entitle(axes, title, counts, colours)
    _legend(axes, int(rows.max()), scale, diameter, colours)


def _cell(side: int) -> float:
    """Inches for each of `side` cells in a row."""
    return float(np.clip(15.0 / side, 0.15, 0.42))


def _ticks(axis: Any, names: tuple[str, ...], cell: float, *, rotate: bool) -> None:
    """A name at every place if there is height for its letters; otherwise a number every few places."""
    count = len(names)
    letters = min(9.0, 72 * cell * 0.72)
    if letters >= 6.5 and max(map(len, names)) <= _LONGEST_NAME:
        axis.set_ticks(range(count), names, fontsize=letters, rotation=90 if rotate else 0)
    else:
        step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if step * cell >= 0.3)
        axis.set_ticks(range(0, count, step))


def _decorate(axes: "Axes", colours: Colours) -> None:
    axes.tick_params(labelcolor=colours.muted, length=0)
    axes.xaxis.label.set_color(colours.ink)
    axes.yaxis.label.set_color(colours.ink)
    axes.grid(color=colours.grid, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _entitle(axes: "Axes", title: str, counts: NDArray[np.int64], colours: Colours) -> None:
    clients, classes = counts.shape
    sizes, present = counts.sum(axis=1), (counts > 0).sum(axis=1)
    axes.set_title(title, loc="left", color=colours.ink, fontsize=12, fontweight="bold", pad=20)
    axes.annotate(
        f"{counts.sum():,} rows · {clients:,} clients with {_span(sizes)} rows and {_span(present)} of "
        f"{classes:,} classes each",
        xy=(0, 1),
        xytext=(0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        color=colours.muted,
        annotation_clip=False,
        in_layout=False,
    )


def _legend(axes: "Axes", most: int, scale: float, diameter: float, colours: Colours) -> None:
    """Up to three bubbles of round sizes, the largest about as large as any in the picture."""
    sizes = sorted({_round_down(most * part) for part in (0.1, 0.4, 1.0)} - {0})
    style: dict[str, Any] = {"color": colours.bubble, "alpha": 0.8, "linewidths": 0}
    legend = axes.legend(
        [axes.scatter([], [], s=size * scale, **style) for size in sizes],
        [f"{size:,}" for size in sizes],
        title="rows",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        labelcolor=colours.muted,
        labelspacing=max(0.6, diameter / 9 - 0.7),
        handletextpad=max(0.6, diameter / 18 - 0.6),
        borderpad=1.0,
    )
    legend.get_title().set_color(colours.ink)


def _span(values: NDArray[np.int64]) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _round_down(value: float) -> int:
    """The largest of 1, 2, 5, 10, 20, 50, … that is not above the value; 0 below 1."""
    if value < 1:
        return 0
    power = 10 ** int(np.log10(value))
    return int(max(step * power for step in (1, 2, 5) if step * power <= value))
