"""The card of a pre-trained encoder, for machines and people: data, recipe, cost, loss and accuracy."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch

from fedhip.features.pretraining.pools import Pool
from fedhip.features.pretraining.recipe import Recipe
from fedhip.features.pretraining.training import PretrainingOutcome
from fedhip.utils.files import write_text


def make_card(
    pool: Pool,
    recipe: Recipe,
    outcome: PretrainingOutcome,
    device: str,
    accuracy: dict[str, dict[str, dict[str, float]]],
) -> dict[str, Any]:
    """Everything known about an encoder, as JSON; `accuracy` is by set, then by pooling."""
    cuda = device.startswith("cuda") and torch.cuda.is_available()
    images_seen = outcome.step * recipe.batch
    return {
        "schema": 1,
        "data": [
            {"name": name, "images": count, "share": weight / sum(pool.weights)}
            for name, count, weight in zip(pool.names, pool.counts, pool.weights, strict=True)
        ],
        "pool_digest": pool.digest,
        "recipe": recipe.to_dict() | {"peak_learning_rate": recipe.peak},
        "cost": {
            "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "steps": outcome.step,
            "seconds": round(outcome.seconds, 1),
            "compile_seconds": round(outcome.compile_seconds, 1),
            "images_seen": images_seen,
            "epochs": round(images_seen / len(pool.images), 1),
            "images_per_second": round(images_seen / outcome.seconds) if outcome.seconds else None,
            "finished": outcome.finished,
        },
        "loss": {"last": outcome.curve[-1]["loss"] if outcome.curve else None, "curve": outcome.curve},
        "ridge_accuracy": accuracy,
    }


def write_card(out: Path, card: dict[str, Any]) -> None:
    """Write `card.json` and `card.md`."""
    write_text(out / "card.json", json.dumps(card, indent=1) + "\n")
    write_text(out / "card.md", render(card))


def render(card: dict[str, Any]) -> str:
    """The card as a page."""
    recipe, cost = card["recipe"], card["cost"]
    encoder, decoder = recipe["encoder"], recipe["decoder"]
    last = card["loss"]["last"]
    lines = [
        "# Model card",
        "",
        f"ViT encoder, {encoder['width']} wide, {encoder['depth']} deep, {encoder['heads']} heads, "
        f"patches of {encoder['patch_size']} on {encoder['image_size']}×{encoder['image_size']} images; "
        f"pre-trained without labels by masked auto-encoding.",
        "",
        "## Data",
        "",
        "| source | images | share of draws |",
        "|---|---|---|",
        *(f"| {row['name']} | {row['images']:,} | {row['share']:.1%} |" for row in card["data"]),
        "",
        "## Recipe",
        "",
        f"Mask {recipe['mask_ratio']:.0%}; decoder of {decoder['depth']} blocks, {decoder['width']} wide; "
        f"targets normalised per patch; AdamW {tuple(recipe['betas'])}, weight decay "
        f"{recipe['weight_decay']}; batch {recipe['batch']}; peak learning rate "
        f"{recipe['peak_learning_rate']:.2e}, {recipe['warmup']:.0%} warm-up, cosine; crops of "
        f"{recipe['crop_area'][0]:.0%} to {recipe['crop_area'][1]:.0%} with flips; seed {recipe['seed']}.",
        "",
        "## Cost",
        "",
        f"{cost['steps']:,} steps ({cost['epochs']:,} epochs) in {cost['seconds'] / 60:.1f} minutes on "
        f"{cost['device']}, and {cost['compile_seconds']:.0f} s of compilation; "
        f"{cost['images_per_second'] or 0:,} images/s." + ("" if cost["finished"] else " The run is not finished."),
        "",
        "Loss at the end: " + ("not measured" if last is None else f"{last:.4f}") + "; the curve is in `loss.csv`.",
        "",
        "## Ridge accuracy",
        "",
    ]
    if not card["ridge_accuracy"]:
        lines.append("Not measured.")
    for name, results in card["ridge_accuracy"].items():
        lines += [f"On {name}:", "", "| pooling | accuracy | β/N |", "|---|---|---|"]
        lines += [f"| {spec} | {r['accuracy']:.2%} | {r['beta']:g} |" for spec, r in results.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
