"""Draw an encoder's card: the loss over the run, and the ridge accuracy of each layer.

python scripts/draw_card.py src/fedhip/features/weights/fedhip-vit.card.json docs/pictures/backbone.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

COLOURS = ("#1f5fa8", "#c2571a")


def main() -> None:
    """Read the card, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("card", type=Path)
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    card = json.loads(args.card.read_text(encoding="utf-8"))
    mpl.rcParams.update(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "fedhip"}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained")
    draw_loss(left, card["loss"]["curve"])
    draw_layers(right, card["ridge_accuracy"])
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.picture, metadata={"Date": None} if args.picture.suffix == ".svg" else None, dpi=150)


def draw_loss(axes: Axes, curve: list[dict[str, float]]) -> None:
    """Mean loss of every 200 steps, against minutes."""
    axes.plot([p["seconds"] / 60 for p in curve], [p["loss"] for p in curve], color=COLOURS[0])
    axes.set(xlabel="minutes", ylabel="loss on masked patches", title="Pre-training", yscale="log")
    axes.set_yticks([0.3, 0.4, 0.6, 0.8], ["0.3", "0.4", "0.6", "0.8"])
    axes.minorticks_off()


def draw_layers(axes: Axes, accuracy: dict[str, dict[str, Any]]) -> None:
    """Accuracy of the mean of the patches (solid) and of the class token (dashed) of each layer; dotted: together."""
    for colour, (name, results) in zip(COLOURS, accuracy.items(), strict=False):
        for kind, style in (("mean", "-"), ("cls", "--")):
            layers = sorted(
                int(spec.partition(":")[2]) for spec in results if spec.startswith(f"{kind}:") and "," not in spec
            )
            values = [100 * results[f"{kind}:{layer}"]["accuracy"] for layer in layers]
            axes.plot(layers, values, style, color=colour, label=f"{name}, {kind}")
        for spec, result in results.items():
            if "," in spec:
                axes.axhline(100 * result["accuracy"], color=colour, linestyle=":", label=f"{name}, {spec}")
    axes.set(xlabel="layer", ylabel="ridge accuracy, %", title="What each layer knows", xticks=layers)
    axes.legend(fontsize=7, frameon=False, ncols=2, loc="lower right")
    axes.set_ylim(bottom=0)


if __name__ == "__main__":
    main()
