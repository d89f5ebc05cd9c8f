"""The engine's control interface, on loopback and with a secret: register keys, start a run, ask for states."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from fedhip.federation.errors import EngineError
from fedhip.federation.transport.callers import public_pem
from fedhip.federation.transport.engine import LOOPBACK
from fedhip.federation.transport.link import HEADER, password

_GONE = "unregistered"
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Node:
    """A registered key: the engine's number for it, and whether its node is connected."""

    number: int
    public: str  # PEM
    state: str  # registered (never came), online, offline
    since: str  # when it came or went, ISO 8601; empty if never


@dataclass(frozen=True)
class EngineRun:
    """A run, and how far it is."""

    number: int
    state: str  # pending, starting, running, finished:completed, finished:failed, finished:stopped
    details: str
    started: str  # ISO 8601
    finished: str
    sent: int = 0  # bytes, to all sites together
    received: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state.startswith("finished")

    @property
    def succeeded(self) -> bool:
        """Whether it has ended well."""
        return self.state == "finished:completed"


@dataclass(frozen=True)
class _Password:
    """Shows with each call that it is one of the serving user (`fedhip.federation.transport.link`)."""

    value: str = field(repr=False)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add the header."""
        context.request.headers[HEADER] = self.value
        return call_next(context)


def _password(secret: Path) -> str:
    try:
        return password(secret)
    except OSError as error:
        raise EngineError(
            f"{secret} cannot be read ({error.strerror}); call as the user who serves, once the server runs"
        ) from None


class Control:
    """Talks to the server of one federation on this machine; to be closed, or used with `with`."""

    def __init__(self, port: int, authority: Path, secret: Path) -> None:
        # Its HTTP client would send even calls to loopback through the proxy that the environment names.
        for name in ("NO_PROXY", "no_proxy"):
            if LOOPBACK not in os.environ.get(name, ""):
                os.environ[name] = ",".join(filter(None, [os.environ.get(name, ""), LOOPBACK]))
        self.address = f"{LOOPBACK}:{port}"
        self._client = ControlHttpClient.from_server_address(
            self.address,
            insecure=False,
            root_certificates=authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), _Password(_password(secret))],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def register(self, keys: Mapping[str, bytes]) -> dict[int, str]:
        """Make the server's registered keys those of the sites: the engine's number for each site."""
        wanted = {public_pem(key): name for name, key in keys.items()}
        known = {node.public: node.number for node in self.nodes()}
        for public, number in known.items():
            if public not in wanted:
                _ask(self._client.UnregisterNode, UnregisterNodeRequest(node_id=number))
        numbers = {}
        for public, name in wanted.items():
            number = (
                known.get(public)
                or _ask(self._client.RegisterNode, RegisterNodeRequest(public_key=public.encode(), name=name)).node_id
            )
            numbers[number] = name
        return numbers

    def nodes(self) -> list[Node]:
        """All registered keys."""
        infos = _ask(self._client.ListNodes, ListNodesRequest()).nodes_info
        return [
            Node(
                number=info.node_id,
                public=info.public_key.decode(),
                state=info.status,
                since=(info.last_activated_at if info.status == "online" else info.last_deactivated_at) or "",
            )
            for info in infos
            if info.status != _GONE
        ]

    def runs(self, number: int | None = None) -> list[EngineRun]:
        """All runs, or one; the oldest first."""
        listed = _ask(self._client.ListRuns, ListRunsRequest(run_id=number)).run_dict.values()
        runs = (
            EngineRun(
                number=run.run_id,
                state=":".join(filter(None, [run.status.status, run.status.sub_status])),
                details=run.status.details,
                started=run.pending_at,
                finished=run.finished_at,
                sent=run.bytes_sent,
                received=run.bytes_recv,
            )
            for run in listed
        )
        return sorted(runs, key=lambda run: run.started)

    def start(self, app: Path, config: Mapping[str, str | int | float | bool]) -> int:
        """Start a run of an app with a configuration; its number."""
        bundle = build_fab_from_disk(app)
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})),
            override_config=user_config_to_proto(dict(config)),
        )
        answer = _ask(self._client.StartRun, request)
        if not answer.HasField("run_id"):
            raise EngineError("the server did not start the run; see the log of the SuperLink")
        number: int = answer.run_id
        return number

    def stop(self, number: int) -> None:
        """Stop a run."""
        _ask(self._client.StopRun, StopRunRequest(run_id=number))


def _ask(call: Callable[[_Request], _Answer], request: _Request) -> _Answer:
    """Call, with the engine's errors as ours."""
    try:
        return call(request)
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            raise EngineError(
                "the server takes another secret, as one does that was started anew, or by somebody else; try again"
            ) from error
        known = FlowerError.from_json(error.response.text)
        said = known.message if known else f"HTTP {error.response.status_code}"
        details = f" ({known.public_details})" if known and known.public_details else ""
        raise EngineError(f"the server refused a call: {said}{details}") from error
    except httpx.HTTPError as error:
        raise EngineError(
            f"the server of this federation cannot be reached here ({error}); start it: fedhip federation serve"
        ) from error
