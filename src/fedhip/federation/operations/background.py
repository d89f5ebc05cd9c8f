"""`serve` and `site` until somebody ends them: in the terminal, or as a program of its own apart from it.

As a program it takes its settings as JSON, and skips what the command line loads for other commands.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhip.errors import FedHiPError
from fedhip.federation import logs
from fedhip.federation.operations.paths import ServerPaths, StatePaths, command
from fedhip.federation.operations.supervisor import detach
from fedhip.federation.transport.engine import module

#: As of the command line (`fedhip.cli.common.exit_codes`): refused or failed.
FAILED = 3
#: How long it may take until a program started apart is ready. A site may have to wait for the server.
_READY = {"serve": 180.0, "site": 300.0}


def say(text: str) -> None:
    """A line for whoever watches."""
    print(logs.line_of("fedhip", text) if logs.is_json() else text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def until_stopped() -> Iterator[threading.Event]:
    """An event that Ctrl-C, a closed terminal or `stop` sets; afterwards signals are what they were."""
    stopped = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in numbers}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve(
    folder: str,
    bind: str | None,
    port: int | None,
    proxy: bool,
    status_port: int | None = None,
    status_hosts: Sequence[str] = (),
    log_format: str = logs.TEXT,
) -> None:
    """Run the server until it is stopped, and with a `status_port` the coordinator's page beside it."""
    from fedhip.federation.operations import serving

    logs.use(log_format)
    paths = ServerPaths.open(folder)
    with until_stopped() as stopped, contextlib.ExitStack() as stack:
        if status_port is not None:
            _open_page(paths, status_port, status_hosts, stack)
        serving.serve(paths, serving.endpoint_of(paths, bind, port), say=say, stop=stopped, with_proxy=proxy)
    say("the server is stopped")


def _open_page(paths: ServerPaths, port: int, hosts: Sequence[str], stack: contextlib.ExitStack) -> None:
    from fedhip.federation.monitor.look import Look
    from fedhip.federation.monitor.web import page_served, token_of

    token = token_of(paths.state)
    address = f"http://127.0.0.1:{stack.enter_context(page_served(port, hosts, token, Look(paths)))}/"
    # A log is read by more people than a terminal.
    shown = token if sys.stderr.isatty() else f"$(cat {shlex.quote(str(paths.state.token))})"
    say(f"the page: {address}?token={shown}")


def site(folder: str, settings: dict[str, str], app: str | None = None, log_format: str = logs.TEXT) -> None:
    """Run a site until it is stopped."""
    from fedhip.federation.operations import joining

    logs.use(log_format)
    chosen = {} if app is None else {"app": Path(app)}
    with until_stopped() as stopped:
        joining.join(Path(folder), settings, say=say, stop=stopped, **chosen)
    say("the site has left")


def in_front(name: str, settings: Mapping[str, Any]) -> int:
    """`serve` or `site` in this terminal or service; where logs are objects, so is the reason for failure."""
    if settings["log_format"] == logs.JSON:
        return main(name, json.dumps(settings))
    _DO[name](**settings)
    return 0


_DO: dict[str, Callable[..., None]] = {"serve": serve, "site": site}


def apart(name: str, settings: Mapping[str, Any]) -> str:
    """Start `serve` or `site` as a program that outlives this one; what it said when it was ready."""
    folder = Path(settings["folder"])
    state = StatePaths(folder / "state")
    words = module("fedhip.federation.operations.background", name, json.dumps(settings))
    said = detach(name, words, state=state, log=state.log(name), seconds=_READY[name])
    return said.replace("Ctrl-C", command("stop", folder))


def main(name: str, settings: str) -> int:
    """Do it; a reason for failure is the last line of the log."""
    try:
        _DO[name](**json.loads(settings))
    except (FedHiPError, OSError) as error:
        say(f"fedhip: {error}")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
