"""The choice of a precision, with a clock that the test winds."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedhip.features import extract, precision
from fedhip.features.backbones import ViTBackbone
from tests.features.samples import random_encoder


class Timed(ViTBackbone):
    """A backbone whose runs take as long as they are told, each precision in its turn."""

    def __init__(self, full: list[float], half: list[float], seed: int = 0, name: str = "timed") -> None:
        super().__init__(name, random_encoder(seed=seed), "cls", torch.device("cpu"))
        self.durations: dict[bool, Iterator[float]] = {False: iter(full), True: iter(half)}
        self.now, self.order, self.sizes = 0.0, "", set[int]()

    def __call__(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        mixed = torch.is_autocast_enabled("cpu")
        self.now += next(self.durations[mixed])
        self.order += "h" if mixed else "f"
        self.sizes.add(len(images))
        return torch.zeros(len(images), 32)

    def clock(self) -> float:
        return self.now


def test_runs_alternate_on_a_real_batch_and_the_first_pair_does_not_count() -> None:
    backbone = Timed([100.0] + [2.0] * 5, [1.0] * 6)
    assert precision.speedup(backbone, backbone.clock) == 2.0
    assert backbone.order == "fh" * 6
    assert backbone.sizes == {32}


@pytest.mark.parametrize(
    ("full", "half", "expected"),
    [
        ([2, 2, 2, 50, 50, 2], [1, 1, 1, 1, 1, 1], 2.0),  # other work in two float32 runs
        ([2, 2, 2, 2, 2, 2], [1, 1, 30, 1, 30, 1], 2.0),  # and in two bfloat16 runs
        ([1, 1, 3, 9, 27, 1], [1, 1, 3, 9, 27, 1], 1.0),  # a load that comes and goes slows both alike
    ],
)
def test_other_work_does_not_decide(full: list[float], half: list[float], expected: float) -> None:
    backbone = Timed(full, half)
    assert precision.speedup(backbone, backbone.clock) == expected


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[object]]:
    def answer(factor: float) -> list[object]:
        calls: list[object] = []

        def speedup(backbone: object) -> float:
            calls.append(backbone)
            return factor

        monkeypatch.setattr(precision, "speedup", speedup)
        return calls

    return answer


@pytest.mark.parametrize(("factor", "chosen"), [(3.0, torch.bfloat16), (1.2, torch.float32), (0.5, torch.float32)])
def test_precision_is_measured_once(
    tmp_path: Path, measured: Callable[[float], list[object]], factor: float, chosen: torch.dtype
) -> None:
    calls = measured(factor)
    assert precision.choose_dtype(Timed([], []), tmp_path) == chosen
    assert precision.choose_dtype(Timed([], []), tmp_path) == chosen
    assert len(calls) == 1
    for content in ("damaged", '["a list"]'):
        (tmp_path / "precision.json").write_text(content)
        assert precision.choose_dtype(Timed([], []), tmp_path) == chosen
    assert len(calls) == 3


def test_a_choice_is_for_weights_threads_and_machine(
    tmp_path: Path, measured: Callable[[float], list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measured(2.0)
    precision.choose_dtype(Timed([], []), tmp_path)
    precision.choose_dtype(Timed([], [], name="another name"), tmp_path)
    assert len(calls) == 1
    precision.choose_dtype(Timed([], [], seed=1), tmp_path)
    assert len(calls) == 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 97)
    precision.choose_dtype(Timed([], []), tmp_path)
    assert len(calls) == 3
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    precision.choose_dtype(Timed([], []), tmp_path)
    assert len(calls) == 4


@pytest.mark.parametrize("image_size", [16, 64, 224])
def test_few_images_are_not_worth_a_measurement(
    tmp_path: Path, measured: Callable[[float], list[object]], monkeypatch: pytest.MonkeyPatch, image_size: int
) -> None:
    """Fewer than twice what the measurement itself computes: even twice the speed would not give that time back."""
    passed: list[int] = []
    backbone = Timed([1.0] * 6, [1.0] * 6)
    backbone.image_size = image_size
    monkeypatch.setattr(Timed, "__call__", lambda _, images: passed.append(len(images)))
    precision.speedup(backbone)
    enough = 2 * sum(passed)
    calls = measured(3.0)
    assert precision.choose_dtype(backbone, tmp_path, enough - 1) == torch.float32
    assert (len(calls), [*tmp_path.iterdir()]) == (0, [])
    assert precision.choose_dtype(backbone, tmp_path, enough) == torch.bfloat16
    assert precision.choose_dtype(backbone, tmp_path, 1) == torch.bfloat16  # remembered, it costs nothing
    assert len(calls) == 1


def test_extraction_says_how_many_images_there_are(tmp_path: Path, measured: Callable[[float], list[object]]) -> None:
    calls, backbone = measured(3.0), ViTBackbone("small", random_encoder(), "cls", torch.device("cpu"))
    images = np.zeros((768, 16, 16), dtype=np.uint8)
    extract(backbone, images[:-1], cache=tmp_path)
    assert len(calls) == 0
    extract(backbone, images, cache=tmp_path)
    assert len(calls) == 1
