"""The paper's lemma and theorems under their names, and what follows from them."""

from __future__ import annotations

import itertools
from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedhip import PersonalizationPath, Statistics, aggregate, personalize, solve_global
from fedhip.core import paper, personalize_from_statistics
from fedhip.core.exact.fixedpoint import GridStatistics, decode, encode, round_features
from fedhip.errors import InputError
from tests.core.problems import (
    Array,
    Client,
    Federation,
    attainable,
    dirichlet_redistribution,
    federations,
    mpmath_oracle,
    relative_error,
    ridge_oracle,
)

penalties = st.sampled_from([1.0, 5.0, 60.0])
alphas = st.sampled_from([0.0, 0.5, 20.0, 60.0])
seeds = st.integers(0, 2**32 - 1)


def statistics_of(clients: list[Client], d: int) -> list[Statistics]:
    return [Statistics.from_data(F, y, d) for F, y in clients]


def uploads(federation: Federation, beta: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [paper.local_training(F, federation.one_hot(y), beta) for F, y in federation.clients]


@given(federations(), penalties)
def test_lemma_1_knowledge_fusion_matrix_has_the_closed_form(federation: Federation, penalty: float) -> None:
    beta = federation.beta(penalty)
    _, M, _ = paper.aggregate(uploads(federation, beta), beta)
    K = len(federation.clients)
    expected = ridge_oracle(federation.features, federation.one_hot(federation.labels), K * beta)
    assert relative_error(M, expected) <= 1e-9


@given(federations(), penalties)
def test_theorem_1_global_equals_centralized(federation: Federation, penalty: float) -> None:
    beta = federation.beta(penalty)
    expected = ridge_oracle(federation.features, federation.one_hot(federation.labels), beta)
    total = aggregate(statistics_of(federation.clients, federation.num_classes))
    assert relative_error(solve_global(total, beta), expected) <= 1e-10
    assert relative_error(paper.aggregate(uploads(federation, beta), beta)[2], expected) <= 1e-9


@given(federations(), penalties, alphas, st.data())
def test_theorem_2_personalized_equals_weighted_ridge(
    federation: Federation, penalty: float, alpha: float, data: st.DataObject
) -> None:
    beta = federation.beta(penalty)
    k = data.draw(st.integers(0, len(federation.clients) - 1))
    F, y = federation.clients[k]
    weights = np.ones(len(federation.features))
    weights[federation.rows_of(k)] += alpha
    expected = ridge_oracle(federation.features, federation.one_hot(federation.labels), beta, weights)

    total = aggregate(statistics_of(federation.clients, federation.num_classes))
    figure = attainable(1e-10, federation, k, alpha, beta)
    assert relative_error(personalize(total, F, y, alpha, beta), expected) <= figure
    assert relative_error(PersonalizationPath(total, F, y, beta).weights(alpha), expected) <= figure
    S, M, _ = paper.aggregate(uploads(federation, beta), beta)
    found = paper.personalize(S, M, F, federation.one_hot(y), alpha, beta, len(federation.clients))
    assert relative_error(found, expected) <= 10 * figure


@given(federations(max_clients=3, max_width=4), penalties, alphas)
def test_theorems_1_and_2_in_fifty_digits(federation: Federation, penalty: float, alpha: float) -> None:
    beta = federation.beta(penalty)
    F, Y = federation.features, federation.one_hot(federation.labels)
    weights = np.ones(len(F))
    total = aggregate(statistics_of(federation.clients, federation.num_classes))
    assert relative_error(solve_global(total, beta), mpmath_oracle(F, Y, beta, weights)) <= 1e-10
    weights[federation.rows_of(0)] += alpha
    expected = mpmath_oracle(F, Y, beta, weights)
    client = federation.clients[0]
    for found in (
        personalize(total, *client, alpha, beta),
        PersonalizationPath(total, *client, beta).weights(alpha),
    ):
        assert relative_error(found, expected) <= attainable(1e-10, federation, 0, alpha, beta)


@given(federations(), penalties, alphas, st.sampled_from([0.01, 0.1, 1.0, 100.0]), seeds)
def test_theorem_3_heterogeneity_invariance(
    federation: Federation, penalty: float, alpha: float, concentration: float, seed: int
) -> None:
    beta = federation.beta(penalty)
    k, d = seed % len(federation.clients), federation.num_classes
    F, y = federation.clients[k]
    dealt = dirichlet_redistribution(federation, k, concentration, seed)

    before = personalize(aggregate(statistics_of(federation.clients, d)), F, y, alpha, beta)
    after = personalize(aggregate(statistics_of(dealt, d)), F, y, alpha, beta)
    assert relative_error(after, before) <= attainable(1e-10, federation, k, alpha, beta)

    def on_the_grid(clients: list[Client]) -> torch.Tensor:
        total = decode(reduce(add, (GridStatistics.from_data(F, y, d) for F, y in clients)))
        return personalize(total, round_features(torch.from_numpy(F)), y, alpha, beta)

    assert torch.equal(on_the_grid(dealt), on_the_grid(federation.clients))


def test_theorem_3_fails_for_statistics_rounded_after_summing() -> None:
    """Why the grid rounds features and not sums: rounding a client's sum depends on which rows it holds."""
    rng = np.random.default_rng(0)
    F, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)

    def total(cut: int) -> str:
        parts = [(F[:cut], y[:cut]), (F[cut:], y[cut:])]
        return (
            encode(Statistics.from_data(*parts[0], 2), 10) + encode(Statistics.from_data(*parts[1], 2), 10)
        ).digest()

    assert len({total(cut) for cut in range(5, 36)}) > 1


