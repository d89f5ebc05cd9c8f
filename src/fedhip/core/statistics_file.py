"""Statistics on disk: safetensors with a schema version and a digest, written whole or not at all.

Tensors: `gram` (the upper triangle packed row by row, or the full matrix), `cross` (m, d), `counts` (d,).
Metadata: `format`, `schema`, `digest`.
"""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedhip.core.errors import FileAlteredError, FileFormatError, FileVersionError

FORMAT = "fedhip.statistics"
SCHEMA = 1
DTYPES = {"gram": torch.float64, "cross": torch.float64, "counts": torch.int64}


def write(path: str | PathLike[str], tensors: dict[str, Tensor], *, digest: str) -> None:
    """Write to a temporary file beside `path`, then rename it into place."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to; make it first")
    metadata = {"format": FORMAT, "schema": str(SCHEMA), "digest": digest}
    contents = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, metadata)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read(path: str | PathLike[str]) -> tuple[Tensor, Tensor, Tensor, str]:
    """Gram, cross, counts and the stored digest, after the format and its version were recognised."""
    if Path(path).is_dir():
        raise FileFormatError(f"{path} is a folder; give a statistics file")
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise FileFormatError(f"{path} is a safetensors file, but not of fedhip statistics")
            schema = metadata.get("schema", "")
            if not (schema.isdecimal() and len(schema) < 10 and int(schema) > 0):
                raise FileFormatError(f"{path} names no schema version (it says {schema[:20]!r}); write it again")
            if int(schema) > SCHEMA:
                raise FileVersionError(
                    f"{path} has schema version {schema}; this fedhip reads up to {SCHEMA}: upgrade fedhip"
                )
            if not metadata.get("digest"):
                raise FileFormatError(f"{path} holds no digest, so nobody can say if it was altered; write it again")
            missing = DTYPES.keys() - set(file.keys())
            if missing:
                raise FileFormatError(f"{path} lacks {', '.join(sorted(missing))}; write it again")
            tensors = {name: file.get_tensor(name) for name in DTYPES}
    except SafetensorError as error:
        raise FileFormatError(
            f"{path} is truncated or not a statistics file ({error}); copy or write it again"
        ) from None
    for name, dtype in DTYPES.items():
        if tensors[name].dtype != dtype:
            raise FileFormatError(f"{path} holds {name} as {tensors[name].dtype}, not {dtype}; write it again")
    return tensors["gram"], tensors["cross"], tensors["counts"], metadata["digest"]


def require_digest(path: str | PathLike[str], *, stored: str, computed: str) -> None:
    """Refuse a file whose values are not those that were written."""
    if stored != computed:
        raise FileAlteredError(
            f"{path} was altered after it was written (digest {computed[:12]}…, stored {stored[:12]}…); "
            "get a fresh copy from its writer"
        )
