"""Rows that belong together (a patient's, a session's) are left out together.

With M = I − H over a client's rows, H the matrix that makes fits of targets, and S the rows of a group:

    y_S − loo_S = M_SS⁻¹ (y_S − fit_S)

are the residuals of the model that was fitted without the whole group, exactly. For groups of one row it is the
textbook formula with 1 − h_i in place of M_SS. `groups` are whole numbers from 0, one for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhip.errors import InputError
from fedhip.utils.groups import group_numbers


def checked_groups(groups: Any, rows: int, who: str = "") -> Tensor | None:
    """Groups (N,) as int64 from 0 in the order in which they appear; None where there are none."""
    if groups is None:
        return None
    values = np.asarray(groups.cpu() if isinstance(groups, Tensor) else groups)
    if values.shape != (rows,):
        raise InputError(f"{who}groups have shape {values.shape}, and there are {rows} rows; give one for each row")
    return torch.from_numpy(group_numbers(values))


def members(groups: Tensor) -> Iterator[Tensor]:
    """The places of each group's rows; a number that no row has is no group."""
    order = torch.argsort(groups, stable=True)
    yield from torch.split(order, [rows for rows in torch.bincount(groups).tolist() if rows])


def left_out_residuals(
    groups: Tensor, residuals: Tensor, remainder: Callable[[Tensor], tuple[Tensor, Tensor]], tolerance: float
) -> tuple[Tensor, Tensor]:
    """M_SS⁻¹ r_S of every group, for residuals (N, a, d) of `a` models; and which rows have any (N, a).

    `remainder(S)` gives M_SS (a, s, s) and what its rounding is relative to (a, s). A group that alone determines its
    own prediction has no residuals: the others say nothing of it.
    """
    found, known = torch.empty_like(residuals), torch.empty(residuals.shape[:2], dtype=torch.bool)
    known = known.to(residuals.device)
    for at in members(groups):
        S = at.to(residuals.device)
        M, most = remainder(S)
        root = most.clamp(min=torch.finfo(M.dtype).tiny).rsqrt()
        factor, info = torch.linalg.cholesky_ex(M * root[:, :, None] * root[:, None, :])
        fine = (info == 0) & (factor.diagonal(dim1=1, dim2=2).amin(dim=1).square() > tolerance)
        factor = torch.where(fine[:, None, None], factor, torch.eye(len(S)).to(factor))
        scaled = residuals[S].transpose(0, 1) * root[:, :, None]
        found[S] = (torch.cholesky_solve(scaled, factor) * root[:, :, None]).transpose(0, 1)
        known[S] = fine.expand(len(S), len(fine))
    return found, known


def classes_without(labels: Tensor, groups: Tensor, counts: Tensor) -> Tensor:
    """Rows of each class (N, d) that are left without the group of each row, of `counts` (d,) in all."""
    table = torch.zeros(
        (int(groups.max()) + 1 if len(groups) else 0, len(counts)), dtype=counts.dtype, device=counts.device
    )
    groups, labels = groups.to(counts.device), labels.to(counts.device)
    table.index_put_((groups, labels), torch.ones_like(labels, dtype=counts.dtype), accumulate=True)
    return counts - table[groups]
