"""The parser of every command: errors of one line, no abbreviations, and help that begins with what people use."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedhip.cli.common.exit_codes import USAGE
from fedhip.utils.nearest import did_you_mean
from fedhip.utils.text import one_line


class Parser(argparse.ArgumentParser):
    """One whose errors are one line; the usage of a command with thirty options would bury it.

    An option is given by its whole name: what is short for one option today is short for two tomorrow.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})
        self._common: frozenset[str] = frozenset()
        self._respelled: list[tuple[argparse.Action, str, bool]] = []

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where help is."""
        self.exit(USAGE, f"{self.prog}: {one_line(message)} (see: {self.prog} --help)\n")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """As argparse's, which takes the value of `--option=--` away and leaves a list where a value belongs."""
        if action.option_strings and arg_strings == ["--"]:
            self.error(f"argument {'/'.join(action.option_strings)}: '--' is no value")
        if (action.type is Path or action.metavar in ("FILE", "PATH")) and "" in arg_strings:
            # Path("") would be the folder that one is in
            self.error(f"argument {'/'.join(action.option_strings) or action.metavar}: '' is no path")
        return super()._get_values(action, arg_strings)

    def show_first(self, *options: str) -> None:
        """These options alone in `--help`; `--help-all` shows them all."""
        self._common = frozenset(options)
        self.add_argument("--help-all", action=_HelpAll, help="show every option")

    def respell(self, action: argparse.Action, *old: str) -> None:
        """Let `old`, as this option or argument was spelled once, stand for it: not shown, and told of at the end."""
        self.add_argument(*old, dest=f"old_{action.dest}", type=action.type or str, help=argparse.SUPPRESS)
        self._respelled.append((action, old[-1], action.required and not str(action.metavar).startswith("[")))
        action.required = False

    def _settle_spellings(self, args: argparse.Namespace) -> None:
        for action, old, required in self._respelled:
            value, by_old = getattr(args, action.dest), getattr(args, f"old_{action.dest}")
            if value is not None and by_old is not None:
                self.error(f"{value} and {old} {by_old} are two names for one thing; leave {old} out")
            if required and value is None and by_old is None:
                self.error(f"the following arguments are required: {action.metavar}")
            if by_old is not None:
                setattr(args, action.dest, by_old)
                new = f"{action.option_strings[0]} {by_old}" if action.option_strings else f"{self.prog} … {by_old}"
                args.old_spelling = f"{old} {by_old} is an old spelling; write: {new}"

    def format_help(self) -> str:
        """Help, as short as it was made."""
        return self.format_whole_help() if not self._common else self._format_short_help()

    def format_whole_help(self) -> str:
        """Help with every option."""
        return super().format_help()

    def _format_short_help(self) -> str:
        shown = self._common | {"--help", "--help-all", "--quiet", "--verbose", "--json"}
        hidden = [a for a in self._actions if a.option_strings and not shown & set(a.option_strings)]
        before, usage = [action.help for action in hidden], self.usage
        arguments = [a.metavar for a in self._actions if not a.option_strings and isinstance(a.metavar, str)]
        try:
            for action in hidden:
                action.help = argparse.SUPPRESS
            self.usage = " ".join([self.prog, *(f"[{name}]" for name in arguments), "[OPTION …]"])
            text = super().format_help()
        finally:
            self.usage = usage
            for action, help_ in zip(hidden, before, strict=True):
                action.help = help_
        return f"{text}\n{len(hidden)} options more: {self.prog} --help-all\n"

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's, but for a command that there is not: its error would list all of them."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                word = next((word for word in args or () if not word.startswith("-")), None)
                if word is not None and word not in action.choices:
                    self.error(f"there is no command {word!r}{did_you_mean(word, action.choices)}")
        known, more = super().parse_known_args(args, namespace)
        self._settle_spellings(known)
        return known, more


def respell(parser: argparse.ArgumentParser, action: argparse.Action, *old: str) -> None:
    """`Parser.respell` of a command's parser, which argparse does not know to be one of ours."""
    assert isinstance(parser, Parser)  # noqa: S101 (for mypy)
    parser.respell(action, *old)


class _HelpAll(argparse.Action):
    """Print all of help, and end."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:  # noqa: A002
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Show every option."""
        print(parser.format_whole_help() if isinstance(parser, Parser) else parser.format_help(), end="")
        parser.exit()


def subparser(parser: argparse.ArgumentParser, *words: str) -> argparse.ArgumentParser:
    """The parser of one command, or of a command of a command."""
    for word in words:
        choices = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if choices and word in choices[0]:
            parser = choices[0][word]
    return parser


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands that do something, those of commands of commands too."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for command in action.choices.values():
            yield from commands_of(command)
    if not below:
        yield parser
