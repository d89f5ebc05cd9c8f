"""The agreed encoder: found by its digest, or received in pieces into the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import RecordDict
from PIL import Image

from fedhip.data import FeatureSet, Window, load_dataset, make_partition
from fedhip.features import extract, load_backbone
from fedhip.features.reference import BackboneReference
from fedhip.federation.errors import RoundError, SetupError
from fedhip.federation.site import encoder as encoder_module
from fedhip.federation.site.encoder import cached, digest_of, receive
from fedhip.federation.status_codes import SiteRefusalError
from fedhip.runs.round.settings import RoundSettings
from fedhip.runs.run import run_round
from fedhip.utils.files import default_cache
from tests.cli.samples import deepen, encoder, image_folder
from tests.federation.samples import Trial, ridge_options

DATA = bytes(range(256)) * 5
DIGEST = hashlib.sha256(DATA).hexdigest()


def piece(start: int, end: int) -> Any:
    return np.frombuffer(DATA[start:end], np.uint8)


def test_pieces_in_order_make_the_file() -> None:
    assert not receive(DIGEST, 0, 1280, piece(0, 500))
    assert not receive(DIGEST, 500, 1280, piece(500, 1000))
    assert receive(DIGEST, 1000, 1280, piece(1000, 1280))
    assert cached(DIGEST).read_bytes() == DATA
    assert [path.name for path in cached(DIGEST).parent.iterdir()] == [cached(DIGEST).name]
    assert receive(DIGEST, 0, 1280, piece(0, 500))  # it is here: whatever comes is not needed


def test_an_interrupted_transfer_begins_again() -> None:
    receive(DIGEST, 0, 1280, piece(0, 500))
    receive(DIGEST, 0, 1280, piece(0, 500))
    assert receive(DIGEST, 500, 1280, piece(500, 1280))


def test_a_missing_piece_is_noticed() -> None:
    receive(DIGEST, 0, 1280, piece(0, 500))
    with pytest.raises(SiteRefusalError, match="missing"):
        receive(DIGEST, 600, 1280, piece(600, 1280))


def test_another_file_is_removed() -> None:
    with pytest.raises(SiteRefusalError, match="was removed"):
        receive("0" * 64, 0, 1280, piece(0, 1280))
    assert list(cached("0" * 64).parent.iterdir()) == []


@pytest.mark.parametrize(("offset", "size"), [(-1, 1280), (1000, 1280), (0, 100), (0, 1 << 60)])
def test_pieces_that_are_none(offset: int, size: int) -> None:
    with pytest.raises(SiteRefusalError):
        receive(DIGEST, offset, size, piece(0, 500))
    assert not cached(DIGEST).exists()
    with pytest.raises(SiteRefusalError):
        receive(DIGEST, 0, 1280, piece(0, 0))


@pytest.mark.parametrize(
    ("agreed", "size", "message"),
    [(1280, 1281, "1280 were agreed on"), (1280, 2 << 30, "1280 were"), (None, (2 << 30) + 1, "at most 2147483648")],
)
def test_an_encoder_larger_than_agreed_on_is_refused_at_its_first_piece(
    agreed: int | None, size: int, message: str
) -> None:
    with pytest.raises(SiteRefusalError, match=message):
        receive(DIGEST, 0, size, piece(0, 500), agreed)
    assert not cached(DIGEST).parent.exists()


class Pictures:
    """Four sites with images, and a federation whose server offers the encoder."""

    def __init__(self, tmp_path: Path, window: Window | None = None, **settings: Any) -> None:
        self.file = encoder(tmp_path)
        self.backbone = load_backbone("fedhip-vit", weights=self.file, pooling="cls", device="cpu")
        reference = BackboneReference("fedhip-vit", self.backbone.identity, "float32", "cls", window=window)
        self.reference = reference
        settings |= {"backbone": _Frozen(reference.to_dict()), "encoder_digest": digest_of(self.file)}
        self.trial = Trial.make(
            tmp_path, width=self.backbone.feature_dim, classes=("dark", "bright"), largest_feature=64.0, **settings
        )
        self.use(image_folder(tmp_path / "images", tuple("abcd")))
        (self.trial.folder / "encoder.safetensors").write_bytes(self.file.read_bytes())

    def use(self, images: Path) -> None:
        """These are the sites' images."""
        self.images = images
        for site in "abcd":
            self.trial.grid.nodes[self.trial.node(site)].node_config["data"] = str(images / site)

    def expected(self, path: Path) -> Any:
        """`fedhip run` on the same images."""
        data = load_dataset(self.images, window=self.reference.window)
        features = extract(self.backbone, data, dtype=self.reference.dtype, cache=False)
        order = [data.class_names.index(name) for name in ("dark", "bright")]
        labels = np.argsort(order)[data.labels]
        rows = FeatureSet(features, labels, ("dark", "bright"), clients=data.clients)
        partition = make_partition(labels, "natural", clients=data.clients)
        config = {"alpha": "loo", "beta": "auto", "seed": 0, "statistics": True}
        settings = RoundSettings(ridge=ridge_options(self.trial.agreement))
        return run_round(path, rows, partition, settings, title="", config=config)[0]


