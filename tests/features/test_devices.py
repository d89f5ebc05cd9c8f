"""Where to compute, asked before the work."""

from pathlib import Path

import pytest
import torch

from fedhip.errors import InputError
from fedhip.features import load_backbone, pretrain, resolve_device
from fedhip.features.pretraining.pools import Pool
from fedhip.features.pretraining.recipe import Recipe
from tests.features.samples import waves


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_devices_that_are_not_there() -> None:
    assert resolve_device() == resolve_device("cpu") == torch.device("cpu")
    for name, named in {
        "foo": "no device 'foo'; use cpu",
        "cuda": "finds none; use cpu",
        "cuda:x": "no device",
    }.items():
        with pytest.raises(InputError, match=named):
            resolve_device(name)
    with pytest.raises(InputError, match="'meta' cannot be used"):
        resolve_device("meta")


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device() == torch.device("cuda")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match="has cuda:0 to cuda:1, and cpu"):
        resolve_device("cuda:2")


@pytest.mark.usefixtures("no_gpu")
def test_backbones_and_pretraining_ask(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use cpu"):
        load_backbone("fedhip-vit", device="cuda")
    with pytest.raises(InputError, match="use cpu"):
        pretrain(Pool(waves(4, 64), ("w",), (4,), (1.0,)), Recipe(steps=1), tmp_path, device="cuda")
