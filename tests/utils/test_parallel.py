"""Clients side by side: in their order, few at a time, on one thread each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from fedhip.utils.parallel import available_cores, in_order, one_thread
from tests.waiting import PATIENCE


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


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_slow_one_holds_up_no_more_than_may_wait_for_it(ahead: int) -> None:
    """The others go on until as many are ahead as are asked for: the slow one waits for the last of them."""
    cores, go_on, done = available_cores(), threading.Event(), []
    before = [] if cores == 1 else list(range(1, ahead * cores + 1))

    def work(item: int) -> int:
        if item == 0 and before:
            assert go_on.wait(PATIENCE)
            time.sleep(0.1)  # for more of them, if they were handed out
        done.append(item)
        if len(done) == len(before):
            go_on.set()
        return item

    results = in_order(work, range(100), ahead=ahead)
    assert next(results) == 0
    assert sorted(done[: len(before)]) == before
    assert done[len(before)] == 0
    results.close()  # type: ignore[attr-defined]


@pytest.fixture
def two_threads() -> Iterator[None]:
    """torch with two threads, here and in threads to come."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_a_new_thread() -> int:
    """The number that torch gives a thread which starts now."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def threads_of(_: object) -> int:
    return torch.get_num_threads()


@pytest.mark.usefixtures("two_threads")
def test_each_works_on_one_thread_and_the_caller_keeps_its_own() -> None:
    assert set(in_order(threads_of, range(8))) == {1}
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_threads_that_start_later_have_the_number_of_before() -> None:
    assert len(list(in_order(threads_of, range(8)))) == 8
    assert in_a_new_thread() == 2
    with one_thread():
        assert set(in_order(threads_of, range(8))) == {1}
        assert in_a_new_thread() == 2
    assert in_a_new_thread() == 2


@pytest.mark.usefixtures("two_threads")
def test_the_process_keeps_a_number_that_is_not_the_callers() -> None:
    other = threading.Thread(target=torch.set_num_threads, args=(3,))
    other.start()
    other.join()
    assert (torch.get_num_threads(), in_a_new_thread()) == (2, 3)
    assert set(in_order(threads_of, range(8))) == {1}
    with one_thread():
        pass
    assert (torch.get_num_threads(), in_a_new_thread()) == (2, 3)


@pytest.mark.usefixtures("two_threads")
def test_a_generator_that_is_left_half_way_leaves_no_number_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(number: int) -> None:
        set_number(number)
        time.sleep(0.02)  # for somebody to see a number that is about to be put back

    set_number = torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", slowly)
    results = in_order(threads_of, range(100))
    assert next(results) == 1
    assert in_a_new_thread() == 2  # it may be left without anybody closing it
    results.close()  # type: ignore[attr-defined]
    assert (torch.get_num_threads(), in_a_new_thread()) == (2, 2)


@pytest.mark.usefixtures("two_threads")
def test_two_at_once_leave_no_number_behind() -> None:
    """Begun by one thread and by several, the first to begin not being the last to end."""
    first, second = in_order(threads_of, range(20)), in_order(threads_of, range(20))
    assert {next(first), next(second), *first, *second} == {1}
    assert in_a_new_thread() == 2
    found: list[set[int]] = []

    def several() -> None:
        for _ in range(20):
            with one_thread():
                found.append({torch.get_num_threads(), *in_order(threads_of, range(4))})
            found.append(set(in_order(threads_of, range(4))))

    workers = [threading.Thread(target=several) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [{1}] * 160
    assert (torch.get_num_threads(), in_a_new_thread()) == (2, 2)


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
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            found = list(in_order(lambda _: torch.linalg.cholesky_ex(H).L, range(4)))
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(one, expected) for one in found)
