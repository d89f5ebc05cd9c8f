"""`fedhip predict`: classes and probabilities from a client's model."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhip.cli.common.client_rows import extract_for, known_window, print_known_window, refuse_of_images
from fedhip.cli.common.console import print_table
from fedhip.cli.common.options import add_window, at_least, require_csv, write_answers
from fedhip.cli.common.parser import respell
from fedhip.cli.common.progress import show_progress
from fedhip.core.choice.conformal import classes_within, require_coverage
from fedhip.data import Dataset, ImagePaths, image_files, read_features
from fedhip.data.images.pixels import has_more_bits
from fedhip.data.images.window import SIXTEEN_BITS
from fedhip.data.tables import clients_of_table, is_table, read_rows
from fedhip.errors import CorruptImageError, DataMissingError, InputError
from fedhip.heads.model import NO_TEMPERATURE
from fedhip.runs import Run
from fedhip.runs.models import scores_of
from fedhip.runs.names import unknown_client
from fedhip.simulation.tasks import targets_of_scores
from fedhip.utils.text import json_text, readable

_MOST_ROWS = 1000  # a longer table is cut in the terminal; --json holds all of it


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "predict",
        help="predict images, features or table rows with a client's model",
        description="Predict images, a feature file, or a table like the one of the run (without the label). --client "
        "chooses the model; the default is the global model. Rows of a table that names their client get that client's "
        "model. Probabilities are calibrated on held-out training rows.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "images",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="image files or folders of them; or a .csv, .tsv or .parquet",
    )
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--client", metavar="ID", help="the client whose model predicts; an unknown name is an error")
    whose.add_argument(
        "--global", dest="by_global", action="store_true",
        help="predict with the global model, also for rows of unknown clients",
    )  # fmt: skip
    parser.add_argument(
        "--features", type=Path, metavar="FILE", help="a feature file instead of images, with or without labels"
    )
    parser.add_argument(
        "--coverage", type=float, metavar="SHARE",
        help="prediction sets (regression: intervals) that contain the truth this often, such as 0.9",
    )  # fmt: skip
    parser.add_argument(
        "--top", type=at_least(1), default=3, metavar="N", help="classes shown for each row (default: 3)"
    )
    answers = parser.add_argument("--csv", type=Path, metavar="FILE", help="write answers and probabilities to a file")
    respell(parser, answers, "-o", "--out")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    add_window(parser, default="that of the run")
    parser.add_argument("--weights", type=Path, metavar="PATH", help="weights of the run's backbone, if they moved")
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument("--json", action="store_true", help="print JSON, with all scores, instead of a table")
    parser.set_defaults(handler=run)


@dataclass(frozen=True, eq=False)
class InputRows:
    """What to classify: what to call each row, its features, and whose it is where the rows say so."""

    names: list[str]
    features: np.ndarray
    clients: NDArray[np.str_] | None = None
    kind: str = "image"


@dataclass(frozen=True, eq=False)
class Answers:
    """Scores and probabilities (N, d) of rows; no probabilities from a model without a temperature."""

    class_names: tuple[str, ...]
    scores: np.ndarray
    probabilities: np.ndarray | None
    #: Of a coverage that was asked for: which classes each set holds (N, d), or half of each interval (N, t).
    sets: np.ndarray | None = None

    def order(self, top: int) -> np.ndarray:
        """The likeliest classes of each row."""
        by = self.scores if self.probabilities is None else self.probabilities
        return np.argsort(-by, axis=1, kind="stable")[:, :top]

    def classes_in_set(self, row: int) -> list[str]:
        """The classes of a row's set, the likeliest first."""
        if self.sets is None:
            return []
        order = np.argsort(-self.scores[row], kind="stable")
        return [self.class_names[c] for c in order if self.sets[row, c]]


def run(args: argparse.Namespace) -> int:
    """Read, extract, score, print or write."""
    folder = Run.open(args.run)
    if args.csv is not None:
        require_csv(args.csv, args.force)
    client = None if args.client is None else _require_known(folder, args.client)
    if args.coverage is not None:
        require_coverage(args.coverage)
    if folder.task == "classification" and folder.model(client).temperature is None:
        folder.require_personalized()  # the temperature comes from its leave-one-out scores
    rows = _rows(folder, args)
    if rows.clients is None:
        answers, who = _answers(folder, client, rows.features, args.coverage), folder.model(client).who
    else:
        answers, who = _by_owner(folder, rows, args.coverage), "each client's own model"
    if folder.task != "classification":
        return _targets(folder, rows, answers, who, client, args)
    if answers.probabilities is None:
        print(f"fedhip: no probabilities, only scores: the model has no temperature; {NO_TEMPERATURE}", file=sys.stderr)
    if args.csv is not None:
        write_answers(args.csv, _as_csv(rows, answers))
        _print_written(args, len(rows.names), client, rows, who)
    elif args.json:
        print(json_text(_as_json(rows, answers, client, args.top)))
    else:
        _show(rows, answers, who, args.top)
    return 0


