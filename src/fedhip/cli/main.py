"""`fedhip COMMAND`: the commands, and what happens when one fails."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from fedhip import FedHiPError, __version__
from fedhip.cli.common.console import note
from fedhip.cli.common.exit_codes import DONE, FAILED, INTERRUPTED
from fedhip.cli.common.parser import Parser, commands_of, subparser
from fedhip.cli.common.progress import show_progress
from fedhip.utils.nearest import did_you_mean
from fedhip.utils.text import one_line


class Command(NamedTuple):
    """Where a command is, and its line in the list of all: the same as in its module, which need not be imported."""

    module: str
    line: str


#: The commands, in the order of a user's way through them. A module is imported when one of its commands is asked for:
#: with torch that takes seconds, which `fedhip --help` should not.
COMMANDS = {
    "run": Command("runs.run", "train a model for every client in one round, and write a report"),
    "show": Command("runs.show", "print the table of a run"),
    "describe": Command("describe", "draft columns.toml: what each column of a table holds"),
    "report": Command("runs.report", "write the report of a run, or compare several runs"),
    "predict": Command("runs.predict", "predict images, features or table rows with a client's model"),
    "export": Command("export", "export a model as one ONNX file"),
    "join": Command("runs.life", "add a client to a run"),
    "update": Command("runs.life", "add training rows to a client of a run"),
    "forget": Command("runs.life", "remove a client from a run (exact unlearning)"),
    "personalize": Command("runs.life", "choose and measure one client's model, or all, again"),
    "influence": Command("runs.influence", "measure how each client changes the others' accuracy"),
    "verify": Command("runs.verify", "check that a run's files, sum, models and ledger are intact"),
    "audit": Command("audit", "try known attacks on a site's own rows before it takes part"),
    "federation": Command("federation.command", "train across machines; every site keeps its rows"),
    "verify-commitment": Command(
        "federation.commitments", "for an auditor: check what a site masked against its commitment"
    ),
    "reproduce": Command("reproduce", "make the paper's tables and figures"),
    "partition": Command("partition", "divide a data set among clients, and draw who has what"),
    "extract": Command("extract", "extract features of images into a feature file"),
    "pretrain": Command("pretrain", "train a backbone on unlabelled images (masked auto-encoder)"),
    "list": Command("list", "list data sets, partitions, backbones and methods"),
    "cache": Command("cache", "list or empty the feature cache"),
    "doctor": Command("doctor", "check the installation: versions, device, cache, data"),
    "completion": Command("completion", "print a completion script for bash, zsh or tcsh"),
}

#: Commands that say what they did: with --quiet they say nothing. What others print is what they were asked for.
_TELLING = frozenset(
    ("run", "report", "export", "join", "update", "forget", "personalize", "reproduce", "partition", "extract")
) | {"pretrain", "cache clear", "federation run", "federation stop", "federation renew", "federation accept"}


def build_parser(names: Iterable[str] = tuple(COMMANDS)) -> Parser:
    """The parser with these commands, and with what else their modules hold."""
    parser, subparsers = _empty_parser()
    for module in dict.fromkeys(COMMANDS[name].module for name in names):
        import_module(f"fedhip.cli.{module}").register(subparsers)
    for command in commands_of(parser):
        _add_manners(command)
    return parser


def _empty_parser() -> tuple[Parser, argparse._SubParsersAction[Parser]]:
    parser = Parser(
        prog="fedhip",
        description="Personalized federated learning in one round, in closed form.",
        epilog="fedhip COMMAND --help explains a command. Exit codes: 0 done, 1 a check found something wrong, "
        "2 wrong usage, 3 refused or failed, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"fedhip {__version__}")
    return parser, parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def _add_manners(parser: argparse.ArgumentParser) -> None:
    """What every command prints beside its answer."""
    group = parser.add_argument_group("messages")
    group.add_argument(
        "-q", "--quiet", action="store_true", help="print no progress, notes, warnings or success message"
    )
    group.add_argument("-v", "--verbose", action="store_true", help="show the Python traceback of an error")


def overview() -> Parser:
    """The parser that knows every command's name and line, and no more: for help and for what is mistyped."""
    parser, subparsers = _empty_parser()
    for name, command in COMMANDS.items():
        subparsers.add_parser(name, help=command.line)
    return parser


