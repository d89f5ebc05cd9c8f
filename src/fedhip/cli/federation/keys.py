"""`fedhip federation accept`, `enroll`, `rotate-key` and `fingerprint`: keys that sites make, and whose they are."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedhip.cli.common.console import print_table
from fedhip.cli.federation.init import with_engine
from fedhip.utils.text import json_text

if TYPE_CHECKING:
    from fedhip.federation.agreement.enrollment import Enrolled
    from fedhip.federation.agreement.parcel import Parcel
    from fedhip.federation.agreement.policy import Policy


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    _add_accept(commands)
    _add_enroll(commands)
    _add_rotate(commands)
    _add_fingerprint(commands)


def _add_accept(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "accept",
        help="at a site: make a key, and later accept the keys of all sites",
        description="Accept a parcel of the coordinator's. The first makes the site's folder with its private key, "
        "which stays there, and a reply for the coordinator. The second has the keys of all sites: they are taken if "
        "the fingerprint is the one that another site reads aloud.",
    )
    parser.add_argument("parcel", type=Path, metavar="PARCEL", help="the file that the coordinator sent")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="the site's folder (default: site-NAME, here)")
    parser.add_argument("--name", help="check that the parcel is for this site")
    parser.add_argument("--fingerprint", metavar="DIGITS", help="as another site tells it (default: it is asked for)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(accept))


def _add_enroll(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "enroll",
        help="at the coordinator: collect the sites' keys",
        description="Make the roster (all sites' names and keys) from their replies, and a second parcel with it for "
        "each site.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the federation's folder")
    parser.add_argument("replies", type=Path, nargs="+", metavar="FILE", help="the reply of each site")
    parser.add_argument(
        "--replace", action="store_true",
        help="these sites changed their keys (rotate-key): replace and retire those in the roster, before the round",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(enroll))


def _add_rotate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "rotate-key",
        help="at a site: change its key, before the round",
        description="Make a new private key in the place of the site's own, and a reply for the coordinator (enroll "
        "--replace). The site takes part again when it has accepted the new second parcel, as all others must.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the site's folder, which accept made")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(rotate_key))


def _add_fingerprint(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "fingerprint",
        help="print the fingerprint that sites compare by telephone",
        description="Print the fingerprint of a federation: of its agreement, the names and keys of all sites, and the "
        "server's authority.",
    )
    parser.add_argument(
        "place", type=Path, metavar="PATH", help="a site's folder, the coordinator's, or a second parcel"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(fingerprint))


def accept(args: argparse.Namespace) -> int:
    """Accept a parcel."""
    from fedhip.federation.agreement.credentials import read_authority
    from fedhip.federation.agreement.enrollment import accept_first, accept_second, accepted_roster, safe_policy
    from fedhip.federation.agreement.parcel import Parcel
    from fedhip.federation.agreement.policy import FILE, Policy
    from fedhip.federation.agreement.rotation import changed
    from fedhip.federation.errors import SetupError
    from fedhip.federation.site.folder import AUTHORITY

    parcel = Parcel.read(args.parcel)
    if args.name not in (None, parcel.site):
        raise SetupError(f"{args.parcel} is for the site {parcel.site!r}, not for {args.name!r}")
    folder: Path = args.out or Path(f"site-{parcel.site}")
    if parcel.roster is None:
        if args.fingerprint is not None:
            raise SetupError(f"{args.parcel} is a first parcel, which has no fingerprint: leave --fingerprint out")
        reply = accept_first(parcel, folder)
        if args.json:
            print(json_text({"folder": str(folder), "reply": str(reply)}))
            return 0
        _describe(parcel, safe_policy(parcel.agreement))
        print(f"{folder} is this site's folder; its private key stays there, and its policy is {folder / FILE}")
        print(f"for the coordinator: {reply}")
        return 0

    before = accepted_roster(folder)
    news = [] if before is None else changed(before, parcel.roster)
    renewed = before is not None and read_authority(folder / AUTHORITY) != parcel.authority

    def read_aloud() -> str:
        if not args.json:
            _describe(parcel, Policy.read(folder / FILE))
            if news:
                print(f"another key than before: {', '.join(news)}; ask them whether they changed it")
            if renewed:
                print("another authority of the server than before; the fingerprint tells whether all have the same")
        return args.fingerprint if args.fingerprint is not None else _ask(parcel, args.parcel, news)

    accept_second(parcel, folder, read_aloud)
    if args.json:
        print(json_text({"folder": str(folder), "reply": None}))
        return 0
    print(f"the fingerprint is the same: fedhip federation site {folder} --data DATA")
    return 0


def _describe(parcel: Parcel, policy: Policy) -> None:
    from fedhip.federation.agreement.summary import in_words

    for line in in_words(parcel.agreement, policy, parcel.site):
        print(line)
    for warning in parcel.agreement.warnings:
        print(f"fedhip: warning: {warning}", file=sys.stderr)


def _ask(parcel: Parcel, path: Path, news: list[str]) -> str:
    """The fingerprint, from who sits at the terminal; of another site, of one with a new key if there is one."""
    from fedhip.federation.errors import SetupError
    from fedhip.federation.operations.paths import command

    sites = parcel.agreement.sites
    following = next((site for site in news if site != parcel.site), sites[(sites.index(parcel.site) + 1) % len(sites)])
    if not sys.stdin.isatty():
        raise SetupError(
            f"the fingerprint is needed, as the site {following!r} tells it: give --fingerprint; what you tell others: "
            f"{command('fingerprint', path)}"
        )
    print(f"Call the site {following!r}, or another that you trust, but not the coordinator. It reads aloud what")
    print("    fedhip federation fingerprint PARCEL")
    print("prints there, with its own second parcel.")
    try:
        return input("Its fingerprint: ")
    except EOFError:
        raise SetupError("no fingerprint was told; nothing was accepted") from None


def enroll(args: argparse.Namespace) -> int:
    """Make the roster."""
    from fedhip.federation.agreement.enrollment import enroll as make

    made = make(args.directory, args.replies, replacing=args.replace)
    tell_parcels(made, args.directory.absolute(), as_json=args.json)
    return 0


def tell_parcels(made: Enrolled, directory: Path, *, as_json: bool, **more: str) -> None:
    """What goes to each site, and the fingerprint by which it is accepted."""
    from fedhip.federation.agreement.credentials import fingerprint as key_fingerprint
    from fedhip.federation.operations.paths import command

    if as_json:
        parcels = {name: str(path) for name, path in made.parcels.items()}
        print(json_text({**more, "parcels": parcels, "fingerprint": made.fingerprint}))
        return
    rows = [
        (name, str(path.relative_to(directory)), key_fingerprint(made.roster.keys[name]))
        for name, path in made.parcels.items()
    ]
    print_table(("site", "second parcel, for the site", "the key's fingerprint"), rows, str(directory))
    print(f"fingerprint: {made.fingerprint}")
    print("each site compares it with another site, not with you: fedhip federation accept NAME-2.json")
    print(f"then here: {command('serve', directory)}")


def rotate_key(args: argparse.Namespace) -> int:
    """Change a site's key."""
    from fedhip.federation.agreement.rotation import rotate_key as rotate

    reply = rotate(args.folder)
    if args.json:
        print(json_text({"folder": str(args.folder), "reply": str(reply)}))
        return 0
    print(f"{args.folder} has a new private key, and the old one is deleted; this site takes no part until it has")
    print("accepted the coordinator's new second parcel")
    print(f"for the coordinator: {reply}")
    return 0


def fingerprint(args: argparse.Namespace) -> int:
    """Print the fingerprint."""
    from fedhip.federation.agreement.enrollment import fingerprint_at

    found = fingerprint_at(args.place)
    print(json_text({"fingerprint": found}) if args.json else found)
    return 0
