"""`fedhip federation open-commitment` and `fedhip verify-commitment`: what a site masked, shown to an auditor."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedhip.cli.common.exit_codes import DONE
from fedhip.cli.federation.init import with_engine
from fedhip.utils.text import json_text


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the auditor's command."""
    parser = subparsers.add_parser(
        "verify-commitment",
        help="for an auditor: check what a site masked against its commitment",
        description="Make the masks of a site's vector again and see whether vector and masks are what the site signed "
        "in the sum. Says also whether any rows can have such statistics.",
    )
    parser.add_argument("opening", type=Path, metavar="OPENING", help="what the site shows (open-commitment)")
    parser.add_argument(
        "commitment", type=Path, metavar="COMMITMENT", help="what it signed: DIR/state/commitments/… of the server"
    )
    parser.add_argument(
        "--federation", type=Path, required=True, metavar="FOLDER",
        help="a folder with federation.toml and roster.json, whose fingerprint was compared",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(verify))


def register_open(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the site's command."""
    parser = commands.add_parser(
        "open-commitment",
        help="at a site: reveal to the auditor what was masked",
        description="Write what this site masked in a sum, and what its masks were made of, to a file that its owner "
        "alone can read. It tells this site's statistics: give it to the agreed auditor and to nobody else.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the site's folder")
    parser.add_argument("file", type=Path, metavar="FILE", help="what to write: a file that does not exist yet")
    parser.add_argument("--sum", default="statistics", metavar="NAME", help="which sum (default: statistics)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(open_))


def open_(args: argparse.Namespace) -> int:
    """Write the opening."""
    from fedhip.federation.operations.commitments import open_commitment

    opening = open_commitment(args.folder, args.sum, args.file)
    if args.json:
        site = opening.commitment.site
        print(json_text({"file": str(args.file), "site": site, "sum": args.sum, "numbers": len(opening.vector)}))
        return DONE
    print(
        f"{args.file}: {len(opening.vector)} numbers that site {opening.commitment.site!r} masked for the sum "
        f"{args.sum!r}; it tells this site's numbers, so give it to the auditor alone"
    )
    return DONE


def verify(args: argparse.Namespace) -> int:
    """Say whether it fits."""
    from fedhip.federation.operations.commitments import verify_commitment

    found = verify_commitment(args.opening, args.commitment, args.federation)
    if args.json:
        print(json_text({
            "site": found.site,
            "session": found.session,
            "agreement": found.agreement.digest(),
            "numbers": len(found.vector),
            "sums": list(found.sums),
            "rows": None if found.rows is None else list(found.rows),
            "impossible": found.impossible,
        }))  # fmt: skip
        return DONE
    print(f"site {found.site!r} masked these {len(found.vector)} numbers, in session {found.session[:12]}…")
    if found.rows is not None:
        named = zip(found.agreement.classes, found.rows, strict=True)
        print(f"as statistics: {sum(found.rows)} rows ({', '.join(f'{name} {count}' for name, count in named)})")
        print(found.impossible or "some rows have such statistics; whether the site's do, only its rows can tell")
    return DONE
