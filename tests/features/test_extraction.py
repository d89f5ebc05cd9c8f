"""Extraction: the same features at any batch size, from memory or disk, after faults of every kind."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedhip.data import Dataset, load_dataset
from fedhip.errors import CacheWarning, InputError
from fedhip.features import extraction
from fedhip.features.backbones import ViTBackbone
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
    assert sorted(path.name for path in own_cache.rglob("*") if path.is_file()) == [
        "000000000-000000010.npy",
        "entry.json",
    ]
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
    with pytest.raises(InputError, match="does not fit in the memory of cpu with a single image"):
        extract(backbone, IMAGES, batch=10, dtype=FLOAT, cache=False)


def test_other_errors_are_not_taken_for_memory() -> None:
    backbone = Counting()
    backbone.encoder.patch_embedding = torch.nn.Linear(7, 7)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        extract(backbone, IMAGES, dtype=FLOAT, cache=False)


def test_progress_reaches_the_total() -> None:
    seen: list[tuple[str, int, int]] = []
    extract(Counting(), IMAGES, batch=5, dtype=FLOAT, report=lambda *line: seen.append(line))
    assert seen == [("features", done, 25) for done in (0, 5, 10, 15, 20, 25)]
    seen.clear()
    extract(Counting(), IMAGES, dtype=FLOAT, report=lambda *line: seen.append(line))
    assert seen == [("features", 25, 25)]


def test_features_that_are_not_finite_name_the_row(own_cache: Path) -> None:
    class Broken(Counting):
        def __call__(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
            assert rows is not None
            return super().__call__(images, rows).masked_fill((rows == 13)[:, None], float("nan"))

    with pytest.raises(InputError, match="row 13"):
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
    with pytest.raises(InputError, match="float64"):
        extract(Counting(), np.zeros((2, 4, 4)))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no images"):
        extract(Counting(), Source(IMAGES[:0]))
    with pytest.raises(InputError, match="batch is 0"):
        extract(Counting(), IMAGES, batch=0)

    class Short(Source):
        def read(self, indices: Sequence[int] | NDArray[np.int64], size: int) -> Pixels:
            return super().read(indices, size)[1:]

    with pytest.raises(InputError, match="asked for 10 images"):
        extract(Counting(), Short(IMAGES))


@pytest.mark.parametrize("size", [(24, 40), (41, 24)])
def test_pixels_give_the_same_features_from_wherever_they_come(tmp_path: Path, size: tuple[int, int]) -> None:
    """An array, a data set, a folder of one size and a folder of mixed sizes: one rule, to 1e-3 in relative norm.

    The tolerance is for pixels that pillow and torch round to neighbouring values.
    """
    images = waves(12, 41)[:, : size[0], : size[1]]
    for i, image in enumerate(images):
        for folder in ("one", "mixed"):
            path = tmp_path / folder / "ab"[i % 2] / f"{i:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    for name in "ab":
        Image.fromarray(waves(1, 50)[0]).save(tmp_path / "mixed" / name / "z.png")
    order = [*range(0, 12, 2), *range(1, 12, 2)]
    array = extract(Counting(), images[order], dtype=FLOAT)
    data = Dataset("waves", images[order], np.arange(12) // 6, ("a", "b"))
    np.testing.assert_array_equal(extract(Counting(), data, dtype=FLOAT, cache=False), array)
    one, mixed = load_dataset(tmp_path / "one"), load_dataset(tmp_path / "mixed")
    assert isinstance(one.images, np.ndarray)
    assert not isinstance(mixed.images, np.ndarray)
    np.testing.assert_array_equal(extract(Counting(), one, dtype=FLOAT, cache=False), array)
    rows = [*range(6), *range(7, 13)]
    from_files = extract(Counting(), mixed, dtype=FLOAT)[rows]
    assert np.linalg.norm(from_files - array) < 1e-3 * np.linalg.norm(array)


def test_a_data_set_is_known_by_its_pixels() -> None:
    first = Dataset("waves", waves(10, 20), np.arange(10) % 2, ("a", "b"))
    other_labels = Dataset("others", waves(10, 20), np.arange(10) % 3, ("a", "b", "c"))
    extract(Counting(), first, dtype=FLOAT)
    backbone = Counting()
    extract(backbone, other_labels, dtype=FLOAT)
    assert backbone.seen == 0

    class Labelled(Source):
        pixels_fingerprint = "the pixels"

    extract(Counting(), Labelled(IMAGES, "with labels"), dtype=FLOAT)
    extract(backbone, Labelled(IMAGES, "with other labels"), dtype=FLOAT)
    assert backbone.seen == 0


def flip(content: bytes) -> bytes:
    """The same, with one bit of one feature flipped."""
    return content[:-40] + bytes([content[-40] ^ 1]) + content[-39:]


def not_finite(content: bytes) -> bytes:
    """A whole chunk of features that are not numbers."""
    body = content[:128] + np.full((len(content) - 32 - 128) // 4, np.nan, np.float32).tobytes()
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize("spoil", [flip, not_finite])
def test_a_chunk_with_other_values_is_computed_again(own_cache: Path, spoil: Callable[[bytes], bytes]) -> None:
    whole = extract(Counting(), IMAGES, dtype=FLOAT)
    chunk = sorted(own_cache.rglob("*.npy"))[1]
    chunk.write_bytes(spoil(chunk.read_bytes()))
    assert np.load(chunk).shape == (10, 64)  # numpy sees nothing wrong with it
    backbone = Counting()
    np.testing.assert_array_equal(extract(backbone, IMAGES, dtype=FLOAT), whole)
    assert backbone.seen == 10


def test_another_version_has_other_features(monkeypatch: pytest.MonkeyPatch) -> None:
    extract(Counting(), IMAGES, dtype=FLOAT)
    monkeypatch.setattr(extraction, "FEATURES_VERSION", extraction.FEATURES_VERSION + 1)
    backbone = Counting()
    extract(backbone, IMAGES, dtype=FLOAT)
    assert backbone.seen == 25


def test_a_cache_that_cannot_be_used_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(CacheWarning, match=r"file cannot be used .*; set FEDHIP_CACHE") as seen:
        found = extract(Counting(), IMAGES, cache=tmp_path / "file")
    assert len(seen) == 1
    assert found.shape == (25, 64)


def test_a_disk_that_fills_up_is_one_warning(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(extraction, "write_private", full)
    with pytest.warns(CacheWarning, match="No space left on device") as seen:
        found = extract(Counting(), IMAGES, dtype=FLOAT)
    assert len(seen) == 1
    np.testing.assert_allclose(found, expected(), rtol=1e-5, atol=1e-5)


def test_precision_that_would_do_nothing_is_refused() -> None:
    backbone = Counting()
    backbone.mixed_precision = False
    with pytest.raises(InputError, match="precision of its own"):
        extract(backbone, IMAGES, dtype=torch.bfloat16)
