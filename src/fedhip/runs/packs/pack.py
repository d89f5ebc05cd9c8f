"""A pack: the models of up to a thousand clients, and what leave-one-out and test rows say of each, in one file.

The file (safetensors) holds, for its c clients in the order of `names`:

    weights (c, m, d), intercept (c, d)     scores = F @ weights + intercept
    alpha (c)                               NaN of a client without training rows, which has no model of its own
    counts (c, d)                           training rows by class
    curve (c, a), estimate (c)              leave-one-out accuracy over α, and what may be expected
    log_losses, global_log_losses (c, T)    of rows left out, over temperatures: its own model's, the global one's
    tests, right, global_right (c)          test rows, and how many of them each model has right

and in its metadata, as JSON, `names` and `own` (digests of each one's statistics), beside `total`, the digest of the
sum. What else there is to a model is the same for all, and stands in the run's global.safetensors. A model taken out of
a pack is the one that a file of its own would hold, to the digest.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from fedhip.core.tensor_file import TensorFile, require_digest
from fedhip.errors import FileError
from fedhip.heads.model import Model
from fedhip.simulation.many.personalization import Personalized

_REAL = ("weights", "alpha", "curve", "estimate", "log_losses", "global_log_losses")
_WHOLE = ("counts", "tests", "right", "global_right")
_FILE = TensorFile(
    "fedhip.pack",
    1,
    "pack of models",
    {"intercept": torch.float64, **dict.fromkeys(_REAL, torch.float64), **dict.fromkeys(_WHOLE, torch.int64)},
)


@dataclass(frozen=True, eq=False)
class Pack:
    """The clients' names, what phase 3 gave of them, and the global model, which says what all have in common."""

    names: tuple[str, ...]
    found: Personalized
    common: Model

    def model(self, place: int) -> Model:
        """The model of one of them."""
        bias, alpha = self.found.bias[place], float(self.found.alpha[place])
        return replace(
            self.common,
            client=self.names[place],
            weights=self.found.weights[place].contiguous(),
            intercept=bias.contiguous() if bool(bias.any()) else None,
            alpha=alpha,
            own=self.found.own[place],
            local_classes=self.found.counts[place] > 0,
        )

    @property
    def with_model(self) -> list[str]:
        """Those that have one."""
        return [name for name, alpha in zip(self.names, self.found.alpha.tolist(), strict=True) if alpha == alpha]

    def write(self, path: Path) -> str:
        """Write the file, for its owner alone, whole or not at all; its digest."""
        tensors, metadata = self._tensors(), self._metadata()
        digest = _digest(tensors, metadata)
        _FILE.write(path, tensors, digest=digest, **metadata)
        return digest

    @classmethod
    def read(cls, path: Path, common: Model) -> tuple[Self, str]:
        """Read what `write` wrote, and check its digest, which is given too; `common` is the run's global model."""
        tensors, metadata = _FILE.read(path)
        kept = {name: metadata.get(name, "") for name in ("names", "own", "total")}
        digest = _digest(tensors, kept)
        require_digest(path, stored=metadata["digest"], computed=digest)
        if kept["total"] != common.total:
            raise FileError(f"{path} holds models that were solved from another sum; restore it from a copy")
        try:
            names, own = json.loads(kept["names"]), json.loads(kept["own"])
            numbers = torch.arange(len(names)).numpy()
            found = Personalized(clients=numbers, own=own, bias=tensors.pop("intercept"), **tensors)
        except (TypeError, ValueError) as error:
            raise FileError(f"{path} does not hold a pack of models ({error}); restore it from a copy") from None
        return cls(tuple(names), found, common), digest

    def _tensors(self) -> dict[str, Tensor]:
        kept = {name: getattr(self.found, name) for name in (*_REAL, *_WHOLE)}
        return {**kept, "intercept": self.found.bias}

    def _metadata(self) -> dict[str, str]:
        return {
            "names": json.dumps(self.names), "own": json.dumps(self.found.own), "total": self.common.total,
        }  # fmt: skip


def pack_name(number: int) -> str:
    """What a pack is called, by its number."""
    return f"pack-{number:05d}.safetensors"


def names_of(path: Path) -> list[str]:
    """The names in a pack that have a model, without reading the models; for looking somebody up."""
    try:
        header = _FILE.metadata(path)
        names: list[str] = json.loads(header["names"])
        own: list[str] = json.loads(header["own"])
        return [name for name, digest in zip(names, own, strict=True) if digest]
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} does not hold a pack of models ({error}); restore it from a copy") from None


def _digest(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    sha = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name].contiguous().numpy()
        sha.update(f"{name} {array.shape}\n".encode())
        sha.update(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
    return sha.hexdigest()
