"""`fedhip federation`: a round over the network, between sites that keep their rows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhip.cli.common.console import print_table
from fedhip.cli.common.options import print_window
from fedhip.cli.federation import commitments as federation_commitments
from fedhip.cli.federation import init as federation_init
from fedhip.cli.federation import keys as federation_keys
from fedhip.cli.federation import records as federation_records
from fedhip.cli.federation.init import with_engine
from fedhip.data import Dataset
from fedhip.errors import InputError
from fedhip.federation import logs
from fedhip.utils.text import json_text

if TYPE_CHECKING:
    from fedhip.federation.operations.paths import ServerPaths

_FLAG = argparse.BooleanOptionalAction


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "federation",
        help="train across machines; every site keeps its rows",
        description="Train across machines. The coordinator runs init, enroll, serve and run; each site runs accept "
        "and site. By secure aggregation the server learns the sum of the sites' statistics, not those of one site. "
        "Start with docs/tutorials/federation.md.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    federation_init.register(commands)
    federation_keys.register(commands)
    _add_serve(commands)
    _add_site(commands)
    _add_run(commands)
    _add_status(commands)
    _add_stop(commands)
    _add_renew(commands)
    federation_records.register(commands)
    federation_commitments.register_open(commands)


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="at the coordinator: run the server",
        description="Run the engine's server on loopback and, in front of it, a TLS proxy that lets only the sites' "
        "calls through. Ctrl-C stops both.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the federation's folder")
    parser.add_argument("--bind", metavar="ADDRESS", help="where to listen (default: as init's address asks)")
    parser.add_argument("--port", type=int, metavar="N", help="another port than at init")
    parser.add_argument("--background", action="store_true", help="return when the server is ready")
    parser.add_argument("--proxy", action=_FLAG, default=True, help="run the TLS proxy; without it, put nginx in front")
    parser.add_argument("--status-port", type=int, metavar="N", help="serve a status page on this port of 127.0.0.1")
    parser.add_argument(
        "--status-host", action="append", default=[], metavar="NAME",
        help="host name under which a reverse proxy serves the status page; may be repeated",
    )  # fmt: skip
    _add_log_format(parser)
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--print-nginx", action="store_true", help="print an nginx configuration and exit")
    printed.add_argument("--print-systemd", action="store_true", help="print a systemd unit and exit")
    parser.add_argument("--json", action="store_true", help="with --background: print JSON instead of words")
    parser.set_defaults(handler=with_engine(serve))


def _add_log_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-format",
        choices=logs.FORMATS,
        default=logs.TEXT,
        help="text, or json (one JSON object per line)",
    )


def _add_site(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "site",
        help="at a site: connect and take part",
        description="Connect to the server with the site's key and answer its questions until Ctrl-C. Rows stay here; "
        "the model and its report go to --out.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the site's folder, which accept made")
    rows = parser.add_mutually_exclusive_group(required=True)
    rows.add_argument("--data", type=Path, metavar="PATH", help="an image folder, .npz, or table")
    rows.add_argument("--features", type=Path, metavar="FILE", help="a feature file")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="where the result goes (default: FOLDER/result)")
    parser.add_argument("--name", help="check that the folder belongs to this site")
    parser.add_argument("--weights", type=Path, metavar="PATH", help="the agreed encoder, if it lies elsewhere")
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument(
        "--allow", metavar="REASON",
        help="take part once although the ledger would refuse this sum; the reason is recorded",
    )  # fmt: skip
    _add_log_format(parser)
    parser.add_argument("--background", action="store_true", help="return when the site is connected")
    parser.add_argument("--print-systemd", action="store_true", help="print a systemd unit and exit")
    parser.add_argument("--json", action="store_true", help="with --background: print JSON instead of words")
    parser.set_defaults(handler=with_engine(site))


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        help="at the coordinator: start the round and wait for it",
        description="Start the round and show its steps. Exit code 0 only if it succeeded and left its result.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the federation's folder")
    parser.add_argument("--json", action="store_true", help="print JSON at the end")
    parser.set_defaults(handler=with_engine(run))


def _add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "status",
        help="show server, sites and rounds",
        description="Show what is running, which sites are connected, and all rounds.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the federation's folder, or a site's")
    parser.add_argument(
        "--check", action="store_true", help="exit code 1 unless the server serves, or the site is connected"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(handler=with_engine(status))


def _add_stop(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "stop",
        help="stop the server or site started from a folder",
        description="Stop the server or site that was started from this folder on this machine, and those of the "
        "sites' folders inside it.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the federation's folder, or a site's")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(stop))


def _add_renew(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "renew",
        help="at the coordinator: renew the server's certificate, or its authority",
        description="Replace the server's certificate, valid for a year, by a new one of the same authority. Sites "
        "need no change; restart serve. With --authority replace the authority too, before the round: every site "
        "accepts it by its fingerprint.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the federation's folder")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name or address by which sites reach it (default: as before)",
    )
    parser.add_argument("--days", type=int, metavar="N", help="days until it expires (default: a year)")
    parser.add_argument(
        "--authority", action="store_true", help="its authority too, before the round, with new parcels for all sites"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=with_engine(renew))


def serve(args: argparse.Namespace) -> int:
    """Run the server."""
    from fedhip.federation.operations import background, serving
    from fedhip.federation.operations.paths import ServerPaths

    _require_background(args)
    if args.status_host and args.status_port is None:
        raise InputError("--status-host is of the coordinator's page; give --status-port too")
    if args.status_port is not None and not 1 <= args.status_port <= 65535:
        raise InputError(f"--status-port {args.status_port} is no port; give one from 1 to 65535")
    paths = ServerPaths.open(args.directory)
    endpoint = serving.endpoint_of(paths, args.bind, args.port)
    if args.print_nginx:
        return _print_nginx(paths, endpoint)
    if args.print_systemd:
        title = f"fedhip: the server of the federation {paths.agreement().name}"
        words = ["serve", str(paths.path.absolute()), "--bind", endpoint.bind, "--port", str(endpoint.port)]
        words += [] if args.proxy else ["--no-proxy"]
        words += [] if args.status_port is None else ["--status-port", str(args.status_port)]
        words += [word for host in args.status_host for word in ("--status-host", host)]
        words += _log_words(args)
        return _print_unit(title, words, paths.path, [])
    settings = {
        "folder": str(paths.path),
        "bind": args.bind,
        "port": args.port,
        "proxy": args.proxy,
        "status_port": args.status_port,
        "status_hosts": args.status_host,
        "log_format": args.log_format,
    }
    if not args.background:
        return background.in_front("serve", settings)
    _print_ready(args, background.apart("serve", settings))
    return 0


def _require_background(args: argparse.Namespace) -> None:
    """What goes on until Ctrl-C has no last word that could be JSON."""
    if args.json and not args.background:
        raise InputError("--json is for --background: what runs in the terminal only ends when it is stopped")


def _print_ready(args: argparse.Namespace, said: str) -> None:
    print(json_text({"ready": said}) if args.json else said)


def _print_nginx(paths: ServerPaths, endpoint: Any) -> int:
    from fedhip.federation.operations import serving
    from fedhip.federation.site.folder import parse_address
    from fedhip.federation.transport import nginx
    from fedhip.federation.transport.bounds import Bounds
    from fedhip.federation.transport.proxy import Limits

    host, _ = parse_address(endpoint.address)
    bounds = Bounds.of(paths.agreement())
    print(
        nginx.configuration(
            nginx.ProxyRoute(
                port=endpoint.port,
                upstream_port=serving.control_port(paths),
                certificate=paths.certificate,
                key=paths.key,
                authority=paths.authority,
                hosts=(host,),
            ),
            Limits.of(bounds.sites, bounds.call),
        ),
        end="",
    )
    return 0


def _print_site_unit(args: argparse.Namespace, name: str) -> int:
    paths = {option: getattr(args, option) for option in ("data", "features", "out", "weights")}
    words = [word for option, path in paths.items() if path for word in (f"--{option}", str(path.absolute()))]
    words += [] if args.device is None else ["--device", args.device]
    words += _log_words(args)
    device = args.device or ("cuda" if Path("/dev/nvidiactl").exists() else "cpu")
    command = ["site", str(args.folder.absolute()), "--name", name, *words]
    out = [args.out] if args.out else []
    return _print_unit(f"fedhip: site {name} of a federation", command, args.folder, out, graphics=device != "cpu")


def _log_words(args: argparse.Namespace) -> list[str]:
    return [] if args.log_format == logs.TEXT else ["--log-format", args.log_format]


def _print_unit(title: str, words: list[str], folder: Path, writes: list[Path], *, graphics: bool = False) -> int:
    from fedhip.federation.operations import systemd
    from fedhip.federation.site.ledger import default_state

    state = default_state()
    for path in (state, *writes):  # systemd starts nothing that may write a folder which is not there
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    print(
        systemd.unit(title, words, owner=folder.owner(), writes=[folder, *writes], state=state, graphics=graphics),
        end="",
    )
    return 0


def site(args: argparse.Namespace) -> int:
    """Take part."""
    from fedhip.federation.errors import SetupError
    from fedhip.federation.operations import background
    from fedhip.federation.site.folder import open_site
    from fedhip.federation.site.ledger import Allowance
    from fedhip.federation.site.preflight import require_ready
    from fedhip.federation.site.session_ledger import require_sums

    _require_background(args)
    opened = open_site(args.folder)
    if args.name not in (None, opened.name):
        raise SetupError(f"{args.folder} is the folder of site {opened.name!r}, not of {args.name!r}")
    rows: Path = args.data or args.features
    if args.print_systemd:
        return _print_site_unit(args, opened.name)
    ready = require_ready(opened, rows, out=args.out, weights=args.weights, device=args.device)
    if isinstance(ready.data, Dataset):
        print_window(ready.data, "as the agreement says")
    logs.use(args.log_format)
    for note in ready.notes:
        background.say(f"fedhip: warning: {note}")
    allow = None if args.allow is None else Allowance.given(args.allow)
    require_sums(opened, ready, allow)
    settings = {"data": str(rows.absolute())}
    if allow is not None:
        settings |= {"allow": allow.reason, "allow-token": allow.token}
    for option in ("out", "weights"):
        if (path := getattr(args, option)) is not None:
            settings[option] = str(path.absolute())
    if args.device is not None:
        settings["device"] = args.device
    for warning in opened.warnings:
        background.say(f"fedhip: warning: {warning}")
    given = {"folder": str(opened.path), "settings": settings, "log_format": args.log_format}
    if not args.background:
        return background.in_front("site", given)
    _print_ready(args, background.apart("site", given))
    return 0


def run(args: argparse.Namespace) -> int:
    """Start the round."""
    from fedhip.federation.operations import background, round_control
    from fedhip.federation.operations.paths import ServerPaths
    from fedhip.federation.server.cohort import HAND_OUT
    from fedhip.runs import Run

    result = round_control.run(ServerPaths.open(args.directory), say=background.say)
    waiting: list[str] = Run.open(result).results.get("without_model", [])
    if args.json:
        print(json_text({"result": str(result), "without_model": waiting}))
    else:
        print(f"the round is finished; the result is in {result}")
        if waiting:
            print(f"without a model yet: {', '.join(waiting)}; {HAND_OUT}")
    return 1 if waiting else 0


def status(args: argparse.Namespace) -> int:
    """Say what runs."""
    from fedhip.federation.operations import round_control
    from fedhip.federation.operations.paths import ServerPaths

    if (args.directory / "connection.toml").is_file():
        own = round_control.site_status(args.directory)
        if args.json:
            print(json_text(own))
        else:
            print(f"site {own['site']!r} is {'' if own['connected'] else 'not '}connected to {own['address']}")
            if own["processes"] and not own["answers"]:
                print("it runs, and the server does not answer; it goes on trying")
            if own["refused_app"]:
                print("the server sent another app than the one installed here; it was refused")
            _print_sum(own["sum"])
        return int(args.check and not own["connected"])
    found = round_control.status(ServerPaths.open(args.directory))
    if args.json:
        print(json_text(found))
        return int(args.check and not found["serving"])
    runs = f"is served at {found['address']}" if found["serving"] else "is not served"
    print(f"{found['federation']} {runs}")
    print_table(
        ("site", "state", "since"), [(name, s["state"], _when(s["since"])) for name, s in found["sites"].items()]
    )
    if found["runs"]:
        rows = [
            (str(r["run"]), r["state"], _when(r["started"]), _when(r["finished"]), r["details"]) for r in found["runs"]
        ]
        print_table(("run", "state", "started", "ended", "details"), rows)
    _print_sum(found["sum"])
    return int(args.check and not found["serving"])


def _print_sum(known: dict[str, Any] | None) -> None:
    """Which sum this is: everybody must have got the same."""
    if known is not None:
        print(f"the sum of {', '.join(known['sites'])} has digest {known['digest']}")


def _when(iso: str) -> str:
    """A time of the engine's, in UTC and to the second."""
    return iso[:19].replace("T", " ")


