"""Coordinates in which the metric of a penalty and a Gram matrix are diagonal at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhip.core.solvers import cholesky_if_regular
from fedhip.errors import InputError


@dataclass(frozen=True)
class Geometry:
    """Coordinates in which metric and Gram matrix are diagonal: BᵀMB = I, BᵀAB = diag(values); W = B θ."""

    B: Tensor
    inverse: Tensor
    values: Tensor

    @classmethod
    def of(cls, gram: Tensor, metric: Tensor) -> Geometry:
        """Of a positive definite metric."""
        L = cholesky_if_regular(metric)
        if L is None:
            raise InputError("the metric of the penalty is singular; give the discriminant a shrinkage above 0")
        half = torch.linalg.solve_triangular(L, gram, upper=False)
        whole = torch.linalg.solve_triangular(L, half.mT, upper=False)
        values, V = torch.linalg.eigh((whole + whole.mT) / 2.0)
        return cls(torch.linalg.solve_triangular(L.mT, V, upper=True), V.mT @ L.mT, values.clamp(min=0.0))
