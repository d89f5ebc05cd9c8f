import pytest
import torch

from fedhip.features.encoder.masking import row_noise

MASK = 2**64 - 1


def splitmix(x: int) -> int:
    """The published finaliser, on Python's unbounded integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_noise_is_the_published_hash() -> None:
    noise = row_noise(7, torch.tensor([0, 5, 123456]), 4)
    for i, row in enumerate((0, 5, 123456)):
        for patch in range(4):
            bits = splitmix(splitmix(splitmix(7) ^ row) ^ patch)
            assert float(noise[i, patch]) == (bits >> 11) / 2**53


def test_noise_of_a_row_does_not_depend_on_its_batch() -> None:
    together = row_noise(3, torch.arange(100), 16)
    assert torch.equal(together[40:60], row_noise(3, torch.arange(40, 60), 16))
    assert not torch.equal(together, row_noise(4, torch.arange(100), 16))


def test_noise_is_uniform() -> None:
    noise = row_noise(0, torch.arange(2000), 64)
    assert 0 <= float(noise.min()) < float(noise.max()) < 1
    assert float(noise.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(noise.var()) == pytest.approx(1 / 12, abs=0.002)
    kept_first = (noise.argsort(1)[:, :16] == 0).any(1).double().mean()
    assert float(kept_first) == pytest.approx(0.25, abs=0.04)
