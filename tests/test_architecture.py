"""The package is built as its picture says."""

from __future__ import annotations

import ast
from pathlib import Path

from scripts import draw_pictures

PACKAGE = Path(__file__).parent.parent / "src" / "fedhip"


def test_imports_go_from_right_to_left() -> None:
    column = {name: number for number, names in enumerate(draw_pictures.LAYERS) for name in names}
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert column.keys() | {*draw_pictures.COMMON, "__init__", "__main__"} == parts
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for imported in imports(path) & column.keys():
            assert imported == part or column[imported] < column.get(
                part, -1 if part in draw_pictures.COMMON else 99
            ), f"{path} imports {imported}"


def imports(path: Path) -> set[str]:
    """The parts of the package that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedhip":
            module = node.module or ""
            found |= {module.split(".")[1]} if "." in module else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fedhip.")}
    return found