def parser_for(words: Sequence[str]) -> Parser:
    """The parser with no more than these words need: one command, or the names of all."""
    first = words[0] if words else ""
    return build_parser([first]) if first in COMMANDS else overview()


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options; those of a configuration file come first, so that the command line's own win."""
    parser = parser_for(words)
    if words[0].startswith("-") and words[0] not in parser._option_string_actions:
        parser.error(f"options stand after the command: fedhip COMMAND {words[0]}")
    args, more = parser.parse_known_args(words)
    # argparse takes a list of arguments to be over at the first option: RUN --client ID IMAGE… would lose its images.
    if more and hasattr(args, "images") and not any(word.startswith("-") for word in more):
        args.images += map(Path, more)
    elif more:
        chosen = subparser(parser, *(word for word in words[:2] if not word.startswith("-")))
        options = [option for action in chosen._actions for option in action.option_strings]
        if not more[0].startswith("-"):
            chosen.error(f"{more[0]!r} is one argument more than it takes")
        chosen.error(f"there is no {more[0]}{did_you_mean(more[0].split('=')[0], options)}")
    config = getattr(args, "config", None)
    if config is None:
        return args
    from fedhip.cli.runs import run

    return parser.parse_args([words[0], *run.options_from(config, subparser(parser, words[0])), *words[1:]])


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without the line of source that raised it."""
    print(f"fedhip: warning: {one_line(str(message))}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and answer with its exit code (`fedhip.cli.common.exit_codes`); a failure is one line."""
    words = [*(sys.argv[1:] if argv is None else argv)]
    if not words:
        print(overview().format_help(), end="")
        return DONE
    verbose, args = False, argparse.Namespace()
    try:
        args = parse(words)
        verbose = args.verbose
        code = _run(args, words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (FedHiPError, OSError) as error:
        show_progress.close()
        if verbose:
            traceback.print_exc()
        print(f"fedhip: {one_line(str(error))}", file=sys.stderr)
        return FAILED
    except Exception:
        # A run that somebody altered may hold anything; what else fails in this way is a bug, and shows where.
        if (altered := _altered(args)) is None:
            raise
        print(f"fedhip: {altered} was altered, and cannot be read; restore the run from a copy", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        show_progress.close()
        print("fedhip: interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        show_progress.close()
        show_progress.silent = False


def _altered(args: argparse.Namespace) -> Path | None:
    """The file of the command's run that is not what the run's ledger says, if there is one."""
    runs = [getattr(args, "run", None), *getattr(args, "runs", ())]
    if not any(isinstance(run, str | Path) for run in runs):
        return None
    from fedhip.runs.verify import altered_file

    found = (altered_file(Path(run)) for run in runs if run is not None)
    return next((path for path in found if path is not None), None)


def _run(args: argparse.Namespace, words: Sequence[str]) -> int:
    """The command itself; a quiet one with nothing but errors and what it was asked for."""
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.showwarning = show_warning
        if args.quiet:
            warnings.simplefilter("ignore")
            show_progress.silent = True
            if not getattr(args, "json", False) and {words[0], " ".join(words[:2])} & _TELLING:
                stack.enter_context(redirect_stdout(io.StringIO()))
        if getattr(args, "device", None) is not None and not getattr(args, "print_systemd", False):
            from fedhip.features.devices import resolve_device

            resolve_device(args.device)  # one that is not there, also where nothing would be computed on it
        code = int(args.handler(args))
        if (told := getattr(args, "old_spelling", None)) is not None:
            note(told)
        return code
