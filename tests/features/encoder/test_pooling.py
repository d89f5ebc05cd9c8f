import pytest
import torch

from fedhip.errors import InputError
from fedhip.features.encoder.pooling import Pooling
from tests.features.samples import random_encoder


def test_cls_and_mean_are_taken_from_the_tokens() -> None:
    encoder, pixels = random_encoder(), torch.randn(2, 3, 16, 16)
    tokens = encoder(pixels)
    assert torch.equal(Pooling.parse("cls", 3)(encoder, pixels), tokens[:, 0])
    torch.testing.assert_close(Pooling.parse("mean", 3)(encoder, pixels), tokens[:, 1:].sum(1) / 16)


def test_concatenation_is_in_the_order_of_the_specification() -> None:
    encoder, pixels = random_encoder(), torch.randn(2, 3, 16, 16)
    whole = Pooling.parse("mean:3,1 + cls:2", 3)(encoder, pixels)
    parts = [Pooling.parse(spec, 3)(encoder, pixels) for spec in ("mean:3", "mean:1", "cls:2")]
    assert torch.equal(whole, torch.cat(parts, dim=1))


def test_canonical_name() -> None:
    assert str(Pooling.parse("mean:6,8,10,12+cls", 12)) == "mean:6+mean:8+mean:10+mean:12+cls:12"


@pytest.mark.parametrize("spec", ["", "max", "mean:", "mean:0", "mean:4", "cls+", "mean:1,1", "mean:-1", "cls+cls:3"])
def test_bad_specifications(spec: str) -> None:
    with pytest.raises(InputError, match="pooling"):
        Pooling.parse(spec, 3)
