"""Every entrance refuses bad rows, labels and parameters, in words that name the value and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from fedhip import FedHiPError, PersonalizationPath, Statistics, errors, personalize, solve_global
from fedhip.core import RegularizationPath, Standardization, paper
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import InputError

F = np.random.default_rng(0).normal(size=(6, 3))
Y = np.array([0, 1, 2, 0, 1, 2])
TOTAL = Statistics.from_data(F, Y, 3)


def spoiled(value: float) -> Any:
    features = F.copy()
    features[4, 1] = value
    return features


ENTRANCES: list[Callable[[Any, Any], object]] = [
    lambda features, labels: Statistics.from_data(features, labels, 3, client="site-3"),
    lambda features, labels: GridStatistics.from_data(features, labels, 3, client="site-3"),
    lambda features, labels: personalize(TOTAL, features, labels, client="site-3"),
    lambda features, labels: PersonalizationPath(TOTAL, features, labels, client="site-3"),
    lambda features, labels: RegularizationPath(TOTAL).score(features, labels, client="site-3"),
]


@pytest.mark.parametrize("enter", ENTRANCES, ids=["statistics", "grid", "personalize", "path", "beta-path"])
@pytest.mark.parametrize(
    ("features", "labels", "error", "message"),
    [
        (spoiled(np.nan), Y, InputError, r"row 4, column 1 is nan; .*repair or drop"),
        (spoiled(-np.inf), Y, InputError, r"row 4, column 1 is -inf"),
        (torch.from_numpy(spoiled(1e5)).half(), Y, InputError, r"row 4, column 1 is inf"),
        (F + 1j, Y, InputError, r"dtype complex128; give real numbers"),
        (torch.from_numpy(F + 1j), Y, InputError, r"complex128; give real numbers"),
        (torch.from_numpy(F).to_sparse(), Y, InputError, r"to_dense\(\)"),
        (F.astype(str), Y, InputError, r"dtype <U32; give real numbers"),
        ([[1.0], [1.0, 2.0]], Y, InputError, "not a rectangular array"),
        (F[:, 0], Y, InputError, r"shape \(6,\); give a table"),
        (F[:, :0], Y, InputError, "no columns"),
        (F[:0], Y[:0], InputError, "no rows; leave a client without data out"),
        (F, [0, 1, 2, 0, 1, 3], InputError, r"label 3 in row 5 is out of range; class numbers go from 0 to 2"),
        (F, [0, -1, 2, 0, 1, 2], InputError, r"label -1 in row 1 is out of range"),
        (F, [0, 1, 2, 0.5, 1, 2], InputError, r"label 0.5 in row 3 is not a whole number"),
        (F, [0, 1, 2, np.nan, 1, 2], InputError, r"label nan in row 3 is not a whole number"),
        (F, [0, 1, 2, np.inf, 1, 2], InputError, r"label inf in row 3 is out of range"),
        (F, list("abcabc"), InputError, r"dtype <U1; give class numbers .*numpy\.unique"),
        (F, Y[:5], InputError, r"shape \(5,\) for 6 rows"),
        (F, [[0], [1, 2]], InputError, "not a list of class numbers"),
        (F, np.ma.masked_equal(Y, 2), InputError, "masked entries; drop rows"),
        (np.ma.masked_greater(F, 1.0), Y, InputError, "masked entries; fill them"),
        (scipy.sparse.csr_matrix(F), Y, InputError, r"sparse csr_matrix; call \.toarray\(\)"),
        ([], [], InputError, "no rows"),
        (F, np.eye(3)[Y], InputError, r"shape \(6, 3\) .*argmax\(1\)"),
    ],
)
def test_bad_rows(
    enter: Callable[[Any, Any], object], features: Any, labels: Any, error: type[FedHiPError], message: str
) -> None:
    with pytest.raises(error, match=f"client 'site-3': .*{message}"):
        enter(features, labels)


@pytest.mark.parametrize("num_classes", [0, -1, 2.5, True, "3", None])
def test_bad_number_of_classes(num_classes: Any) -> None:
    with pytest.raises(InputError, match=f"num_classes is {num_classes!r}; give a whole number"):
        Statistics.from_data(F, Y, num_classes)


@pytest.mark.parametrize("block_rows", [0, -5, 2.5])
def test_bad_block_size(block_rows: Any) -> None:
    with pytest.raises(InputError, match=f"block_rows is {block_rows}; give a whole number"):
        Statistics.from_data(F, Y, 3, block_rows=block_rows)


def test_the_bad_row_is_named_wherever_its_block_is() -> None:
    with pytest.raises(InputError, match="row 4, column 1 is nan"):
        Statistics.from_data(spoiled(np.nan), Y, 3, block_rows=3)


def test_features_whose_squares_are_not_finite() -> None:
    with pytest.raises(InputError, match=r"client 'site-3': the squares of the features exceed float64; rescale"):
        Statistics.from_data(1e160 * F, Y, 3, client="site-3")


BAD_NUMBERS = [-1.0, -1e-9, float("nan"), float("inf"), 1e308, 1.1e30, 10**400, "1", b"1", None, True]


@pytest.mark.parametrize("beta", BAD_NUMBERS)
def test_bad_beta(beta: Any) -> None:
    for call in (
        lambda: solve_global(TOTAL, beta),
        lambda: personalize(TOTAL, F, Y, 1.0, beta),
        lambda: PersonalizationPath(TOTAL, F, Y, beta),
        lambda: RegularizationPath(TOTAL, [1.0, beta]),
        lambda: RegularizationPath(TOTAL).weights(beta),
        lambda: paper.local_training(F, np.eye(3)[Y], beta),
        lambda: paper.aggregate([], beta),
    ):
        with pytest.raises(InputError, match=f"beta is {re.escape(repr(beta))}; give a number from 0 to 1e\\+30"):
            call()


@pytest.mark.parametrize("alpha", BAD_NUMBERS)
def test_bad_alpha(alpha: Any) -> None:
    path = PersonalizationPath(TOTAL, F, Y)
    for call in (
        lambda: personalize(TOTAL, F, Y, alpha),
        lambda: path.weights(alpha),
        lambda: path.loo_scores(alpha),
        lambda: path.loo_accuracy([0.0, alpha]),
        lambda: path.select([0.0, alpha]),
    ):
        with pytest.raises(InputError, match=f"alpha is {re.escape(repr(alpha))}; give a number from 0 to 1e\\+30"):
            call()


def test_no_alpha_and_no_beta_to_choose_from() -> None:
    with pytest.raises(InputError, match="at least one"):
        PersonalizationPath(TOTAL, F, Y).select([])
    with pytest.raises(InputError, match="at least one"):
        RegularizationPath(TOTAL, [])


def test_rows_of_another_width() -> None:
    for call in (
        lambda: personalize(TOTAL, F[:, :2], Y, client="site-3"),
        lambda: PersonalizationPath(TOTAL, F[:, :2], Y, client="site-3"),
    ):
        with pytest.raises(InputError, match=r"client 'site-3': features are 2 wide and the sum's 3"):
            call()


def test_rows_that_are_not_in_the_sum() -> None:
    with pytest.raises(InputError, match=r"client 'site-3': .* 3 rows of class 0 and the sum only 2"):
        personalize(TOTAL, F, [0, 0, 0, 1, 1, 2], client="site-3")
    # The counts fit, but the features are not those that were summed.
    for call in (
        lambda: personalize(TOTAL, 2 * F, Y),
        lambda: personalize(TOTAL, 2 * F, Y, 0.0),
        lambda: PersonalizationPath(TOTAL, 2 * F, Y),
        lambda: RegularizationPath(TOTAL).score(2 * F, Y),
    ):
        with pytest.raises(InputError, match=r"squares .*not in the sum; add the client's statistics first"):
            call()


def test_a_sum_without_rows_has_no_model() -> None:
    empty = TOTAL - TOTAL
    for call in (
        lambda: solve_global(empty),
        lambda: Standardization.of(empty),
        lambda: RegularizationPath(empty),
    ):
        with pytest.raises(InputError, match="holds no rows"):
            call()


def test_every_error_is_a_fedhip_error_and_what_python_calls_it() -> None:
    bases = {
        errors.ColumnError: ValueError,
        errors.DataMissingError: FileNotFoundError,
        errors.DownloadError: OSError,
        errors.GridOverflowError: OverflowError,
        errors.InputError: ValueError,
        errors.LossError: ArithmeticError,
        errors.MissingExtraError: ImportError,
        errors.RunExistsError: FileExistsError,
        errors.StatisticsError: ValueError,
    }
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert issubclass(kind, errors.FedHiPWarning if issubclass(kind, Warning) else FedHiPError)
            assert issubclass(kind, bases.get(kind, Exception))
