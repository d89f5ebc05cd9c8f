"""Tables in the paper's layout, as Markdown, LaTeX, CSV and JSON.

An accuracy is the mean over seeds in percent with two decimals, as in the paper, ± the sample deviation over seeds
where there are several; an error is a number in the units of what is predicted. The best of a column (or row) is bold,
the second underlined, judged by the digits that are shown: what looks equal is marked equally, and the second is the
next different value.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedhip.utils.files import write_text
from fedhip.utils.text import readable

Mark = Literal["", "best", "second"]
NOTHING, DIVERGED = "–", "div."


@dataclass(frozen=True)
class Entry:
    """One place of a table: accuracies by seed, or a text instead; and what the paper has there (a share).

    With an `interval` (low, high) that is shown, and not the deviation over seeds. Of an `error` less is better.
    """

    values: tuple[float, ...] = ()
    text: str | None = None
    paper: float | None = None
    mark: Mark = ""
    interval: tuple[float, float] | None = None
    error: bool = False

    @property
    def mean(self) -> float | None:
        """Over seeds; None where a text stands instead."""
        return float(np.mean(self.values)) if self.values and self.text is None else None

    @property
    def deviation(self) -> float | None:
        """Over seeds, of a sample; None with fewer than two."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 and self.text is None else None

    @property
    def shown_mean(self) -> str:
        """The mean in percent, two decimals; of an error, three."""
        if self.text is not None:
            return self.text
        return NOTHING if self.mean is None else self._shown(self.mean, 2)

    @property
    def shown_deviation(self) -> str | None:
        """The deviation in points, two decimals; of an error, three."""
        return None if self.deviation is None else self._shown(self.deviation, 2)

    @property
    def shown_interval(self) -> str | None:
        """The interval in percent, one decimal; of an error, three."""
        return None if self.interval is None else " to ".join(self._shown(end, 1) for end in self.interval)

    @property
    def shown_paper(self) -> str | None:
        """The paper's figure in percent."""
        return None if self.paper is None else f"{100 * self.paper:.2f}"

    def _shown(self, value: float, decimals: int) -> str:
        return f"{value:.3f}" if self.error else f"{100 * value:.{decimals}f}"


@dataclass(frozen=True)
class Row:
    """A row: its name, its places, the footnotes of its name, and whether a line is drawn above it."""

    label: str
    entries: tuple[Entry, ...]
    footnotes: tuple[int, ...] = ()
    rule: bool = False


@dataclass(frozen=True)
class Table:
    """A table: `columns` are paths from the outermost heading to the innermost; `records` the lines of its CSV."""

    name: str
    title: str
    corner: str
    columns: tuple[tuple[str, ...], ...]
    rows: tuple[Row, ...]
    records: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    footnotes: tuple[str, ...] = ()


def rank(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with the best and the second marked."""
    less_is_better = any(e.error for e in entries)
    shown = sorted({float(e.shown_mean) for e in entries if e.mean is not None}, reverse=not less_is_better)
    marks: dict[float, Mark] = dict(zip(shown, ("best", "second"), strict=False))
    return [replace(e, mark="" if e.mean is None else marks.get(float(e.shown_mean), "")) for e in entries]


def rank_columns(rows: Sequence[Row]) -> list[Row]:
    """The rows with the best and the second of every column marked."""
    ranked = [rank(column) for column in zip(*(row.entries for row in rows), strict=True)]
    return [replace(row, entries=tuple(column[i] for column in ranked)) for i, row in enumerate(rows)]


def letter(number: int) -> str:
    """Name a footnote: a, b, …, z, aa, ab, … for 0, 1 and so on."""
    return (letter(number // 26 - 1) if number >= 26 else "") + "abcdefghijklmnopqrstuvwxyz"[number % 26]


def write_table(folder: Path, table: Table) -> list[Path]:
    """The table as NAME.csv, .json, .md and .tex."""
    texts = {"csv": to_csv(table), "json": to_json(table), "md": to_markdown(table), "tex": to_latex(table)}
    paths = []
    for suffix, text in texts.items():
        paths.append(folder / f"{table.name}.{suffix}")
        write_text(paths[-1], text)
    return paths


def to_csv(table: Table) -> str:
    """One line for each record; what is missing is empty."""
    names = list(dict.fromkeys(name for record in table.records for name in record))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n", restval="")
    writer.writeheader()
    for record in table.records:
        writer.writerow({name: _csv_value(value) for name, value in record.items()})
    return readable(file.getvalue())


def _csv_value(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ";".join(f"{name}={inner:g}" for name, inner in value.items())
    return ";".join(map(str, value)) if isinstance(value, list | tuple) else value


def to_json(table: Table) -> str:
    """The layout as it is shown, the notes, and the records."""
    content = {
        "schema": 1,
        "name": table.name,
        "title": table.title,
        "columns": [list(path) for path in table.columns],
        "rows": [{"label": row.label, "entries": [_shown(entry) for entry in row.entries]} for row in table.rows],
        "notes": [*table.notes, *table.footnotes],
        "records": [dict(record) for record in table.records],
    }
    return readable(json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)) + "\n"


def _shown(entry: Entry) -> dict[str, Any]:
    return {
        "mean": entry.mean,
        "std": entry.deviation,
        "seeds": list(entry.values),
        "text": entry.text,
        "paper": entry.paper,
        "mark": entry.mark,
    }


def to_markdown(table: Table) -> str:
    """For GitHub: bold, <ins> for underlined, the headings of a column in one line."""
    heads = [" ".join(path) for path in _short_paths(table.columns)]
    lines = [f"**{escape_markdown(table.title)}**", ""]
    lines.append("| " + " | ".join([escape_markdown(table.corner), *map(escape_markdown, heads)]) + " |")
    lines.append("|---|" + "---:|" * len(heads))
    for row in table.rows:
        raised = f"<sup>{','.join(letter(n) for n in row.footnotes)}</sup>" if row.footnotes else ""
        cells = [escape_markdown(row.label) + raised, *map(_markdown, row.entries)]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    lines += [f"- {escape_markdown(note)}" for note in table.notes]
    lines += [f"- <sup>{letter(i)}</sup> {escape_markdown(note)}" for i, note in enumerate(table.footnotes)]
    return readable("\n".join(lines)) + "\n"


def _markdown(entry: Entry) -> str:
    text = escape_markdown(entry.shown_mean)
    text = {"best": f"**{text}**", "second": f"<ins>{text}</ins>", "": text}[entry.mark]
    if entry.shown_interval is not None:
        text += f" ({entry.shown_interval})"
    elif entry.shown_deviation is not None:
        text += f" ± {entry.shown_deviation}"
    return text if entry.shown_paper is None else f"{text} ({entry.shown_paper})"


def _short_paths(columns: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The paths without the levels at which all columns have the same heading."""
    kept = [level for level in range(len(columns[0])) if len({path[level] for path in columns}) > 1] if columns else []
    return [tuple(path[level] for level in kept) if kept else path[-1:] for path in columns]


def escape_markdown(text: str) -> str:
    """Text that renders as itself in a table."""
    return re.sub(r"([\\`*_|<>\[\]~#])", r"\\\1", " ".join(text.split()))


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "λ": r"\(\lambda\)", "α": r"\(\alpha\)", "β": r"\(\beta\)", "±": r"\(\pm\)", "−": r"\(-\)", "×": r"\(\times\)",
    "↑": r"\(\uparrow\)", "–": "--", "…": r"\dots{}", "·": r"\(\cdot\)", "²": r"\(^2\)", "≥": r"\(\ge\)",
    "≤": r"\(\le\)", "‖": r"\(\Vert\)", "\u202f": r"\,", "\u00a0": "~",
}  # fmt: skip