class _Frozen(dict[str, Any]):
    """Settings of a federation are kept by their values."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted((key, str(value)) for key, value in self.items())))

    def __lt__(self, other: object) -> bool:
        return False


def test_sites_without_the_encoder_get_it_and_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums_only: None
) -> None:
    pictures = Pictures(tmp_path)
    monkeypatch.setattr(encoder_module, "PIECE", 4000)
    monkeypatch.setattr(encoder_module.EncoderFile.pieces, "__defaults__", (4000,))
    trial = pictures.trial
    result = trial.run()
    assert result.total() == pictures.expected(tmp_path / "run").total()
    assert cached(digest_of(pictures.file)).read_bytes() == pictures.file.read_bytes()
    asked = [step for _, step in trial.grid.asked]
    assert asked.count("keys") == 3 * 4  # also those of the first sum, which cannot come with hello
    pieces = asked.count("encoder")
    assert pieces > 4  # to each of the sites, which share a cache here but do not know it


def test_a_site_that_has_the_encoder_is_not_sent_it(tmp_path: Path, sums_only: None) -> None:
    pictures = Pictures(tmp_path)
    for context in pictures.trial.grid.nodes.values():
        context.node_config["weights"] = str(pictures.file)
    pictures.trial.run()
    asked = [step for _, step in pictures.trial.grid.asked]
    assert (asked.count("encoder"), asked.count("keys")) == (0, 2 * 4)
    assert not (default_cache() / "encoders").exists()


def test_a_spoilt_piece_leaves_the_site_out(tmp_path: Path, sums_only: None) -> None:
    pictures = Pictures(tmp_path, quorum=3, threshold=3)
    trial = pictures.trial
    for site in "abd":
        trial.grid.nodes[trial.node(site)].node_config["weights"] = str(pictures.file)

    def spoil(records: RecordDict) -> RecordDict:
        cast(Any, records["arrays"])["piece"].data = bytes(len(cast(Any, records["arrays"])["piece"].data))
        return records

    trial.fault("asked", "c", "encoder", spoil)
    trial.run()
    assert trial.codes() == {"c": "encoder"}


def test_a_server_without_the_agreed_file(tmp_path: Path) -> None:
    pictures = Pictures(tmp_path)
    (pictures.trial.folder / "encoder.safetensors").write_bytes(b"another")
    with pytest.raises(SetupError, match="the agreement says otherwise"):
        pictures.trial.run()
    (pictures.trial.folder / "encoder.safetensors").unlink()
    pictures.trial.again()
    with pytest.raises(SetupError, match="put it there"):
        pictures.trial.run()


def test_images_of_more_than_8_bits_by_the_agreed_window(tmp_path: Path, sums_only: None) -> None:
    """A site that has fewer bits takes the window of all, and not its own."""
    pictures = Pictures(tmp_path, Window(0, 4095))
    deep = deepen(pictures.images, tmp_path / "deep")
    for file in (deep / "b").rglob("*.png"):
        Image.fromarray(np.asarray(Image.open(file)) >> 2).save(file)
    pictures.use(deep)
    result = pictures.trial.run()
    assert result.total() == pictures.expected(tmp_path / "run").total()
    backbone = result.model(None).backbone
    assert backbone is not None
    assert backbone.window == Window(0, 4095)


def test_images_of_more_than_8_bits_without_an_agreed_window(tmp_path: Path) -> None:
    pictures = Pictures(tmp_path)
    pictures.use(deepen(pictures.images, tmp_path / "deep"))
    with pytest.raises(RoundError, match="a: data"):
        pictures.trial.run()
    assert "more than 8 bits, and the agreement has no window" in pictures.trial.log("a")
    assert "init --window LOW HIGH" in pictures.trial.log("a")


def test_images_without_an_agreed_backbone(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path)
    images = image_folder(tmp_path / "images", ())
    (images / "bright").rename(images / "ape")
    (images / "dark").rename(images / "bee")
    for context in trial.grid.nodes.values():
        context.node_config["data"] = str(images)
    with pytest.raises(RoundError, match="a: data"):
        trial.run()
    assert "the agreement names no backbone" in trial.log("a")
