"""Put faults that fedhip once had back in, one at a time, and see the tests that are named for each fail.

    python -m scripts.faults                    # all of scripts/faults.toml
    python -m scripts.faults "β chosen"         # those whose name has these words

Each fault is put into a copy of the package in a temporary folder, and no file here is written. Exit code 1 where a
fault goes unnoticed. `tests/scripts/test_faults.py` sees to it that every fault can still be put in.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedhip"


@dataclass(frozen=True)
class Change:
    """Text that stands once in a file of the package, and what stood there while the fault was in."""

    file: str
    was: str
    becomes: str

    def apply(self, package: Path) -> None:
        """Put it in; `ValueError` where the text is gone, or there more than once."""
        path = package / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.was) != 1:
            raise ValueError(f"{self.file} has {text.count(self.was)} times, and not once: {self.was!r}")
        path.write_text(text.replace(self.was, self.becomes), encoding="utf-8")


@dataclass(frozen=True)
class Fault:
    """What was wrong, what it cost, and the tests of which each fails while it is in."""

    name: str
    cost: str
    tests: tuple[str, ...]
    changes: tuple[Change, ...]


def faults() -> list[Fault]:
    """All that are written down."""
    content = tomllib.loads((ROOT / "scripts" / "faults.toml").read_text(encoding="utf-8"))
    return [
        Fault(one["name"], one["cost"], tuple(one["tests"]), tuple(Change(**change) for change in one["change"]))
        for one in content["fault"]
    ]


def unnoticed(fault: Fault) -> list[str]:
    """The tests that pass while the fault is in."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "src" / "fedhip"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        for change in fault.changes:
            change.apply(package)
        return [test for test in fault.tests if passes(test, package)]


def passes(test: str, package: Path) -> bool:
    """Whether a test passes with this copy of the package; `RuntimeError` where it does not even run."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", "--basetemp", f"{package}.tests"]
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *options, test]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode > 1:
        raise RuntimeError(f"{test} does not run:\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def main() -> int:
    """A line for each fault; 1 if a test that is named for one passes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="of the faults' names; without any, all")
    words = parser.parse_args().words
    missed = 0
    for fault in faults():
        if not words or any(word in fault.name for word in words):
            passed = unnoticed(fault)
            missed += bool(passed)
            print(f"{'UNNOTICED by ' + ', '.join(passed) if passed else 'noticed'}: {fault.name}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
