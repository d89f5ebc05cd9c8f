"""What a row can change, what noise hides it, and what attacks find: on the whole numbers that would be sent."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import InputError
from fedhip.privacy.attacks import Upload, recover_rows
from fedhip.privacy.mechanism import Mechanism
from fedhip.privacy.public import PublicMap, PublicMoments
from tests.drawing import examples

Real = NDArray[np.float64]


def mechanism(**given: object) -> Mechanism:
    standard = Mechanism(1.0, 1e-5, "row", 1, 3, 4)
    return dataclasses.replace(standard, **given)  # type: ignore[arg-type]


def ints(own: GridStatistics) -> tuple[list[list[int]], list[list[int]]]:
    return own.gram.tolist(), own.cross.tolist()


def length(a: GridStatistics, b: GridStatistics) -> float:
    """Between two data sets' numbers, in units: √(‖ΔG‖² + ‖ΔH‖²), in whole numbers of any size until the root."""
    square = 0
    for mine, theirs in zip(ints(a), ints(b), strict=True):
        square += sum((x - y) ** 2 for p, q in zip(mine, theirs, strict=True) for x, y in zip(p, q, strict=True))
    return math.sqrt(square) * 2.0**-a.fraction_bits


PUBLIC = PublicMap.of_length(3, 2.0)
numbers = st.floats(-1e6, 1e6) | st.floats(-3.0, 3.0)


@given(
    rows=st.lists(st.tuples(numbers, numbers, numbers, st.integers(0, 2)), min_size=1, max_size=5),
    more=st.tuples(numbers, numbers, numbers, st.integers(0, 2)),
    epsilon=st.sampled_from([0.1, 1.0, 8.0]),
)
@examples(40)
def test_one_row_more_changes_the_sum_by_no_more_than_the_sensitivity(
    rows: list[tuple[float, float, float, int]], more: tuple[float, float, float, int], epsilon: float
) -> None:
    noise = mechanism(epsilon=epsilon)

    def encoded(data: list[tuple[float, float, float, int]]) -> GridStatistics:
        F, y = np.array([row[:3] for row in data], float).reshape(-1, 3), np.array([row[3] for row in data], int)
        return noise.encoded(PUBLIC, F, y, 3, "k")

    assert length(encoded([*rows, more]), encoded(rows)) <= noise.sensitivity
    assert int(encoded(rows).counts.sum()) == 0  # nothing is told beside


def test_the_sensitivity_is_what_the_longest_row_does() -> None:
    """√(B⁴ + B²) with B² = 1 + ¼: a bound much above it would be noise for nothing."""
    noise = mechanism()
    near = noise.encoded(PUBLIC, np.zeros((1, 3)), np.array([0]), 3, "k")
    both = noise.encoded(PUBLIC, np.array([[0.0, 0.0, 0.0], [1e5, 0.0, 0.0]]), np.array([0, 1]), 3, "k")
    found = length(both, near)
    assert noise.sensitivity == pytest.approx(math.sqrt(1.25**2 + 1.25))
    assert 0.99 * noise.sensitivity < found <= noise.sensitivity


def test_rows_within_the_bound_are_not_clipped() -> None:
    rows = torch.tensor([[0.5, -1.0, 1.0], [30.0, 0.0, 40.0]], dtype=torch.float64)
    z = PUBLIC.clipped(rows)
    torch.testing.assert_close(z[0], rows[0] / 2.0)
    torch.testing.assert_close(z[1], torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64))


def test_what_becomes_of_a_row_is_the_same_to_the_bit_whatever_rows_are_beside_it() -> None:
    """A product in floating point is not: a row less would move others that lie at the edge of a step of the grid."""
    rng = np.random.default_rng(0)
    V = torch.from_numpy(rng.normal(size=(300, 40)) / 20.0)
    public = PublicMap(torch.from_numpy(rng.normal(size=300)), V, 0.0, "a test")
    rows = torch.from_numpy(rng.normal(size=(203, 300)) * rng.choice([0.1, 1.0, 1e3], (203, 1)))
    plain = (rows - public.mean) @ V
    moved = sum(bool(((rows[k:] - public.mean) @ V != plain[k:]).any()) for k in range(1, 9))
    assert moved > 0  # what is guarded against does happen
    found = public.clipped(rows)
    for k in (1, 2, 3, 5, 8, 150, 202):
        assert torch.equal(public.clipped(rows[k:]), found[k:])
        assert torch.equal(public.clipped(rows[:k]), found[:k])
    lengths = torch.linalg.vector_norm(plain, dim=1, keepdim=True)
    torch.testing.assert_close(found, plain / lengths.clamp(min=1.0), rtol=0.0, atol=2e-5)
    assert float(torch.linalg.vector_norm(found, dim=1).max()) <= 1.0


