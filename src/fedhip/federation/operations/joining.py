"""What `fedhip federation site` does: a node with the site's key."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from pathlib import Path

from fedhip.federation.errors import EngineError, SetupError
from fedhip.federation.operations import process_registry
from fedhip.federation.operations.paths import StatePaths, command
from fedhip.federation.operations.supervisor import Program, Say, Supervisor, alone, since, size, why, write_json
from fedhip.federation.site.folder import CONNECTION, SiteFolder, open_site, parse_address
from fedhip.federation.transport import engine
from fedhip.utils.files import write_private
from fedhip.utils.toml import write_toml

#: How long a server counts on a site that has gone without a word, and a bit.
LAPSE = 100.0
#: Refusals of the server (`fedhip.federation.transport.callers`) that say all there is to say.
_SAID_WHOLE = ("apart; set them", "install the same version")


def join(folder: Path, settings: dict[str, str], *, say: Say, stop: threading.Event, app: Path = engine.APP) -> None:
    """Run a site's node until `stop`. `settings` go to the client app: where the rows lie, where results go."""
    engine.require_engine()
    site = open_site(folder)
    state = StatePaths(site.path / "state")
    with alone(state.lock, f"site {site.name!r} runs already on this machine; end it: {command('stop', folder)}"):
        process_registry.end(process_registry.others(state.pids), state.pids)
        state.ready.unlink(missing_ok=True)
        state.prepare()
        process_registry.record(state.pids, "site", os.getpid())
        config = state.path / "node.toml"
        write_private(config, write_toml({"site-folder": str(site.path), **settings}).encode())
        supervisor = Supervisor(state.pids, engine.environment(state.home), say, stop)
        greet(site, say)
        try:
            _start_node(site, state, config, supervisor, say, app)
            if stop.is_set():
                return
            said = f"ready: site {site.name!r} is connected to {site.address} and waits for a round; stop with Ctrl-C"
            write_json(state.ready, {"said": said, "pid": os.getpid()})
            say(said)
            supervisor.watch()
        finally:
            state.ready.unlink(missing_ok=True)
            supervisor.end()
            (state.pids / "site.json").unlink(missing_ok=True)


def _start_node(site: SiteFolder, state: StatePaths, config: Path, supervisor: Supervisor, say: Say, app: Path) -> None:
    """Start the node; wait while the server still counts on a process of this site that has gone."""
    deadline = time.monotonic() + LAPSE
    node = Program("node", lambda: [], state.log("node"))
    node.command = lambda: engine.node(
        address=site.address, authority=site.ca, key=site.key_path, config=config, app=app
    )
    pause = 5.0
    while True:
        mark = size(node.log)
        supervisor.start(node)
        if supervisor.wait_for(node, lambda mark=mark: engine.CONNECTED in since(node.log, mark), 3600.0):  # type: ignore[misc]
            break
        if supervisor.stop.is_set():
            return
        said = since(node.log, mark)
        if engine.HELD not in said:
            raise EngineError(_why_not_connected(said, site, node.log))
        if time.monotonic() > deadline:
            raise EngineError(
                f"the server holds the place of site {site.name!r} for another process; is the site running on another "
                "machine? One key is for one site"
            )
        say(f"the server still counts on an earlier process of site {site.name!r}; trying again for up to a minute")
        supervisor.stop.wait(pause)


def _why_not_connected(said: str, site: SiteFolder, log: Path) -> str:
    """What a node that could not connect tells of the reason, as a sentence with a remedy."""
    low = said.lower()
    if "not in the roster" in low:
        return f"the server does not know the key of site {site.name!r}; is the coordinator's roster.json the same?"
    for line in engine.plain(said.splitlines()):
        if any(words in line for words in _SAID_WHOLE):
            return line.rpartition("] ")[2]  # less the engine's number for it
    return f"the node of site {site.name!r} could not connect to {site.address}{why(log)}"


def greet(site: SiteFolder, say: Say) -> None:
    """Look at the server's certificate before the engine does, which would not say what is wrong with it."""
    host, port = parse_address(site.address)
    context = ssl.create_default_context(cafile=str(site.ca))
    try:
        with socket.create_connection((host, port), timeout=10) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message
        raise SetupError(
            f"the server at {site.address} is not trusted: {reason}. Compare ca.crt with the coordinator's; if its "
            "certificate is out of date or has another name, the coordinator makes a new one"
        ) from error
    except ssl.SSLError as error:
        raise SetupError(
            f"what answers at {site.address} is no server of a federation ({error.reason}); ask the coordinator for "
            f"the address, and put it into {site.path / CONNECTION}"
        ) from error
    except OSError as error:
        say(f"the server at {site.address} does not answer yet ({error.strerror or error}); trying again until it does")
