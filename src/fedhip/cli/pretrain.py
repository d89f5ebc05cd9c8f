"""`fedhip pretrain`: a foundation model from public images."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedhip.cli.common.console import note
from fedhip.cli.common.exit_codes import FAILED, INTERRUPTED
from fedhip.utils.text import json_text

if TYPE_CHECKING:
    from fedhip.features.pretraining.recipe import Recipe


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "pretrain",
        help="train a backbone on unlabelled images (masked auto-encoder)",
        description="Train a ViT encoder on a pool of unlabelled images. Writes encoder.safetensors, "
        "card.json, card.md, loss.csv and checkpoint.safetensors to the output folder.",
    )
    add = parser.add_argument
    add(
        "--pool",
        nargs="+",
        required=True,
        metavar="SOURCE",
        help=".npz with 'images', .zip or folder of images",
    )
    add(
        "--shares",
        nargs="+",
        type=float,
        metavar="W",
        help="share of draws of each source (default: by size)",
    )
    add("--skip-corrupt", action="store_true", help="leave unreadable images out instead of stopping")
    add("--save-pool", type=Path, metavar="FILE", help="also write the resized pool as one .npz")
    add("-o", "--out", type=Path, required=True, metavar="DIR", help="output folder")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=int, help="length of the schedule in steps")
    length.add_argument("--minutes", type=float, help="length of the schedule in minutes, without compilation")
    add(
        "--stop-after",
        type=float,
        metavar="MINUTES",
        help="stop this process early with a checkpoint to resume",
    )
    add(
        "--resume",
        action="store_true",
        help="go on from the checkpoint in the output folder, if there is one",
    )
    add("--checkpoint-every", type=float, default=120.0, metavar="SECONDS", help="default: %(default)g")
    add("--image-size", type=int, default=64, help="default: %(default)s")
    add("--patch", type=int, default=8, help="patch size (default: %(default)s)")
    add("--width", type=int, default=192, help="default: %(default)s")
    add("--depth", type=int, default=12, help="default: %(default)s")
    add("--heads", type=int, default=3, help="default: %(default)s")
    add("--mask-ratio", type=float, default=0.75, help="default: %(default)s")
    add("--decoder-width", type=int, default=192, help="default: %(default)s")
    add("--decoder-depth", type=int, default=4, help="default: %(default)s")
    add("--decoder-heads", type=int, default=3, help="default: %(default)s")
    add("--batch", type=int, default=4096, help="default: %(default)s")
    add("--lr", type=float, help="peak learning rate (default: 1.5e-4 for each 256 images of the batch)")
    add("--weight-decay", type=float, default=0.05, help="default: %(default)s")
    add("-s", "--seed", type=int, default=0, help="default: %(default)s")
    add("--device", help="cuda or cpu (default: cuda where there is one)")
    add("--compile", action=argparse.BooleanOptionalAction, help="compile the step (default: on cuda)")
    add("--log-every", type=int, default=100, metavar="STEPS", help="default: %(default)s")
    add(
        "--evaluate",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help=".npz with 'images', 'labels' and optionally 'split': ridge accuracy for the card",
    )
    add("--force", action="store_true", help="begin anew where an encoder or a checkpoint is already")
    add("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=run)


def recipe_of(args: argparse.Namespace) -> Recipe:
    """The recipe the arguments describe."""
    from fedhip.features.encoder.vit import ViTConfig
    from fedhip.features.pretraining.mae import DecoderConfig
    from fedhip.features.pretraining.recipe import Recipe

    return Recipe(
        encoder=ViTConfig(args.image_size, args.patch, args.width, args.depth, args.heads),
        decoder=DecoderConfig(args.decoder_width, args.decoder_depth, args.decoder_heads),
        mask_ratio=args.mask_ratio,
        steps=args.steps,
        minutes=args.minutes,
        batch=args.batch,
        learning_rate=args.lr,
        weight_decay=args.weight_decay,
        seed=args.seed,
    )


def run(args: argparse.Namespace) -> int:
    """Train, write, evaluate."""
    from fedhip.errors import InputError
    from fedhip.features.devices import resolve_device
    from fedhip.features.encoder.checkpoints import save_encoder
    from fedhip.features.pretraining.card import make_card, write_card
    from fedhip.features.pretraining.evaluation import LabelledSet, evaluate_encoder
    from fedhip.features.pretraining.pools import load_pool
    from fedhip.features.pretraining.training import check_intervals, pretrain
    from fedhip.utils.files import require_folder

    recipe = recipe_of(args)
    stop_after = None if args.stop_after is None else 60 * args.stop_after
    # before hours of training, not after: whatever could fail at their end
    check_intervals(args.checkpoint_every, args.log_every, stop_after)
    device = resolve_device(args.device)
    for folder in [args.out, *([args.save_pool.parent] if args.save_pool else [])]:
        require_folder(folder)
    there = [name for name in ("encoder.safetensors", "checkpoint.safetensors") if (args.out / name).exists()]
    if there and not args.resume and not args.force:
        raise InputError(
            f"{args.out / there[0]} is there already; go on from it with --resume, begin anew with --force, or choose "
            "another --out"
        )
    labelled = [LabelledSet.load(path) for path in args.evaluate]
    pool = load_pool(args.pool, recipe.encoder.image_size, args.shares, args.skip_corrupt)
    note(f"{len(pool.images):,} images from {', '.join(pool.names)}")
    if args.save_pool:
        pool.save(args.save_pool)
    outcome = pretrain(
        pool,
        recipe,
        args.out,
        device=device,
        compile_step=device.type == "cuda" if args.compile is None else args.compile,
        resume=args.resume,
        checkpoint_every=args.checkpoint_every,
        log_every=args.log_every,
        stop_after=stop_after,
        log=lambda status: note(str(status)),
    )
    if not outcome.finished:
        print(f"fedhip: stopped at step {outcome.step}; go on with --resume", file=sys.stderr)
        return INTERRUPTED if outcome.interrupted else FAILED
    save_encoder(args.out / "encoder.safetensors", outcome.encoder)
    accuracy: dict[str, dict[str, dict[str, float]]] = {}
    # with and without accuracies, so that an evaluation that fails loses nothing
    write_card(args.out, make_card(pool, recipe, outcome, str(device), accuracy))
    for data in labelled:
        accuracy[data.name] = evaluate_encoder(outcome.encoder, data, device=device)
        for spec, result in () if args.json else accuracy[data.name].items():
            print(f"{data.name}  {spec:<24} {result['accuracy']:.2%}", flush=True)
    if accuracy:
        write_card(args.out, make_card(pool, recipe, outcome, str(device), accuracy))
    if args.json:
        print(json_text({"out": str(args.out), "step": outcome.step, "accuracy": accuracy}))
    else:
        print(f"encoder and card in {args.out}")
    return 0
