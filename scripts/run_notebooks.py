"""Run notebooks from top to bottom and keep what they show: python scripts/run_notebooks.py examples/*.ipynb."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


def main() -> None:
    """Run each, in its own folder, and write it back."""
    for path in map(Path, sys.argv[1:]):
        nbformat.write(executed(path), path)
        print(path)


def read(path: Path) -> Any:
    """The notebook as it lies there."""
    return nbformat.read(path, as_version=4)


def executed(path: Path) -> Any:
    """The notebook with fresh outputs, without times and versions, so that equal runs are equal files."""
    notebook = read(path)
    folder = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, resources=folder).execute()
    notebook.metadata.pop("language_info", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    return notebook


def printed(notebook: Any) -> list[str]:
    """What each cell of code printed, or its value as text."""
    return [
        "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


if __name__ == "__main__":
    main()
