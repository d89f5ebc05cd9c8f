"""A site's node: the engine's SuperNode, which here runs one app only, the one of this installation.

The engine sends the app's code from the server to the nodes and runs what it is sent. A server that turned bad would
send code that reads the site's rows, and no mask would help. So this program compares what the server sends with the
app that the site itself has installed, and passes over every message of another one.
"""

from __future__ import annotations

import io
import logging
import ssl
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from fedhip.federation.errors import EngineError
from fedhip.federation.transport.bounds import of_engine
from fedhip.federation.transport.pace import Pace, keep_pace

#: Said in the node's log, for `status` and for people.
OTHER_APP = "the server sent another app than the one installed here; its messages are passed over"


#: What a bundle may be longer than ours; with this and the usual compression it cannot unpack to 100 MB.
_LONGER = 1 << 16


def same_app(received: bytes, own: bytes) -> bool:
    """Whether two bundles hold the same files; compression may differ between machines, contents may not."""
    if len(received) > len(own) + _LONGER:
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(received)) as theirs, zipfile.ZipFile(io.BytesIO(own)) as ours:
            if _sizes(theirs) != _sizes(ours):  # before anything is unpacked, as it may be a bomb
                return False
            return all(theirs.read(name) == ours.read(name) for name in ours.namelist())
    except Exception:  # zipfile and what it unpacks with raise a dozen kinds, and any of them would end the node
        return False


def _sizes(bundle: zipfile.ZipFile) -> list[tuple[str, int]]:
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in bundle.infolist()):
        raise zipfile.BadZipFile("compressed as the engine never does")
    return sorted((entry.filename, entry.file_size) for entry in bundle.infolist())


def guard(own: bytes) -> None:
    """From here on, this process's node takes the bundle `own` and no other."""
    from flwr.supercore.run import RunNotRunningException
    from flwr.supernode import fleet_http_client, start_client_internal

    inner = fleet_http_client.FleetHttpClient.GetFab
    # Where the engine was rebuilt inside, the check would stand beside the way: rather no node at all.
    for name in ("http_request_response", "_pull_and_store_message", "_push_messages"):
        if not hasattr(start_client_internal, name):
            raise EngineError(f"this Flower has no {name}; install the version that fedhip names")

    def checked(self, request):  # type: ignore[no-untyped-def]
        response = inner(self, request)
        if not same_app(response.fab.content, own):
            logging.getLogger("flwr").error(OTHER_APP)
            raise RunNotRunningException
        return response

    fleet_http_client.FleetHttpClient.GetFab = checked  # type: ignore[method-assign]


class OfRun:
    """The node's state, of which the replies of other runs are dropped.

    The engine sends one reply for each message that it pulled, the first it finds. One of a run that was stopped, left
    behind, would be sent in the place of the next: every later answer of this site would be one message late.
    """

    def __init__(self, state: Any, run: int) -> None:
        self._state, self._run = state, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def get_messages_legacy(self, **which: Any) -> list[Any]:
        """The messages, of this run only."""
        return [m for m in self._state.get_messages_legacy(**which) if m.metadata.run_id == self._run]


def drop_stale_replies(pace: Pace) -> None:
    """From here on, this process's node answers each message with a reply of its run, and looks for more at a pace."""
    from flwr.supernode import start_client_internal as loop

    pull, push = loop._pull_and_store_message, loop._push_messages
    latest: list[int] = []

    def pulled(**given: Any) -> int | None:
        run = pull(**given)
        latest[:] = [] if run is None else [run]
        if run is not None:
            pace.came()
        return run

    def pushed(*, state: Any, **given: Any) -> None:
        push(state=OfRun(state, latest[0]), **given)  # type: ignore[arg-type]

    loop._pull_and_store_message, loop._push_messages = pulled, pushed  # type: ignore[assignment]
    keep_pace(loop, pace)


def is_broken(error: BaseException) -> bool:
    """Whether a call failed because nobody answered, or the line was cut: not by a certificate that is wrong."""
    chain: list[BaseException] = []
    while error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__ or error
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in chain):
        return False
    return any(isinstance(each, httpx.TimeoutException | TimeoutError | ssl.SSLEOFError) for each in chain)


def outlive_a_broken_network() -> None:
    """From here on, this process's node tries again until the network is back.

    The engine takes every error that names TLS for a wrong certificate, and ends with the answer that it was to send;
    a handshake that takes too long is one.
    """
    from flwr.supernode import fleet_http_connection as connection

    inner = of_engine(connection, "make_simple_http_retry_invoker")

    def patient() -> Any:
        invoker = inner()
        usual = invoker.should_giveup
        invoker.should_giveup = lambda error: not is_broken(error) and (usual is None or usual(error))
        return invoker

    vars(connection)["make_simple_http_retry_invoker"] = patient


def main(words: Sequence[str]) -> int:
    """`APP OPTION…`: run a node with the engine's options, for the app in a folder."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.supernode.cli import flower_supernode

    app, *options = words
    guard(build_fab_from_disk(Path(app)))
    drop_stale_replies(Pace())
    outlive_a_broken_network()
    sys.argv = ["flower-supernode", *options]
    flower_supernode()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
