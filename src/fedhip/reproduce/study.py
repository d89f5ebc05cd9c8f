"""From a bench to files: the cells of the studies, then their tables and figures."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedhip import __version__
from fedhip.errors import MissingExtraError
from fedhip.reproduce.bench import Bench
from fedhip.reproduce.cells import PlannedCell
from fedhip.reproduce.figures import Picture, write_pictures
from fedhip.reproduce.helpers import helper_processes, parent_is_alive
from fedhip.reproduce.studies import efficiency, invariance, pictures, sensitivity, table1
from fedhip.reproduce.tables import Table, to_markdown, write_table
from fedhip.utils.files import write_text
from fedhip.utils.progress import ReportProgress, silent


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper: its cells, and what is made of them."""

    steps: Callable[[Bench], list[PlannedCell]]
    tables: Callable[[Bench], list[Table]]
    pictures: Callable[[Bench], list[Picture]]


STUDY_OF: dict[str, Study] = {
    "table1": Study(table1.steps, table1.tables, pictures.of_table1),
    "alpha": Study(
        lambda bench: sensitivity.steps(bench, "alpha"),
        lambda bench: sensitivity.tables(bench, "alpha"),
        lambda bench: pictures.of_sensitivity(bench, "alpha"),
    ),
    "beta": Study(
        lambda bench: sensitivity.steps(bench, "beta"),
        lambda bench: sensitivity.tables(bench, "beta"),
        lambda bench: pictures.of_sensitivity(bench, "beta"),
    ),
    "efficiency": Study(efficiency.steps, efficiency.tables, pictures.of_efficiency),
    "invariance": Study(invariance.steps, invariance.tables, pictures.of_invariance),
}


def reproduce(
    bench: Bench, studies: Sequence[str], out: Path, report: ReportProgress = silent, *, jobs: int = 1
) -> tuple[list[Table], list[Path]]:
    """Compute the cells that are not there yet, and write tables and figures; the tables, and every file.

    `jobs` processes share the cells, and the cores of the machine.
    """
    try:
        with helper_processes(jobs, compute_cells, bench, studies):
            bench.store.perform(steps_of(bench, studies), report, processes=jobs)
    finally:
        bench.store.remove_stale_locks()
    tables, files = [], []
    for study in studies:
        made = STUDY_OF[study].tables(bench)
        tables += made
        for table in made:
            files += write_table(out, table)
        try:
            drawn = write_pictures(out, STUDY_OF[study].pictures(bench))
        except MissingExtraError as error:
            warnings.warn(f"no figures: {error}", stacklevel=2)
            drawn = []
        files += drawn
        text = page(made, [path.name for path in drawn if path.suffix == ".svg"])
        write_text(out / f"{study}.md", text)
        files.append(out / f"{study}.md")
    return tables, list(dict.fromkeys(files))


def steps_of(bench: Bench, studies: Sequence[str]) -> list[PlannedCell]:
    """The cells of the studies."""
    return [step for study in studies for step in STUDY_OF[study].steps(bench)]


def compute_cells(bench: Bench, studies: Sequence[str]) -> None:
    """The cells that no other process is at, as long as somebody waits for them."""

    def stop_if_alone(phase: str, done: int, total: int) -> None:
        if not parent_is_alive():
            raise KeyboardInterrupt

    bench.store.perform(steps_of(bench, studies), stop_if_alone, wait=False)


def page(tables: Sequence[Table], drawn: Sequence[str]) -> str:
    """The tables of a study, each with its figure, as one Markdown page."""
    parts = []
    for table in tables:
        parts.append(to_markdown(table))
        if f"{table.name}.svg" in drawn:
            parts.append(f"![{table.name}]({table.name}.svg)\n")
    return "\n".join([*parts, f"Written by fedhip {__version__}.\n"])
