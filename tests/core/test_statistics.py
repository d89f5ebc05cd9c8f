"""Statistics: what goes in, what adds, what is the same."""

from __future__ import annotations

import hashlib
import pickle
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedhip import Statistics, aggregate, solve_global
from fedhip.core.rows import Rows
from fedhip.core.statistics import _upper, pack, unpack
from fedhip.errors import InputError, StatisticsError
from tests.core.problems import Federation, federations, relative_error

RNG = np.random.default_rng(0)
F = RNG.normal(size=(50, 7))
Y = RNG.integers(0, 4, 50)


def by_loops(features: Any, labels: Any, num_classes: int) -> tuple[Any, Any, Any]:
    """The definition, one row at a time."""
    m = len(features[0])
    gram, cross, counts = np.zeros((m, m)), np.zeros((m, num_classes)), np.zeros(num_classes, dtype=int)
    for row, label in zip(features, labels, strict=True):
        gram += np.outer(row, row)
        cross[:, label] += row
        counts[label] += 1
    return gram, cross, counts


def agrees(statistics: Statistics, features: Any, labels: Any) -> bool:
    gram, cross, counts = by_loops(features, labels, statistics.num_classes)
    return (
        relative_error(statistics.gram, gram) <= 1e-13
        and relative_error(statistics.cross, cross) <= 1e-13
        and statistics.counts.tolist() == counts.tolist()
    )


@pytest.mark.parametrize(
    "features",
    [
        F,
        F.astype(np.float32),
        F.astype(np.float16),
        F.astype(np.longdouble),
        F.astype(">f8"),
        (10 * F).astype(np.int8),
        (10 * F).astype(np.uint8),
        F > 0,
        np.asfortranarray(F),
        F[:, ::-1],
        np.repeat(F, 2, axis=0)[::2],
        torch.from_numpy(F),
        torch.from_numpy(F).to(torch.bfloat16),
        torch.from_numpy(F).half(),
        torch.from_numpy(F).T.contiguous().T,
        torch.from_numpy(F).clone().requires_grad_(),
        F.tolist(),
    ],
    ids=lambda features: f"{type(features).__name__}-{getattr(features, 'dtype', '')}",
)
def test_from_data_takes_any_real_array(features: Any) -> None:
    statistics = Statistics.from_data(features, Y, 4)
    values = features.detach().double().numpy() if isinstance(features, torch.Tensor) else np.asarray(features, float)
    assert agrees(statistics, values, Y)
    assert statistics.gram.dtype == statistics.cross.dtype == torch.float64
    assert (statistics.num_samples, statistics.num_features, statistics.num_classes) == (50, 7, 4)


@pytest.mark.parametrize(
    "labels",
    [Y, Y.astype(np.uint8), Y.astype(float), torch.from_numpy(Y), torch.from_numpy(Y).bfloat16(), Y.tolist()],
    ids=lambda labels: f"{type(labels).__name__}-{getattr(labels, 'dtype', '')}",
)
def test_from_data_takes_any_whole_labels(labels: Any) -> None:
    assert agrees(Statistics.from_data(F, labels, 4), F, Y)


