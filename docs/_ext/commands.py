"""`{fedhip-commands}`: every command of `fedhip` with its options, as the parsers themselves know them.

argparse has no public way to walk through a parser; what is used of its inside is what shtab, too, relies on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fedhip.cli.main import build_parser


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the directive known."""
    app.add_directive("fedhip-commands", Commands)
    return {"parallel_read_safe": True}


class Commands(SphinxDirective):
    """A section for each command, in the order of `fedhip --help`."""

    def run(self) -> list[nodes.Node]:
        """The sections."""
        return [self.section(parser, help_) for parser, help_ in commands(build_parser())]

    def section(self, parser: argparse.ArgumentParser, help_: str) -> nodes.section:
        """What a command does, how it is called, its options; then its own commands."""
        section = nodes.section(ids=[parser.prog.replace(" ", "-")])
        section += nodes.title(text=parser.prog)
        section += [block(part) for part in (parser.description or help_).split("\n\n") if part.strip()]
        usage = usage_of(parser)
        section += nodes.literal_block(usage, usage, language="text")
        for group in parser._action_groups:
            shown = [action for action in group._group_actions if is_shown(action)]
            if shown:
                section += nodes.rubric(text=group.title or "options")
                section += nodes.definition_list("", *map(definition, shown))
        section += [self.section(child, help_) for child, help_ in commands(parser)]
        self.state.document.note_implicit_target(section, section)
        return section


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """A parser's commands, each with its line in the list of them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {choice.dest: choice.help or "" for choice in action._choices_actions}
            yield from ((child, lines.get(name, "")) for name, child in action.choices.items())


def is_shown(action: argparse.Action) -> bool:
    """Whether it is an option or an argument that help shows; --help itself is everywhere."""
    hidden = (argparse._SubParsersAction, argparse._HelpAction)
    return action.help is not argparse.SUPPRESS and not isinstance(action, hidden)


def block(text: str) -> nodes.Element:
    """A paragraph of a description; one that is set in keeps its lines."""
    if text.startswith(" "):
        return nodes.literal_block(text, text, language="text")
    return nodes.paragraph(text=text)


def usage_of(parser: argparse.ArgumentParser) -> str:
    """How it is called, in lines that fit the page whatever the width of the terminal."""
    formatter = argparse.HelpFormatter(parser.prog, width=88)
    formatter.add_usage(None, parser._actions, parser._mutually_exclusive_groups)
    return formatter.format_help().removeprefix("usage: ").strip()


def definition(action: argparse.Action) -> nodes.definition_list_item:
    """`--option VALUE`, and what it is for, as help writes them."""
    formatter = argparse.HelpFormatter("fedhip")
    term = nodes.term("", "", nodes.literal(text=formatter._format_action_invocation(action)))
    text = formatter._expand_help(action) if action.help else ""
    return nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph(text=text)))
