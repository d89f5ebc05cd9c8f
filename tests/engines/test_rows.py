"""Rows that lie in a file are found there, and no other file is taken for it; what a task does with its items."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedhip.engines.rows import InFile
from fedhip.engines.tasks import found_of, require_versions, versions
from fedhip.errors import DataMissingError, FedHiPError, FedHiPWarning, FileError


def test_another_file_is_not_taken_for_the_one_that_was_meant(tmp_path: Path) -> None:
    path, features = tmp_path / "rows.npy", np.arange(60.0).reshape(20, 3)
    np.save(path, features)
    lying = InFile.of(np.load(path, mmap_mode="r"))
    assert lying is not None
    away = path.rename(tmp_path / "away.npy")
    with pytest.raises(DataMissingError, match=r"rows\.npy is not there on a node of the cluster; put it where"):
        lying.get()
    np.save(path, features[::-1])  # as large as before
    with pytest.raises(FileError, match=r"rows\.npy is another file on a node of the cluster; put the same one there"):
        lying.get()
    away.replace(path)
    assert np.array_equal(lying.get(), features)


def test_an_archive_is_known_by_its_checksums(tmp_path: Path) -> None:
    one, other = (tmp_path / f"{name}.npz" for name in "ab")
    np.savez(one, features=np.zeros((20, 3)))
    np.savez(other, features=np.ones((20, 3)))
    rows = np.memmap(one, np.float64, "r", 200, (10, 3))
    lying = InFile.of(rows)
    assert lying is not None
    assert np.array_equal(lying.get(), rows)
    with pytest.raises(FileError, match=r"b\.npz is another file"):
        replace(lying, path=str(other)).get()


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
