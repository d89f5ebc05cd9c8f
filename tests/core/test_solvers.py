"""Singular systems: found, said, and solved with minimum norm."""

from __future__ import annotations

import re
import warnings
from decimal import ROUND_CEILING, Context

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhip import PersonalizationPath, Statistics, personalize, solve_global
from fedhip.core.ridge.personalization import personalize_from_statistics
from fedhip.core.solvers import CholeskyFactor, EigenFactor, factorize, rank_tolerance
from fedhip.errors import NumericalWarning
from tests.core.problems import Array, relative_error


@st.composite
def singular_rows(draw: st.DrawFn) -> tuple[Array, Array]:
    """Rows of deficient rank: too few, or features that are sums of others, or features that are always zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m = draw(st.integers(2, 40))
    kind = draw(st.sampled_from(["few rows", "dependent", "dead"]))
    scale = draw(st.sampled_from([1e-8, 1e-4, 1.0, 1e4]))
    F = rng.normal(size=(draw(st.integers(1, m - 1)) if kind == "few rows" else 3 * m, m))
    if kind == "dependent":
        F[:, -1] = F[:, : m - 1].sum(1)
    if kind == "dead":
        F[:, int(rng.integers(m))] = 0.0
    return scale * F, rng.integers(0, 3, len(F))


@given(singular_rows())
def test_a_singular_sum_gives_the_minimum_norm_solution_and_says_so(rows: tuple[Array, Array]) -> None:
    F, y = rows
    total = Statistics.from_data(F, y, 3)
    with pytest.warns(NumericalWarning, match="minimum norm") as caught:
        G = solve_global(total, 0.0)
    message = str(caught[0].message)
    rank = np.linalg.matrix_rank(F)
    assert f"rank {rank} of {F.shape[1]}" in message
    expected = np.linalg.lstsq(F, np.eye(3)[y], rcond=1e-10)[0]
    singular_values = np.linalg.svd(F)[1]
    condition = singular_values[0] / singular_values[rank - 1]
    assert relative_error(G, expected) <= 1e-11 * condition**2

    named = float(re.search(r"beta >= (\S+) makes", message)[1])  # type: ignore[index]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve_global(total, named)


def test_the_beta_named_is_about_the_smallest_that_helps() -> None:
    rng = np.random.default_rng(0)
    F = rng.normal(size=(60, 20))
    F[:, -1] = F[:, :-1].sum(1)
    total = Statistics.from_data(F, rng.integers(0, 3, 60), 3)
    with pytest.warns(NumericalWarning, match="minimum norm") as caught:
        solve_global(total, 0.0)
    named = float(re.search(r"beta >= (\S+) makes", str(caught[0].message))[1])  # type: ignore[index]
    with pytest.warns(NumericalWarning, match="minimum norm"):
        solve_global(total, named / 100)


@pytest.mark.parametrize("scale", [3e-5, 7e-2, 1.0, 40.0, 9e3])
def test_the_beta_named_is_rounded_up_to_one_digit(scale: float) -> None:
    """Twice a feature, without noise: the scaled matrix has one eigenvalue 0, and both features the same square."""
    one_digit = Context(prec=1, rounding=ROUND_CEILING)
    expected = one_digit.create_decimal_from_float(2 * rank_tolerance(2) * scale)
    with pytest.warns(NumericalWarning, match="minimum norm") as caught:
        factorize(torch.full((2, 2), scale, dtype=torch.float64))
    assert f"beta >= {float(expected):.0e} makes" in str(caught[0].message)


def minimum_norm(F: Array, Y: Array) -> tuple[Array, int]:
    """F⁺Y by singular values in 80 digits, and the rank."""
    with mpmath.workdps(80):
        U, S, V = mpmath.svd_r(mpmath.matrix(F.tolist()))
        rank = sum(value > S[0] * mpmath.mpf(10) ** -50 for value in S)
        turned = mpmath.diag([1 / S[i] for i in range(rank)]) * (U[:, :rank].T * mpmath.matrix(Y.tolist()))
        return np.array((V[:rank, :].T * turned).tolist(), dtype=float).reshape(F.shape[1], Y.shape[1]), rank


@pytest.mark.parametrize("small", [1.0, 1e-4, 1e-8, 1e-12])
def test_a_small_unit_does_not_cost_a_feature_where_others_are_twice_there(small: float) -> None:
    """What tells the classes apart is in small units, beside noise that is there twice."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    noise = rng.normal(size=200)
    F = np.stack((noise, noise, small * (2 * y - 1), np.zeros(200)), axis=1)
    with pytest.warns(NumericalWarning, match="rank 2 of 4") as caught:
        G = solve_global(Statistics.from_data(F, y, 2), 0.0)
    assert (F @ G.numpy()).argmax(axis=1).tolist() == y.tolist()
    assert not G[3].any()
    # The beta that mends the noise drowns the small feature, and that is said.
    assert ("comparable units" in str(caught[0].message)) == (small < 1e-4)


