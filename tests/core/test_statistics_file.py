"""Statistics on disk: the same bits back, or an error that says why not."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedhip import FedHiPError, Statistics
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.statistics import unpack
from fedhip.errors import FileError, StatisticsError

RNG = np.random.default_rng(0)
STATISTICS = Statistics.from_data(RNG.normal(size=(50, 7)), RNG.integers(0, 4, 50), 4)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "site.safetensors"
    STATISTICS.to_file(path)
    return path


def rewrite(path: Path, metadata: dict[str, str] | None = None, **tensors: torch.Tensor) -> None:
    """Write the file again with some tensors or metadata replaced, the digest left as it is."""
    stored = {"format": "fedhip.statistics", "schema": "1", "digest": STATISTICS.digest()}
    save_file({**load_file(path), **tensors}, path, metadata={**stored, **(metadata or {})})


def test_round_trip_gives_the_same_bits(file: Path) -> None:
    again = Statistics.from_file(str(file))
    assert again.digest() == STATISTICS.digest()
    assert torch.equal(again.gram, STATISTICS.gram)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_gram_travels_as_its_upper_triangle(file: Path) -> None:
    tensors = load_file(file)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "gram": (28,),
        "cross": (7, 4),
        "counts": (4,),
    }


def test_a_full_gram_is_read_too(file: Path) -> None:
    rewrite(file, gram=unpack(load_file(file)["gram"]))
    assert Statistics.from_file(file).digest() == STATISTICS.digest()


def test_every_truncation_is_noticed(file: Path) -> None:
    whole = file.read_bytes()
    for length in [0, 1, 7, 8, 20, 200, len(whole) // 2, len(whole) - 1]:
        file.write_bytes(whole[:length])
        with pytest.raises(FileError, match=r"site\.safetensors is truncated .*write it again"):
            Statistics.from_file(file)


def test_every_altered_byte_of_the_values_is_noticed(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for position in range(header, len(whole), 13):
        altered = bytearray(whole)
        altered[position] ^= 1
        file.write_bytes(altered)
        with pytest.raises(FedHiPError):
            Statistics.from_file(file)


def test_an_altered_value_is_named_as_such(file: Path) -> None:
    rewrite(file, cross=load_file(file)["cross"] * (1 + 1e-15))
    with pytest.raises(FileError, match=r"was altered after it was written .*fresh copy"):
        Statistics.from_file(file)


def test_a_later_version_asks_for_an_upgrade(file: Path) -> None:
    for schema in ("2", "3", "77"):
        rewrite(file, metadata={"schema": schema})
        with pytest.raises(FileError, match=rf"schema version {schema}; .*reads up to 1: upgrade fedhip"):
            Statistics.from_file(file)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"schema": "one"}, "no schema version"),
        ({"schema": "0"}, "no schema version"),
        ({"schema": "9" * 5000}, "no schema version"),
        ({"format": "other"}, "not of fedhip statistics"),
        ({"digest": ""}, "no digest"),
    ],
)
def test_other_files_are_not_taken_for_statistics(file: Path, metadata: dict[str, str], message: str) -> None:
    rewrite(file, metadata=metadata)
    with pytest.raises(FileError, match=message):
        Statistics.from_file(file)
    file.write_text(json.dumps({"gram": [1]}))
    with pytest.raises(FileError, match="safetensors"):
        Statistics.from_file(file)


def test_a_missing_tensor_is_named(file: Path) -> None:
    tensors = load_file(file)
    del tensors["cross"]
    save_file(tensors, file, metadata={"format": "fedhip.statistics", "schema": "1", "digest": "0"})
    with pytest.raises(FileError, match="lacks cross"):
        Statistics.from_file(file)


@pytest.mark.parametrize(
    ("gram", "message"),
    [
        (torch.tensor([[1.0, 2.0], [0.0, 1.0]]).double(), "not symmetric"),
        (torch.tensor([1.0, 2.0, 1.0]).double(), "gram is not positive semi-definite"),
        (torch.tensor([1.0, float("nan"), 1.0]).double(), "not finite"),
    ],
)
def test_statistics_that_no_data_have_are_refused(tmp_path: Path, gram: torch.Tensor, message: str) -> None:
    """With a digest that fits: a client that computed wrongly, not a file that was altered."""
    path = tmp_path / "wrong.safetensors"
    tensors: dict[str, Any] = {"gram": gram, "cross": torch.zeros(2, 1).double(), "counts": torch.tensor([2])}
    upper = gram if gram.ndim == 1 else gram[torch.ones(2, 2, dtype=torch.bool).triu()]
    values = b"".join(t.numpy().tobytes() for t in (upper, tensors["cross"], tensors["counts"]))
    digest = hashlib.sha256(b"fedhip.statistics/1 m=2 d=1\n" + values).hexdigest()
    save_file(tensors, path, metadata={"format": "fedhip.statistics", "schema": "1", "digest": digest})
    with pytest.raises(StatisticsError, match=message):
        Statistics.from_file(path)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("gram", torch.zeros(29).double(), r"29 values are no packed triangle"),
        ("gram", torch.zeros(0).double(), r"must have shapes|was altered"),
        ("gram", torch.zeros(7, 6).double(), r"gram has shape \(7, 6\)"),
        ("cross", torch.zeros(28).double(), r"cross has shape \(28,\)"),
        ("cross", torch.zeros(7, 4), r"cross as torch.float32, not torch.float64"),
        ("counts", torch.zeros(4, dtype=torch.int32), r"counts as torch.int32, not torch.int64"),
    ],
)
def test_tensors_of_another_shape_or_type_are_named(
    file: Path, name: str, tensor: torch.Tensor, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(file, None, **{name: tensor})
    monkeypatch.setattr("fedhip.core.statistics.require_digest", lambda *_, **__: None)
    with pytest.raises(FileError, match=rf"site\.safetensors.*({message})"):
        Statistics.from_file(file)


def test_folders(file: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder"):
        Statistics.from_file(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no folder .*none to write x\.safetensors to; make it first"):
        STATISTICS.to_file(tmp_path / "none" / "x.safetensors")


def test_statistics_are_for_their_owner(file: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_file_and_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def interrupted(descriptor: int) -> None:
        assert len(list(file.parent.iterdir())) == 2
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        (STATISTICS + STATISTICS).to_file(file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_is_not_there_is_an_ordinary_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Statistics.from_file(tmp_path / "none.safetensors")


GRID = GridStatistics.from_data(RNG.normal(size=(50, 7)), RNG.integers(0, 4, 50), 4, fraction_bits=32)


@pytest.fixture
def grid_file(tmp_path: Path) -> Path:
    path = tmp_path / "grid.safetensors"
    GRID.to_file(path)
    return path


def test_grid_statistics_come_back_to_the_bit(grid_file: Path) -> None:
    again = GridStatistics.from_file(grid_file)
    assert again == GRID
    assert (again.digest(), again.fraction_bits) == (GRID.digest(), 32)
    assert torch.equal(again.gram, again.gram.mT)


@pytest.mark.parametrize("statistics", [STATISTICS, GRID], ids=["float", "grid"])
def test_the_same_statistics_are_the_same_bytes(tmp_path: Path, statistics: Statistics | GridStatistics) -> None:
    for i in range(10):
        statistics.to_file(tmp_path / f"{i}.safetensors")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_every_truncation_of_a_grid_file_is_noticed(grid_file: Path) -> None:
    whole = grid_file.read_bytes()
    for length in range(len(whole)):
        grid_file.write_bytes(whole[:length])
        with pytest.raises(FileError, match=r"grid\.safetensors"):
            GridStatistics.from_file(grid_file)


def test_no_altered_byte_of_a_grid_file_gives_other_statistics(grid_file: Path) -> None:
    """Refused; but for bytes of the header that say nothing, which leave the statistics as they are."""
    whole, harmless = grid_file.read_bytes(), 0
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for position in range(len(whole)):
        altered = bytearray(whole)
        altered[position] ^= 1
        grid_file.write_bytes(altered)
        try:
            assert GridStatistics.from_file(grid_file) == GRID
        except FedHiPError:
            continue
        assert position < header
        harmless += 1
    assert harmless < 20


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"schema": "2"}, FileError, "upgrade fedhip"),
        ({"format": "fedhip.statistics"}, FileError, "not of fedhip grid statistics"),
        ({"fraction_bits": "63"}, FileError, "from 0 to 62"),
        ({"fraction_bits": "x"}, FileError, "does not hold statistics on a grid"),
        ({"fraction_bits": "30"}, FileError, "was altered"),
        ({"digest": "32-0"}, FileError, "was altered"),
    ],
)
def test_what_is_no_grid_file_is_refused(
    grid_file: Path, metadata: dict[str, str], error: type[Exception], message: str
) -> None:
    stored = {"format": "fedhip.grid", "schema": "1", "digest": GRID.digest(), "fraction_bits": "32"}
    save_file(load_file(grid_file), grid_file, metadata={**stored, **metadata})
    with pytest.raises(error, match=message):
        GridStatistics.from_file(grid_file)
    with pytest.raises(FileError, match=r"not of fedhip statistics|gram as torch\.int64"):
        Statistics.from_file(grid_file)


@pytest.mark.parametrize("m", [1, 4, 30, 100])
def test_values_begin_at_a_multiple_of_eight_bytes(tmp_path: Path, m: int) -> None:
    """As the format asks, however long the names of the shapes are."""
    Statistics.from_data(RNG.normal(size=(3, m)), [0, 1, 1], 2).to_file(tmp_path / "site.safetensors")
    (length,) = struct.unpack("<Q", (tmp_path / "site.safetensors").read_bytes()[:8])
    assert length % 8 == 0
