"""Whatever a step asks of clients is the same where nothing but copies of a function and of its rows arrive."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

pytest.importorskip("ray", reason="its pickler is needed: pip install '.[ray]'")

from fedhip.engines.lending import InFile, give_back
from fedhip.engines.parcels import pack, unpack
from fedhip.engines.work import found_of, require_versions, versions
from fedhip.errors import ColumnError, DataMissingError, FedHiPError, FedHiPWarning, FileError
from fedhip.heads.task import Task
from fedhip.runs import Run
from fedhip.runs.packs import recording
from fedhip.runs.run import run
from fedhip.simulation.client import Client, clients_of, places_of
from fedhip.simulation.many.rows import ManyClients
from fedhip.utils.parallel import in_order, is_elsewhere, summed, working_on
from fedhip.utils.text import json_text
from tests.engines.copying import Copying
from tests.runs.samples import EXACT, feature_set

#: Those that ask for something of each client, and one that trains by gradients: here, whatever the engine.
RIVALS = ["local", "global", "pfedfda", "apfl", "knn-per-lda", "fedavg"]


def files_of(folder: Path) -> dict[str, bytes]:
    """Sums and models."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] in EXACT
    }


def said(found: Run) -> Any:
    """What its files say, but for seconds."""

    def timeless(value: Any) -> Any:
        return {k: timeless(v) for k, v in value.items() if k != "seconds"} if isinstance(value, dict) else value

    return timeless(found.results), json_text(timeless(found.details))


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("head", ["ridge", "lda", "logistic", "auto"])
def test_every_head_gives_the_same_files(head: str, tmp_path: Path) -> None:
    told: dict[str, Any] = {"head": head, "lift": "none", "methods": ["local", "global", "fedhip"]}
    here = run(feature_set(), out=tmp_path / "here", **told)
    engine = Copying()
    with working_on(engine):
        there = run(feature_set(), out=tmp_path / "there", **told)
    assert engine.functions > 4  # it was asked
    assert files_of(there.path) == files_of(here.path) != {}
    assert said(there) == said(here)


@pytest.mark.usefixtures("no_report")
def test_every_rival_gives_the_same_table(tmp_path: Path) -> None:
    told: dict[str, Any] = {"head": "ridge", "methods": RIVALS, "rounds": 1, "prior": "client"}
    here = run(feature_set(), out=tmp_path / "here", **told)
    with working_on(Copying()):
        there = run(feature_set(), out=tmp_path / "there", **told)
    assert said(there) == said(here)


@pytest.mark.usefixtures("no_report")
def test_very_many_clients_give_the_same_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MANY", 10)
    monkeypatch.setattr("fedhip.simulation.many.rows.PACK", 4)
    monkeypatch.setattr("fedhip.simulation.many.rows._BLOCK_BYTES", 2000)
    data = feature_set([f"c{k}" for k in range(11)])
    here = run(data, out=tmp_path / "here")
    with working_on(Copying()):
        there = run(data, out=tmp_path / "there")
    assert files_of(there.path) == files_of(here.path)
    assert (there.path / "models/pack-00002.safetensors").is_file()


def test_a_sum_is_told_of_in_order_and_made_in_any() -> None:
    told: list[tuple[int, int]] = []
    with working_on(Copying()):
        total = summed(
            lambda n: 10**n, range(9), look=lambda n, term: term * n, seen=lambda n, found: told.append((n, found))
        )
        assert summed(lambda n: n, []) is None
    assert total == 111111111
    assert told == [(n, n * 10**n) for n in range(9)]


def test_what_is_to_be_done_here_is_done_here() -> None:
    seen: list[int] = []
    with working_on(Copying()):
        assert is_elsewhere()
        assert list(in_order(seen.append, range(4))) == [None] * 4
        assert seen == []  # copies of the list were appended to
        assert list(in_order(seen.append, range(4), here=True)) == [None] * 4
    assert sorted(seen) == [0, 1, 2, 3]
    assert not is_elsewhere()


def test_an_error_comes_after_what_was_found_before_it() -> None:
    def answer(n: int) -> int:
        if n == 3:
            raise ColumnError("too large", column=7, is_value=True)
        return n

    answers = in_order(answer, range(6))
    with working_on(Copying()):
        assert [next(answers) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ColumnError, match="too large") as caught:
            next(answers)
    assert (caught.value.column, caught.value.is_value) == (7, True)


def test_a_bug_says_where_it_was_and_a_warning_what_it_was() -> None:
    def answer(n: int) -> float:
        warnings.warn(f"row {n}", FedHiPWarning, stacklevel=1)
        return 1 / n

    found = found_of(answer, [1, 0])
    assert found.results == [1.0]
    assert isinstance(found.error, ZeroDivisionError)
    assert "in answer" in "".join(found.error.__notes__)
    assert [(one.message, one.category) for one in found.warned] == [("row 1", FedHiPWarning), ("row 0", FedHiPWarning)]


def test_other_versions_are_refused() -> None:
    require_versions(versions())
    with pytest.raises(FedHiPError, match=r"a node of the cluster has torch .* and the run 1\.0; install the same"):
        require_versions(versions() | {"torch": "1.0"})


# --- rows


def mapped_rows(folder: Path, rows: int = 4000) -> Any:
    """Rows of ten clients in a file."""
    features = np.random.default_rng(0).normal(size=(rows, 12)).astype(np.float32)
    np.savez(folder / "rows.npz", features=features)
    from fedhip.data import array_files

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_files, "MAPPED", 1)
        return array_files.read_arrays(folder / "rows.npz")["features"]


