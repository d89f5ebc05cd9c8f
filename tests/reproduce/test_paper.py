"""The published figures, checked against what the paper says of them elsewhere."""

from __future__ import annotations

import pytest

from fedhip.reproduce import paper

# The last row of Table I, in points.
IMPROVEMENTS = {
    "cifar100": (5.79, 11.98, 11.15, 6.29, 16.12, 15.67),
    "imagenet-r": (10.72, 17.43, 20.62, 15.57, 20.54, 20.97),
}


@pytest.mark.parametrize("dataset", list(IMPROVEMENTS))
def test_improvements_of_table_1_follow_from_its_entries(dataset: str) -> None:
    columns = [(clients, concentration) for clients in paper.CLIENTS for concentration in paper.CONCENTRATIONS]
    for (clients, concentration), printed in zip(columns, IMPROVEMENTS[dataset], strict=True):
        entries = [paper.table1(dataset, method, clients, concentration) for method in paper.ROWS]
        values = [100 * entry for entry in entries if entry is not None]
        assert len(values) == 11
        assert values[-1] - max(values[:-1]) == pytest.approx(printed, abs=0.011)


@pytest.mark.parametrize("concentration", paper.CONCENTRATIONS)
def test_table_1_repeats_the_best_of_the_alpha_table(concentration: float) -> None:
    row = [paper.sensitivity("alpha", "cifar100", 50, concentration, alpha) for alpha in paper.GRID]
    assert max(value for value in row if value is not None) == paper.table1("cifar100", "fedhip", 50, concentration)


@pytest.mark.parametrize("concentration", paper.CONCENTRATIONS)
def test_the_two_tables_agree_where_they_meet(concentration: float) -> None:
    """α = 20, β = 0 is in both."""
    alpha = paper.sensitivity("alpha", "cifar100", 50, concentration, paper.BETA_TABLE_ALPHA)
    beta = paper.sensitivity("beta", "cifar100", 50, concentration, paper.ALPHA_TABLE_BETA)
    assert alpha == beta
    assert alpha is not None


def test_there_is_nothing_beyond_the_papers_settings() -> None:
    assert paper.table1("sketches", "fedhip", 50, 0.1) is None
    assert paper.table1("cifar100", "local", 50, 0.1) is None
    assert paper.table1("cifar100", "fedhip", 20, 0.1) is None
    assert paper.sensitivity("beta", "imagenet-r", 50, 0.1, 5.0) is None
    assert paper.sensitivity("beta", "cifar100", 50, 0.1, 7.0) is None
