"""Extraction: the same features at any batch size, from memory or disk, after faults of every kind."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.data import Dataset
from fedhip.data.errors import ImagesError
from fedhip.features import extraction, precision
from fedhip.features.backbones import ViTBackbone
from fedhip.features.errors import BackboneError, ConfigError
from fedhip.features.extraction import extract
from tests.features.samples import random_encoder, waves

FLOAT = torch.float32
Pixels = NDArray[np.uint8]


class Counting(ViTBackbone):
    """A backbone that knows how many images it has seen, and in which batches."""

    def __init__(self, mask_ratio: float = 0.0) -> None:
        super().__init__("counting", random_encoder(), "mean:1+cls", torch.device("cpu"), mask_ratio)
        self.batches: list[int] = []
        self.limit = 10**9
        self.fail_at = 10**9

    @property
    def seen(self) -> int:
        return sum(self.batches)

    def __call__(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        if len(images) > self.limit:
            raise torch.OutOfMemoryError("out of memory")
        if self.seen >= self.fail_at:
            raise KeyboardInterrupt
        self.batches.append(len(images))
        return super().__call__(images, rows)


class Source:
    """Images that are read on demand."""

    def __init__(self, images: Pixels, fingerprint: str | None = "abc") -> None:
        self.images, self.fingerprint = images, fingerprint

    def __len__(self) -> int:
        return len(self.images)

    def read(self, indices: Sequence[int] | NDArray[np.int64], size: int) -> Pixels:
        assert size == 16
        found: Pixels = self.images[np.asarray(indices)]
        return found


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "chunk_rows", lambda backbone: 10)


IMAGES = waves(25)


def expected(mask_ratio: float = 0.0) -> NDArray[np.float32]:
    found: NDArray[np.float32] = Counting(mask_ratio)(torch.from_numpy(IMAGES)).numpy()
    return found


@pytest.mark.parametrize("mask_ratio", [0.0, 0.75])
@pytest.mark.parametrize("batch", [1, 7, 100])
def test_batch_size_does_not_matter(batch: int, mask_ratio: float) -> None:
    found = extract(Counting(mask_ratio), IMAGES, batch=batch, dtype=FLOAT, cache=False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(mask_ratio), rtol=1e-5, atol=1e-5)


def test_arrays_and_sources_grey_and_colour() -> None:
    from_source = extract(Counting(), Source(IMAGES), dtype=FLOAT)
    np.testing.assert_allclose(from_source, expected(), rtol=1e-5, atol=1e-5)
    grey = IMAGES[..., 0]
    repeated = np.stack([grey] * 3, axis=-1)
    shapes = [extract(Counting(), images, dtype=FLOAT, cache=False) for images in (grey, grey[..., None], repeated)]
    assert (shapes[0] == shapes[1]).all()
    assert (shapes[1] == shapes[2]).all()


@pytest.mark.parametrize("images", [IMAGES, Source(IMAGES)])
def test_second_run_computes_nothing(images: Pixels | Source, own_cache: Path) -> None:
    first = extract(Counting(), images, dtype=FLOAT)
    backbone = Counting()
    second = extract(backbone, images, dtype=FLOAT)
    assert backbone.seen == 0
    assert (first == second).all()
    assert len(list(own_cache.rglob("*.npy"))) == 3


def test_cache_tells_data_weights_and_settings_apart() -> None:
    extract(Counting(), IMAGES, dtype=FLOAT)
    for backbone, images in ((Counting(), waves(25, seed=1)), (Counting(0.5), IMAGES)):
        extract(backbone, images, dtype=FLOAT)
        assert backbone.seen == 25
    backbone = Counting()
    extract(backbone, IMAGES, dtype=torch.bfloat16)
    assert backbone.seen == 25


def test_without_fingerprint_or_cache_nothing_is_kept(own_cache: Path) -> None:
    extract(Counting(), Source(IMAGES, None), dtype=FLOAT)
    extract(Counting(), IMAGES, dtype=FLOAT, cache=False)
    assert not own_cache.exists()
    extract(Counting(), Source(IMAGES, None), dtype=FLOAT, fingerprint="mine")
    assert own_cache.exists()


def test_interrupted_run_resumes_and_leaves_nothing_half_written(own_cache: Path) -> None:
    backbone = Counting()
    backbone.fail_at = 15
    with pytest.raises(KeyboardInterrupt):
        extract(backbone, IMAGES, batch=5, dtype=FLOAT)
    assert [path.name for path in own_cache.rglob("*") if path.is_file()] == ["000000000-000000010.npy"]
    backbone = Counting()
    found = extract(backbone, IMAGES, batch=5, dtype=FLOAT)
    assert backbone.seen == 15
    np.testing.assert_allclose(found, expected(), rtol=1e-5, atol=1e-5)


def test_damaged_chunk_is_computed_again(own_cache: Path) -> None:
    whole = extract(Counting(), IMAGES, dtype=FLOAT)
    chunks = sorted(own_cache.rglob("*.npy"))
    chunks[0].write_bytes(chunks[0].read_bytes()[:-10])
    chunks[1].write_bytes(b"")
    np.save(chunks[2], np.zeros((2, 2), dtype=np.float32))
    backbone = Counting()
    assert (extract(backbone, IMAGES, dtype=FLOAT) == whole).all()
    assert backbone.seen == 25


def test_out_of_memory_halves_the_batch_and_goes_on() -> None:
    backbone = Counting()
    backbone.limit = 3
    found = extract(backbone, IMAGES, batch=10, dtype=FLOAT, cache=False)
    assert set(backbone.batches) <= {2, 1}
    np.testing.assert_allclose(found, expected(), rtol=1e-5, atol=1e-5)
    backbone.limit = 0
    with pytest.raises(BackboneError, match="does not fit in the memory of cpu with a single image"):
        extract(backbone, IMAGES, batch=10, dtype=FLOAT, cache=False)


def test_other_errors_are_not_taken_for_memory() -> None:
    backbone = Counting()
    backbone.encoder.patch_embedding = torch.nn.Linear(7, 7)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        extract(backbone, IMAGES, dtype=FLOAT, cache=False)


def test_progress_reaches_the_total() -> None:
    seen: list[tuple[int, int, float, float]] = []
    extract(Counting(), IMAGES, batch=5, dtype=FLOAT, report=lambda *line: seen.append(line))
    assert [line[0] for line in seen] == [0, 5, 10, 15, 20, 25]
    assert seen[-1][1] == 25
    assert seen[-1][2] > 0
    assert seen[-1][3] == 0
    seen.clear()
    extract(Counting(), IMAGES, dtype=FLOAT, report=lambda *line: seen.append(line))
    assert seen == [(25, 25, 0.0, 0.0)]


def test_features_that_are_not_finite_name_the_row(own_cache: Path) -> None:
    class Broken(Counting):
        def __call__(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
            assert rows is not None
            return super().__call__(images, rows).masked_fill((rows == 13)[:, None], float("nan"))

    with pytest.raises(BackboneError, match="row 13"):
        extract(Broken(), IMAGES, dtype=FLOAT)
    assert [path.name for path in own_cache.rglob("*.npy")] == ["000000000-000000010.npy"]


def test_compiled_features_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The padding of the last batch, with the compiler itself left out."""
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    backbone = Counting()
    found = extract(backbone, IMAGES, batch=8, dtype=FLOAT, cache=False, compile_backbone=True)
    assert set(backbone.batches) == {8}
    np.testing.assert_allclose(found, expected(), rtol=1e-5, atol=1e-5)


