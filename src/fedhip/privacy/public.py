"""What is known of rows before anybody looks at them: where they lie, in which directions, and how far out.

Differential privacy needs rows of bounded length, and a bound taken from private rows would give these away. So a row x
is placed by numbers that are public:

    z = (x − μ) V        clipped to length 1

μ and V come from one of four sources: ranges that were agreed for the columns of a table; rows that are public, of the
same backbone (`PublicMoments.of`); the moments that come with the embedded backbone; or a length that is declared
(`--clip`). From public rows, V are their main directions, each scaled to the same deviation, so that noise is spent on
a few hundred directions and on all of them alike.

What V leaves out is not lost to a client's own model, which is made where the rows are: `PublicMap.full` keeps it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.affine import AffineModel
from fedhip.core.tensor_file import TensorFile, require_digest
from fedhip.errors import FileError, InputError

Real = NDArray[np.float64]

#: How many main directions of public rows the noise is spent on.
DIRECTIONS = 256
#: Fewer public rows than this for each direction say too little of it.
_ROWS_EACH = 4

_FILE = TensorFile(
    "fedhip.public",
    1,
    "what is public of rows",
    {"mean": torch.float32, "directions": torch.float16, "scale": torch.float32, "rest": torch.float32},
)
_MAP_FILE = TensorFile(
    "fedhip.public_map",
    1,
    "how rows are placed before noise",
    {"mean": torch.float64, "directions": torch.float64, "rest": torch.float64},
)


@dataclass(frozen=True, eq=False)
class PublicMoments:
    """Mean (m,) and main directions (m, w) of public rows, their deviations (w,), and that of each direction beyond."""

    mean: NDArray[np.float64]
    directions: NDArray[np.float64]
    scale: NDArray[np.float64]
    rest: float
    radius: float

    @classmethod
    def of(cls, rows: NDArray[Any], most: int = DIRECTIONS) -> PublicMoments:
        """Those of public rows (N, m)."""
        X = np.asarray(rows, np.float64)
        if X.ndim != 2 or not np.isfinite(X).all():
            raise InputError("public rows must be a table of finite numbers, one row each")
        width = min(most, X.shape[1])
        if len(X) < _ROWS_EACH * width:
            raise InputError(
                f"there are {len(X):,} public rows, too few to tell {width} directions apart; give at least "
                f"{_ROWS_EACH * width:,}"
            )
        mean = X.mean(axis=0)
        values, vectors = np.linalg.eigh(np.cov(X.T).reshape(X.shape[1], X.shape[1]))
        values, vectors = values[::-1], vectors[:, ::-1]
        used = int((values[:width] > 1e-9 * values[0]).sum())
        if not used:
            raise InputError("all public rows are the same, which says nothing of the others; give other ones")
        V, scale = vectors[:, :used], np.sqrt(values[:used])
        left = np.maximum(values[used:], 0.0)
        rest = float(np.sqrt(left.mean())) if len(left) and left.mean() > 1e-12 * values[0] else 0.0
        lengths = np.linalg.norm((X - mean) @ V / scale, axis=1)
        return cls(mean, V, scale, rest, float(np.median(lengths)))

    def to_file(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file; directions as float16, for being public they need not be exact."""
        tensors = {
            "mean": torch.from_numpy(self.mean).to(torch.float32),
            "directions": torch.from_numpy(self.directions.copy()).to(torch.float16),
            "scale": torch.from_numpy(self.scale.copy()).to(torch.float32),
            "rest": torch.tensor([self.rest, self.radius], dtype=torch.float32),
        }
        _FILE.write(path, tensors, _digest(tensors))

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> PublicMoments:
        """Read what `to_file` wrote."""
        found = {name: tensor.double().numpy() for name, tensor in _read(_FILE, path)[0].items()}
        rest, radius = found["rest"]
        return cls(found["mean"], found["directions"], found["scale"], float(rest), float(radius))


