import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedhip.cli import partition
from fedhip.data import FeatureSet, load_partition, make_partition, write_features
from fedhip.errors import FedHiPError

LABELS = np.arange(300) % 5


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    partition.register(parser.add_subparsers())
    args = parser.parse_args(["partition", *words])
    return int(args.handler(args))


@pytest.fixture
def features(tmp_path: Path) -> str:
    path = tmp_path / "mine.npz"
    clients = np.array(["north", "south", "east"])[np.arange(300) % 3]
    write_features(path, FeatureSet(np.ones((300, 2)), LABELS, tuple("abcde"), clients=clients))
    return str(path)


def test_table_agrees_with_the_partition(features: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            "--features",
            features,
            "--partition",
            "dirichlet",
            "--clients",
            "4",
            "--concentration",
            "0.3",
            "--seed",
            "2",
            "--json",
        )
        == 0
    )
    table = json.loads(capsys.readouterr().out)["clients"]
    expected = make_partition(LABELS, "dirichlet", 4, concentration=0.3, seed=2)
    for row, rows in zip(table, expected.rows, strict=True):
        counts = np.bincount(LABELS[rows])
        assert row["rows"] == row["train"] + row["test"] == len(rows)
        assert row["test"] == 15
        assert row["classes"] == (counts > 0).sum()
        assert row["largest_class_share"] == pytest.approx(counts.max() / len(rows))


def test_files_are_written_and_reproduce_it(features: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder"
    assert run("--features", features, "--clients", "4", "--partition", "iid", "--out", str(out)) == 0
    assert sorted(p.name for p in out.iterdir()) == ["partition.json", "partition.svg"]
    found, _ = load_partition(out / "partition.json", LABELS)
    assert found.sha256 == make_partition(LABELS, "iid", 4).sha256
    printed = capsys.readouterr().out
    assert "mine · 4 clients, iid, seed 0" in printed
    assert "partition.json" in printed


def test_split_that_the_data_brings_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = (np.arange(300) // 5 % 2).astype(np.int8)
    write_features(tmp_path / "own.npz", FeatureSet(np.ones((300, 2)), LABELS, tuple("abcde"), split=split))
    words = ("--features", str(tmp_path / "own.npz"), "--clients", "4", "--json", "--out", str(tmp_path / "out"))
    assert run(*words) == 0
    table = json.loads(capsys.readouterr().out)["clients"]
    partition, found = load_partition(tmp_path / "out" / "partition.json", LABELS, data_split=split)
    np.testing.assert_array_equal(found, split)
    assert [row["test"] for row in table] == [int(split[rows].sum()) for rows in partition.rows]
    assert sum(row["test"] for row in table) == 150


def test_natural_clients_by_name(features: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--features", features, "--partition", "natural") == 0
    printed = capsys.readouterr().out
    assert [name for name in ("east", "north", "south") if name in printed] == ["east", "north", "south"]


def test_the_table_says_what_each_client_has(features: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("--features", features, "--clients", "2", "--partition", "shards", "--shards", "1")
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == "mine · 2 clients, shards, 1 shards a client, seed 0"
    assert lines[1].split() == ["client", "rows", "train", "test", "classes", "largest", "class"]
    assert lines[3].split() == ["0", "150", "120", "30", "3", "40.0%"]


def test_long_tables_are_cut(features: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("--features", features, "--clients", "130", "--partition", "iid")
    assert "and 30 more clients" in capsys.readouterr().out


def test_data_sets_by_name_and_by_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--dataset", "sketches", "--clients", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["title"].startswith("sketches · 3 clients, dirichlet, λ = 0.1")
    np.savez(tmp_path / "own.npz", images=np.zeros((6, 2, 2), np.uint8), labels=[0, 0, 0, 1, 1, 1])
    assert run("--data", str(tmp_path / "own.npz"), "--clients", "3", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["clients"]) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no data given"),
        (("--features", "x.npz", "--dataset", "sketches"), "stands alone"),
        (("--dataset", "scetches", "--clients", "3"), "did you mean 'sketches'"),
        (("--dataset", "sketches", "--clients", "3", "--concentration", "0"), "above 0, not 0.0"),
        (("--dataset", "sketches", "--clients", "10001"), "cannot share 10000 rows"),
    ],
)
def test_errors_are_ours(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(FedHiPError, match=message):
        run(*words)


def test_without_matplotlib_the_manifest_is_kept(
    features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(FedHiPError, match="pip install matplotlib"):
        run("--features", features, "--partition", "iid", "--clients", "4", "--out", str(tmp_path / "out"))
    load_partition(tmp_path / "out" / "partition.json", LABELS)
