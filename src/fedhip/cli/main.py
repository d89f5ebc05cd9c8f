"""`fedhip COMMAND`: the commands, and what happens when one fails."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from fedhip import FedHiPError, __version__
from fedhip.cli.common.progress import show_progress
from fedhip.utils.nearest import did_you_mean

#: Each command's module, in the order of a user's way through them. A module is imported when one of its commands is
#: asked for, or all are: with torch that takes seconds, which `fedhip --version` should not.
COMMANDS = {
    "run": "run",
    "describe": "describe",
    "report": "report",
    "predict": "predict",
    "export": "export",
    "join": "life",
    "update": "life",
    "forget": "life",
    "personalize": "life",
    "verify": "verify",
    "audit": "audit",
    "federation": "federation.command",
    "reproduce": "reproduce",
    "partition": "partition",
    "extract": "extract",
    "pretrain": "pretrain",
    "list": "list",
    "cache": "cache",
    "doctor": "doctor",
    "completion": "completion",
}

FAILED, INTERRUPTED = 2, 130


class Parser(argparse.ArgumentParser):
    """One whose errors are one line; the usage of a command with thirty options would bury it."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where help is."""
        self.exit(FAILED, f"{self.prog}: {message} (see: {self.prog} --help)\n")


def build_parser(names: Iterable[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """The parser with these commands, and with what else their modules hold."""
    parser = Parser(prog="fedhip", description="Personalized federated learning in one round and closed form.")
    parser.add_argument("--version", action="version", version=f"fedhip {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in dict.fromkeys(COMMANDS[name] for name in names):
        import_module(f"fedhip.cli.{module}").register(subparsers)
    return parser


def parser_for(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser with no more commands than these words need: one; all, where help or an error is to name them."""
    first = words[0] if words else ""
    if first in COMMANDS:
        return build_parser([first])
    return build_parser([]) if first == "--version" else build_parser()


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options; those of a configuration file come first, so that the command line's own win."""
    parser = parser_for(words)
    args, more = parser.parse_known_args(words)
    # argparse takes a list of arguments to be over at the first option: RUN --client ID IMAGE… would lose its images.
    if more and hasattr(args, "images") and not any(word.startswith("-") for word in more):
        args.images += map(Path, more)
    elif more:
        chosen = subparser(parser, *(word for word in words[:2] if not word.startswith("-")))
        options = [option for action in chosen._actions for option in action.option_strings]
        chosen.error(f"there is no {more[0]}{did_you_mean(more[0].split('=')[0], options)}")
    config = getattr(args, "config", None)
    if config is None:
        return args
    from fedhip.cli import run

    return parser.parse_args([words[0], *run.options_from(config, subparser(parser, words[0])), *words[1:]])


def subparser(parser: argparse.ArgumentParser, *words: str) -> argparse.ArgumentParser:
    """The parser of one command, or of a command of a command."""
    for word in words:
        choices = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if choices and word in choices[0]:
            parser = choices[0][word]
    return parser


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without the line of source that raised it."""
    print(f"fedhip: warning: {message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command: 0 if it succeeded, 2 with one line of reason if not, 130 if it was interrupted."""
    words = [*(sys.argv[1:] if argv is None else argv)]
    try:
        args = parse(words)
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            code = int(args.handler(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (FedHiPError, OSError) as error:
        show_progress.close()
        print(f"fedhip: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        show_progress.close()
        print("fedhip: interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        show_progress.close()