def test_rows_as_far_out_as_a_number_can_be_are_clipped_like_others() -> None:
    far = torch.tensor([[1e200, 0.5], [1.7e308, -1.7e308], [5e-301, 0.5], [0.0, 0.0]], dtype=torch.float64)
    ranges = PublicMap.of_ranges([0.0, 0.0], [1e-300, 1.0], 1.0, "a test")
    found = torch.cat((ranges.clipped(far[[0, 2]]), PublicMap.of_length(2, 1.0).clipped(far[[1, 3]])))
    root = 0.5**0.5
    wanted = torch.tensor([[1.0, 0.0], [0.0, 0.0], [root, -root], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)
    mechanism().encoded(PUBLIC, np.full((1, 3), 1.7e308), np.array([0]), 3, "k")  # no overflow on the grid


@pytest.mark.parametrize("clients", [2, 3, 50])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_shares_of_any_honest_survivors_reach_sigma(clients: int, epsilon: float) -> None:
    noise = mechanism(epsilon=epsilon, clients=clients)
    diagonal, beside = noise.share
    needed = noise.sigma * 2.0**noise.fraction_bits
    for survivors in range(noise.honest, clients + 1):
        assert survivors * diagonal**2 >= needed**2
        assert 2 * survivors * beside**2 >= needed**2
    # and with one share less they would not: no noise is wasted
    assert (noise.honest - 1) * diagonal**2 < needed**2
    assert noise.spent(10**6) <= epsilon
    assert noise.spent(10**6) > 0.999 * epsilon
    assert diagonal >= 1 << 20


def test_noise_has_the_deviations_it_should_have() -> None:
    noise, rng = mechanism(width=40, clients=5, lost=2), np.random.default_rng(0)
    total = sum((noise.noise(7, rng.bytes) for _ in range(5)), start=0)
    assert isinstance(total, GridStatistics)
    assert torch.equal(total.gram, total.gram.mT)
    step = 2.0**-total.fraction_bits
    expected = noise.sigma * math.sqrt(5 / 3)
    assert noise.total_sigma == pytest.approx(expected, rel=1e-5)
    off = total.gram[tuple(torch.triu_indices(41, 41, offset=1))].double().numpy() * step
    cross = total.cross.double().numpy().ravel() * step
    for part, sigma in ((off, expected / math.sqrt(2)), (cross, expected)):
        square = float((part**2).sum() / sigma**2)  # chi-square
        assert 1e-6 < stats.chi2.sf(square, len(part)) < 1 - 1e-6


def test_a_likelihood_ratio_attack_on_real_sums_stays_under_epsilon() -> None:
    """The best test between two neighbours there is. What it finds is below ε; with a tenth of the noise, above."""
    epsilon, trials = 3.0, 500
    noise, rng = mechanism(epsilon=epsilon, width=2, clients=2), np.random.default_rng(1)
    public = PublicMap.of_length(2, 1.0)
    F, y = np.array([[0.3, 0.1], [-0.2, 0.9], [5.0, 5.0]]), np.array([0, 1, 1])
    without, with_it = (noise.encoded(public, F[:n], y[:n], 2, "k") for n in (2, 3))

    def vector(grid: GridStatistics) -> Tensor:
        upper = torch.triu_indices(3, 3)
        return torch.cat((grid.gram[upper[0], upper[1]], grid.cross.flatten())).double()

    sigma, beside = noise.share
    upper = torch.triu_indices(3, 3)
    deviations = torch.cat((torch.where(upper[0] == upper[1], sigma, beside), torch.full((6,), sigma))).double()
    apart = (vector(with_it) - vector(without)) / deviations**2
    middle = float((vector(with_it) + vector(without)) @ apart) / 2.0
    # The attacker is the other client: it has taken its own share off.
    draws = torch.stack([vector(noise.noise(2, rng.bytes)) for _ in range(2 * trials)])

    def found(part: float) -> float:
        """The largest ε that the attack shows, at 99.9 % confidence."""
        there = ((vector(with_it) + part * draws[:trials]) @ apart - middle).numpy()
        gone = ((vector(without) + part * draws[trials:]) @ apart - middle).numpy()
        most = 0.0
        for threshold in np.quantile(np.concatenate((there, gone)), np.linspace(0.05, 0.95, 19)):
            hits, alarms = int((there > threshold).sum()), int((gone > threshold).sum())
            low = stats.beta.ppf(0.0005, hits, trials - hits + 1) if hits else 0.0
            high = stats.beta.ppf(0.9995, alarms + 1, trials - alarms) if alarms < trials else 1.0
            if low > noise.delta:
                most = max(most, math.log((low - noise.delta) / high))
        return most

    assert 0.2 < found(1.0) <= epsilon
    assert found(0.1) > epsilon


def test_the_lattice_attack_finds_every_row_without_noise_and_none_with_it() -> None:
    rng, width, rows = np.random.default_rng(0), 40, 20
    noise = mechanism(epsilon=8.0, width=width - 1, clients=2)
    F, y = rng.normal(size=(rows, width - 1)), rng.integers(0, 2, rows)
    own = noise.encoded(PublicMap.of_length(width - 1, 5.0), F, y, 2, "k")
    counts = torch.tensor(np.bincount(y, minlength=2))
    exact = GridStatistics(own.gram, own.cross, counts, own.fraction_bits)
    recovered = recover_rows(Upload.of(exact))
    assert recovered is not None
    assert len(recovered) == rows
    noisy = own + noise.noise(2, rng.bytes)
    assert recover_rows(Upload.of(GridStatistics(noisy.gram, noisy.cross, counts, noisy.fraction_bits))) is None


def test_a_mechanism_is_what_its_dictionary_says() -> None:
    noise = mechanism(unit="group", unit_rows=3)
    found = noise.to_dict()
    assert Mechanism.from_dict(found) == noise
    assert {"epsilon", "delta", "unit", "mechanism", "sigma", "width"} <= set(found)
    assert noise.sensitivity == pytest.approx(3 * mechanism().sensitivity)
    assert "all training rows of a group together (at most 3 of them are used)" in found["guarantee"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"delta": 2.0}, "delta is 2.0"),
        ({"unit": "house"}, "unit is 'house'"),
        ({"unit_rows": 0}, "unit_rows is 0"),
        ({"unit_rows": 2.5}, "unit_rows is 2.5"),
        ({"clients": 1}, "there are 1 clients, and 1 may know .* at least 2"),
        ({"epsilon": 1e-4}, "epsilon is 0.0001: noise of .* rows would bury"),
    ],
)
def test_what_cannot_be_guaranteed_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mechanism(**given)


