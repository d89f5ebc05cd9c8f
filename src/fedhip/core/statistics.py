"""All that FedHiP needs of a data set: sufficient statistics, which add.

    gram = FᵀF (m, m)     cross = FᵀY (m, d)     counts = 1ᵀY (d,)

The statistics of two data sets together are the sum of theirs. So the server's aggregation is a sum, a client
that joins is one more term, and forgetting a client is a subtraction.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from os import PathLike
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedhip.core.rows import ArrayLike, Rows, one_hot
from fedhip.core.tensor_file import TensorFile, require_digest
from fedhip.errors import FileError, InputError, StatisticsError

#: `==` allows for the rounding of float64 sums: a difference of this part of the largest entry.
SUM_TOLERANCE = 1e-9

#: An eigenvalue below zero by less than this part of the largest diagonal entry is rounding.
PSD_TOLERANCE = 1e-9

#: Columns whose products are computed at once: few enough to leave out much below the diagonal, and many for speed.
_GRAM_COLUMNS = 256

#: Rows whose mirror image is written at once.
_MIRRORED_ROWS = 64

#: `gram` is the upper triangle packed row by row, or the full matrix.
_FILE = TensorFile(
    "fedhip.statistics", 1, "statistics", {"gram": torch.float64, "cross": torch.float64, "counts": torch.int64}
)


@dataclass(frozen=True, eq=False, repr=False)
class AdditiveStatistics:
    """What float and fixed-point statistics share: three tensors that add."""

    gram: Tensor
    cross: Tensor
    counts: Tensor

    _kind: ClassVar[str]

    @property
    def num_samples(self) -> int:
        """N, the number of rows behind these statistics."""
        return int(self.counts.sum())

    @property
    def num_features(self) -> int:
        """m, the width of the features."""
        return int(self.cross.shape[0])

    @property
    def num_classes(self) -> int:
        """d, the number of classes."""
        return int(self.cross.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.gram.device

    def digest(self) -> str:
        """SHA-256 in hexadecimal: the same for the same values, on any device, and for no others."""
        return self._digest_of(pack(self.gram), self.cross, self.counts)

    @classmethod
    def _digest_of(cls, packed: Tensor, cross: Tensor, counts: Tensor) -> str:
        if cross.ndim != 2:
            raise InputError(f"cross has shape {tuple(cross.shape)}; it must be (m, d)")
        sha = hashlib.sha256(f"{cls._kind} m={cross.shape[0]} d={cross.shape[1]}\n".encode())
        for values in (packed, cross, counts):
            if values.is_floating_point():
                values = values + 0  # makes −0.0 and 0.0 one value
            little_endian = values.cpu().contiguous().numpy()
            sha.update(little_endian.astype(little_endian.dtype.newbyteorder("<"), copy=False).data)
        return sha.hexdigest()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_samples={self.num_samples}, num_features={self.num_features}, "
            f"num_classes={self.num_classes}, device={str(self.device)!r})"
        )

    def __radd__(self, other: object) -> Self:
        # sum(...) starts from the integer 0.
        return self if other == 0 else NotImplemented

    def require_same_shape(self, other: AdditiveStatistics, who: str = "") -> None:
        """Raise `InputError` unless the two can be added."""
        for what, mine, theirs in (
            ("features", self.num_features, other.num_features),
            ("classes", self.num_classes, other.num_classes),
        ):
            if mine != theirs:
                raise InputError(
                    f"{who}statistics of {theirs} {what} do not fit those of {mine} {what}; "
                    "every client must use the same backbone and the same list of classes"
                )

    def require_contains(self, counts: Tensor, who: str = "") -> None:
        """Raise `InputError` unless there are at least these many rows of each class."""
        missing = (counts.to(self.counts.device) > self.counts).nonzero()
        if len(missing):
            c = int(missing[0])
            raise InputError(
                f"{who}the client has {int(counts[c])} rows of class {c} and the sum only {int(self.counts[c])}: "
                "these rows are not in the sum; add the client's statistics first"
            )


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(AdditiveStatistics):
    """Sufficient statistics in float64. A value: never write into its tensors.

    `a + b` and `a - b` join and remove data sets. `a == b` is true when the two are the same to the rounding of
    float64 sums (1e-9 of the largest entry), so `(a + b) - a == b` unless a is millions of times larger than b;
    compare `digest()` for the same bits. Sums that are the same bits in any order, and differences that are exact
    however large the rest was, are the business of `fedhip.core.exact.fixedpoint`.

    Parameters
    ----------
    gram : (m, m), symmetric
    cross : (m, d)
    counts : (d,), rows of each class
    intercept : bool
        Whether the last feature is the constant 1 (see `Standardization`): no penalty is on it.
    """

    intercept: bool = False

    _kind: ClassVar[str] = "fedhip.statistics/1"
    _memo: dict[str, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        # Copies: a value must not change when its maker's arrays do.
        gram = torch.as_tensor(self.gram, dtype=torch.float64).clone()
        cross = torch.as_tensor(self.cross, dtype=torch.float64).clone()
        counts = torch.as_tensor(self.counts)
        shaped = gram.ndim == cross.ndim == 2 and counts.ndim == 1 and gram.shape[0] == gram.shape[1]
        if not shaped or 0 in (*gram.shape, *cross.shape):
            raise InputError(
                f"gram {tuple(gram.shape)}, cross {tuple(cross.shape)} and counts {tuple(counts.shape)} "
                "must have shapes (m, m), (m, d) and (d,)"
            )
        if cross.shape != (gram.shape[0], counts.shape[0]):
            raise InputError(
                f"cross has shape {tuple(cross.shape)}; gram and counts ask for {(gram.shape[0], counts.shape[0])}"
            )
        whole = counts.to(torch.int64)
        if not torch.equal(whole.double(), counts.double()) or bool((whole < 0).any()):
            raise StatisticsError(f"counts must be whole and not negative, not {counts.tolist()}")
        if not (bool(torch.isfinite(gram).all()) and bool(torch.isfinite(cross).all())):
            raise StatisticsError("gram or cross holds values that are not finite")
        asymmetry = float((gram - gram.mT).abs().max())
        if asymmetry > SUM_TOLERANCE * float(gram.abs().max()):
            raise StatisticsError(
                f"gram is not symmetric (it differs from its transpose by {asymmetry:.1e}); a Gram matrix FᵀF always is"
            )
        object.__setattr__(self, "gram", mirror_upper(gram) if asymmetry else gram)
        object.__setattr__(self, "cross", cross)
        object.__setattr__(self, "counts", whole.clone())

    @classmethod
    def from_data(
        cls,
        features: ArrayLike,
        labels: ArrayLike,
        num_classes: int,
        *,
        client: str | None = None,
        block_rows: int | None = None,
    ) -> Self:
        """gram = FᵀF, cross = FᵀY, counts = 1ᵀY, accumulated in float64 over blocks of rows.

        Parameters
        ----------
        features : (N, m)
            Any real dtype; numpy (memory-mapped too) or torch, on CPU or CUDA. The work is done where they are.
        labels : (N,)
            Class numbers from 0 to num_classes − 1.
        client : str, optional
            Named in error messages.
        block_rows : int, optional
            Rows converted at a time; about 32 MiB by default.
        """
        rows = Rows.checked(features, labels, num_classes, client, block_rows)
        m, d = rows.width, rows.num_classes
        gram = torch.zeros((m, m), dtype=torch.float64, device=rows.device)
        cross = torch.zeros((m, d), dtype=torch.float64, device=rows.device)
        for F, block_labels in rows.blocks(block_rows):
            add_upper_gram(gram, F)
            cross.addmm_(F.mT, one_hot(block_labels, d))
        if not bool(torch.isfinite(gram.diagonal()).all()):
            raise InputError(f"{rows.who}the squares of the features exceed float64; rescale the features")
        counts = torch.bincount(rows.labels, minlength=d).to(rows.device)
        return cls._of(mirror_upper(gram), cross, counts)

    @classmethod
    def zeros(cls, num_features: int, num_classes: int) -> Self:
        """The statistics of no rows: the neutral element of the sum."""
        return cls._of(
            torch.zeros((num_features, num_features), dtype=torch.float64),
            torch.zeros((num_features, num_classes), dtype=torch.float64),
            torch.zeros(num_classes, dtype=torch.int64),
        )

    @classmethod
    def _of(cls, gram: Tensor, cross: Tensor, counts: Tensor, intercept: bool = False) -> Self:
        """Without the checks: the tensors come from our own arithmetic."""
        self = object.__new__(cls)
        values = {"gram": gram, "cross": cross, "counts": counts, "intercept": intercept, "_memo": {}}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        return self

    def penalty(self, beta: float) -> Tensor:
        """What β adds to the diagonal of `gram` (m,): nothing for the intercept."""
        diagonal = torch.full_like(self.gram.diagonal(), beta)
        if self.intercept:
            diagonal[-1] = 0.0
        return diagonal

    def __add__(self, other: Statistics) -> Self:
        if not isinstance(other, Statistics):
            return NotImplemented
        self.require_same_shape(other)
        other = other.to(self.device)
        gram, cross, counts = self.gram + other.gram, self.cross + other.cross, self.counts + other.counts
        return self._of(gram, cross, counts, self.intercept)

    def __sub__(self, other: Statistics) -> Self:
        if not isinstance(other, Statistics):
            return NotImplemented
        self.require_same_shape(other)
        other = other.to(self.device)
        self.require_contains(other.counts)
        counts = self.counts - other.counts
        # Where no rows are left nothing may be left of them, not even their rounding.
        cross = (self.cross - other.cross) * (counts > 0)
        gram = self.gram - other.gram if bool(counts.any()) else torch.zeros_like(self.gram)
        return self._of(gram, cross, counts, self.intercept)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statistics):
            return NotImplemented
        if self.cross.shape != other.cross.shape:
            return False
        other = other.to(self.device)
        return torch.equal(self.counts, other.counts) and all(
            torch.equal(a, b) or bool((a - b).abs().max() <= SUM_TOLERANCE * max(a.abs().max(), b.abs().max()))
            for a, b in ((self.gram, other.gram), (self.cross, other.cross))
        )

    __hash__ = None  # type: ignore[assignment]

    def to(self, device: torch.device | str) -> Self:
        """The same statistics on another device."""
        if torch.device(device) == self.device:
            return self
        return self._of(self.gram.to(device), self.cross.to(device), self.counts.to(device), self.intercept)

    def require_valid(self, client: str | None = None) -> None:
        """Raise `StatisticsError` unless some data set has these statistics.

        [F Y]ᵀ[F Y] = [[gram, cross], [crossᵀ, diag(counts)]] must be positive semi-definite; that also
        bounds the cross terms by the Gram matrix and the counts. The units of the features do not matter.
        """
        who = f"client {client!r}: " if client is not None else ""
        gram, counts = self.gram, torch.diag(self.counts.to(torch.float64))
        largest_gram, largest_count = gram.diagonal().max().clamp(min=0.0), counts.max()
        if largest_gram == 0.0 or largest_count == 0.0:
            if bool(gram.any()) or bool(self.cross.any()):
                raise StatisticsError(
                    f"{who}gram or cross is not zero although its diagonal or the counts are: they are not positive "
                    "semi-definite, and no data set has them; ask the client to compute them again"
                )
            return
        cross = self.cross / (largest_gram * largest_count).sqrt()
        joint = torch.cat(
            (
                torch.cat((gram / largest_gram, cross), dim=1),
                torch.cat((cross.mT, counts / largest_count), dim=1),
            )
        )
        shifted = joint + PSD_TOLERANCE * torch.eye(len(joint), dtype=joint.dtype, device=joint.device)
        # Cholesky answers the common case at a tenth of the price of the eigenvalues.
        if int(torch.linalg.cholesky_ex(shifted).info) == 0:
            return
        m = self.num_features
        for what, matrix in (("gram is", joint[:m, :m]), ("gram, cross and counts together are", joint)):
            smallest = float(torch.linalg.eigvalsh(matrix)[0])
            if smallest < -0.5 * PSD_TOLERANCE:
                raise StatisticsError(
                    f"{who}{what} not positive semi-definite (smallest eigenvalue {smallest:.1e} of the largest "
                    "diagonal entry): no data set has these statistics; ask the client to compute them again"
                )

    def to_file(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file (gram as its packed upper triangle), whole or not at all."""
        if self.intercept:
            raise StatisticsError("these follow from others by standardising; write those, and standardise again")
        _FILE.write(path, {"gram": pack(self.gram), "cross": self.cross, "counts": self.counts}, digest=self.digest())

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """Read what `to_file` wrote, and check version, digest and positive semi-definiteness."""
        tensors, metadata = _FILE.read(path)
        gram, cross, counts = (tensors[name] for name in _FILE.dtypes)
        try:
            packed = gram if gram.ndim == 1 else pack(gram)
            require_digest(path, stored=metadata["digest"], computed=cls._digest_of(packed, cross, counts))
            statistics = cls(unpack(gram) if gram.ndim == 1 else gram, cross, counts)
            statistics.require_valid()
        except InputError as error:
            raise FileError(f"{path}: {error}; write it again") from None
        except StatisticsError as error:
            raise StatisticsError(f"{path}: {error}") from None
        return statistics

    def __reduce__(self) -> tuple[Any, ...]:
        return self._of, (self.gram, self.cross, self.counts, self.intercept)  # without what was remembered


