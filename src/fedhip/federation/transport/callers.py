"""Who may call the server: the sites whose keys are registered, by a signed time in the head of each call.

The engine checks the same, but only after it has read the whole body: here a stranger is refused at the head.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from fedhip.federation.transport.engine import VERSION

#: How old a signed time may be, and how far ahead of our clock: the engine's own limits.
OLDEST, AHEAD = 305, 5
#: The engine's status and code for a node that it does not let in; its client shows the detail and gives up.
_NOT_ADMITTED, _NOT_ADMITTED_CODE = 412, 2004

_SIGNED = (b"flwr-public-key", b"flwr-signature", b"flwr-timestamp")
#: Which engine a caller has. Ours says so; who says nothing is asked for its version of fedhip at hello.
_ENGINE = b"flwr-package-version"

_log = logging.getLogger("fedhip.proxy")


class NotPassedError(Exception):
    """A request that goes no further, and what the caller is told."""

    def __init__(self, status: int, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.code = status, reason, code


def public_pem(openssh: bytes) -> str:
    """A public key as the engine writes it."""
    return load_ssh_public_key(openssh).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@dataclass
class Callers:
    """Who may call: the registered keys, read again when the file changes."""

    path: Path
    _seen: tuple[int, int] = (-1, -1)
    _names: dict[bytes, str] = field(default_factory=dict)

    def check(self, headers: Iterable[tuple[bytes, bytes]], now: datetime.datetime) -> str:
        """The name of the site that signed; refuses everybody else before a byte of the body is read."""
        found = dict(listed := list(headers))
        try:
            if any([name for name, _ in listed].count(name) != 1 for name in _SIGNED):
                raise ValueError("the engine might look at another one than we")
            public = base64.b64decode(found[b"flwr-public-key"], validate=True)
            signature = base64.b64decode(found[b"flwr-signature"], validate=True)
            stamp = found[b"flwr-timestamp"]
            signed = datetime.datetime.fromisoformat(stamp.decode("ascii"))
            age = (now - signed).total_seconds()
        except (KeyError, ValueError, TypeError, binascii.Error):
            raise NotPassedError(_NOT_ADMITTED, "the call is not signed by a site", _NOT_ADMITTED_CODE) from None
        name = self._known().get(public.strip())
        if name is None:
            raise NotPassedError(_NOT_ADMITTED, "this key is not in the roster of the federation", _NOT_ADMITTED_CODE)
        try:
            key = load_pem_public_key(public)
            assert isinstance(key, ec.EllipticCurvePublicKey)  # noqa: S101 - it was, when it was registered
            key.verify(signature, stamp, ec.ECDSA(SHA256()))
        except (InvalidSignature, UnsupportedAlgorithm, ValueError):
            raise NotPassedError(
                _NOT_ADMITTED, f"the signature is not that of site {name}", _NOT_ADMITTED_CODE
            ) from None
        if (engine := found.get(_ENGINE, VERSION.encode())) != VERSION.encode():
            reason = (
                f"site {name} has Flower {ascii(engine.decode('latin-1'))[1:-1][:20]}, and the server {VERSION}; "
                "install the same version of fedhip on both"
            )
            raise NotPassedError(_NOT_ADMITTED, reason, _NOT_ADMITTED_CODE)
        if not -AHEAD < age < OLDEST:
            reason = f"the clocks of site {name} and the server are {abs(age):,.0f} s apart; set them"
            raise NotPassedError(_NOT_ADMITTED, reason, _NOT_ADMITTED_CODE)
        return name

    def _known(self) -> dict[bytes, str]:
        try:
            stat = self.path.stat()
            if (stat.st_mtime_ns, stat.st_ino) != self._seen:
                names: dict[str, str] = json.loads(self.path.read_text(encoding="utf-8"))
                self._names = {pem.strip().encode(): name for name, pem in names.items()}
                self._seen = (stat.st_mtime_ns, stat.st_ino)
        except (OSError, ValueError) as error:
            _log.warning("%s cannot be read (%s); the keys known before stay", self.path, error)
        return self._names
