"""Singular systems: found, said, and solved with minimum norm."""

from __future__ import annotations

import re
import warnings
from decimal import ROUND_CEILING, Context
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhip import Statistics, personalize, solve_global
from fedhip.core.errors import SingularSystemWarning
from fedhip.core.solvers import CholeskyFactor, EigenFactor, factorize, rank_tolerance, smallest_helpful_beta
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
    with pytest.warns(SingularSystemWarning) as caught:
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
    with pytest.warns(SingularSystemWarning) as caught:
        solve_global(total, 0.0)
    named = float(re.search(r"beta >= (\S+) makes", str(caught[0].message))[1])  # type: ignore[index]
    with pytest.warns(SingularSystemWarning):
        solve_global(total, named / 100)


@pytest.mark.parametrize("scale", [3e-5, 7e-2, 1.0, 40.0, 9e3])
def test_the_beta_named_is_rounded_up_to_one_digit(scale: float) -> None:
    one_digit = Context(prec=1, rounding=ROUND_CEILING)
    expected = float(one_digit.create_decimal_from_float(2 * rank_tolerance(20) * scale))
    assert smallest_helpful_beta(scale * torch.eye(20, dtype=torch.float64)) == pytest.approx(expected, rel=1e-12)


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
    with pytest.warns(SingularSystemWarning):
        P = personalize(total, F, y, 1e17, 1.0, route="low-rank")
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
        warnings.simplefilter("ignore", SingularSystemWarning)
        ours, theirs = factorize(make, beta), factorize(H, beta)
    assert torch.equal(H, F.mT @ F)
    assert torch.equal(ours.whiten(X), theirs.whiten(X))
    expected = X @ torch.linalg.pinv(H + beta * torch.eye(8), hermitian=True) @ X.mT
    assert relative_error(ours.whiten(X) @ ours.whiten(X).mT, expected) <= 1e-8
    if isinstance(ours, CholeskyFactor):
        assert ours.R.data_ptr() == made[-1].data_ptr()


def test_a_sum_of_nothing_but_zeros_gives_the_zero_model() -> None:
    total = Statistics.from_data(np.zeros((4, 3)), np.zeros(4), 2)
    with pytest.warns(SingularSystemWarning, match="rank 0 of 3"):
        assert not solve_global(total, 0.0).any()
    assert not solve_global(total, 1.0).any()


@pytest.mark.parametrize(("rows", "route"), [(10, "low-rank"), (11, "cholesky")])
def test_the_route_is_chosen_by_size(rows: int, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """m = 30: up to 10 rows the low-rank correction, which alone factors an (N_k, N_k) matrix."""
    rng = np.random.default_rng(0)
    F, y = rng.normal(size=(100, 30)), rng.integers(0, 3, 100)
    cholesky = Mock(wraps=torch.linalg.cholesky_ex)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", cholesky)
    personalize(Statistics.from_data(F, y, 3), F[:rows], y[:rows])
    sizes = [len(call.args[0]) for call in cholesky.call_args_list]
    assert sizes == ([30, rows] if route == "low-rank" else [30])
