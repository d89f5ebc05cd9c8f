"""`fedhip federation revoke`, `export-log` and `verify-log`: who is let in no more, and what happened, signed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedhip.cli.common.exit_codes import DONE
from fedhip.cli.federation.init import with_engine
from fedhip.utils.text import json_text


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    parser = commands.add_parser(
        "revoke",
        help="at the coordinator: revoke a site's access",
        description="Revoke a site's key: the server refuses its calls from now on, also while it runs. The agreement, "
        "the roster and finished sums do not change. This cannot be undone.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the federation's folder")
    parser.add_argument("site", metavar="SITE", help="the client's name")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(revoke))
    parser = commands.add_parser(
        "export-log",
        help="at the coordinator: export a signed log",
        description="Write the events of all rounds, one JSON object per line; the server signs the last line.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the federation's folder")
    parser.add_argument("file", type=Path, metavar="FILE", help="what to write: a file that does not exist yet")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(export_log))
    parser = commands.add_parser(
        "verify-log",
        help="check the signature of an exported log",
        description="Check that a log of export-log is unchanged since the server of this federation signed it.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the log")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a site's folder, or the coordinator's")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(verify_log))


def revoke(args: argparse.Namespace) -> int:
    """Let a site in no more."""
    from fedhip.federation.operations import revocation
    from fedhip.federation.operations.paths import ServerPaths

    paths = ServerPaths.open(args.directory)
    left = revocation.revoke(paths, args.site)
    quorum = paths.agreement().quorum
    if args.json:
        print(json_text({"site": args.site, "sites": left, "quorum": quorum}))
        return DONE
    print(f"site {args.site!r} is let in no more; {len(left)} sites are left")
    if len(left) < quorum:
        print(
            f"fedhip: warning: a round needs {quorum} sites; make a new federation for those that are left",
            file=sys.stderr,
        )
    return DONE


def export_log(args: argparse.Namespace) -> int:
    """Write the log."""
    from fedhip.federation.operations import event_export
    from fedhip.federation.operations.paths import ServerPaths

    found = event_export.export_log(ServerPaths.open(args.directory), args.file)
    if args.json:
        print(json_text({"file": str(args.file), "lines": found.lines, "digest": found.digest}))
    else:
        print(f"{args.file}: {found.lines} lines, whose digest {found.digest} is signed")
    return DONE


def verify_log(args: argparse.Namespace) -> int:
    """Say whether it is as it was."""
    from fedhip.federation.operations import event_export

    found = event_export.verify_log(args.file, args.folder)
    if args.json:
        shown = {"federation": found.federation, "lines": found.lines, "digest": found.digest, "made": found.made}
        print(json_text(shown))
    else:
        print(f"{found.lines} lines of {found.federation}, as its server signed them at {found.made}")
    return DONE
