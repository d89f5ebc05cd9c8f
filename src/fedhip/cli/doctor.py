"""`fedhip doctor`: what is there, what is missing, what is broken, and what to do about it."""

from __future__ import annotations

import argparse
import dataclasses
import json

from fedhip.cli.common.console import print_table
from fedhip.cli.common.exit_codes import DONE, FOUND

MARKS = {"ok": "✓", "missing": "–", "broken": "✗"}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check the installation: versions, device, cache, data",
        description="Look at versions, device, memory, cache, weights and data sets, without the network. "
        "✓ is there, – optional and missing, ✗ broken. Exit code 1 if `fedhip run` cannot work.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Look, and print what was found."""
    from fedhip.doctor import examine

    findings = examine()
    fatal = [finding.name for finding in findings if finding.fatal]
    if args.json:
        listed = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"ok": not fatal, "findings": listed}, ensure_ascii=False, indent=1))
    else:
        rows = [(MARKS[f.state], f.name, f.detail, f.remedy) for f in findings]
        print_table(("", "what", "found", "what to do"), rows)
        print(f"fedhip run cannot work: {', '.join(fatal)}" if fatal else "fedhip run can work")
    return FOUND if fatal else DONE
