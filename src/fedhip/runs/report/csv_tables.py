"""Every table of a report as CSV: UTF-8, a line of names first, numbers in full, nothing where there is none.

methods.csv      a line for each method: means over clients, their intervals, what it took
clients.csv      a line for each client and method: rows, α, every metric with its interval
gains.csv        a line for each client and model that it is compared with: the difference, and whether it is chance
rows.csv         a line for each client and class: training and test rows
errors.csv       a line for each client, class and class that it is taken for: test rows that are wrong
reliability.csv  a line for each method and bin: the mean probability of answers, and the share that is right
roc.csv          a line for each method and share of false positives, of two classes
columns.csv      a line for each column of the table that the run was made from: what was done with it
seconds.csv      a line for each phase
ledger.csv       a line for each entry

The first column names the run. A table that no run has anything for is not written.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedhip.core.metrics import BINS, ROC_GRID, SCALES
from fedhip.runs.measures import estimate_of, pooled_bins
from fedhip.runs.report.findings import Findings, read_runs
from fedhip.runs.report.measured import roc_curves
from fedhip.runs.report.record import RunRecord
from fedhip.utils.text import readable

Line = dict[str, Any]


def csv_tables(records: Sequence[RunRecord]) -> dict[str, str]:
    """The text of each file, by its name."""
    runs = read_runs(records)
    made = {
        "methods.csv": _methods,
        "clients.csv": _clients,
        "gains.csv": _gains,
        "rows.csv": _rows,
        "errors.csv": _errors,
        "reliability.csv": _reliability,
        "roc.csv": _roc,
        "columns.csv": _columns,
        "seconds.csv": _seconds,
        "ledger.csv": _ledger,
    }
    tables = {}
    for name, table in made.items():
        lines = [{"run": run.record.name, **line} for run in runs for line in table(run)]
        if lines:
            tables[name] = _text(lines)
    return tables


def _text(lines: Sequence[Line]) -> str:
    columns = list(dict.fromkeys(name for line in lines for name in line))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({name: readable(value) if isinstance(value, str) else value for name, value in line.items()})
    return file.getvalue()


def _methods(run: Findings) -> Iterator[Line]:
    for method in run.methods:
        held = run.results["methods"][method.key]
        line: Line = {"method": method.key, "title": method.title}
        for metric in SCALES:
            line |= {f"{metric}_{name}": value for name, value in (held.get(metric) or {}).items()}
        costs = ("rounds", "seconds", "upload_bytes_per_client", "download_bytes_per_client", "note", "diverged")
        yield line | {name: held.get(name) for name in costs}


def _clients(run: Findings) -> Iterator[Line]:
    for method in run.methods:
        for entry in run.results["methods"][method.key]["per_client"]:
            line: Line = {"client": str(entry["client"]), "method": method.key}
            line |= {name: entry.get(name) for name in ("train", "test", "alpha")}
            for metric in SCALES:
                if metric in entry:
                    found = estimate_of(entry, metric)
                    line[metric] = entry[metric]
                    line[f"{metric}_low"] = None if found is None else found.low
                    line[f"{metric}_high"] = None if found is None else found.high
            yield line


def _gains(run: Findings) -> Iterator[Line]:
    for other, gain in (run.results.get("gains") or {}).items():
        for line in gain["per_client"]:
            yield {"method": run.main_method, "against": other, **line}


def _rows(run: Findings) -> Iterator[Line]:
    for name, known in (run.record.details.get("clients") or {}).items():
        train, test = (known.get(key) or [] for key in ("train_counts", "test_counts"))
        for label, (own, tested) in enumerate(zip(train, test, strict=False)):
            if own or tested:
                yield {"client": name, "class": run.class_names[label], "train": own, "test": tested}


def _errors(run: Findings) -> Iterator[Line]:
    for name, known in (run.record.details.get("clients") or {}).items():
        for true, predicted, rows in known.get("confusions") or []:
            names = {"class": run.class_names[true], "taken_for": run.class_names[predicted]}
            yield {"client": name, "method": run.main_method, **names, "rows": rows}


def _reliability(run: Findings) -> Iterator[Line]:
    for method in run.methods:
        bins = pooled_bins(run.results["methods"][method.key]["per_client"])
        for at, (weight, sure, right) in enumerate(() if bins is None else bins.tolist()):
            if bins is not None and weight:
                ends = {"from": at / BINS, "to": (at + 1) / BINS}
                shares = {"probability": sure / weight, "right": right / weight}
                yield {"method": method.key, **ends, "share_of_rows": weight / float(bins[:, 0].sum()), **shares}


def _roc(run: Findings) -> Iterator[Line]:
    for curve in roc_curves(run):
        for x, y in zip(ROC_GRID.tolist(), curve.y.tolist(), strict=True):
            yield {"method": curve.method.key, "false_positives": x, "true_positives": y}


def _columns(run: Findings) -> Iterable[Line]:
    names = {"name": "column", "kind": "kind", "features": "features", "missing": "missing", "done": "done"}
    return ({title: entry[name] for name, title in names.items()} for entry in run.table)


def _seconds(run: Findings) -> Iterable[Line]:
    return ({"phase": phase, "seconds": seconds} for phase, seconds in run.seconds.items())


def _ledger(run: Findings) -> Iterable[Line]:
    names = ("entry", "time", "event", "client", "rows", "hash")
    return ({name: entry.get(name) for name in names} for entry in run.record.ledger)
