"""Many sites in one process, in front of a real server: their nodes are threads, and forks of one process answer.

Started by `python -m benchmarks.federation --crowd`. A site has its own folder, key, connection and ledger of sums, as
ever; what is saved is an interpreter, and a process with torch, for each. A few answer at once, and no report is drawn.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fedhip.federation.site.folder import SiteFolder, open_site
from fedhip.federation.transport.engine import APP
from fedhip.federation.transport.messages import PackedMessage
from fedhip.federation.transport.node import Node, answer_with, app_of, outlive_a_broken_network
from fedhip.federation.transport.parcels import Parcels
from fedhip.federation.transport.warm import WarmProcess

_WHO = struct.Struct("!I")
#: What answers compute with.
_LOADED = (
    "torch",
    *(f"fedhip.{name}" for name in ("simulation.personalization", "heads.auto", "runs.draft", "runs.report")),
)
_PAUSE = 1.0


class CrowdParcels(threading.local, Parcels):
    """Of each thread its own."""


class CrowdNode(Node):
    """One of many, of which so many have an answer made at once as `gate` lets."""

    gate = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))

    def _ask(self, packed: PackedMessage) -> PackedMessage:
        with self.gate:
            return super()._ask(packed)


def answers(configs: list[dict[str, Any]]) -> Callable[[socket.socket], None]:
    """What a fork does: the number of a site comes first, then the question."""
    app, report = app_of(APP), import_module("fedhip.runs.report")

    def answer(stream: socket.socket) -> None:
        config = configs[_WHO.unpack(stream.recv(_WHO.size, socket.MSG_WAITALL))[0]]
        os.environ["FEDHIP_STATE"] = str(Path(config["site-folder"]) / "ledger")
        vars(report)["render_report"] = lambda _: ""
        answer_with(app, config)(stream)

    return answer


def stay(site: SiteFolder, start: Callable[[], socket.socket | None], bundle: bytes, parcels: Parcels) -> None:
    """A site's node, until all of them end."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supernode.fleet_http_connection import http_request_response

    key: Any = load_ssh_private_key(site.key_path.read_bytes(), None)
    said = b"here\n"
    while True:  # a connection that breaks off is made again
        with http_request_response(site.address, False, str(site.ca), (key, key.public_key())) as connection:
            os.write(sys.stdout.fileno(), said)  # whole, as others say it at the same time
            said, node = b"again\n", CrowdNode(connection, start, bundle, parcels)
            while True:
                begin = time.monotonic()
                if not node.step():
                    time.sleep(max(0.0, _PAUSE - (time.monotonic() - begin)))
        time.sleep(_PAUSE)


def main() -> None:
    """The sites that the first line of the input names, by folder and data, until the process is ended."""
    warnings.simplefilter("ignore")
    configs = [{"site-folder": folder, "data": data} for folder, data in json.loads(sys.stdin.readline())]
    warm = WarmProcess(answers(configs), _LOADED)
    from flwr.cli.build import build_fab_from_disk
    from flwr.supernode.fleet_http_client import FleetHttpClient

    outlive_a_broken_network()
    parcels = CrowdParcels()
    parcels.carry(FleetHttpClient)
    bundle = build_fab_from_disk(APP)

    def start(number: int) -> socket.socket | None:
        if (stream := warm.start()) is not None:
            stream.sendall(_WHO.pack(number))
        return stream

    for number, config in enumerate(configs):
        site = open_site(Path(config["site-folder"]))
        begin = lambda number=number: start(number)  # noqa: E731
        threading.Thread(target=stay, args=(site, begin, bundle, parcels), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