def lent_from(features: Any) -> tuple[Copying, list[Client]]:
    from fedhip.data import FeatureSet, make_partition

    rows = np.arange(len(features))
    data = FeatureSet(features, rows % 3, ("a", "b", "c"), clients=(rows % 10).astype(str))
    partition = make_partition(data.labels, "natural", clients=data.clients)
    engine, clients = Copying(), clients_of(data, partition)
    engine.lender.lend(clients, data.features, places_of(data, partition))
    return engine, clients


def same_rows(one: Client, other: Client) -> bool:
    return all(
        np.array_equal(a, b) and a.dtype == b.dtype
        for a, b in zip((*one.train, *one.test), (*other.train, *other.test), strict=True)
    )


def test_rows_in_a_file_stay_there(tmp_path: Path) -> None:
    engine, clients = lent_from(mapped_rows(tmp_path))
    parcel = pack(clients, engine.lender)
    assert len(parcel.content) < clients[0].train[0].nbytes * 5
    assert not engine.store.things
    for client, lent in zip(clients, unpack(parcel, engine.store), strict=True):
        assert not {"train", "test"} & vars(lent).keys()
        assert same_rows(lent, client)
        lent.train[0][0] = 1.0  # a copy, which may be written to
        give_back()
        assert not {"train", "test"} & vars(lent).keys()
        assert same_rows(lent, client)
        (back,) = unpack(pack([lent]), engine.store)
        assert type(back) is Client
        assert same_rows(back, client)


def test_rows_in_memory_are_put_once() -> None:
    engine, clients = lent_from(np.random.default_rng(0).normal(size=(4000, 12)))
    assert len(engine.store.things) == 1
    for _ in range(2):
        found = unpack(pack(clients, engine.lender), engine.store)
        assert all(map(same_rows, found, clients))
    assert len(engine.store.things) == 1
    held = [client.testing(np.arange(len(client.train[1])) % 2 == 0) for client in clients]
    for _ in range(2):
        found = unpack(pack(held, engine.lender), engine.store)
        assert all(map(same_rows, found, held))
        assert found[0].train[0].flags.writeable
    assert len(engine.store.things) == 11
    many = ManyClients(
        np.zeros((4, 2)), np.zeros(4, np.int64), ("a", "b"), np.arange(4), np.array([0, 2, 4]), np.array([1, 2]), 2
    )
    for _ in range(2):
        again = unpack(pack(many, engine.lender), engine.store)
        assert again.names == many.names
        assert np.array_equal(again.train, many.train)
    assert len(engine.store.things) == 13  # features, and the rest


def test_a_client_that_is_gone_is_not_taken_for_another() -> None:
    engine = Copying()
    for value in range(9):  # objects in the same place, one after the other
        rows = np.full((300, 8), float(value)), np.zeros(300, np.int64)
        client = Client("same", rows, rows)
        (found,) = unpack(pack([client], engine.lender), engine.store)
        assert same_rows(found, client)
        del client
    assert not engine.lender._lent


def test_another_file_is_not_taken_for_the_one_that_was_lent(tmp_path: Path) -> None:
    features = mapped_rows(tmp_path)
    engine, clients = lent_from(features)
    parcel, path = pack(clients[0], engine.lender), tmp_path / "rows.npz"
    path.rename(tmp_path / "away.npz")
    with pytest.raises(DataMissingError, match=r"rows\.npz is not there on a node of the cluster; put it where"):
        _ = unpack(parcel, engine.store).train
    np.savez(path, features=np.asarray(features)[::-1])  # as large as before
    with pytest.raises(FileError, match=r"rows\.npz is another file on a node of the cluster; put the same one there"):
        _ = unpack(parcel, engine.store).train


@given(st.data(), arrays(np.float64, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=st.floats(-9, 9)))
def test_what_lies_in_a_file_is_found_in_it(tmp_path_factory: pytest.TempPathFactory, data: Any, array: Any) -> None:
    path = tmp_path_factory.mktemp("lying") / "a.npy"
    np.save(path, np.asfortranarray(array) if data.draw(st.booleans()) else array)
    whole = np.load(path, mmap_mode="r")
    first = data.draw(st.integers(0, len(array) - 1))
    for part in (whole, np.asarray(whole), whole[first:], np.asarray(whole)[:, first % array.shape[1] :], whole[::2]):
        lying = InFile.of(part)
        if lying is None:
            assert not (part.flags.c_contiguous)
            assert not (part.flags.f_contiguous)
        else:
            assert np.array_equal(lying.get(), part)
    assert InFile.of(np.array(whole)) is None
    assert InFile.of(np.load(path, mmap_mode="c")) is None  # what is changed of it is in this process alone


def test_a_task_travels_without_whom_to_tell() -> None:
    class Screen:
        def __call__(self, *_: object) -> None: ...

        def __reduce__(self) -> str:
            raise AssertionError("it stays")

    engine, clients = lent_from(np.random.default_rng(0).normal(size=(400, 12)))
    task = Task(clients, 3, {"alpha": 2.0}, report=Screen(), uploads={"0": None}, seed=3)  # type: ignore[dict-item]
    found = unpack(pack(task, engine.lender), engine.store)
    assert (found.num_classes, found.options, found.uploads, found.seed) == (3, {"alpha": 2.0}, {}, 3)
    found.report("a", 1, 2)
    assert all(map(same_rows, found.clients, clients))
    assert task.uploads
