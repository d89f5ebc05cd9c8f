"""Clients side by side: in their order, few at a time, on one thread each."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from fedhip.parallel import available_cores, in_order, one_thread


def test_results_come_in_the_order_of_the_items() -> None:
    def slow_first(item: int) -> int:
        time.sleep(0.02 if item == 0 else 0.0)
        return item * item

    assert list(in_order(slow_first, range(20))) == [item * item for item in range(20)]


def test_few_results_are_held_at_a_time() -> None:
    started: list[int] = []
    results = in_order(lambda item: started.append(item), range(1000))
    next(results)
    assert len(started) <= 2 * available_cores() + 1
    results.close()  # type: ignore[attr-defined]


def test_each_works_on_one_thread_and_the_caller_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert set(in_order(lambda _: torch.get_num_threads(), range(8))) == {1}
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_error_comes_through_and_ends_the_rest() -> None:
    done: list[int] = []
    before = set(threading.enumerate())  # a generator that another test left open has threads until it is collected

    def fails(item: int) -> None:
        if item == 3:
            raise ValueError("the fourth")
        done.append(item)

    with pytest.raises(ValueError, match="the fourth"):
        list(in_order(fails, range(100)))
    assert len(done) < 20
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("fedhip")]


def test_the_same_bits_on_any_number_of_threads() -> None:
    torch.manual_seed(0)
    A = torch.randn(300, 200, dtype=torch.float64)
    H = A.mT @ A + torch.eye(200, dtype=torch.float64)
    with one_thread():
        expected = torch.linalg.cholesky_ex(H).L
    assert all(torch.equal(found, expected) for found in in_order(lambda _: torch.linalg.cholesky_ex(H).L, range(4)))