def stop(args: argparse.Namespace) -> int:
    """End what was started here."""
    from fedhip.federation.errors import FederationError
    from fedhip.federation.operations import round_control

    if not args.directory.is_dir():
        raise FederationError(f"there is no folder {args.directory}; check the path")
    if not any((args.directory / name).exists() for name in ("server", "state", "connection.toml")):
        raise FederationError(f"{args.directory} is no folder of a federation and none of a site; check the path")
    ended = round_control.stop(args.directory.absolute())
    if args.json:
        print(json_text({"ended": ended}))
        return 0
    for what in ended:
        print(f"ended {what}")
    if not ended:
        print("nothing ran")
    return 0


def renew(args: argparse.Namespace) -> int:
    """Replace the server's certificate, or its authority as well."""
    from fedhip.cli.federation.keys import tell_parcels
    from fedhip.federation.agreement.credentials import SERVER_DAYS, renew_server_certificate, valid_until
    from fedhip.federation.agreement.enrollment import renew_authority
    from fedhip.federation.operations.paths import ServerPaths

    paths, days = ServerPaths.open(args.directory), SERVER_DAYS if args.days is None else args.days
    if args.authority:
        made = renew_authority(paths, args.host, days)
        shown = {"certificate": str(paths.certificate), "valid_until": f"{valid_until(paths.certificate):%Y-%m-%d}"}
        tell_parcels(made, paths.path, as_json=args.json, **shown)
        return 0
    until = renew_server_certificate(paths.path, args.host, days)
    if args.json:
        print(json_text({"certificate": str(paths.certificate), "valid_until": f"{until:%Y-%m-%d}"}))
        return 0
    print(f"{paths.certificate} is valid until {until:%Y-%m-%d}; stop and serve again to use it")
    return 0
