"""Text in a table, through every door: the features are those that transformers gives, by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fedhip
from fedhip.data import write_features
from fedhip.data.feature_files import feature_set
from fedhip.features.cache import entries
from fedhip.runs import Run
from tests.cli.samples import done, refused, said

WORDS = ("cough", "fever", "broken", "leg", "arm", "since", "monday", "fell", "the", "a", "and", "has", "patient")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of 16 features that takes texts of 12 tokens."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("encoder") / "bert"
    folder.mkdir()
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab={word: at for at, word in enumerate(words)}).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    random = np.random.default_rng(0)
    ill = random.integers(0, 2, 90)
    said = [
        " ".join(random.choice(WORDS[5:], 4)) + " " + " ".join(random.choice(WORDS[:2] if one else WORDS[2:5], 2))
        for one in ill
    ]
    return pl.DataFrame(
        {
            "age": random.integers(20, 80, 90),
            "note": said,
            "clinic": random.choice(["east", "north", "west"], 90),
            "ward": np.where(ill == 1, "medicine", "surgery"),
        }
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: pl.DataFrame) -> Path:
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    rows.write_csv("notes.csv")
    rows.drop("ward").head(5).write_csv("new.csv")
    return tmp_path


def by_hand(encoder: Path, texts: list[str]) -> np.ndarray:
    """The mean of the last layer over a text's tokens, one text after the other."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    with torch.no_grad():
        found = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts]
    return torch.stack(found).numpy()


def run_it(encoder: Path, *words: object) -> None:
    table = ("--data", "notes.csv", "--label", "ward", "--client", "clinic", "--text", "note")
    done("run", *table, "--backbone", f"hf:{encoder}", "--device", "cpu", "--head", "ridge", *words)


def test_a_run_on_text_is_a_run_on_the_features_of_text(encoder: Path, place: Path, rows: pl.DataFrame) -> None:
    run_it(encoder, "--out", "run", "--beta", "1")
    features = np.column_stack((rows["age"].to_numpy(), by_hand(encoder, rows["note"].to_list())))
    write_features(place / "mine.npz", feature_set(features, rows["ward"].to_list(), rows["clinic"].to_list()))
    done("run", "--features", "mine.npz", "--head", "ridge", "--out", "given", "--beta", "1")
    text, given = Run.open("run"), Run.open("given")
    for client in (None, "east", "north", "west"):
        np.testing.assert_allclose(text.model(client).scores(features), given.model(client).scores(features), atol=1e-4)
    assert "a table with text by hf:" in text.results["title"]
    column = text.require_table().texts[0]
    assert (column.width, column.backbone) == (16, f"hf:{encoder}")


def test_every_door_gives_the_same_numbers(
    encoder: Path, place: Path, rows: pl.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    run_it(encoder, "--out", "run")
    done("run", "run/config.toml", "--out", "again")
    backbone = f"hf:{encoder}"
    done("describe", "notes.csv", "--label", "ward", "--client", "clinic", "--text", "note", "--backbone", backbone,
         "--out", "columns.toml")  # fmt: skip
    done("run", "--data", "notes.csv", "--columns", "columns.toml", "--head", "ridge", "--out", "described")
    options: dict[str, Any] = {"text": "note", "backbone": backbone, "device": "cpu", "head": "ridge"}
    frame = fedhip.run(rows, label="ward", client="clinic", out="frame", **options)
    first = Run.open("run")
    for other in (Run.open("again"), Run.open("described"), frame):
        assert other.model("east").digest() == first.model("east").digest()
    capsys.readouterr()
    done("predict", "run", "new.csv", "--json")
    answers = json.loads(capsys.readouterr().out)["rows"]
    for row, (answer, client) in enumerate(zip(answers, rows["clinic"][:5], strict=True)):
        assert answer["class"] == first.predict(rows[row : row + 1], client)[0]
        assert answer["probabilities"] == pytest.approx(first.proba(rows[row : row + 1], client)[0].tolist(), abs=1e-6)


def test_life_after_a_round_on_text(encoder: Path, place: Path, rows: pl.DataFrame) -> None:
    run_it(encoder, "--out", "run")
    kept = {entry.path for entry in entries()}
    assert kept
    rows.head(20).with_columns(clinic=pl.lit("south")).write_csv("south.csv")
    done("join", "run", "--data", "south.csv")
    done("personalize", "run", "--client", "east")
    run = Run.open("run")
    run.join("harbour", rows.tail(20).with_columns(clinic=pl.lit("harbour")))
    assert [check.what for check in run.verify() if check.problem] == []
    before = len(entries())
    assert before > len(kept)
    done("forget", "run", "--client", "south")  # features of its texts were kept: they go
    assert not entries()


def test_an_encoder_that_would_give_other_features_is_refused(
    encoder: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import BertModel

    moved = shutil.copytree(encoder, place / "bert")
    run_it(moved, "--out", "run")
    model = BertModel.from_pretrained(moved)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[7] += 1.0
    model.save_pretrained(moved)
    line = refused(capsys, "predict", "run", "new.csv")
    assert "column 'note' was described with a hf:" in line
    assert "its features would not fit; install the one it was described with" in line


@pytest.mark.filterwarnings("always")
def test_long_texts_are_told_and_missing_ones_marked(
    encoder: Path, place: Path, rows: pl.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    long = [*rows["note"][:88], "fever " * 30, ""]
    rows.with_columns(note=pl.Series(long)).write_csv("notes.csv")
    run_it(encoder, "--out", "run", "--no-cache")
    assert [line for line in said(capsys) if "longer" in line] == [
        "fedhip: warning: notes.csv, column 'note': 1 of 89 texts is longer than the 12 tokens that "
        f"hf:{encoder} takes; what follows them is not read"
    ]
    assert Run.open("run").require_table().names[-1] == "note=(missing)"
    assert not entries()


def test_text_that_is_refused(encoder: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = ("--data", "notes.csv", "--label", "ward", "--client", "clinic")
    line = refused(capsys, "run", *table, "--text", "not")
    assert "notes.csv has no column 'not', which --text names; did you mean 'note'" in line
    assert "'fedhip-vit' is no backbone for text" in refused(
        capsys, "run", *table, "--text", "note", "--backbone", "fedhip-vit"
    )
    assert "--backbone has no effect on a table" in refused(capsys, "run", *table, "--backbone", f"hf:{encoder}")
    assert "--text names columns of a table" in refused(capsys, "run", "--dataset", "sketches", "--text", "note")
    assert "name its columns with --text" in refused(capsys, "describe", "notes.csv", "--backbone", "minilm")
    with pytest.raises(fedhip.errors.InputError, match="backbone and pooling are of text"):
        fedhip.run(pl.read_csv("notes.csv"), label="ward", client="clinic", drop=["note"], backbone="minilm")


def test_a_partition_needs_no_features_of_text(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done("partition", "--data", "notes.csv", "--label", "ward", "--client", "clinic", "--text", "note", "--json")
    assert [row["client"] for row in json.loads(capsys.readouterr().out)["clients"]] == ["east", "north", "west"]
