"""What travels before a round: a parcel from the coordinator to a site, and the site's reply. No secret is in either.

Both are single JSON files. A parcel names no path, so there is nothing to unpack outside the site's folder.

    parcel   the agreement, the authority's certificate, the site's name, the server's address; in the second parcel
             the roster too
    reply    the public key that the site made, signed with it for this agreement
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.credentials import (
    PrivateKey,
    authority_of,
    public_key_of,
    require_public_key,
    sign,
    verify,
)
from fedhip.federation.agreement.fingerprint import fingerprint_of
from fedhip.federation.agreement.names import shown
from fedhip.federation.agreement.roster import Roster, once
from fedhip.federation.errors import FederationError, SetupError
from fedhip.federation.site.folder import parse_address
from fedhip.utils.text import json_text

SCHEMA = 1
_LARGEST = 32 << 20  # an agreement has 8 MB at most, and so has a roster
_AGAIN = "get it again from who sent it"
_NAMES = {"parcel": "a parcel of the coordinator's", "reply": "the reply of a site"}


@dataclass(frozen=True)
class Parcel:
    """What a site gets: first without a roster, and with it once all sites have made their keys."""

    site: str
    address: str
    agreement: Agreement
    authority: Certificate
    roster: Roster | None = None

    @property
    def fingerprint(self) -> str:
        """What the sites compare by telephone."""
        if self.roster is None:
            raise SetupError("the first parcel has no fingerprint: the sites' keys are not in it. Wait for the second")
        return fingerprint_of(self.agreement, self.roster, self.authority)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The parcel in this file, if it is whole and its parts belong together."""
        fields = ("site", "address", "agreement", "authority")
        content = _read(Path(path), "parcel", fields, optional=("roster",))
        try:
            if _checksum(content) != content["sha256"]:
                raise SetupError(f"it was altered or damaged on its way; {_AGAIN}")
            agreement = Agreement.from_text(content["agreement"], "the agreement")
            roster = None
            if "roster" in content:
                roster = Roster.from_text(content["roster"].encode("utf-8", "surrogatepass"), "the roster")
                agreement.require_roster(roster)
            parse_address(content["address"])
            return cls(
                agreement.require_site(content["site"]),
                content["address"],
                agreement,
                authority_of(content["authority"].encode("utf-8", "surrogatepass"), "the authority"),
                roster,
            )
        except FederationError as error:
            raise SetupError(f"{path}: {error}") from None

    def to_text(self) -> str:
        """The file."""
        content = {
            "fedhip": "parcel",
            "schema": SCHEMA,
            "site": self.site,
            "address": self.address,
            "agreement": self.agreement.to_text(),
            "authority": self.authority.public_bytes(Encoding.PEM).decode("ascii"),
        }
        if self.roster is not None:
            content["roster"] = self.roster.to_text()
        return json_text({**content, "sha256": _checksum(content)}, indent=1) + "\n"


@dataclass(frozen=True)
class EnrollmentReply:
    """A site's public key, and that its owner accepted the agreement of this digest."""

    federation: str
    site: str
    agreement: str
    key: bytes
    signature: bytes

    @classmethod
    def to(cls, parcel: Parcel, key: PrivateKey) -> Self:
        """The reply of the site that has this key."""
        unsigned = cls(parcel.agreement.name, parcel.site, parcel.agreement.digest(), public_key_of(key), b"")
        return cls(
            unsigned.federation, unsigned.site, unsigned.agreement, unsigned.key, sign(key, unsigned._statement())
        )

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The reply in this file, if who wrote it has the private key."""
        content = _read(Path(path), "reply", ("federation", "site", "agreement", "key", "signature"))
        try:
            key = require_public_key(content["key"].encode("utf-8", "surrogatepass"))
            try:
                signature = base64.b64decode(content["signature"], validate=True)
            except (ValueError, binascii.Error):
                signature = b""
            found = cls(content["federation"], content["site"], content["agreement"], key, signature)
            if _checksum(content) != content["sha256"] or not verify(key, signature, found._statement()):
                raise SetupError(f"it was altered or damaged on its way; {_AGAIN}")
        except FederationError as error:
            raise SetupError(f"{path}: {error}") from None
        return found

    def to_text(self) -> str:
        """The file."""
        content = {
            "fedhip": "reply",
            "schema": SCHEMA,
            "federation": self.federation,
            "site": self.site,
            "agreement": self.agreement,
            "key": self.key.decode("ascii"),
            "signature": base64.b64encode(self.signature).decode("ascii"),
        }
        return json_text({**content, "sha256": _checksum(content)}, indent=1) + "\n"

    def _statement(self) -> bytes:
        fields = (f"fedhip reply {SCHEMA}", self.federation, self.site, self.agreement, self.key.decode("ascii"))
        return "\n".join(fields).encode("utf-8", "surrogatepass")


def _read(path: Path, kind: str, fields: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Any]:
    """The texts of a file of this kind, and of this version of its format."""
    try:
        if path.is_dir():
            raise SetupError(f"{path} is a folder; give the file that was sent, {_NAMES[kind]}")
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except FileNotFoundError:
        raise SetupError(f"there is no file {path}; give {_NAMES[kind]}") from None
    except OSError as error:
        raise SetupError(f"{path} cannot be read ({error.strerror}); {_AGAIN}") from None
    if len(data) > _LARGEST:
        raise SetupError(f"{path} is larger than {_LARGEST >> 20} MB; it is not {_NAMES[kind]}")
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError):
        content = None
    found = content.get("fedhip") if isinstance(content, dict) else None
    if not isinstance(content, dict) or found != kind:
        other = f"{_NAMES[found]}, and not " if isinstance(found, str) and found in _NAMES else "not "
        raise SetupError(f"{path} is {other}{_NAMES[kind]}; give the file that was sent")
    schema = content.get("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        raise SetupError(
            f"{path} has schema {shown(schema)}, and this fedhip reads {SCHEMA}; use the same version on all machines"
        )
    needed = {"fedhip", "schema", "sha256", *fields}
    texts = [value for key, value in content.items() if key != "schema"]
    if not needed <= content.keys() <= needed | set(optional) or not all(isinstance(text, str) for text in texts):
        raise SetupError(f"{path} lacks a part or has one too many; {_AGAIN}")
    return content


def _checksum(content: dict[str, Any]) -> str:
    """Of all but itself: what was damaged on its way is noticed at once, and not at the telephone."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(b"fedhip\n" + text.encode("ascii")).hexdigest()