def _print_written(args: argparse.Namespace, count: int, client: str | None, rows: InputRows, who: str) -> None:
    if args.json:
        model = "global" if client is None and rows.clients is None else "personalized"
        print(json_text({"file": str(args.csv), "rows": count, "model": model, "client": client}))
    else:
        print(f"{count:,} rows answered by {who}: {args.csv}")


def _require_known(folder: Run, client: str) -> str:
    """The client's name; another's model would be a wrong answer that nobody sees."""
    if client not in folder.clients:
        raise InputError(f"{unknown_client(client, folder.clients)}; for the global model, give --global")
    return client


def _answers(folder: Run, client: str | None, features: np.ndarray, coverage: float | None) -> Answers:
    model = folder.model(client)
    scores, sets = scores_of(folder, features, client), None
    if coverage is not None:
        found = np.array(folder.thresholds(client, coverage))
        if np.isinf(found).any():
            print(
                f"fedhip: {model.who}: too few training rows were left out to leave anything out at a coverage of "
                f"{coverage:g}",
                file=sys.stderr,
            )
        if folder.task == "classification":
            sets = classes_within(scores, float(found[0])).numpy()
        else:
            sets = np.broadcast_to(found, scores.shape)
    if folder.task != "classification":
        return Answers(model.class_names, scores.numpy(), None, sets)
    probabilities = None if model.temperature is None else model.probabilities_of(scores).numpy()
    return Answers(model.class_names, scores.numpy(), probabilities, sets)


def _by_owner(folder: Run, rows: InputRows, coverage: float | None) -> Answers:
    """Each row by the model of its own client."""
    assert rows.clients is not None  # noqa: S101 (for mypy)
    parts, places = [], []
    for owner in np.unique(rows.clients).tolist():
        mine = np.flatnonzero(rows.clients == owner)
        parts.append(_answers(folder, _require_known(folder, owner), rows.features[mine], coverage))
        places.append(mine)
    back = np.argsort(np.concatenate(places))
    scores = np.concatenate([part.scores for part in parts])[back]
    known = [part.sets for part in parts if part.sets is not None]
    sets = np.concatenate(known)[back] if known else None
    if any(part.probabilities is None for part in parts):
        return Answers(parts[0].class_names, scores, None, sets)
    probabilities = np.concatenate([part.probabilities for part in parts if part.probabilities is not None])[back]
    return Answers(parts[0].class_names, scores, probabilities, sets)


def _targets(
    folder: Run, rows: InputRows, answers: Answers, who: str, client: str | None, args: argparse.Namespace
) -> int:
    """What models of real targets, or of several labels, predict."""
    values = targets_of_scores(answers.scores, folder.task).reshape(len(rows.names), -1)
    if answers.sets is not None and folder.task != "regression":
        raise InputError("several labels have no sets and no intervals; leave --coverage out")
    names, half = folder.class_names, answers.sets
    owner = () if rows.clients is None else ("client",)
    whose: list[list[str]] = (
        [[]] * len(values) if rows.clients is None else [[readable(str(name))] for name in rows.clients]
    )
    if args.json and args.csv is None:
        entries = []
        for row, name in enumerate(rows.names):
            entry: dict[str, Any] = {"row": name, **({"client": whose[row][0]} if owner else {})}
            entry["targets"] = dict(zip(names, values[row].tolist(), strict=True))
            if half is not None:
                ends = np.stack((values[row] - half[row], values[row] + half[row]), axis=1).tolist()
                found = [[None if np.isinf(end) else end for end in pair] for pair in ends]
                entry["intervals"] = dict(zip(names, found, strict=True))
            entries.append(entry)
        model = "global" if client is None and rows.clients is None else "personalized"
        print(json_text({"model": model, "client": client, "task": folder.task, "rows": entries}))
        return 0
    heads, table = [rows.kind, *owner], [[name, *own] for name, own in zip(rows.names, whose, strict=True)]
    for at, name in enumerate(map(readable, names)):
        columns = {name: values[:, at]}
        if half is not None:
            columns |= {f"{name}, from": values[:, at] - half[:, at], f"{name}, to": values[:, at] + half[:, at]}
        for head, column in columns.items():
            heads.append(head)
            for line, value in zip(table, column.tolist(), strict=True):
                line.append(f"{value:.6g}")
    if args.csv is not None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([heads, *table])
        write_answers(args.csv, text.getvalue())
        _print_written(args, len(table), client, rows, who)
        return 0
    print_table(heads, table[:_MOST_ROWS], who)
    if len(table) > _MOST_ROWS:
        print(f"… and {len(table) - _MOST_ROWS:,} more rows; --json prints all, --csv FILE writes all")
    return 0


