"""The precision that is taken where nobody says: what the device has decides."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedhip.features import choose_dtype, extract, precision
from fedhip.features.backbones import ViTBackbone
from tests.features.samples import random_encoder

WITH = "processor\t: {n}\nmodel name\t: some processor\nflags\t\t: fpu sse2 {flag} avx512_vnni\nbogomips\t: 1\n\n"


def small() -> ViTBackbone:
    return ViTBackbone("small", random_encoder(), "cls", torch.device("cpu"))


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(precision, "CPUINFO", path)
    return path


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        (["avx512_bf16", "avx512_bf16"], torch.bfloat16),
        (["amx_bf16"], torch.bfloat16),
        (["avx512_fp16"], torch.float32),  # another sixteen bits
        (["avx512_bf16_like"], torch.float32),  # a flag is a word
        (["avx512_bf16", "avx512f"], torch.float32),  # not all of the machine's processors
    ],
)
def test_a_cpu_that_multiplies_bfloat16_decides(cpuinfo: Path, flags: list[str], chosen: torch.dtype) -> None:
    cpuinfo.write_text("".join(WITH.format(n=n, flag=flag) for n, flag in enumerate(flags)))
    assert choose_dtype(small()) == chosen


@pytest.mark.parametrize(
    "text",
    [
        None,  # not Linux
        "",
        "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n",  # ARM names its own
        "processor\t: 0\nmodel name\t: flags: avx512_bf16\nflags\t: fpu\n",
        "vmx flags\t: avx512_bf16\n",
    ],
)
def test_what_is_not_known_is_float32(cpuinfo: Path, text: str | None) -> None:
    if text is not None:
        cpuinfo.write_text(text)
    assert choose_dtype(small()) == torch.float32


@pytest.mark.parametrize(
    ("device", "mixed", "chosen"),
    [("cuda", True, torch.bfloat16), ("cuda", False, torch.float32), ("cpu", False, torch.float32)],
)
def test_a_gpu_is_bfloat16_and_a_precision_of_its_own_is_left_alone(
    cpuinfo: Path, device: str, mixed: bool, chosen: torch.dtype
) -> None:
    cpuinfo.write_text(WITH.format(n=0, flag="avx512_bf16" if device == "cpu" else "sse"))
    backbone = small()
    backbone.device, backbone.mixed_precision = torch.device(device), mixed
    assert choose_dtype(backbone) == chosen


@pytest.mark.parametrize("number", [3, 900])
@pytest.mark.parametrize(("flag", "chosen"), [("avx512_bf16", torch.bfloat16), ("sse", torch.float32)])
def test_extraction_does_as_the_rule_says_for_any_number_of_images(
    cpuinfo: Path, number: int, flag: str, chosen: torch.dtype
) -> None:
    cpuinfo.write_text(WITH.format(n=0, flag=flag))
    images = np.random.default_rng(0).integers(0, 256, (number, 16, 16), dtype=np.uint8)
    both = {dtype: extract(small(), images, dtype=dtype, cache=False) for dtype in (torch.bfloat16, torch.float32)}
    assert not np.array_equal(both[torch.bfloat16], both[torch.float32])
    np.testing.assert_array_equal(extract(small(), images, cache=False), both[chosen])
    assert not (cpuinfo.parent / "precision.json").exists()