def test_from_data_reads_a_memory_mapped_file_block_by_block(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", F)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    for block_rows in (1, 7):
        assert agrees(Statistics.from_data(mapped, Y, 4, block_rows=block_rows), F, Y)


def test_from_data_holds_one_block_at_a_time() -> None:
    class Recorder:
        """Rows that exist only when they are asked for."""

        shape, dtype = (1000, 3), np.dtype(np.float32)
        asked: list[int] = []  # noqa: RUF012

        def __getitem__(self, rows: slice) -> Any:
            self.asked.append(rows.stop - rows.start)
            return np.full((rows.stop - rows.start, 3), 2.0, dtype=np.float32)

    statistics = Statistics.from_data(Recorder(), np.zeros(1000), 1, block_rows=300)  # type: ignore[arg-type]
    assert Recorder.asked == [300, 300, 300, 100]
    assert statistics.gram.tolist() == [[4000.0] * 3] * 3


@pytest.mark.parametrize("m", [63, 64, 65, 255, 256, 257, 600])
def test_widths_around_the_blocks_of_the_computation(m: int) -> None:
    """Blocks of columns and of mirrored rows end within, at, or beyond the last feature."""
    wide = RNG.normal(size=(40, m))
    statistics = Statistics.from_data(wide, Y[:40], 4, block_rows=17)
    assert agrees(statistics, wide, Y[:40])
    assert torch.equal(statistics.gram, statistics.gram.mT)
    assert torch.equal(unpack(pack(statistics.gram)), statistics.gram)


@given(federations())
def test_gram_is_symmetric_to_the_last_bit(federation: Federation) -> None:
    statistics = Statistics.from_data(*federation.clients[0], federation.num_classes)
    assert torch.equal(statistics.gram, statistics.gram.mT)


@given(federations())
def test_sum_of_statistics_is_statistics_of_all_rows(federation: Federation) -> None:
    parts = [Statistics.from_data(F, y, federation.num_classes) for F, y in federation.clients]
    total = sum(parts)
    assert isinstance(total, Statistics)
    assert total == aggregate(parts)
    assert total == aggregate({str(k): part for k, part in enumerate(parts)})
    assert total == aggregate(part for part in parts)
    assert total == Statistics.from_data(federation.features, federation.labels, federation.num_classes)


@given(federations(), st.integers(0, 5))
def test_subtracting_a_client_leaves_the_others(federation: Federation, k: int) -> None:
    parts = [Statistics.from_data(F, y, federation.num_classes) for F, y in federation.clients]
    k %= len(parts)
    rest = parts[:k] + parts[k + 1 :]
    left = aggregate(parts) - parts[k]
    expected = aggregate(rest) if rest else Statistics.zeros(federation.width, federation.num_classes)
    assert left == expected
    assert left.num_samples == sum(part.num_samples for part in rest)


def test_nothing_is_left_of_a_class_without_rows() -> None:
    a, b = (Statistics.from_data(scale * RNG.normal(size=(9, 4)), np.zeros(9), 2) for scale in (1e3, 1.0))
    c = Statistics.from_data(RNG.normal(size=(9, 4)), np.ones(9), 2)
    assert (a.cross + b.cross - a.cross - b.cross)[:, 0].any()  # rounding that must not survive
    assert not (a + b + c - a - b).cross[:, 0].any()
    assert not (a + b - a - b).gram.any()


def test_aggregate_does_not_write_into_its_terms() -> None:
    parts = [Statistics.from_data(F, Y, 4), Statistics.from_data(2 * F, Y, 4)]
    digests = [part.digest() for part in parts]
    aggregate(parts)
    assert [part.digest() for part in parts] == digests


def test_equality_is_of_values_and_forgives_only_rounding() -> None:
    a = Statistics.from_data(F, Y, 4)
    assert a == Statistics.from_data(F.copy(), Y, 4)
    assert a == Statistics.from_data(F[::-1], Y[::-1], 4)
    assert a != Statistics(a.gram + 1e-6 * torch.eye(7), a.cross, a.counts)
    assert a != Statistics(a.gram, a.cross * (1 + 1e-6), a.counts)
    assert a != Statistics(a.gram, a.cross, a.counts + 1)
    assert a != Statistics.from_data(F, Y, 5)
    assert a != Statistics.from_data(F[:, :6], Y, 4)
    assert a != "statistics"
    with pytest.raises(TypeError):
        hash(a)


def test_digest_is_of_values() -> None:
    a = Statistics.from_data(F, Y, 4)
    assert a.digest() == Statistics.from_data(F.copy(), Y.copy(), 4).digest()
    assert a.digest() == Statistics(a.gram.clone(), a.cross.T.contiguous().T, a.counts.clone()).digest()
    cross = a.cross.clone()
    cross[0, 0] = np.nextafter(float(cross[0, 0]), 9.0)
    assert a.digest() != Statistics(a.gram, cross, a.counts).digest()
    zero = Statistics.zeros(2, 2)
    assert zero.digest() == Statistics(-zero.gram, -zero.cross, zero.counts).digest()
    assert Statistics.zeros(2, 3).digest() != Statistics.zeros(3, 2).digest()


def test_digest_is_the_one_the_docs_describe() -> None:
    """Pinned, so that files and ledgers written today verify with any later version."""
    statistics = Statistics.from_data([[1.0, 2.0], [3.0, -4.0]], [0, 1], 2)
    upper, cross, counts = struct.pack("<3d", 10, -10, 20), struct.pack("<4d", 1, 3, 2, -4), struct.pack("<2q", 1, 1)
    expected = hashlib.sha256(b"fedhip.statistics/1 m=2 d=2\n" + upper + cross + counts).hexdigest()
    assert statistics.digest() == expected


@given(st.integers(1, 12))
def test_a_packed_triangle_unpacks(m: int) -> None:
    matrix = torch.arange(m * m, dtype=torch.float64).reshape(m, m)
    symmetric = matrix + matrix.mT
    assert len(pack(symmetric)) == m * (m + 1) // 2
    assert torch.equal(unpack(pack(symmetric)), symmetric)


def test_sum_over_clients_of_different_shape_names_the_client() -> None:
    clients = {"site-1": Statistics.from_data(F, Y, 4), "site-2": Statistics.from_data(F[:, :3], Y, 4)}
    with pytest.raises(InputError, match=r"client 'site-2'.* 3 features .* 7 features.*same backbone"):
        aggregate(clients)
    with pytest.raises(InputError, match=r"5 classes .* 4 classes"):
        Statistics.from_data(F, Y, 4) + Statistics.from_data(F, Y, 5)
    with pytest.raises(InputError, match="no client took part"):
        aggregate([])


def test_what_is_not_in_the_sum_cannot_be_taken_out() -> None:
    with pytest.raises(InputError, match=r"class 2 .*not in the sum"):
        Statistics.from_data(F[:2], [0, 1], 4) - Statistics.from_data(F[:1], [2], 4)


def test_only_statistics_add() -> None:
    with pytest.raises(TypeError):
        Statistics.from_data(F, Y, 4) + 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        Statistics.from_data(F, Y, 4) - 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        sum([Statistics.from_data(F, Y, 4)], 5)


@pytest.mark.parametrize(
    ("gram", "cross", "counts", "error", "message"),
    [
        ([[1.0, 2.0], [0.0, 1.0]], [[1.0], [1.0]], [1], StatisticsError, r"not symmetric .* 2\.0e\+00"),
        ([[1.0, np.nan], [np.nan, 1.0]], [[1.0], [1.0]], [1], StatisticsError, "not finite"),
        ([[1.0]], [[np.inf]], [1], StatisticsError, "not finite"),
        ([[1.0]], [[1.0]], [-1], StatisticsError, r"not negative, not \[-1\]"),
        ([[1.0]], [[1.0]], [0.5], StatisticsError, r"whole .* not \[0.5\]"),
        ([[1.0]], [[1.0, 2.0]], [1], InputError, r"\(1, 2\).* \(1, 1\)"),
        ([[1.0, 0.0]], [[1.0]], [1], InputError, r"gram \(1, 2\)"),
        ([1.0], [[1.0]], [1], InputError, r"gram \(1,\)"),
    ],
)
def test_tensors_that_are_no_statistics_are_refused(
    gram: Any, cross: Any, counts: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Statistics(torch.tensor(gram), torch.tensor(cross), torch.tensor(counts))


@given(federations())
def test_statistics_of_data_are_valid(federation: Federation) -> None:
    parts = [Statistics.from_data(F, y, federation.num_classes) for F, y in federation.clients]
    for statistics in (*parts, aggregate(parts), aggregate(parts) - parts[0]):
        statistics.require_valid()


def test_statistics_that_no_data_have_are_not_valid() -> None:
    a = Statistics.from_data(F, Y, 4)
    values, V = torch.linalg.eigh(a.gram)
    for scale in (1.0, 1e-5, 1e5):
        for below in (1.0, 1e-3, 1e-7):  # of the largest entry
            values[0] = -below * float(a.gram.max())
            gram = (V * values) @ V.mT
            with pytest.raises(StatisticsError, match=r"'site-3': gram is not positive semi-definite .*eigenvalue -"):
                Statistics(scale**2 * (gram + gram.mT) / 2, scale * a.cross, a.counts).require_valid("site-3")
        with pytest.raises(StatisticsError, match="counts are: they are not positive semi-definite"):
            Statistics(scale**2 * a.gram, scale * a.cross, 0 * a.counts).require_valid()
    # More correlation with a class than its rows can carry.
    with pytest.raises(StatisticsError, match="gram, cross and counts together are not positive semi-definite"):
        Statistics(a.gram, 20 * a.cross, a.counts).require_valid()
    with pytest.raises(StatisticsError, match="not positive semi-definite"):
        Statistics(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1)).require_valid()


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_zeros_and_whole_numbers_are_valid(rows: int) -> None:
    """Where the largest square or count is 0, 1 or 2, and the Gram matrix singular."""
    for features in (np.ones((rows, 2)), np.zeros((rows, 2)), np.eye(3)[:rows]):
        for labels in ([0] * rows, list(range(rows))):
            Statistics.from_data(features, labels, 3).require_valid()


def test_a_negative_square_of_the_first_feature_is_not_valid() -> None:
    for gram in ([[-1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]]):
        with pytest.raises(StatisticsError, match=r"gram is not .* eigenvalue -1\.0e\+00"):
            Statistics(torch.tensor(gram), torch.zeros(2, 1), torch.tensor([3])).require_valid()


def test_a_singular_gram_is_not_to_blame_for_cross_terms_too_large() -> None:
    statistics = Statistics(torch.diag(torch.tensor([1.0, 0.0])), torch.tensor([[5.0], [0.0]]), torch.tensor([1]))
    with pytest.raises(StatisticsError, match="gram, cross and counts together are not"):
        statistics.require_valid()


def test_statistics_go_to_another_device() -> None:
    """torch's "meta" is a device that every machine has."""
    there = Statistics.from_data(F, Y, 4).to("meta")
    assert {there.device.type, there.cross.device.type, there.counts.device.type} == {"meta"}
    assert there.to("meta") is there


@pytest.mark.parametrize("m", [1, 2, 5])
def test_the_places_of_the_upper_triangle_are_those_of_numpy(m: int) -> None:
    """By which a GPU packs."""
    assert _upper(m, torch.device("cpu")).tolist() == np.flatnonzero(np.triu(np.ones((m, m)))).tolist()


def test_a_value_does_not_change_with_the_arrays_it_was_made_from() -> None:
    gram, cross, counts = torch.eye(2).double(), torch.ones(2, 1).double(), torch.tensor([3])
    statistics = Statistics(gram, cross, counts)
    before = statistics.digest()
    for tensor in (gram, cross, counts):
        tensor.mul_(2)
    assert statistics.digest() == before


def test_a_nearly_symmetric_gram_is_made_symmetric() -> None:
    gram = torch.tensor([[2.0, 1.0], [1.0 + 1e-13, 2.0]], dtype=torch.float64)
    assert not torch.equal(gram, gram.mT)
    statistics = Statistics(gram, torch.ones(2, 1), torch.tensor([3]))
    assert torch.equal(statistics.gram, statistics.gram.mT)


def test_statistics_can_be_pickled_without_what_was_remembered() -> None:
    statistics = Statistics.from_data(F, Y, 4)
    before = len(pickle.dumps(statistics))
    solve_global(statistics)
    assert len(pickle.dumps(statistics)) == before
    assert pickle.loads(pickle.dumps(statistics)).digest() == statistics.digest()  # noqa: S301


def test_the_default_block_bounds_features_and_labels() -> None:
    """About 32 MiB, whether the features are wide or the classes many."""
    for width, classes in ((4096, 10), (8, 20_000)):
        rows = Rows.checked(np.zeros((1, width)), [0], classes).default_block_rows
        assert 2**24 <= 8 * rows * (width + classes) <= 2**25


def test_threads_that_ask_for_different_betas_get_their_own() -> None:
    total = Statistics.from_data(F, Y, 4)
    expected = {beta: solve_global(Statistics.from_data(F, Y, 4), beta) for beta in (1.0, 1000.0)}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            betas = [1.0, 1000.0] * 400
            found = list(threads.map(lambda beta: solve_global(total, beta), betas))
    finally:
        sys.setswitchinterval(interval)
    assert all(torch.equal(G, expected[beta]) for G, beta in zip(found, betas, strict=True))


def test_repr_is_short() -> None:
    assert repr(Statistics.from_data(F, Y, 4)) == (
        "Statistics(num_samples=50, num_features=7, num_classes=4, device='cpu')"
    )