def test_bad_input() -> None:
    with pytest.raises(ImagesError, match="float64"):
        extract(Counting(), np.zeros((2, 4, 4)))  # type: ignore[arg-type]
    with pytest.raises(ImagesError, match="no images"):
        extract(Counting(), Source(IMAGES[:0]))
    with pytest.raises(ConfigError, match="batch is 0"):
        extract(Counting(), IMAGES, batch=0)

    class Short(Source):
        def read(self, indices: Sequence[int] | NDArray[np.int64], size: int) -> Pixels:
            return super().read(indices, size)[1:]

    with pytest.raises(ImagesError, match="asked for 10 images"):
        extract(Counting(), Short(IMAGES))


def test_a_data_set_is_a_source() -> None:
    data = Dataset("waves", waves(10, 20), np.arange(10) % 2, ("a", "b"))
    first, second = Counting(), Counting()
    features = extract(first, data, dtype=FLOAT)
    np.testing.assert_array_equal(features, extract(first, data.read(range(10), 16), dtype=FLOAT, cache=False))
    np.testing.assert_array_equal(features, extract(second, data, dtype=FLOAT))
    assert second.seen == 0


@pytest.mark.parametrize(("factor", "chosen"), [(3.0, torch.bfloat16), (1.1, torch.float32)])
def test_precision_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, chosen: torch.dtype
) -> None:
    calls: list[object] = []

    def measured(backbone: object) -> float:
        calls.append(backbone)
        return factor

    monkeypatch.setattr(precision, "speedup", measured)
    assert precision.choose_dtype(Counting(), tmp_path) == chosen
    assert precision.choose_dtype(Counting(), tmp_path) == chosen
    assert len(calls) == 1
    (tmp_path / "precision.json").write_text("damaged")
    assert precision.choose_dtype(Counting(), tmp_path) == chosen
    assert len(calls) == 2


def test_the_measurement_is_a_ratio_of_times() -> None:
    assert 0.01 < precision.speedup(Counting()) < 100
