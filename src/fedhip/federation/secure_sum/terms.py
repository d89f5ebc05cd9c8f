"""What all sites and the server must have in common; one digest of it is bound into all they derive, sign or send."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from fedhip.federation.secure_sum.encoding import number, pack, pack_mapping, unpack, unpack_mapping, whole
from fedhip.federation.secure_sum.errors import Reason, SecureSumError, require
from fedhip.federation.secure_sum.primitives import digest, verify

SESSION_BYTES = 32
LONGEST_CONTEXT = 4096
MOST_SITES = 1024
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Terms:
    """The sites' long-lived keys, the session, its context and the threshold.

    Each honest site answers for one list of survivors only. The server and c corrupt sites could make the sites
    reveal shares for two lists if 2(t − c) ≤ n − c: hence t > n/2 is required, and t > (n + c)/2 is needed against c.
    """

    points: Mapping[str, bytes]
    session: bytes
    context: bytes
    threshold: int

    @classmethod
    def of(cls, roster: Mapping[str, bytes], session: bytes, context: bytes, threshold: int) -> Terms:
        """Checked terms from the keys as PEM or OpenSSH text."""
        require(2 <= len(roster) <= MOST_SITES, Reason.ROSTER)
        require(all(_NAME.fullmatch(name) for name in roster), Reason.ROSTER)
        points = {name: _point(roster[name]) for name in sorted(roster)}
        require(len(set(points.values())) == len(points), Reason.ROSTER)
        require(len(session) == SESSION_BYTES and len(context) <= LONGEST_CONTEXT, Reason.SESSION)
        require(len(points) < 2 * threshold <= 2 * len(points), Reason.THRESHOLD)
        return cls(points, bytes(session), bytes(context), threshold)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The sites in order."""
        return tuple(sorted(self.points))

    @cached_property
    def index(self) -> dict[str, int]:
        """Each site's point x ≥ 1 of the polynomials."""
        return {name: x for x, name in enumerate(self.names, start=1)}

    @cached_property
    def digest(self) -> bytes:
        """What binds a message to these terms."""
        return digest(b"terms", self.to_bytes())

    def require_site(self, site: str) -> None:
        """Require a site of the roster."""
        require(site in self.points, Reason.UNKNOWN_SITE)

    def verify(self, site: str, signature: bytes, message: bytes) -> None:
        """Require a signature of this site."""
        verify(self.points[site], signature, message)

    def to_bytes(self) -> bytes:
        """The terms in canonical form."""
        return pack((pack_mapping(self.points), self.session, self.context, number(self.threshold)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Terms:
        """The terms that `to_bytes` wrote."""
        parts = unpack(data)
        require(len(parts) == 4, Reason.MALFORMED)
        points, session, context, threshold = parts
        return cls(unpack_mapping(points), session, context, whole(threshold))


def _point(text: bytes) -> bytes:
    """The public key as an uncompressed point, the same whichever form and comment it came with."""
    try:
        key = load_pem_public_key(text) if text.lstrip().startswith(b"-----BEGIN") else load_ssh_public_key(text)
    except (ValueError, UnsupportedAlgorithm):
        raise SecureSumError(None, Reason.ROSTER) from None
    require(isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1), Reason.ROSTER)
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