@given(federations(), seeds)
def test_any_order_and_any_tree_of_sums_is_bit_identical_on_the_grid(federation: Federation, seed: int) -> None:
    rng = np.random.default_rng(seed)
    terms = [encode(statistics) for statistics in statistics_of(federation.clients, federation.num_classes)]
    in_line = reduce(add, terms)
    while len(terms) > 1:
        a, b = (terms.pop(int(rng.integers(len(terms)))) for _ in range(2))
        terms.append(a + b)
    assert terms[0] == in_line
    assert terms[0].digest() == in_line.digest()
    assert decode(terms[0]).digest() == decode(in_line).digest()


@given(federations(), seeds)
def test_forget_equals_never_joined_bit_exact(federation: Federation, seed: int) -> None:
    terms = [encode(statistics) for statistics in statistics_of(federation.clients, federation.num_classes)]
    assume(len(terms) > 1)
    k = seed % len(terms)
    forgotten = reduce(add, terms) - terms[k]
    never_joined = reduce(add, terms[:k] + terms[k + 1 :])
    assert forgotten.digest() == never_joined.digest()
    assert torch.equal(solve_global(decode(forgotten), 1.0), solve_global(decode(never_joined), 1.0))


@pytest.mark.parametrize("seed", range(5))
def test_beta_zero_with_clients_smaller_than_the_width(seed: int) -> None:
    """Every N_k < m but ΣN_k > m: the paper's C_k are all singular, and the answer is plain least squares."""
    rng = np.random.default_rng(seed)
    m, d, rows = 20, 4, 12
    clients = [(rng.normal(size=(rows, m)), rng.integers(0, d, rows)) for _ in range(8)]
    federation = Federation(clients, d)
    F, Y = federation.features, federation.one_hot(federation.labels)
    expected: Array = np.linalg.lstsq(F, Y, rcond=None)[0]

    assert relative_error(solve_global(aggregate(statistics_of(clients, d)), 0.0), expected) <= 1e-8
    S, M, G = paper.aggregate(uploads(federation, 0.0), 0.0)
    assert relative_error(G, expected) <= 1e-8

    root = np.ones((len(F), 1))
    root[:rows] = np.sqrt(21.0)
    expected = np.linalg.lstsq(root * F, root * Y, rcond=None)[0]
    total = aggregate(statistics_of(clients, d))
    assert relative_error(personalize(total, *clients[0], 20.0, 0.0), expected) <= 1e-8
    assert relative_error(PersonalizationPath(total, *clients[0], 0.0).weights(20.0), expected) <= 1e-8
    assert relative_error(paper.personalize(S, M, F[:rows], Y[:rows], 20.0, 0.0, 8), expected) <= 1e-8


def test_the_order_of_clients_does_not_matter_to_the_recursion() -> None:
    rng = np.random.default_rng(3)
    federation = Federation([(rng.normal(size=(n, 6)), rng.integers(0, 3, n)) for n in (1, 4, 9)], 3)
    found = [paper.aggregate(order, 0.5)[2] for order in itertools.permutations(uploads(federation, 0.5))]
    assert max(relative_error(G, found[0]) for G in found) <= 1e-12


@given(federations(), penalties, alphas, st.data())
def test_personalization_from_statistics_alone_is_that_from_the_rows(
    federation: Federation, penalty: float, alpha: float, data: st.DataObject
) -> None:
    """Against scikit-learn, and against the path over α, which takes the rows."""
    beta = federation.beta(penalty)
    k = data.draw(st.integers(0, len(federation.clients) - 1))
    own = statistics_of(federation.clients, federation.num_classes)
    total = aggregate(own)
    found = personalize_from_statistics(total, own[k], alpha, beta)
    client = federation.clients[k]
    for expected in (
        personalize(total, *client, alpha, beta),
        PersonalizationPath(total, *client, beta).weights(alpha),
    ):
        assert relative_error(found, expected) <= attainable(1e-9, federation, k, alpha, beta)
    weights = np.ones(len(federation.features))
    weights[federation.rows_of(k)] += alpha
    oracle = ridge_oracle(federation.features, federation.one_hot(federation.labels), beta, weights)
    assert relative_error(found, oracle) <= attainable(1e-9, federation, k, alpha, beta)
    if alpha == 0.0:
        assert torch.equal(found, solve_global(total, beta))


def test_statistics_that_are_not_in_the_sum_are_refused_by_whose() -> None:
    rng = np.random.default_rng(0)
    total = Statistics.from_data(rng.normal(size=(20, 4)), rng.integers(0, 2, 20), 2)
    with pytest.raises(InputError, match="client 'north'"):
        personalize_from_statistics(total, total + total, client="north")
    with pytest.raises(InputError, match="client 'north'"):
        personalize_from_statistics(total, Statistics.zeros(5, 2), client="north")