@pytest.mark.parametrize("spread", [0, 5, 13, 27])
@pytest.mark.parametrize("seed", range(3))
def test_minimum_norm_whatever_the_units(seed: int, spread: int) -> None:
    """Against 80 digits: units from 2^-spread to 2^spread, two features that follow from others, one always zero."""
    rng = np.random.default_rng(seed)
    F, y = rng.integers(-20, 20, (30, 8)).astype(float), rng.integers(0, 3, 30)
    F[:, 5], F[:, 6], F[:, 7] = F[:, 0] + F[:, 1], F[:, 2], 0.0
    units = 2.0 ** rng.integers(-spread, spread + 1, 8)
    fresh = rng.normal(size=(5, 8)) * units
    # Where features that follow from each other have one unit, so that rows of no direction seen are scored alike.
    alike = np.where(np.isin(np.arange(8), (3, 4)), units, 1.0)
    for by in (units, alike):
        expected, rank = minimum_norm(F * by, np.eye(3)[y])
        total = Statistics.from_data(F * by, y, 3)
        with pytest.warns(NumericalWarning, match=f"rank {rank} of 8") as caught:
            G = solve_global(total, 0.0).numpy()
        assert relative_error(F * by @ G, F * by @ expected) <= 1e-12
        named = float(re.search(r"beta >= (\S+) makes", str(caught[0].message))[1])  # type: ignore[index]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            solve_global(total, named)
        with pytest.warns(NumericalWarning, match="minimum norm"):
            solve_global(total, named / 100)
    assert relative_error(fresh / units * alike @ G, fresh / units * alike @ expected) <= 1e-12