def test_public_rows_say_where_private_ones_lie() -> None:
    """Half of the public rows are shorter than 1, in all directions alike; nothing is lost to a client itself."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 6)) * np.array([9.0, 5.0, 3.0, 1.0, 0.5, 0.1]) + 7.0
    found = PublicMap.of_moments(PublicMoments.of(X, 3), "public rows")
    assert found.width == 3
    rows = torch.from_numpy(X)
    z = (rows - found.mean) @ found.directions
    assert float((torch.linalg.vector_norm(z, dim=1) <= 1.0).double().mean()) == 0.5
    covariance = torch.cov(z.mT)
    torch.testing.assert_close(covariance, torch.eye(3, dtype=torch.float64) * covariance[0, 0], atol=1e-9, rtol=1e-9)
    full = found.full(rows)
    torch.testing.assert_close(full[:, :3], z)
    assert full.shape == (400, 6)
    assert torch.linalg.matrix_rank(full - full.mean(dim=0)) == 6
    W = torch.from_numpy(rng.normal(size=(7, 2)))
    torch.testing.assert_close(found.on_raw(W).scores(rows), full @ W[:-1] + W[-1])
    torch.testing.assert_close(found.on_raw(W[[0, 1, 2, 6]]).scores(rows), z @ W[:3] + W[6])


def test_public_files_come_back(tmp_path: Path) -> None:
    path = tmp_path / "public.safetensors"
    moments = PublicMoments.of(np.random.default_rng(0).normal(size=(100, 5)), 4)
    moments.to_file(path)
    again = PublicMoments.from_file(path)
    np.testing.assert_allclose(again.directions, moments.directions, atol=1e-3)
    PUBLIC.to_file(path)
    assert torch.equal(PublicMap.from_file(path).directions, PUBLIC.directions)
    assert PublicMap.from_file(path).source == PUBLIC.source


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((3, 2)), "3 public rows, too few"),
        (np.ones((50, 2)), "all public rows are the same"),
        (np.array([[np.nan, 1.0]] * 50), "finite numbers"),
    ],
)
def test_public_rows_that_say_nothing_are_refused(rows: Real, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PublicMoments.of(rows)


def test_features_of_another_backbone_are_refused() -> None:
    with pytest.raises(InputError, match=r"features are 5 wide, and what is public of them .* is of 3"):
        PUBLIC.require_width(5)
    with pytest.raises(InputError, match="clip is -1"):
        PublicMap.of_length(3, -1.0)


@pytest.mark.parametrize("short", [1e-6, 0.01, 0.3, 0.9])
def test_the_epsilon_that_a_refusal_names_is_larger_than_the_one_refused(short: float) -> None:
    """Rounded to the nearest, a federation a little too small for 0.1 was told to take 0.1."""
    noisy = mechanism(epsilon=0.1)
    rows = (1.0 - short) * noisy.least_rows(3)
    named = float(f"{noisy.larger_epsilon(rows, 3):g}")
    assert 0.1 / (1.0 - short) <= named <= 0.1 / (1.0 - short) * 1.11
