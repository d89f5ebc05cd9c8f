"""A client's rows: checked once, read as float64 in blocks.

Everything numerical enters the package here, so that every entrance refuses the same bad input in the same
words, and so that a memory-mapped array larger than memory passes through block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedhip.errors import InputError

#: What the library accepts as features or labels: numpy, torch, nested lists, or anything that has `shape` and
#: `dtype` and can be sliced by rows (h5py, zarr).
ArrayLike = Tensor | npt.NDArray[Any] | Sequence[Any]

_BLOCK_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Rows:
    """Rows of features (N, m) with their class numbers (N,), not yet converted."""

    features: Any
    labels: Tensor
    num_classes: int
    who: str

    @classmethod
    def checked(
        cls,
        features: ArrayLike,
        labels: ArrayLike,
        num_classes: int,
        client: str | None = None,
        block_rows: int | None = None,
    ) -> Rows:
        """Check shapes, types and labels; the features' values are checked as they are read."""
        who = f"client {client!r}: " if client is not None else ""
        if isinstance(num_classes, bool) or not isinstance(num_classes, Integral) or num_classes < 1:
            raise InputError(f"{who}num_classes is {num_classes!r}; give a whole number of at least 1")
        if block_rows is not None and (not isinstance(block_rows, Integral) or block_rows < 1):
            raise InputError(f"{who}block_rows is {block_rows!r}; give a whole number of at least 1")
        features = _sliceable(features, who)
        numbers = _class_numbers(labels, int(features.shape[0]), int(num_classes), who)
        return cls(features, numbers, int(num_classes), who)

    @property
    def width(self) -> int:
        """m, the number of features."""
        return int(self.features.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the features live, and so where the work is done."""
        return self.features.device if isinstance(self.features, Tensor) else torch.device("cpu")

    def __len__(self) -> int:
        return int(self.features.shape[0])

    @property
    def default_block_rows(self) -> int:
        """Rows whose features and one-hot labels take about 32 MiB in float64."""
        return max(1, _BLOCK_BYTES // (8 * (self.width + self.num_classes)))

    def blocks(self, block_rows: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (F, labels) in blocks: F float64, finite, on the features' device."""
        step = self.default_block_rows if block_rows is None else block_rows
        for start in range(0, len(self), step):
            stop = min(start + step, len(self))
            F = self._float64(start, stop)
            # One number tells whether there is any to look for; it may also be that the sum is too large.
            if not bool(torch.isfinite(F.sum())) and not bool(torch.isfinite(F).all()):
                row, column = torch.nonzero(~torch.isfinite(F))[0].tolist()
                bad = int((~torch.isfinite(F[:, column])).sum())
                remedy = "repair or drop such rows" if bad < len(F) or len(F) == 1 else "drop or repair the column"
                raise InputError(
                    f"{self.who}the feature in row {start + row}, column {column} is {float(F[row, column])}, as in "
                    f"{bad} of {len(F)} rows; features must be finite: {remedy}"
                    if bad > 1
                    else f"{self.who}the feature in row {start + row}, column {column} is {float(F[row, column])}; "
                    f"features must be finite: {remedy}"
                )
            yield F, self.labels[start:stop].to(F.device)

    def matrices(self) -> tuple[Tensor, Tensor]:
        """All rows at once: F (N, m) float64 and one-hot Y (N, d) float64."""
        F, labels = next(self.blocks(block_rows=len(self)))
        return F, one_hot(labels, self.num_classes)

    def _float64(self, start: int, stop: int) -> Tensor:
        block = self.features[start:stop]
        if isinstance(block, Tensor):
            return block.detach().to(torch.float64)
        # A fresh native-endian copy: the source may be read-only, strided or memory-mapped.
        return torch.from_numpy(np.array(block, dtype=np.float64, order="C"))


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Y (N, d) in float64: row i is the unit vector of labels[i]."""
    Y = torch.zeros((len(labels), num_classes), dtype=torch.float64, device=labels.device)
    return Y.scatter_(1, labels[:, None], 1.0)


def _sliceable(features: Any, who: str) -> Any:
    """Features as something with `shape` and `dtype` that can be sliced by rows."""
    if isinstance(features, Tensor):
        if features.is_complex():
            raise InputError(f"{who}features are {features.dtype}; give real numbers")
        if features.layout != torch.strided:
            raise InputError(f"{who}features are a {features.layout} tensor; call .to_dense() first")
    else:
        if hasattr(features, "toarray"):  # scipy's sparse matrices
            raise InputError(f"{who}features are a sparse {type(features).__name__}; call .toarray() first")
        if np.ma.is_masked(features):
            raise InputError(f"{who}features have masked entries; fill them or drop their rows")
        if not (hasattr(features, "shape") and hasattr(features, "dtype")):
            try:
                features = np.asarray(features)
            except ValueError as error:
                raise InputError(f"{who}features are not a rectangular array: {error}") from None
        dtype = np.dtype(features.dtype)
        # ml_dtypes' bfloat16 is of numpy's kind "V", and converts.
        if dtype.kind not in "fiub" and dtype.name != "bfloat16":
            raise InputError(f"{who}features have dtype {dtype}; give real numbers")
    if features.shape and features.shape[0] == 0:
        raise InputError(f"{who}there are no rows; leave a client without data out of the round")
    if len(features.shape) != 2:
        raise InputError(f"{who}features have shape {tuple(features.shape)}; give a table with a row for each sample")
    if features.shape[1] == 0:
        raise InputError(f"{who}features have no columns (shape {tuple(features.shape)})")
    return features


def _class_numbers(labels: ArrayLike, num_rows: int, num_classes: int, who: str) -> Tensor:
    """Labels as an int64 tensor of class numbers on the CPU."""
    if isinstance(labels, Tensor):  # numpy has no bfloat16
        labels = labels.detach().to_dense().cpu()
        labels = (labels.double() if labels.is_floating_point() else labels).numpy()
    try:
        values: npt.NDArray[Any] = np.asarray(labels)
    except ValueError as error:
        raise InputError(f"{who}labels are not a list of class numbers: {error}") from None
    if np.ma.is_masked(labels):
        raise InputError(f"{who}labels have masked entries; drop rows without a label")
    if values.dtype.kind not in "fiub":
        raise InputError(
            f"{who}labels have dtype {values.dtype}; give class numbers from 0 to {num_classes - 1} "
            "(numpy.unique(labels, return_inverse=True) makes them)"
        )
    if values.shape != (num_rows,):
        hint = "; one-hot rows become class numbers with .argmax(1)" if values.ndim == 2 else ""
        raise InputError(
            f"{who}labels have shape {values.shape} for {num_rows} rows; give one class number for each{hint}"
        )
    if values.dtype.kind == "f":
        _refuse(values != np.floor(values), values, "is not a whole number", num_classes, who)
    _refuse(~((values >= 0) & (values < num_classes)), values, "is out of range", num_classes, who)
    return torch.from_numpy(values.astype(np.int64))


def _refuse(bad: npt.NDArray[np.bool_], values: npt.NDArray[Any], what: str, d: int, who: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"{who}the label {values[row]} in row {row} {what}; class numbers go from 0 to {d - 1} (num_classes is {d})"
        )
