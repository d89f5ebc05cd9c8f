"""Statistics on disk: safetensors with a schema version and a digest, written whole or not at all.

Tensors: `gram` (the upper triangle packed row by row, or the full matrix), `cross` (m, d), `counts` (d,).
Metadata: `format`, `schema`, `digest`.
"""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedhip.core.errors import FileAlteredError, FileFormatError, FileVersionError

FORMAT = "fedhip.statistics"
SCHEMA = 1


def write(path: str | PathLike[str], tensors: dict[str, Tensor], *, digest: str) -> None:
    """Write to a temporary file beside `path`, then rename it into place."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(
            {name: tensor.cpu().contiguous() for name, tensor in tensors.items()},
            temporary,
            metadata={"format": FORMAT, "schema": str(SCHEMA), "digest": digest},
        )
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: str | PathLike[str]) -> tuple[dict[str, Tensor], str]:
    """The tensors and the stored digest, after the format and its version were recognised."""
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise FileFormatError(f"{path} is a safetensors file, but not of fedhip statistics")
            schema = metadata.get("schema", "")
            if not schema.isdecimal():
                raise FileFormatError(f"{path} names no schema version (it says {schema!r})")
            if int(schema) > SCHEMA:
                raise FileVersionError(
                    f"{path} has schema version {schema}; this fedhip reads up to {SCHEMA}: upgrade fedhip"
                )
            missing = {"gram", "cross", "counts"} - set(file.keys())
            if missing:
                raise FileFormatError(f"{path} lacks {', '.join(sorted(missing))}; write it again")
            return {name: file.get_tensor(name) for name in ("gram", "cross", "counts")}, metadata.get("digest", "")
    except SafetensorError as error:
        raise FileFormatError(
            f"{path} is truncated or not a statistics file ({error}); copy or write it again"
        ) from None


def require_digest(path: str | PathLike[str], *, stored: str, computed: str) -> None:
    """Refuse a file whose values are not those that were written."""
    if stored != computed:
        raise FileAlteredError(
            f"{path} was altered after it was written (digest {computed[:12]}…, stored {stored[:12]}…); "
            "get a fresh copy from its writer"
        )
