"""Values on disk: safetensors with a format, a schema version and a digest, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedhip.errors import FileError
from fedhip.utils.files import write_private


@dataclass(frozen=True)
class TensorFile:
    """One kind of file: its name in the metadata, its schema version, and what it holds.

    `optional` are tensors that came with this schema version. A file that needs none of them is of the version before,
    so that whoever read it then reads it still.

    Metadata: `format`, `schema`, `digest`, and what the kind adds.
    """

    format: str
    schema: int
    what: str
    dtypes: Mapping[str, torch.dtype]
    optional: Mapping[str, torch.dtype] = field(default_factory=dict)

    def write(self, path: str | PathLike[str], tensors: Mapping[str, Tensor], digest: str, **metadata: str) -> None:
        """Write it, for its owner alone, whole or not at all."""
        path = Path(path)
        if not path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to; make it first")
        schema = self.schema if not self.optional or self.optional.keys() & tensors.keys() else self.schema - 1
        header = {"format": self.format, "schema": str(schema), "digest": digest, **metadata}
        contents = _in_one_order(save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, header))
        write_private(path, contents)  # statistics and models tell of rows

    def read(self, path: str | PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tensors and metadata, after the format and its version were recognised."""
        if Path(path).is_dir():
            raise FileError(f"{path} is a folder; give a {self.what} file")
        try:
            with safe_open(os.fspath(path), framework="pt") as file:
                metadata = file.metadata() or {}
                self._require_format(path, metadata)
                held = set(file.keys())
                missing = self.dtypes.keys() - held
                if missing:
                    raise FileError(f"{path} lacks {', '.join(sorted(missing))}; write it again")
                known = {**self.dtypes, **self.optional}
                tensors = {name: file.get_tensor(name) for name in known if name in held}
        except SafetensorError as error:
            raise FileError(
                f"{path} is truncated or not a {self.what} file ({error}); copy or write it again"
            ) from None
        for name, tensor in tensors.items():
            if tensor.dtype != known[name]:
                raise FileError(f"{path} holds {name} as {tensor.dtype}, not {known[name]}; write it again")
        return tensors, metadata

    def metadata(self, path: str | PathLike[str]) -> dict[str, str]:
        """The metadata alone, after the format and its version were recognised; no value is read."""
        try:
            with safe_open(os.fspath(path), framework="pt") as file:
                metadata = dict(file.metadata() or {})
        except SafetensorError as error:
            raise FileError(
                f"{path} is truncated or not a {self.what} file ({error}); copy or write it again"
            ) from None
        self._require_format(path, metadata)
        return metadata

    def _require_format(self, path: str | PathLike[str], metadata: Mapping[str, str]) -> None:
        if metadata.get("format") != self.format:
            raise FileError(f"{path} is a safetensors file, but not of fedhip {self.what}")
        schema = metadata.get("schema", "")
        if not (schema.isdecimal() and len(schema) < 10 and int(schema) > 0):
            raise FileError(f"{path} names no schema version (it says {schema[:20]!r}); write it again")
        if int(schema) > self.schema:
            raise FileError(
                f"{path} has schema version {schema}; this fedhip reads up to {self.schema}: upgrade fedhip"
            )
        if not metadata.get("digest"):
            raise FileError(f"{path} holds no digest, so nobody can say if it was altered; write it again")


def _in_one_order(contents: bytes) -> bytes:
    """A safetensors file with its header sorted; the library writes metadata in an order that changes."""
    end = 8 + int.from_bytes(contents[:8], "little")
    header = json.dumps(json.loads(contents[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the format aligns the values
    return len(header).to_bytes(8, "little") + header + contents[end:]


def require_digest(path: str | PathLike[str], *, stored: str, computed: str) -> None:
    """Refuse a file whose values are not those that were written."""
    if stored != computed:
        raise FileError(
            f"{path} was altered after it was written (digest {computed[:12]}…, stored {stored[:12]}…); "
            "get a fresh copy from its writer"
        )