def _as_json(rows: InputRows, answers: Answers, client: str | None, top: int) -> dict[str, object]:
    probabilities = answers.probabilities
    return {
        "model": "global" if client is None and rows.clients is None else "personalized",
        "client": client,
        "class_names": list(answers.class_names),
        "rows": [
            {
                "row": name,
                **({} if rows.clients is None else {"client": str(rows.clients[row])}),
                "class": answers.class_names[order[0]],
                "probabilities": None if probabilities is None else probabilities[row].tolist(),
                "scores": [None if np.isinf(value) else value for value in answers.scores[row].tolist()],
                **({} if answers.sets is None else {"set": answers.classes_in_set(row)}),
            }
            for row, (name, order) in enumerate(zip(rows.names, answers.order(top), strict=True))
        ],
    }


def _as_csv(rows: InputRows, answers: Answers) -> str:
    """A line for each row: its name, whose it is, the class, and the probability (or score) of every class."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    what, numbers = "probability", answers.probabilities
    if numbers is None:
        what, numbers = "score", answers.scores
    owner = [] if rows.clients is None else ["client"]
    sets = [] if answers.sets is None else ["set"]
    each = (f"{what} of {readable(name)}" for name in answers.class_names)
    writer.writerow([rows.kind, *owner, "class", *sets, *each])
    for row, (name, order) in enumerate(zip(rows.names, answers.order(1), strict=True)):
        whose = [] if rows.clients is None else [readable(str(rows.clients[row]))]
        shown = (f"{value:.6g}" for value in numbers[row].tolist())
        held = [" | ".join(map(readable, answers.classes_in_set(row)))] if sets else []
        writer.writerow([name, *whose, readable(answers.class_names[order[0]]), *held, *shown])
    return text.getvalue()


def _show(rows: InputRows, answers: Answers, who: str, top: int) -> None:
    """A table in the terminal."""
    names, scores, probabilities = answers.class_names, answers.scores, answers.probabilities
    lines = []
    for row, (name, (first, *others)) in enumerate(
        zip(rows.names[:_MOST_ROWS], answers.order(top)[:_MOST_ROWS], strict=True)
    ):
        shown = [f"{s:.3f}" for s in scores[row]] if probabilities is None else [f"{p:.1%}" for p in probabilities[row]]
        also = ", ".join(f"{readable(names[c])} {shown[c]}" for c in others)
        numbers = (shown[first],) if probabilities is None else (shown[first], f"{scores[row][first]:.3f}")
        whose = () if rows.clients is None else (readable(str(rows.clients[row])),)
        held = () if answers.sets is None else (", ".join(map(readable, answers.classes_in_set(row))),)
        lines.append((name, *whose, readable(names[first]), *numbers, *held, also))
    numbered = ("score",) if probabilities is None else ("probability", "score")
    owner = () if rows.clients is None else ("client",)
    sets = () if answers.sets is None else ("set",)
    print_table((rows.kind, *owner, "class", *numbered, *sets, "then"), lines, who)
    if len(rows.names) > _MOST_ROWS:
        print(f"… and {len(rows.names) - _MOST_ROWS:,} more rows; --json prints all, --csv FILE writes all")


def _rows(folder: Run, args: argparse.Namespace) -> InputRows:
    """The rows that the options name."""
    if args.features is not None:
        if args.images:
            raise DataMissingError("--features stands alone; leave the images out")
        refuse_of_images(args)
        features = read_features(args.features, labelled=False).features
        return InputRows([str(row) for row in range(len(features))], features, kind="row")
    if any(map(is_table, args.images)):
        if len(args.images) > 1:
            raise InputError("one table at a time; predict from the others by themselves")
        refuse_of_images(args)
        table, features = read_rows(
            args.images[0], folder.require_table(), texts=folder.text_encoder(args.device, show_progress)
        )
        clients = (
            clients_of_table(table, folder.require_table()) if args.client is None and not args.by_global else None
        )
        return InputRows([str(table.number(row)) for row in range(len(table))], features, clients, "row")
    paths: list[Path] = []
    for path in args.images:
        if path.is_dir():
            paths += [path / name for name in image_files(path)]
        elif path.is_file():
            paths.append(path)
        else:
            raise DataMissingError(f"there is no image {path}; check the path")
    if not paths:
        raise DataMissingError("no image given; name image files, folders of images, a table, or --features FILE")
    images = ImagePaths(Path("/"), tuple(str(path.absolute()) for path in paths))
    # What the images hold is looked at when they are read; that one has more bits stands in its header.
    deep = next((path for path in paths if has_more_bits(path)), None)
    window = None if deep is None else known_window(folder, args) or SIXTEEN_BITS
    data = Dataset("images", images, np.zeros(len(paths), dtype=np.int64), ("unknown",), window=window)
    print_known_window(folder, args, data, str(deep or "what was given"))
    try:
        return InputRows([readable(str(path)) for path in paths], extract_for(folder, data, args))
    except CorruptImageError as error:
        reason = str(error).split(";")[0]
        raise CorruptImageError(f"{reason}; replace the file, or leave it out") from error