def add_upper_gram(gram: Tensor, F: Tensor) -> None:
    """gram += FᵀF in place, in the upper triangle at least.

    On a CPU the blocks below the diagonal are left out: up to half of the operations. A GPU is faster with one call.
    """
    step = _GRAM_COLUMNS if F.device.type == "cpu" else len(gram)
    for start in range(0, len(gram), step):
        gram[start : start + step, start:].addmm_(F[:, start : start + step].mT, F[:, start:])


def mirror_upper(matrix: Tensor) -> Tensor:
    """Copy the upper triangle onto the lower, in place, so that the matrix is symmetric to the last bit.

    On a CPU in blocks that fit its cache: reading a large matrix by columns takes twenty times as long.
    """
    step = _MIRRORED_ROWS if matrix.device.type == "cpu" else len(matrix)
    for start in range(0, len(matrix), step):
        end = start + step
        corner = matrix[start:end, start:end]
        corner.copy_(torch.triu(corner) + torch.triu(corner, diagonal=1).mT)
        matrix[end:, start:end] = matrix[start:end, end:].mT
    return matrix


def pack(matrix: Tensor) -> Tensor:
    """The upper triangle of a symmetric (m, m) matrix, row by row: m(m + 1)/2 values."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"gram has shape {tuple(matrix.shape)}; it must be (m, m), or its packed triangle")
    if matrix.device.type != "cpu":
        return matrix.reshape(-1)[_upper(len(matrix), matrix.device)]
    # Row by row, since the places of the values would take as much memory as they do; by numpy, whose calls are cheap.
    packed = matrix.new_empty(len(matrix) * (len(matrix) + 1) // 2)
    source, target, start = matrix.detach().numpy(), packed.numpy(), 0
    for row in range(len(source)):
        end = start + len(source) - row
        target[start:end] = source[row, row:]
        start = end
    return packed


def unpack(packed: Tensor) -> Tensor:
    """The symmetric matrix whose upper triangle was packed."""
    m = (int((8 * len(packed) + 1) ** 0.5) - 1) // 2
    if m * (m + 1) // 2 != len(packed):
        raise InputError(f"{len(packed)} values are no packed triangle (m(m + 1)/2 values for some m)")
    if packed.device.type != "cpu":
        matrix = torch.zeros((m, m), dtype=packed.dtype, device=packed.device)
        matrix.view(-1)[_upper(m, packed.device)] = packed
        return mirror_upper(matrix)
    matrix = packed.new_empty((m, m))
    source, target, start = packed.detach().numpy(), matrix.numpy(), 0
    for row in range(m):
        end = start + m - row
        target[row, row:] = source[start:end]
        start = end
    return mirror_upper(matrix)


@lru_cache(maxsize=1)
def _upper(m: int, device: torch.device) -> Tensor:
    """Where the upper triangle lies in a matrix written row by row."""
    return torch.ones((m, m), dtype=torch.bool, device=device).triu_().reshape(-1).nonzero()[:, 0]
