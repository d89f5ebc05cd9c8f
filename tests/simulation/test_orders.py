"""Orders of rows: the documented rule, one sort for all clients, and nothing but names and counters in it."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

from fedhip.methods.engine.laboratory import Laboratory
from fedhip.methods.engine.protocol import Protocol
from fedhip.simulation.orders import ALIGN, SHUFFLE, client_number, client_order, client_orders, sorted_rows
from tests.methods import oracle
from tests.methods.problems import CLASSES, federation


@pytest.mark.parametrize("seed", [0, 7, 2**63 + 5, 2**64 - 1])
def test_the_rule_in_pythons_own_integers(seed: int) -> None:
    for rows, client, round_, epoch, purpose in ((1, "a", 0, 0, SHUFFLE), (97, "Zürich", 199, 2, ALIGN)):
        ours = client_order(rows, seed, client, round_, epoch, purpose)
        assert ours.tolist() == oracle.order_of(rows, seed, client, round_, epoch, purpose)


def test_all_clients_and_epochs_in_one_sort() -> None:
    sizes, names = [5, 1, 64, 40], ["a", "b", "c", "d"]
    numbers = torch.tensor([client_number(name) for name in names])
    tables = sorted_rows(torch.tensor(sizes), numbers, 64, 3, 8, range(1, 4), ALIGN)
    assert tables.shape == (3, 4, 64)
    for k, (size, name) in enumerate(zip(sizes, names, strict=True)):
        alone = client_orders(size, 3, name, 8, range(1, 4), ALIGN)
        for table, order in zip(tables[:, k], alone, strict=True):
            assert table[:size].tolist() == order.tolist()
            assert sorted(table.tolist()) == list(range(64))


def test_orders_depend_on_seed_client_round_epoch_and_purpose_alone() -> None:
    order = client_order(50, 3, "site-4", round_=2, epoch=1)
    assert sorted(order) == list(range(50))
    assert np.array_equal(order, client_order(50, 3, "site-4", round_=2, epoch=1))
    for other in ((4, "site-4", 2, 1), (3, "site-5", 2, 1), (3, "site-4", 3, 1), (3, "site-4", 2, 2)):
        assert not np.array_equal(order, client_order(50, *other))
    assert not np.array_equal(order, client_order(50, 3, "site-4", 2, 1, ALIGN))


def test_every_row_is_as_often_at_every_place() -> None:
    orders = np.array([client_order(8, 0, f"c{k}", round_, 0) for k in range(40) for round_ in range(100)])
    counts = np.array([np.bincount(orders[:, place], minlength=8) for place in range(8)])
    # 64 cells of 500 ± 21; a fair draw is beyond five deviations once in a million.
    assert np.abs(counts - 500).max() < 105


def test_tables_are_found_once_and_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(federation(), CLASSES, Protocol(), together=True)
    placed = lab.placed
    first = placed.orders(96, 0, 5, range(3), SHUFFLE)
    spy = mock.Mock(side_effect=sorted_rows)
    monkeypatch.setattr("fedhip.methods.engine.clients.ORDERS_KEPT", 5 * first[0].numel() * 8)
    monkeypatch.setattr("fedhip.methods.engine.clients.sorted_rows", spy)
    again = placed.orders(96, 0, 5, range(5), SHUFFLE)
    assert [call.args[5] for call in spy.call_args_list] == [range(3, 5)]
    assert all(a is b for a, b in zip(first, again, strict=False))
    whole = sorted_rows(placed.row_counts, placed.numbers, 96, 0, 5, range(5), SHUFFLE)
    assert torch.equal(torch.stack(again), whole)
    placed.orders(96, 0, 6, range(3), SHUFFLE)
    assert len(placed._orders) == 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_the_same_orders() -> None:
    rows, numbers = torch.tensor([5, 3000, 64]), torch.tensor([client_number(name) for name in "abc"])
    here = sorted_rows(rows, numbers, 3000, 3, 8, range(3))
    there = sorted_rows(rows.cuda(), numbers.cuda(), 3000, 3, 8, range(3)).cpu()
    for k, number in enumerate(rows.tolist()):
        assert torch.equal(here[:, k, :number], there[:, k, :number])