def test_the_beta_named_is_in_the_units_of_the_features_it_is_for() -> None:
    """Two small features alike beside a large one: a beta for the large one's sake would drown them."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    small = 1e-8 * (2 * y - 1)
    total = Statistics.from_data(np.stack((small, small, rng.normal(size=200)), axis=1), y, 2)
    with pytest.warns(NumericalWarning, match="minimum norm") as caught:
        solve_global(total, 0.0)
    named = float(re.search(r"beta >= (\S+) makes the solution unique$", str(caught[0].message))[1])  # type: ignore[index]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        G = solve_global(total, named)
    assert float(G[0, 1] - G[0, 0]) * 1e-8 == pytest.approx(0.5, rel=0.01)


def test_every_route_to_a_singular_model_gives_the_same() -> None:
    """Fewer rows than features, some in other units, and rows that lie in no direction of the sum's."""
    rng = np.random.default_rng(0)
    units = np.where(np.arange(12) % 3 == 0, 100.0, 1.0)
    F, y, fresh = units * rng.normal(size=(8, 12)), rng.integers(0, 3, 8), units * rng.normal(size=(20, 12))
    total, own = Statistics.from_data(F, y, 3), Statistics.from_data(F[:3], y[:3], 3)
    root = np.where(np.arange(8) < 3, np.sqrt(21.0), 1.0)[:, None]
    expected = fresh @ minimum_norm(root * F, root * np.eye(3)[y])[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        models = (
            personalize(total, F[:3], y[:3], 20.0, 0.0),
            PersonalizationPath(total, F[:3], y[:3], 0.0).weights(20.0),
            personalize_from_statistics(total, own, 20.0, 0.0),
            PersonalizationPath(total, F[:3], y[:3], 0.0).weights(20.0),
        )
    for model in models:
        assert relative_error(fresh @ model.numpy(), expected) <= 1e-10


@pytest.mark.parametrize("m", [1, 2, 30, 200])
def test_a_regular_sum_is_solved_without_a_word(m: int) -> None:
    rng = np.random.default_rng(m)
    for scale in (1e-6, 1.0, 1e6):
        F, y = scale * rng.normal(size=(3 * m, m)), rng.integers(0, 3, 3 * m)
        expected = np.linalg.lstsq(F, np.eye(3)[y], rcond=None)[0]
        assert relative_error(solve_global(Statistics.from_data(F, y, 3), 0.0), expected) <= 1e-10


def test_badly_scaled_features_are_not_taken_for_a_singular_sum() -> None:
    """Cholesky does not mind features in different units; a cut on eigenvalues would drop the small ones."""
    rng = np.random.default_rng(0)
    units = np.array([1e-9, 1.0, 1e9])
    F, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    expected = np.linalg.lstsq(F, np.eye(2)[y], rcond=None)[0]
    G = solve_global(Statistics.from_data(F * units, y, 2), 0.0).numpy() * units[:, None]
    assert relative_error(G, expected) <= 1e-10


@pytest.mark.parametrize("distance", [1e-3, 1e-4, 1e-5])
def test_features_that_are_nearly_sums_of_others_are_not_taken_for_it(distance: float) -> None:
    """Ill-conditioned is not singular: down to 1e-5 the solution has digits to give, and is the least squares one."""
    rng = np.random.default_rng(0)
    F, y = rng.normal(size=(60, 20)), rng.integers(0, 3, 60)
    F[:, -1] = F[:, :-1].sum(1) + distance * rng.normal(size=60)
    expected = np.linalg.lstsq(F, np.eye(3)[y], rcond=None)[0]
    assert relative_error(solve_global(Statistics.from_data(F, y, 3), 0.0), expected) <= 1e-13 / distance**2


def test_a_huge_alpha_with_duplicate_rows_still_has_an_answer() -> None:
    rng = np.random.default_rng(0)
    F, y = np.repeat(rng.normal(size=(4, 20)), 2, axis=0), np.repeat(rng.integers(0, 3, 4), 2)
    total = Statistics.from_data(F, y, 3)
    with pytest.warns(NumericalWarning, match="minimum norm"):
        P = personalize(total, F, y, 1e17, 1.0)
    assert float((torch.from_numpy(F) @ P - torch.from_numpy(np.eye(3)[y])).abs().max()) <= 1e-6


def test_both_factors_whiten_alike() -> None:
    rng = np.random.default_rng(0)
    F = torch.from_numpy(rng.normal(size=(30, 8)))
    H, X = F.mT @ F, torch.from_numpy(rng.normal(size=(5, 8)))
    values, V = torch.linalg.eigh(H)
    expected = X @ torch.linalg.inv(H) @ X.mT
    chosen = factorize(H)
    assert isinstance(chosen, CholeskyFactor)
    for factor in (chosen, EigenFactor(V, values)):
        assert relative_error(factor.whiten(X) @ factor.whiten(X).mT, expected) <= 1e-12
        assert relative_error(factor.unwhiten(factor.whiten(X).mT), torch.linalg.solve(H, X.mT)) <= 1e-12


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("rank", [8, 3])
def test_a_matrix_that_is_made_is_factored_in_its_place_and_one_that_is_given_stays(rank: int, beta: float) -> None:
    rng = np.random.default_rng(0)
    F = torch.from_numpy(rng.integers(-9, 9, (30, rank)) @ rng.integers(-9, 9, (rank, 8))).double()
    H, X = F.mT @ F, torch.from_numpy(rng.normal(size=(5, 8)))
    made: list[torch.Tensor] = []

    def make() -> torch.Tensor:
        made.append(H.clone())
        return made[-1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        ours, theirs = factorize(make, beta), factorize(H, beta)
    assert torch.equal(H, F.mT @ F)
    assert torch.equal(ours.whiten(X), theirs.whiten(X))
    expected = X @ torch.linalg.pinv(H + beta * torch.eye(8), hermitian=True) @ X.mT
    assert relative_error(ours.whiten(X) @ ours.whiten(X).mT, expected) <= 1e-8
    if isinstance(ours, CholeskyFactor):
        assert ours.R.data_ptr() == made[-1].data_ptr()


def test_a_sum_of_nothing_but_zeros_gives_the_zero_model() -> None:
    total = Statistics.from_data(np.zeros((4, 3)), np.zeros(4), 2)
    with pytest.warns(NumericalWarning, match="rank 0 of 3"):
        assert not solve_global(total, 0.0).any()
    assert not solve_global(total, 1.0).any()
