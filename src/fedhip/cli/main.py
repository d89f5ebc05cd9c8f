"""`fedhip COMMAND`: the commands, and what happens when one fails."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from fedhip import FedHiPError, __version__
from fedhip.cli import completion, doctor, export, extract, list, partition, pretrain, run  # noqa: A004

COMMANDS = (run, partition, extract, pretrain, export, list, doctor, completion)

FAILED, INTERRUPTED = 2, 130


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command."""
    parser = argparse.ArgumentParser(
        prog="fedhip", description="Personalized federated learning in one round and closed form."
    )
    parser.add_argument("--version", action="version", version=f"fedhip {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(subparsers)
    return parser


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without the line of source that raised it."""
    print(f"fedhip: warning: {message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command: 0 if it succeeded, 2 with one line of reason if not, 130 if it was interrupted."""
    args = build_parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            code = int(args.handler(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (FedHiPError, OSError) as error:
        print(f"fedhip: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("fedhip: interrupted", file=sys.stderr)
        return INTERRUPTED
