"""The agreed encoder: found at a site by its digest, or received from the server in pieces into the site's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhip.federation.agreement.agreement import USUAL_ENCODER, Agreement
from fedhip.federation.errors import SetupError
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.utils.files import default_cache, sync_folder

#: A message takes seconds, so there are few; a piece is what a process holds in memory.
PIECE = 64 << 20


class Presence(StrEnum):
    """Whether a site has what the agreement asks for."""

    NOT_NEEDED = "not-needed"
    PRESENT = "present"
    MISSING = "missing"


@dataclass(frozen=True)
class EncoderFile:
    """The server's copy."""

    path: Path
    digest: str
    size: int

    @classmethod
    def of(cls, path: Path, agreement: Agreement) -> EncoderFile:
        """The file, if it is the agreed one."""
        if not path.is_file():
            raise SetupError(f"a site lacks the agreed encoder, and {path} is missing; put it there")
        found = digest_of(path)
        if found != agreement.encoder_digest:
            raise SetupError(
                f"{path} has digest {found[:12]}…, and the agreement says otherwise; put the agreed one there"
            )
        return cls(path, found, path.stat().st_size)

    def pieces(self, size: int = PIECE) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Offset and bytes, one piece at a time."""
        with self.path.open("rb") as file:
            while data := file.read(size):
                yield file.tell() - len(data), np.frombuffer(data, np.uint8)


def presence(agreement: Agreement, weights: Path | None) -> Presence:
    """What a site says of the agreed encoder."""
    if agreement.backbone is None or agreement.encoder_digest is None:
        return Presence.NOT_NEEDED
    return Presence.MISSING if find_encoder(agreement, weights) is None else Presence.PRESENT


def find_encoder(agreement: Agreement, weights: Path | None) -> Path | None:
    """The file with the agreed digest: the site's own, the package's or the cache's; None where the name must do."""
    if agreement.encoder_digest is None:
        return weights
    embedded = Path(__file__).parents[2] / "features" / "weights"
    candidates = [weights, cached(agreement.encoder_digest), *sorted(embedded.glob("*.safetensors"))]
    for path in candidates:
        if path is not None and path.is_file() and digest_of(path) == agreement.encoder_digest:
            return path
    return None


def cached(digest: str) -> Path:
    """Where a received encoder lies."""
    return default_cache() / "encoders" / f"{digest}.safetensors"


def receive(digest: str, offset: int, size: int, data: NDArray[np.uint8], agreed: int | None = None) -> bool:
    """Put one piece in its place; True when the encoder is whole and is the agreed one.

    `agreed` is its size; an agreement that says nothing of it is of one that is not larger than usual. Pieces come in
    order. What arrived stays, whole or in part, so that the next round goes on; a whole one with another digest is
    removed.
    """
    if size != agreed and (agreed is not None or size > USUAL_ENCODER):
        expected = f"at most {USUAL_ENCODER} are taken" if agreed is None else f"{agreed} were agreed on"
        raise SiteRefusalError(
            SiteCode.ENCODER, f"the server offers an encoder of {size} bytes, and {expected}; ask the coordinator"
        )
    if offset < 0 or not 0 < len(data) <= PIECE or not offset + len(data) <= size:
        raise SiteRefusalError(
            SiteCode.ENCODER, f"a piece of {len(data)} bytes at {offset} of {size} is none; ask the coordinator"
        )
    target = cached(digest)
    if target.is_file() and digest_of(target) == digest:
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".part")
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # sites on one machine share the cache
        if target.is_file():
            return digest_of(target) == digest
        if os.fstat(file.fileno()).st_size < offset:
            raise SiteRefusalError(
                SiteCode.ENCODER, f"a piece before the one at {offset} is missing; the server begins again"
            )
        file.seek(offset)
        file.write(data.data)
        file.flush()
        os.fsync(file.fileno())
        if offset + len(data) < size:
            return False
        file.truncate(size)
        found = digest_of(partial)
        if found != digest:
            partial.unlink()
            raise SiteRefusalError(
                SiteCode.ENCODER,
                f"the encoder arrived with digest {found[:12]}…, and {digest[:12]}… was agreed; it was removed",
            )
        partial.replace(target)
    sync_folder(target.parent)
    return True


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
