"""Draw the pictures of the documentation: python scripts/draw_pictures.py [docs/pictures].

round.svg and sum.svg are boxes and arrows; weights.svg and choice.svg are plots of problems that fedhip itself solves.
architecture.svg is of scripts/draw_architecture.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedhip import PersonalizationPath, Statistics, aggregate

Array = npt.NDArray[Any]

INK, GREY, PAPER = "#22303c", "#8a97a3", "#ffffff"
CLIENTS = ("#c2571a", "#1f5fa8", "#3c7d3c")
SERVER = "#5b4b8a"


def main() -> None:
    """Write all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/pictures"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in SCHEMES.items():
        (folder / name).write_text(draw(), encoding="utf-8")
    draw_weights(folder / "weights.svg")
    draw_choice(folder / "choice.svg")


class Drawing:
    """An SVG in the making: boxes, words, arrows."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img" font-family="Helvetica, Arial, sans-serif">\n'
            f"<title>{escape(title)}</title>\n"
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>\n'
        )
        self.parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, colour: str, *, filled: bool = False) -> None:
        """A rounded box; `filled` faintly with its colour."""
        fill = f'fill="{colour}" fill-opacity="0.12"' if filled else f'fill="{PAPER}"'
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" {fill} '
            f'stroke="{colour}" stroke-width="1.5"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 14,
        colour: str = INK,
        anchor: str = "middle",
        bold: int = 0,
    ) -> None:
        """A line of words."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>'
            f"{escape(words)}</text>"
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, colour: str = GREY) -> None:
        """A straight line with a head of its colour."""
        length = float(np.hypot(x2 - x1, y2 - y1))
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - 9 * ux, y2 - 9 * uy
        corners = f"{x2:.1f},{y2:.1f} {bx - 4 * uy:.1f},{by + 4 * ux:.1f} {bx + 4 * uy:.1f},{by - 4 * ux:.1f}"
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{bx:.1f}" y2="{by:.1f}" stroke="{colour}" stroke-width="1.5"/>'
            f'<polygon points="{corners}" fill="{colour}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = GREY) -> None:
        """A straight line."""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="1.5"/>'
        )

    def svg(self) -> str:
        """The file."""
        return self.head + "\n".join(self.parts) + "\n</svg>\n"


def draw_round() -> str:
    """The three phases, for three clients."""
    art = Drawing(960, 400, "One round of FedHiP: statistics up, their sum down, a model for every client")
    for x, words in ((200, "1  at each client"), (522, "2  at the server"), (792, "3  at each client")):
        art.text(x, 30, words, size=16, bold=True)
    art.box(440, 120, 164, 190, SERVER, filled=True)
    art.text(522, 150, "adds", size=15, colour=SERVER, bold=True)
    for y, words in (
        (185, "A = A₁ + A₂ + A₃"),
        (212, "B = B₁ + B₂ + B₃"),
        (252, "global model"),
        (276, "Ĝ = (A + βI)⁻¹B"),
    ):
        art.text(522, y, words)
    for k, (colour, y) in enumerate(zip(CLIENTS, (60, 170, 280), strict=True), start=1):
        sub = "₁₂₃"[k - 1]
        middle = y + 45
        art.box(20, y, 120, 90, colour, filled=True)
        art.text(80, y + 38, f"rows of client {k}", size=13, colour=colour, bold=True)
        art.text(80, y + 60, "stay here", size=12)
        art.arrow(142, middle, 198, middle)
        art.text(170, middle - 10, "backbone", size=11, colour=GREY)
        art.box(200, y, 170, 90, colour)
        art.text(285, y + 36, f"A{sub} = F{sub}ᵀF{sub}")
        art.text(285, y + 62, f"B{sub} = F{sub}ᵀY{sub}")
        art.arrow(372, middle, 438, 215 + 0.5 * (middle - 215), colour)
        art.arrow(606, 215 + 0.5 * (middle - 215), 660, middle, SERVER)
        art.box(662, y, 280, 90, colour, filled=True)
        art.text(802, y + 32, f"P̂{sub} = (A + αA{sub} + βI)⁻¹(B + αB{sub})")
        art.text(802, y + 58, "α by leave-one-out on its own rows", size=12)
        art.text(802, y + 76, "its own model, its own report", size=12)
    return art.svg()


def draw_sum() -> str:
    """Why the others' division does not matter: three ways to hold the same rows, one sum."""
    art = Drawing(960, 270, "However the other clients divide their rows, their statistics add up to the same sum")
    shares = ((4, 4, 4), (1, 9, 2), (12,))
    words = ("even", "skewed", "all at one client")
    for column, (parts, name) in enumerate(zip(shares, words, strict=True)):
        x = 40 + 310 * column
        art.text(x + 126, 28, f"the others' rows: {name}", size=14, bold=True)
        at = x
        for part, colour in zip(parts, (SERVER, GREY, INK), strict=False):
            art.box(at, 45, 21 * part - 3, 44, colour, filled=True)
            art.text(at + (21 * part - 3) / 2, 72, f"{part}" if part < 3 else f"{part} rows", size=12, colour=colour)
            at += 21 * part
        art.arrow(x + 126, 95, x + 126, 132)
        art.box(x + 20, 135, 212, 44, SERVER)
        art.text(x + 126, 162, "Σ FᵀF, Σ FᵀY: the same")
        art.arrow(x + 126, 183, x + 126, 212)
        art.box(x + 20, 215, 212, 44, CLIENTS[0], filled=True)
        art.text(x + 126, 242, "client 1's model: the same")
    return art.svg()


