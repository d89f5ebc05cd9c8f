import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedhip.data import draw_partition, make_partition
from fedhip.data.partitions.picture import _round_down
from fedhip.errors import InputError, MissingExtraError

LABELS = np.arange(400) % 8
COUNTS = make_partition(LABELS, "dirichlet", 6, concentration=0.2).class_counts(LABELS, 8)


def draw(path: Path, counts: Any = COUNTS) -> Path:
    clients, classes = counts.shape
    draw_partition(
        path,
        counts,
        class_names=tuple(f"class {i}" for i in range(classes)),
        client_names=tuple(map(str, range(clients))),
        title="digits · dirichlet, λ = 0.2",
    )
    return path


def test_area_of_each_bubble_is_the_number_of_rows(tmp_path: Path) -> None:
    root = ET.parse(draw(tmp_path / "p.svg")).getroot()  # noqa: S314 (our own file)
    paths = [p.get("d", "") for p in root.iter("{http://www.w3.org/2000/svg}path") if p.get("clip-path")]
    circles = [np.array(re.findall(r"-?[\d.]+", path), dtype=float) for path in paths if "C" in path]
    widths = np.array([np.ptp(circle[0::2]) for circle in circles])
    expected = COUNTS[COUNTS > 0]
    assert len(widths) == len(expected)
    np.testing.assert_allclose(widths**2 / widths.max() ** 2, expected / expected.max(), rtol=1e-3)


def test_equal_input_gives_an_equal_file(tmp_path: Path) -> None:
    for suffix in (".svg", ".png"):
        one, two = draw(tmp_path / f"1{suffix}"), draw(tmp_path / f"2{suffix}")
        assert one.read_bytes() == two.read_bytes()
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("shape", [(1, 1), (50, 100), (300, 10), (3, 200)])
def test_pictures_of_every_shape_fit_a_page(tmp_path: Path, shape: tuple[int, int]) -> None:
    counts = np.random.default_rng(0).poisson(0.3, shape).astype(np.int64)
    counts[0, 0] = 9
    with Image.open(draw(tmp_path / "p.png", counts)) as image:
        assert max(image.size) < 3500
        assert min(image.size) > 300


def test_names_are_letters_and_not_markup(tmp_path: Path) -> None:
    draw_partition(
        tmp_path / "p.svg",
        np.array([[1]]),
        class_names=("$\\broken{$",),
        client_names=("<&>",),
        title="$x^{$",
    )
    ET.parse(tmp_path / "p.svg")  # noqa: S314


def test_names_that_are_not_utf_8_can_be_drawn(tmp_path: Path) -> None:
    names = (b"caf\xe9".decode("utf-8", "surrogateescape"),)
    draw_partition(tmp_path / "p.svg", np.array([[1]]), class_names=names, client_names=names, title=names[0])
    assert "caf\\xe9" in (tmp_path / "p.svg").read_text(encoding="utf-8")


def test_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not '\.txt'"):
        draw(tmp_path / "p.txt")


def test_missing_matplotlib_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="pip install matplotlib"):
        draw(tmp_path / "p.svg")
    assert list(tmp_path.iterdir()) == []


def test_package_does_not_import_matplotlib() -> None:
    code = "import sys, fedhip.data; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603


def test_legend_numbers_are_round() -> None:
    assert [_round_down(x) for x in (0.5, 1, 1.9, 4.9, 9, 10, 99, 100, 1234)] == [
        0,
        1,
        1,
        2,
        5,
        10,
        50,
        100,
        1000,
    ]
