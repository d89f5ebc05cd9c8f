"""What a GPU does for all clients at once, against one client after another."""

from __future__ import annotations

import pytest
import torch

from fedhip.methods.engine import laboratory as engine
from fedhip.methods.engine.laboratory import Laboratory, mean_by_class, slice_of, take
from fedhip.methods.trained.fedpcl import embed
from fedhip.methods.trained.fedselect import choose
from tests.methods.problems import CLASSES, PROTOCOL, WIDTH, federation


@pytest.mark.parametrize("rows_at_a_time", [1, 7, 512])
@pytest.mark.parametrize("present", [[0, 1, 2, 3, 4], [3, 1]])
def test_class_means(rows_at_a_time: int, present: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of 1 to 70 rows, among them one with a single class."""
    monkeypatch.setattr(engine, "CLASS_MEAN_ROWS", rows_at_a_time)
    lab = Laboratory(federation(), CLASSES, PROTOCOL, dtype=torch.float64, together=True)
    generator = torch.Generator().manual_seed(0)
    shapes = ((lab.size, WIDTH, 5), (lab.size, 5))
    params = take(tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes), present)
    found = lab.class_means(embed, params, present)
    for i, k in enumerate(present):
        x, y = federation()[k].train
        z = embed(slice_of(params, i), torch.from_numpy(x)[None])[0]
        torch.testing.assert_close(found[i], mean_by_class(z, torch.from_numpy(y), CLASSES), rtol=0, atol=1e-12)


def by_hand(mask: torch.Tensor, drift: torch.Tensor, percent: float, limit: float) -> torch.Tensor:
    """One client: sort the shared entries by drift, and take the first."""
    shared = [place for place in range(mask.numel()) if not mask.flatten()[place]]
    if mask.numel() - len(shared) > limit / 100 * mask.numel():
        return mask
    shared.sort(key=lambda place: -float(drift.flatten()[place]))
    chosen = mask.flatten().clone()
    chosen[shared[: len(shared) - round((1 - percent / 100) * len(shared))]] = True
    return chosen.view(mask.shape)


@pytest.mark.parametrize("percent", [0.0, 10.0, 25.0, 100.0])
def test_entries_that_become_personal(percent: float) -> None:
    """Clients of which none, some, many and all entries are personal already."""
    generator = torch.Generator().manual_seed(1)
    shares = torch.tensor([0.0, 0.0, 0.3, 0.7, 0.9, 1.0])[:, None, None]
    mask = torch.rand(6, 9, 5, generator=generator) < shares
    drift = torch.rand(6, 9, 5, generator=generator)
    found = choose(mask, drift, percent, 80.0)
    for got, m, moved in zip(found, mask, drift, strict=True):
        assert torch.equal(got, by_hand(m, moved, percent, 80.0))