@dataclass(frozen=True, eq=False)
class PublicMap:
    """z = (x − mean) directions, for rows x (n, m) and z (n, w), to be clipped to length 1.

    `rest` scales what lies outside of the directions, for a client's own model; 0 where nothing does. `source` says in
    words where all this is known from.
    """

    mean: Tensor
    directions: Tensor
    rest: float
    source: str

    @classmethod
    def of_ranges(cls, low: Sequence[float], high: Sequence[float], length: float, source: str) -> PublicMap:
        """Columns within agreed ranges go to −1 … 1, and rows are clipped to this length of all columns together."""
        a, b = np.asarray(low, np.float64), np.asarray(high, np.float64)
        half = np.where(b > a, (b - a) / 2.0, 1.0) * length
        return cls(torch.from_numpy((a + b) / 2.0), torch.diag(torch.from_numpy(1.0 / half)), 0.0, source)

    @classmethod
    def of_length(cls, width: int, clip: float) -> PublicMap:
        """Rows as they are, clipped to a declared length."""
        if not 0.0 < clip < float("inf"):
            raise InputError(f"clip is {clip!r}; give the length that rows are cut to, a number above 0")
        eye = torch.eye(width, dtype=torch.float64) / float(clip)
        return cls(torch.zeros(width, dtype=torch.float64), eye, 0.0, f"a declared length of {clip:g}")

    @classmethod
    def of_moments(cls, moments: PublicMoments, source: str) -> PublicMap:
        """Main directions of public rows, scaled alike; half of the public rows are shorter than 1."""
        directions = moments.directions / (moments.scale * moments.radius)
        rest = 0.0 if moments.rest == 0.0 else 1.0 / (moments.scale[-1] * moments.radius)
        return cls(torch.from_numpy(moments.mean), torch.from_numpy(directions), rest, source)

    @property
    def width(self) -> int:
        """w, how many directions the sum is of."""
        return int(self.directions.shape[1])

    @property
    def digest(self) -> str:
        """Which it is: two that clip or project otherwise have others."""
        return _digest(self._tensors)

    @property
    def _tensors(self) -> dict[str, Tensor]:
        rest = torch.tensor([self.rest], dtype=torch.float64)
        return {"mean": self.mean, "directions": self.directions.contiguous(), "rest": rest}

    def require_width(self, width: int) -> None:
        """Refuse features of another backbone."""
        if width != len(self.mean):
            raise InputError(
                f"features are {width} wide, and what is public of them ({self.source}) is of {len(self.mean)}: it "
                "must be of the same backbone and pooling"
            )

    def clipped(self, rows: Tensor) -> Tensor:
        """z (n, w), of length at most 1 but for rounding; each is made of its own row alone, to the bit.

        A product of matrices in floating point has other last bits for other rows beside it. A row that is there or
        not would then change others, by a step of the grid each where they lie at the edge of one. So numbers are
        rounded first, such that all products and their sums are whole numbers that float64 holds: the order in which
        they are added does not matter.
        """
        before, V, after, bits = self._whole
        centred = (rows.to(torch.float64) - self.mean).numpy()
        units = _exponents(centred, 1)
        centred = _scaled(centred, before - units)
        again = _exponents(centred, 1)
        z = _scaled(np.rint(_scaled(centred, bits - again)) @ V, after - 2 * bits)
        largest, fine = _exponents(z, 1), _exact_bits(self.width)
        steps = np.rint(_scaled(z, fine - largest))
        # Not below the length, though z was rounded: by half a step in each direction.
        length = np.sqrt(np.square(steps).sum(axis=1, keepdims=True)) + 0.5 * math.sqrt(self.width)
        length = _scaled(length, largest - fine)
        with np.errstate(over="ignore"):
            inside = np.ldexp(length, units + again) <= 1.0
        units = np.where(inside, units + again, 0)
        found = _scaled(z, units) / np.where(inside, 1.0, length)
        return torch.from_numpy(found)

    @cached_property
    def _whole(self) -> tuple[NDArray[np.int64], Real, NDArray[np.int64], int]:
        """The directions as whole numbers (m, w) of so many bits, once features and directions are in these units."""
        V = self.directions.numpy()
        bits = _exact_bits(len(V))
        before = _exponents(V, 1)
        V = np.ldexp(V, -before)
        after = _exponents(V, 0)
        return before.T, np.rint(np.ldexp(V, bits - after)), after, bits

    def full(self, rows: Tensor) -> Tensor:
        """Rows in all directions (n, m'), the w first, and not clipped."""
        centred = rows.to(torch.float64) - self.mean
        return centred @ self._all

    def on_raw(self, weights: Tensor) -> AffineModel:
        """A model on rows as they came, from weights of z and a constant 1 (w + 1, d), or of all directions."""
        V = self.directions if len(weights) == self.width + 1 else self._all
        raw = V @ weights[:-1]
        return AffineModel(raw, weights[-1] - self.mean @ raw)

    @cached_property
    def _all(self) -> Tensor:
        """(m, m'): the directions, and any orthonormal ones beyond them, which a ridge does not tell apart."""
        m, w = self.directions.shape
        if self.rest == 0.0 or w == m:
            return self.directions
        Q = torch.linalg.qr(self.directions, mode="complete").Q
        return torch.cat((self.directions, Q[:, w:] * self.rest), dim=1)

    def to_file(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file."""
        _MAP_FILE.write(path, self._tensors, self.digest, source=self.source)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> PublicMap:
        """Read what `to_file` wrote."""
        tensors, metadata = _read(_MAP_FILE, path)
        if tensors["directions"].ndim != 2 or len(tensors["mean"]) != len(tensors["directions"]):
            raise FileError(f"{path} does not say how rows are placed; restore it from a copy")
        return cls(tensors["mean"], tensors["directions"], float(tensors["rest"]), metadata.get("source", ""))


def _exponents(values: Real, axis: int) -> NDArray[np.int64]:
    """Of powers of two that the values along an axis are below; 0 where all are 0."""
    found: NDArray[np.int64] = np.frexp(np.abs(values).max(axis=axis, keepdims=True))[1].astype(np.int64)
    return found


def _scaled(values: Real, exponents: NDArray[np.int64]) -> Real:
    """Times powers of two, which is exact: as `ldexp`, in a fraction of the time where the powers have a float64."""
    found: Real
    found = (
        np.ldexp(values, exponents) if np.abs(exponents).max(initial=0) > 1000 else values * np.ldexp(1.0, exponents)
    )
    return found


def _exact_bits(terms: int) -> int:
    """How many bits factors have, so that float64 holds a sum of so many products whatever the order."""
    return (52 - math.ceil(math.log2(terms))) // 2


def _digest(tensors: Mapping[str, Tensor]) -> str:
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(f"{name} {tuple(tensors[name].shape)}\n".encode())
        sha.update(tensors[name].contiguous().numpy().data)
    return sha.hexdigest()


def _read(kind: TensorFile, path: str | PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors, metadata = kind.read(path)
    require_digest(path, stored=metadata["digest"], computed=_digest(tensors))
    return tensors, metadata