def escape_latex(text: str) -> str:
    """Text that is typeset as itself."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def to_latex(table: Table) -> str:
    """A table* with booktabs; its text is escaped, and it needs no package beyond booktabs and graphicx."""
    width = len(table.columns)
    lines = [
        r"% \usepackage{booktabs,graphicx}",
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{escape_latex(table.title)}}}",
        rf"\label{{tab:fedhip-{re.sub(r'[^A-Za-z0-9-]+', '-', table.name)}}}",
        r"\renewcommand{\arraystretch}{1.15}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}l{'c' * width}@{{}}}}",
        r"\toprule",
        *_latex_heads(table),
        r"\midrule",
    ]
    for row in table.rows:
        if row.rule:
            lines.append(r"\midrule")
        raised = rf"\textsuperscript{{{','.join(letter(n) for n in row.footnotes)}}}" if row.footnotes else ""
        lines.append(" & ".join([escape_latex(row.label) + raised, *map(_latex, row.entries)]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}"]
    notes = [escape_latex(note) for note in table.notes]
    notes += [rf"\textsuperscript{{{letter(i)}}} {escape_latex(note)}" for i, note in enumerate(table.footnotes)]
    if notes:
        lines += [
            r"\par\vspace{0.4em}",
            r"\begin{minipage}{\textwidth}\footnotesize\raggedright",
            *(rf"{note}\par" for note in notes),
            r"\end{minipage}",
        ]
    return readable("\n".join([*lines, r"\end{table*}"])) + "\n"


def _latex(entry: Entry) -> str:
    text = escape_latex(entry.shown_mean)
    text = {"best": rf"\textbf{{{text}}}", "second": rf"\underline{{{text}}}", "": text}[entry.mark]
    if entry.shown_interval is not None:
        text += rf"{{\scriptsize\,({escape_latex(entry.shown_interval)})}}"
    elif entry.shown_deviation is not None:
        text += rf"{{\scriptsize\,\(\pm\)\,{entry.shown_deviation}}}"
    return text if entry.shown_paper is None else rf"{text} {{\scriptsize({entry.shown_paper})}}"


def _latex_heads(table: Table) -> list[str]:
    """A line of headings for each level; those that span columns have a line below them."""
    lines = []
    levels = len(table.columns[0])
    for level in range(levels):
        last = level == levels - 1
        cells, rules, place = [escape_latex(table.corner) if last else ""], [], 2
        # Equal headings join only below an equal heading.
        for path, group in groupby(table.columns, key=lambda path: path[: level + 1]):
            span = len(list(group))
            head = escape_latex(path[-1])
            cells.append(head if last and span == 1 else rf"\multicolumn{{{span}}}{{c}}{{{head}}}")
            rules.append(rf"\cmidrule(lr){{{place}-{place + span - 1}}}")
            place += span
        lines.append(" & ".join(cells) + r" \\")
        if not last:
            lines.append(" ".join(rules))
    return lines
