"""`fedhip reproduce`: what is printed, what is refused, and what an interrupt leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedhip.cli.main import main
from fedhip.cli.reproduce import narrow
from fedhip.data import Dataset
from fedhip.reproduce import subset
from fedhip.reproduce.tables import Entry, Row, Table
from tests.reproduce.fakes import Methods, pretend, rows

SMALL = ["--clients", "4", "--concentrations", "0.1", "--seeds", "0", "--rounds", "5", "--methods", "fedavg,fedhip"]


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> Methods:
    return pretend(monkeypatch)


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    data = rows()
    np.savez(tmp_path / "mine.npz", features=data.features, labels=data.labels)
    return "mine.npz"


def test_all_writes_everything_and_prints_the_tables(
    features: str, methods: Methods, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "all", "--features", features, *SMALL]) == 0
    shown = capsys.readouterr()
    assert "FedHiP" in shown.out
    assert "reproduce/mine" in shown.out
    assert "0/12  mine K=4 λ=0.1 seed 0 fedavg paper" in shown.err
    assert "12/12" in shown.err
    for name in ("table1", "alpha", "beta", "efficiency", "invariance"):
        assert (tmp_path / "reproduce" / "mine" / f"{name}.md").is_file()
    calls = len(methods.calls)
    assert main(["reproduce", "all", "--features", features, *SMALL]) == 0
    assert len(methods.calls) == calls
    assert "; 0 cells computed now" in capsys.readouterr().out


def test_a_part_of_the_rows_has_a_name_of_its_own(features: str, methods: Methods, tmp_path: Path) -> None:
    assert main(["reproduce", "table1", "--features", features, *SMALL, "--part", "2", "9"]) == 0
    out = tmp_path / "reproduce" / "mine-2x9"
    assert "mine-2x9" in (out / "table1.md").read_text(encoding="utf-8")
    assert {
        sum(len(client.train[1]) + len(client.test[1]) for client in call["clients"]) for call in methods.calls
    } == {18}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel1", "--features", "mine.npz"], "there is no study 'tabel1'"),
        (["tabel1", "--features", "mine.npz"], "did you mean 'table1'?"),
        (["table1", "--features", "mine.npz", "--methods", "fedagv"], "did you mean 'fedavg'?"),
        (["table1", "--features", "mine.npz", "--methods", ","], "no method given"),
        (["table1", "--features", "mine.npz", "--protocol", "tunned"], "did you mean 'tuned'?"),
        (["table1", "--features", "mine.npz", "--network", "deep"], "there is no network 'deep'"),
        (["table1"], "no data given"),
        (["table1", "--features", "mine.npz", "--data", "x"], "--features stands alone"),
        (["table1", "--features", "mine.npz", "mine.npz"], "the same name"),
        (["table1", "--dataset", "sketches", "cifar100", "--data", "x"], "give one path for each name"),
        (["table1", "--features", "none.npz"], "none.npz"),
        (["table1", "--features", "mine.npz", "--clients", "301"], "301 clients cannot share 300 rows"),
        (["table1", "--features", "mine.npz", "--clients", "1"], "at least 2 clients"),
        (["table1", "--features", "mine.npz", "--clients", "4", "--concentrations", "0"], "above 0"),
        (["table1", "--features", "mine.npz", "--seeds", "-1"], "at least 0"),
        (["table1", "--features", "mine.npz", "--rounds", "0"], "at least 1"),
        (["table1", "--features", "mine.npz", "--clients", "4", "--out", "mine.npz"], "is a file"),
        (["table1", "--features", "mine.npz", "--clients", "4", "--out", "mine.npz/x"], "not a folder"),
        (["table1", "--features", "mine.npz", "--clients", "4", "--out", "/proc/x"], "/proc"),
        (["table1", "--features", "mine.npz", "--clients", "4", "--device", "abacus"], "there is no device 'abacus'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_3(
    features: str, methods: Methods, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *words]) == 3
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert methods.calls == []


def test_a_wide_table_is_narrow_in_the_terminal() -> None:
    columns = tuple((name, f"{k} clients", f"λ = {c}") for name in "xy" for k in (50, 100) for c in (0.1, 0.5, 1.0))
    numbers = np.random.default_rng(0).uniform(size=(11, 12))
    rows = tuple(Row(f"m{i}", tuple(Entry((v,)) for v in line.tolist())) for i, line in enumerate(numbers))
    wide = Table("table1-paper", "T", "Method", columns, rows, ())
    (first, heads, cells), (second, _, others) = narrow(wide)
    assert (first, second) == ("T: x", "T: y")
    assert heads[1] == "50 clients λ = 0.1"
    assert [float(cell) for cell in (*cells[3][1:], *others[3][1:])] == pytest.approx(100 * numbers[3], abs=0.006)
    ((_, heads, cells),) = narrow(Table("alpha", "T", "non-IID", columns, rows[:3], ()))
    assert heads == ["", "m0", "m1", "m2"]
    assert [float(row[2]) for row in cells] == pytest.approx(100 * numbers[1], abs=0.006)


def test_an_interrupt_leaves_finished_cells(
    features: str, methods: Methods, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods.stop_after = 1
    assert main(["reproduce", "table1", "--features", features, *SMALL, "--out", "here"]) == 130
    assert len(list((tmp_path / "here" / "cells").glob("*.json"))) == 1
    assert "interrupted" in capsys.readouterr().err


def test_quick_is_small_and_says_so(
    features: str, methods: Methods, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "table1", "--features", features, "--quick", "--methods", "fedavg,fedhip"]) == 0
    capsys.readouterr()
    page = (tmp_path / "reproduce" / "mine-quick" / "table1.md").read_text()
    assert page.count("QUICK: a small version") == 2  # one for each protocol
    assert sum(len(client.train[1]) + len(client.test[1]) for client in methods.calls[0]["clients"]) <= 15 * 40


def test_the_rows_of_the_small_version() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(30), 70))
    images = np.arange(2100, dtype=np.uint16).view(np.uint8).reshape(2100, 1, 2, 1)
    small = subset(Dataset("x", images, labels, tuple(map(str, range(30)))))
    assert np.bincount(small.labels).tolist() == [40] * 15
    assert isinstance(small, Dataset)
    assert isinstance(small.images, np.ndarray)
    numbers = np.ascontiguousarray(small.images).reshape(-1, 2).view(np.uint16).ravel()
    assert np.array_equal(labels[numbers], small.labels)
    assert (np.diff(numbers.astype(int)) > 0).all()


@pytest.mark.slow
def test_the_package_needs_no_extra() -> None:
    """torch, numpy, pillow and safetensors alone."""
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'sklearn', 'rich', 'transformers', 'onnx', 'scipy'):\n"
        "    sys.modules[name] = None\n"
        "import fedhip.reproduce, fedhip.cli.reproduce\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
