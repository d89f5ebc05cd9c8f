"""The log of events as a file that its server has signed, and whether such a file is as it was when it was signed.

    {"time": …, "step": …, "text": …}                       the lines of state/progress.jsonl, as they are
    {"head": {…}, "certificate": "…", "signature": "…"}     how many lines, their SHA-256, which federation; signed

The server signs with the key of its certificate, which the authority in every site's folder has issued. So a site can
tell later whether a coordinator shows the same log; not whether the coordinator had written down what happened.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedhip.federation.agreement import agreement as agreement_file
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.credentials import read_authority
from fedhip.federation.errors import SetupError
from fedhip.federation.operations.paths import ServerPaths
from fedhip.federation.site.folder import AUTHORITY
from fedhip.utils.files import write_private

SCHEMA = 1


@dataclass(frozen=True)
class SignedLog:
    """What the head of an exported log says, once it is found to be true."""

    federation: str
    lines: int
    digest: str
    made: str


def export_log(paths: ServerPaths, out: Path) -> SignedLog:
    """Write the events of a server, and their signed head, to a new file."""
    agreement = paths.agreement()
    try:
        content = paths.progress.read_bytes()
    except FileNotFoundError:
        raise SetupError(f"{paths.path} has no events yet: no round was begun") from None
    content = content[: content.rfind(b"\n") + 1]  # one that is being written is not whole
    found = SignedLog(
        agreement.name,
        content.count(b"\n"),
        hashlib.sha256(content).hexdigest(),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    head = _head(found, agreement)
    key = load_pem_private_key(paths.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 - as `init` makes it
    last = {
        "head": head,
        "certificate": paths.certificate.read_text(encoding="ascii"),
        "signature": base64.b64encode(key.sign(_signed(head), ec.ECDSA(SHA384()))).decode(),
    }
    if out.exists():
        raise SetupError(f"{out} exists; give another file")
    write_private(out, content + json.dumps(last).encode() + b"\n", new=True)
    return found


def verify_log(log: Path, folder: Path) -> SignedLog:
    """What the head of a log says; refused where the log was altered, or is of another federation than the folder."""
    agreement = Agreement.read(folder / agreement_file.FILE)
    authority = read_authority(next(filter(Path.is_file, (folder / AUTHORITY, folder / "ca" / "ca.crt")), folder))
    try:
        whole = log.read_bytes()
    except OSError as error:
        raise SetupError(f"{log} cannot be read: {error.strerror}") from None
    content, last = _split(whole)
    try:
        entry = json.loads(last)
        head, signature = entry["head"], base64.b64decode(entry["signature"], validate=True)
        certificate = x509.load_pem_x509_certificate(entry["certificate"].encode("ascii"))
        found = SignedLog(str(head["federation"]), int(head["lines"]), str(head["sha256"]), str(head["made"]))
        same = head == _head(found, agreement)
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        raise SetupError(f"{log} has no signed head; make it with: fedhip federation export-log") from None
    if not same:
        raise SetupError(f"{log} is of another federation than {folder}")
    public = certificate.public_key()
    try:
        certificate.verify_directly_issued_by(authority)
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        public.verify(signature, _signed(head), ec.ECDSA(SHA384()))
    except (InvalidSignature, ValueError, TypeError):
        raise SetupError(f"the head of {log} was not signed by the server of {folder}") from None
    if hashlib.sha256(content).hexdigest() != found.digest or content.count(b"\n") != found.lines:
        raise SetupError(f"{log} was altered: its lines are not those that were signed")
    return found


def _head(found: SignedLog, agreement: Agreement) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "federation": found.federation,
        "agreement": agreement.digest(),
        "lines": found.lines,
        "sha256": found.digest,
        "made": found.made,
    }


def _signed(head: dict[str, Any]) -> bytes:
    """What is signed: no other signature of this key is of bytes that begin so."""
    return b"fedhip federation log\n" + json.dumps(head, sort_keys=True).encode()


def _split(whole: bytes) -> tuple[bytes, bytes]:
    """The lines, and the last."""
    place = whole.rstrip(b"\n").rfind(b"\n") + 1
    return whole[:place], whole[place:]
