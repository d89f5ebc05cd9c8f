"""Marks, means, escaping and the four formats."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedhip.reproduce.tables import (
    Entry,
    Row,
    Table,
    escape_latex,
    escape_markdown,
    letter,
    rank,
    rank_columns,
    to_csv,
    to_json,
    to_latex,
    to_markdown,
    write_table,
)


def marks(*means: float | None) -> list[str]:
    return [e.mark for e in rank([Entry(text="div.") if mean is None else Entry((mean,)) for mean in means])]


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ((0.5, 0.7, 0.6), ["", "best", "second"]),
        ((0.7, 0.7, 0.6, 0.5), ["best", "best", "second", ""]),
        ((0.7, 0.6, 0.6), ["best", "second", "second"]),
        ((0.70001, 0.70004, 0.6), ["best", "best", "second"]),  # 70.00 both, as shown
        ((0.70001, 0.70006, 0.6), ["second", "best", ""]),  # 70.00 and 70.01
        ((None, 0.1, None), ["", "best", ""]),
        ((0.3, 0.3), ["best", "best"]),
        ((), []),
    ],
)
def test_marks_follow_the_digits_that_are_shown(means: tuple[float | None, ...], expected: list[str]) -> None:
    assert marks(*means) == expected


def test_columns_are_ranked_by_themselves() -> None:
    ranked = rank_columns([Row("a", (Entry((0.1,)), Entry((0.9,)))), Row("b", (Entry((0.2,)), Entry((0.8,))))])
    assert [[entry.mark for entry in row.entries] for row in ranked] == [["second", "best"], ["best", "second"]]


def test_mean_and_deviation_are_those_of_a_sample() -> None:
    values = np.random.default_rng(0).uniform(size=5)
    entry = Entry(tuple(values.tolist()))
    assert entry.mean == pytest.approx(np.mean(values), abs=1e-15)
    assert entry.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-15)
    assert entry.shown_mean == f"{100 * np.mean(values):.2f}"
    assert Entry((0.5,)).deviation is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50% & more_1", r"50\% \& more\_1"),
        ("a$b#c{d}", r"a\$b\#c\{d\}"),
        ("x\\y~z^w", r"x\textbackslash{}y\textasciitilde{}z\textasciicircum{}w"),
        ("λ = 0.1", r"\(\lambda\) = 0.1"),
        ("two\nlines", "two lines"),
    ],
)
def test_latex_is_escaped(text: str, expected: str) -> None:
    assert escape_latex(text) == expected


def test_markdown_is_escaped() -> None:
    assert escape_markdown("a|b*c_<d>") == r"a\|b\*c\_\<d\>"


def test_footnotes_go_on_after_z() -> None:
    assert [letter(n) for n in (0, 25, 26, 27, 51, 52)] == ["a", "z", "aa", "ab", "az", "ba"]


@pytest.fixture
def table() -> Table:
    rows = rank_columns(
        [
            Row("A_1|x", (Entry((0.5, 0.7), paper=0.4353), Entry(text="div.")), (0,)),
            Row("FedHiP", (Entry((0.8, 0.9)), Entry((0.25, 0.35)))),
        ]
    )
    return Table(
        "t", "50% of it", "Method", (("D", "50 clients", "λ = 0.1"), ("D", "50 clients", "λ = 0.5")), tuple(rows),
        ({"method": "a", "mean": 0.6, "seeds": [0, 1], "options": {"mu": 0.1}}, {"method": "b,c", "std": None}),
        ("a note",), ("A_1 diverged",),
    )  # fmt: skip


def test_markdown_has_a_cell_for_every_column(table: Table) -> None:
    lines = to_markdown(table).splitlines()
    grid = [line for line in lines if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", line)) for line in grid} == {5}
    assert grid[0] == "| Method | λ = 0.1 | λ = 0.5 |"
    assert grid[2] == r"| A\_1\|x<sup>a</sup> | <ins>60.00</ins> ± 14.14 (43.53) | div. |"
    assert grid[3] == "| FedHiP | **85.00** ± 7.07 | **30.00** ± 7.07 |"
    assert "- a note" in lines
    assert r"- <sup>a</sup> A\_1 diverged" in lines


def test_latex_is_balanced_and_every_line_has_all_columns(table: Table) -> None:
    text = to_latex(table)
    unescaped = re.sub(r"\\[{}]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    assert re.findall(r"\\begin\{(\w+\*?)\}", text) == ["table*", "tabular", "minipage"]
    assert sorted(re.findall(r"\\end\{(\w+\*?)\}", text)) == sorted(["table*", "tabular", "minipage"])
    for line in text.splitlines():
        if line.endswith(r"\\"):
            spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            assert len(re.findall(r"(?<!\\)&", line)) + sum(spans) - len(spans) == 2
    assert r"\underline{60.00}{\scriptsize\,\(\pm\)\,14.14} {\scriptsize(43.53)}" in text
    assert r"\textbf{85.00}" in text
    assert r"\multicolumn{2}{c}{50 clients}" in text
    assert r"\caption{50\% of it}" in text
    assert text.isascii()


def test_csv_and_json_hold_the_records(table: Table) -> None:
    first, second = csv.DictReader(io.StringIO(to_csv(table)))
    assert first == {"method": "a", "mean": "0.6", "seeds": "0;1", "options": "mu=0.1", "std": ""}
    assert second == {"method": "b,c", "mean": "", "seeds": "", "options": "", "std": ""}
    content = json.loads(to_json(table))
    assert content["records"][0]["mean"] == 0.6
    assert content["rows"][1]["entries"][0]["mark"] == "best"


def test_four_files_are_written(table: Table, tmp_path: Path) -> None:
    assert [path.name for path in write_table(tmp_path, table)] == ["t.csv", "t.json", "t.md", "t.tex"]
    assert all(path.stat().st_size for path in tmp_path.iterdir())
