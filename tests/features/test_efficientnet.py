"""EfficientNet-Lite against the published weights, sizes, and features that another implementation gave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedhip.errors import FileError, InputError, MissingExtraError
from fedhip.features import efficientnet
from fedhip.features.backbones import load_backbone
from fedhip.features.efficientnet import SIZES, EfficientNetLite, load_efficientnet, scaled_width

NAME = "efficientnet-lite0"


def pattern(side: int) -> torch.Tensor:
    """An image (1, side, side, 3) uint8 that any program can draw."""
    y, x = torch.arange(side)[:, None], torch.arange(side)[None]
    return torch.stack([(x * 5 + y) % 256, (x + 3 * y) % 256, (x * y) % 256], -1).to(torch.uint8)[None]


def test_features_are_those_of_another_implementation() -> None:
    # efficientnet_lite_pytorch 0.1.0, (pixels − 127) / 128, mean over its map
    features = load_backbone(NAME, device="cpu")(pattern(224))
    assert features.shape == (1, 1280)
    assert features.dtype == torch.float32
    assert features[0, [0, 1, 100, 500, 900, 1279]].tolist() == pytest.approx([0, 0, 0.18353, 0, 0.23132, 0], abs=2e-5)
    assert float(features.sum()) == pytest.approx(231.7328, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "published"), [(NAME, 4_652_008), (NAME[:-1] + "1", 5_416_680), (NAME[:-1] + "2", 6_092_072)]
)
def test_sizes_are_the_published_ones(name: str, published: int) -> None:
    model = EfficientNetLite(SIZES[name].width, SIZES[name].depth)
    classifier = 1280 * 1000 + 1000
    assert sum(int(p.numel()) for p in model.parameters()) + classifier == published


def test_widths_are_multiples_of_eight_and_lose_no_more_than_a_tenth() -> None:
    assert [scaled_width(w, 1.1) for w in (16, 24, 40, 80, 112, 192, 320)] == [16, 24, 48, 88, 120, 208, 352]
    assert scaled_width(11, 1.0) == 16  # 8 would be less than nine tenths of it


def test_a_row_has_the_same_features_in_any_batch() -> None:
    backbone = load_backbone(NAME, device="cpu")
    images = torch.cat([pattern(50), pattern(50).flip(1), pattern(50).flip(2)])
    together = backbone(images)
    apart = torch.cat([backbone(image[None]) for image in images])
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-6)


def test_weights_of_something_else_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.pth"
    torch.save({"_conv_stem.weight": torch.zeros(32, 3, 3, 3)}, other)
    with pytest.raises(FileError, match=r"other\.pth does not hold the weights of efficientnet-lite0: .* missing"):
        load_efficientnet(NAME, other)
    torch.save({"weights": torch.zeros(1)}, other)
    with pytest.raises(FileError, match="does not hold the weights"):
        load_efficientnet(NAME, other)
    other.write_bytes(b"no weights")
    with pytest.raises(FileError, match="does not hold the weights"):
        load_efficientnet(NAME, other)
    with pytest.raises(FileError, match="cannot read the weights"):
        load_efficientnet(NAME, tmp_path / "nowhere.pth")
    monkeypatch.setattr(efficientnet, "packaged_weights", lambda name: other)
    with pytest.raises(FileError, match="not the file that efficientnet-lite0 was published with"):
        load_efficientnet(NAME)


def test_what_is_missing_and_what_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="has no setting pooling"):
        load_backbone(NAME, pooling="cls")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedhip\[efficientnet\]'"):
        load_backbone(NAME)