SCHEMES: dict[str, Callable[[], str]] = {
    "round.svg": draw_round,
    "sum.svg": draw_sum,
}


def draw_weights(path: Path) -> None:
    """What α does: two classes in the plane, which one client sees at another angle than everybody."""
    plt = plotting()
    rng = np.random.default_rng(3)
    all_rows, all_labels = two_classes(rng, 600, np.array([1.4, 0.0]))
    own_rows, own_labels = two_classes(rng, 30, np.array([-0.2, 1.3]))
    total = aggregate([statistics(all_rows, all_labels), statistics(own_rows, own_labels)])
    path_of_alpha = PersonalizationPath(total, with_one(own_rows), own_labels, beta=1.0)
    figure, panels = plt.subplots(1, 3, figsize=(9.5, 3.3), layout="constrained", sharex=True, sharey=True)
    for axes, alpha in zip(panels, (0.0, 3.0, 30.0), strict=True):
        for label, colour in enumerate(CLIENTS[:2]):
            axes.scatter(*all_rows[all_labels == label][:90].T, s=6, color=colour, alpha=0.2, linewidths=0)
            mine = own_rows[own_labels == label]
            axes.scatter(*mine.T, s=28, color=colour, edgecolor=INK, linewidth=0.8)
        difference = path_of_alpha.weights(alpha).numpy() @ np.array([-1.0, 1.0])
        across = np.array([-4.0, 4.0])
        axes.plot(-(difference[1] * across + difference[2]) / difference[0], across, color=INK, linewidth=2)
        right = (with_one(own_rows) @ difference > 0) == (own_labels == 1)
        axes.set(title=f"α = {alpha:g}: {right.sum()} of {len(right)} own rows right", xlim=(-4, 4), ylim=(-4, 4))
        axes.set(xticks=[], yticks=[], aspect="equal")
    panels[0].set_xlabel("the global model")
    panels[1].set_xlabel("own rows weigh 4 times")
    panels[2].set_xlabel("own rows weigh 31 times")
    save(figure, path)


def draw_choice(path: Path) -> None:
    """Leave-one-out on a client's rows beside the truth: 100,000 fresh rows of the same client."""
    plt = plotting()
    rng = np.random.default_rng(0)
    classes, width = 6, 40
    means = 0.8 * rng.normal(size=(classes, width))
    own_means = means + 0.5 * rng.normal(size=means.shape)

    def draw(number: int, centres: Array) -> tuple[Array, Array]:
        labels = rng.integers(0, classes, number)
        return centres[labels] + 2.0 * rng.normal(size=(number, width)), labels

    everybody, own, fresh = draw(3000, means), draw(150, own_means), draw(100_000, own_means)
    total = aggregate(Statistics.from_data(*rows, classes) for rows in (everybody, own))
    models = PersonalizationPath(total, *own, beta=1.0)
    alphas = [0.0, *np.geomspace(0.1, 1000, 33)]
    left_out = models.loo_accuracy(alphas).numpy()
    truth = [float((np.argmax(fresh[0] @ models.weights(a).numpy(), axis=1) == fresh[1]).mean()) for a in alphas]
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    axes.plot(alphas, 100 * left_out, color=CLIENTS[0], label="leave-one-out on its 150 training rows")
    axes.plot(alphas, 100 * np.array(truth), color=CLIENTS[1], label="100,000 fresh rows, which nobody has")
    axes.axvline(models.select(alphas), color=GREY, linestyle=":", label="the α it chooses")
    axes.set(xscale="symlog", xlabel="α", ylabel="accuracy, %", xlim=(0, 1000))
    axes.set_xscale("symlog", linthresh=0.1)
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)


def two_classes(rng: np.random.Generator, number: int, direction: Array) -> tuple[Array, Array]:
    """Two Gaussian clouds on either side of the origin."""
    labels = np.arange(number) % 2
    return (2 * labels[:, None] - 1) * direction + rng.normal(scale=0.9, size=(number, 2)), labels


def with_one(rows: Array) -> Array:
    """A constant feature, for the intercept."""
    return np.column_stack([rows, np.ones(len(rows))])


def statistics(rows: Array, labels: Sequence[int] | Array) -> Statistics:
    """Of rows with a constant feature, in two classes."""
    return Statistics.from_data(with_one(rows), np.asarray(labels), 2)


def plotting() -> Any:
    """pyplot, with the manners of these pictures."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "fedhip"}
    )
    return plt


def save(figure: Any, path: Path) -> None:
    """As SVG, without the date."""
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main()
