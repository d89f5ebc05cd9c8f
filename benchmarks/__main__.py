"""python -m benchmarks: measure, print a line for each result as it comes, and write the table."""

from __future__ import annotations

import argparse
import inspect
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from benchmarks import features, floor, gradient, phases, scale, scaling, tree, uploads
from benchmarks.measure import Setup
from benchmarks.table import Line, Table, load, machine

#: What does not depend on a GPU, and is left out there unless it is asked for.
HOST_ONLY = ("uploads", "tree", "scale")

Section = Callable[[Setup], Iterator[Line]]

#: In the order in which they are measured.
SECTIONS: Mapping[str, Section] = {
    "floor": floor.section,
    "phases": phases.section,
    "gradient": gradient.section,
    "scaling": scaling.section,
    "uploads": uploads.section,
    "tree": tree.section,
    "scale": scale.section,
    "features": features.section,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for; 1 if a section failed."""
    args = parser().parse_args(arguments)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device here; leave --device out", file=sys.stderr)
        return 2
    setup = Setup("quick" if args.quick else "full", torch.device(args.device))
    table = Table.continued(args.out) if args.only else Table()
    print(machine(setup), flush=True)
    chosen = args.only or [name for name in SECTIONS if args.device == "cpu" or name not in HOST_ONLY]
    if args.device == "cuda" and not args.only:
        print(f"left out: {', '.join(HOST_ONLY)}, which a GPU does not change; --only measures them", flush=True)
    failed = [name for name in chosen if not measure(table, name, setup, args.out)]
    return 1 if failed else 0


def measure(table: Table, name: str, setup: Setup, out: list[Path]) -> bool:
    """One section into the table; a failure is told and written, and the others go on."""
    work = SECTIONS[name]
    section = table.begin(name, (inspect.getdoc(work) or name).splitlines()[0].rstrip("."), setup)
    print(f"\n{name}: {section.title}", flush=True)
    began, failed = time.monotonic(), False
    try:
        for line in work(setup):
            section.lines.append(line)
            show(line)
            table.write(out)
    except Exception as error:  # one section must not cost the others their time
        traceback.print_exc()
        section.lines.append(Line(section.title, "", None, f"failed: {error}"))
        failed = True
    section.seconds, section.load = time.monotonic() - began, max(section.load, load())
    print(f"  ({section.seconds:.0f} s, load {section.load})", flush=True)
    table.write(out)
    return not failed


def show(line: Line) -> None:
    """One line on the terminal."""
    stated = f"   [{line.stated}]" if line.stated else ""
    print(f"  {line.reading:>22}  {line.what}  |  {line.against}{stated}", flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes: at most five minutes on two cores")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--out", nargs="+", type=table_file, default=[], metavar="FILE", help=".md or .json, as it goes"
    )
    return parser


def table_file(name: str) -> Path:
    """A file whose ending says what is to be written."""
    if not name.endswith((".md", ".json")):
        raise argparse.ArgumentTypeError(f"{name!r} ends neither in .md nor in .json")
    return Path(name)


if __name__ == "__main__":
    sys.exit(main())
