"""The engine's server inside our own program, whose control interface takes a secret.

The engine's control interface (start a run, register a key) knows no password, and a run is code that the serving user
executes. So whoever calls it shows what follows from the secret in the server's state folder, which the serving user
alone can read. The sites' interface passes with signatures, that of the engine's own programs with their secret.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhip.federation import logs
from fedhip.federation.transport.bounds import bound_pushes, of_engine
from fedhip.federation.transport.hold import Arrivals, Hold, hand_out_until_answered
from fedhip.federation.transport.parcels import give_objects, take_objects

if TYPE_CHECKING:
    from starlette.middleware import Middleware
    from starlette.types import ASGIApp, Receive, Scope, Send

#: The header of a call to the control interface.
HEADER = "fedhip-control"
#: What has a check of its own, or tells nothing: a site's signature, the engine's secret, that the server is up.
_OPEN = ("/v1/fleet/", "/v1/runtime/")
_HEALTH = "/health"
_LAYERS_OF_CONTROL = ("SensitiveResponse", "Authentication", "License", "EventLog")
#: Of the nine layers that the engine has in front of every call, those that do nothing but to calls of one kind, by the
#: beginning of their paths. Each takes half a millisecond. All calls pass what is not named here.
_PREFIXES = {
    **dict.fromkeys((f"Control{name}Middleware" for name in _LAYERS_OF_CONTROL), "/v1/control/"),
    **dict.fromkeys(("NodeAuthMiddleware", "FleetEventLogMiddleware"), "/v1/fleet/"),
    "RuntimeTracingMiddleware": "/v1/runtime/",
}
_REFUSED = b'{"detail": "this call takes the secret of the serving user"}'


def password(secret: Path) -> str:
    """What callers of the control interface show; another than the secret itself, which the engine's parts use."""
    return hmac.new(secret.read_bytes(), b"fedhip control interface", hashlib.sha256).hexdigest()


class OnItsCalls:
    """One of the engine's layers, for calls whose paths begin with `prefix`: it lets all others pass, in a while."""

    def __init__(self, app: ASGIApp, prefix: str, layer: Middleware) -> None:
        self._app, self._prefix, self._layer = app, prefix, layer.cls(app, *layer.args, **layer.kwargs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, through the layer if it is one of its calls."""
        is_other = scope["type"] == "http" and not scope["path"].startswith(self._prefix)
        await (self._app if is_other else self._layer)(scope, receive, send)


class Guard:
    """In front of all that the engine serves: what is not known to check its callers takes the password."""

    def __init__(self, app: ASGIApp, expected: str) -> None:
        self._app, self._expected = app, expected.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, or refuse it before a byte of its body is read."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._passes(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_REFUSED))]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSED})
        else:
            await send({"type": "websocket.close"})

    def _passes(self, scope: Scope) -> bool:
        path: str = scope["path"]
        if path == _HEALTH or path.startswith(_OPEN):
            return True
        shown = [value for name, value in scope["headers"] if name == HEADER.encode()]
        return len(shown) == 1 and hmac.compare_digest(shown[0], self._expected)


def guard(expected: str, arrivals: Arrivals) -> None:
    """From here on, a server of the engine that this process makes has the guard in front, and holds calls."""
    from flwr.superlink import main as link
    from starlette.middleware import Middleware

    inner = of_engine(link, "_get_middleware")

    def guarded() -> list[Any]:
        layers = [
            Middleware(OnItsCalls, prefix=_PREFIXES[name], layer=layer)
            if (name := getattr(layer.cls, "__name__", "")) in _PREFIXES
            else layer
            for layer in inner()
        ]
        return [Middleware(Guard, expected=expected), Middleware(Hold, arrivals=arrivals), *layers]

    link._get_middleware = guarded


def look_for_dead_apps_once_a_second() -> None:
    """From here on, the engine in this process looks for apps that are gone once a second, and not in every call.

    Each look writes to its database.
    """
    from flwr.supercore.corestate.sql_corestate import SqlCoreState

    look = of_engine(SqlCoreState, "_cleanup_expired_task_tokens")
    latest = -math.inf

    def seldom(state: SqlCoreState) -> None:
        nonlocal latest
        if (now := time.monotonic()) - latest >= 1.0:
            latest = now
            look(state)

    SqlCoreState._cleanup_expired_task_tokens = seldom  # type: ignore[method-assign, assignment]


def wait_for_the_database() -> None:
    """From here on, the engine in this process waits for its database almost as long as callers wait for an answer.

    It gives up after 5 s, with an error that ends a site's node: with hundreds of sites that all answer at once.
    """
    from flwr.supercore import sql_mixin

    settings = dict(of_engine(sql_mixin, "SQLITE_PRAGMAS"))
    vars(sql_mixin)["SQLITE_PRAGMAS"] = tuple((settings | {"busy_timeout": "25000"}).items())


def main(words: Sequence[str]) -> int:
    """`SECRET OBJECTS OPTION…`: run the engine's server with its options, guarded.

    The password follows from the file SECRET, and an answer of a site has so many OBJECTS at most.
    """
    secret, objects, *options = words
    logs.begin("superlink")
    from flwr.superlink.cli import flower_superlink

    arrivals = Arrivals()
    guard(password(Path(secret)), arrivals)
    take_objects()
    bound_pushes(int(objects), arrivals.add)  # before it takes anything, and told when it has
    hand_out_until_answered()
    give_objects()
    look_for_dead_apps_once_a_second()
    wait_for_the_database()
    sys.argv = ["flower-superlink", *options]
    flower_superlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
