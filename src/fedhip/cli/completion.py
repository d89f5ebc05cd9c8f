"""`fedhip completion`: a script that lets a shell complete commands, options and file names."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from fedhip.errors import MissingExtraError
from fedhip.utils.text import json_text

SHELLS = ("bash", "zsh", "tcsh")
#: What the words that stand for paths in the usage are completed with.
FILES, FOLDERS = ("FILE", "PATH", "SOURCE", "IMAGE", "TABLE", "CONFIG"), ("DIR", "RUN")
INSTALL = """\
to install it:
  bash   fedhip completion bash > ~/.local/share/bash-completion/completions/fedhip
  zsh    fedhip completion zsh > "${fpath[1]}/_fedhip"     (a folder of $fpath that is yours, before compinit)
  tcsh   fedhip completion tcsh > ~/.fedhip.completion.tcsh, and in ~/.tcshrc: source ~/.fedhip.completion.tcsh

Make the folder first if it is not there; new shells complete. Write the script again after an update of fedhip.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "completion",
        help="print a completion script for bash, zsh or tcsh",
        description="Print a script that completes fedhip's commands, options, choices and file names.",
        epilog=INSTALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the script alone")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from fedhip.cli.main import build_parser

    text = script(build_parser(), args.shell)
    print(json_text({"shell": args.shell, "script": text}) if args.json else text)
    return 0


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of a parser."""
    try:
        import shtab
    except ImportError as error:
        raise MissingExtraError("completion needs shtab; pip install shtab") from error
    for action in actions(parser):
        word = str(action.metavar).strip("[]").partition(".")[0]  # FILE of [FILE.html]
        if word in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif word in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell=shell))


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every option and argument of a parser and of the commands below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from actions(command)
