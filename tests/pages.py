"""Follow a page of the documentation as a reader would: save its files, apply its patches, type its commands."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests import warm

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

_FENCED = re.compile(r"^```(python|diff|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE_NAME = re.compile(r"# (\S+\.py)\n")


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of one kind, in order."""
    return [text for found, text in _FENCED.findall(page.read_text(encoding="utf-8")) if found == kind]


def follow(page: Path, folder: Path, *, kinds: tuple[str, ...] = ("python", "diff", "sh"), **environment: str) -> str:
    """Do in `folder` what the page says in blocks of these kinds; what its commands print.

    A `python` block whose first line is `# NAME.py` is a file to save, a `diff` a patch, `sh` commands to type.
    """
    told = ""
    for kind, text in _FENCED.findall(page.read_text(encoding="utf-8")):
        if kind not in kinds:
            continue
        name = _FILE_NAME.match(text)
        if kind == "python" and name:
            path = folder / name[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text[name.end() :], encoding="utf-8")
        elif kind == "diff":
            run(["git", "apply", "--recount", "-"], folder, environment, text)
        elif kind == "sh":
            told += run(["bash", "-euo", "pipefail", "-c", text], folder, environment)
    return told


def run(command: list[str], folder: Path, environment: dict[str, str], stdin: str = "") -> str:
    """The standard output of a command that must succeed, with this interpreter's `python` and `fedhip` in the path."""
    variables = {**os.environ, "PATH": warm.path(), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, cwd=folder, env=variables, input=stdin, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
