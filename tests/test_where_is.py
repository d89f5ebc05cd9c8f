"""Whoever follows docs/maintain/where-is.md finds what it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.pages import DOCS, ROOT

PAGE = DOCS / "maintain" / "where-is.md"
PACKAGE = ROOT / "src" / "fedhip"
ROWS = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if "?" in line[:80]]

#: A file, and the names that the page says it defines.
ANSWER = re.compile(r"`(src/fedhip/[^`]+)`((?:[:,] `\w+`)*)")


def defined(path: Path) -> set[str]:
    """The names that a module or a class of it defines; what it imports is defined elsewhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, (ast.Module, ast.ClassDef)):
            for statement in node.body:
                targets = (
                    statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
                )
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def test_there_are_many_questions() -> None:
    assert len(ROWS) >= 15
    assert all(len(row) == 3 for row in ROWS)


@pytest.mark.parametrize(("question", "way", "answer"), ROWS, ids=[row[0] for row in ROWS])
def test_the_way_leads_to_the_answer(question: str, way: str, answer: str) -> None:
    found = ANSWER.findall(answer)
    assert found, f"{question} has no answer"
    files = [ROOT / file for file, _ in found]
    for file, names in zip(files, (names for _, names in found), strict=True):
        assert file.is_file(), f"{question} {file} is not there"
        missing = set(re.findall(r"\w+", names)) - (defined(file) if file.suffix == ".py" else set())
        assert not missing, f"{question} {file} does not define {missing}"
    modules = [file for file in files if file.suffix == ".py"]
    rooms = {parent / "__init__.py" for file in modules for parent in file.parents if PACKAGE in parent.parents}
    lines = [first_line(path) for path in (*modules, *rooms)]
    for quoted in re.findall(r'"([^"]+)"', way.partition("→")[2] if way.startswith("README") else way):
        assert any(quoted in line for line in lines), f"{question} {quoted!r} is the first line of none of {modules}"


@pytest.mark.parametrize("way", [row[1] for row in ROWS])
def test_the_way_goes_along_the_tree(way: str) -> None:
    """Each folder and file of a way lies in the one before."""
    if way.startswith("README"):
        (page,) = re.findall(r"\]\(([\w-]+\.md)\)", way)
        assert f"docs/maintain/{page}" in (ROOT / "README.md").read_text(encoding="utf-8")
        return
    for steps in way.split("; "):
        at = PACKAGE
        for step in re.findall(r"`(\w+/?|\w+\.py)`", steps):
            if (PACKAGE / step).is_dir():
                at = PACKAGE
            at /= step
            assert at.exists(), f"{at} is not there"


MENTIONS = [
    pytest.param(path, name, id=f"{path.relative_to(PACKAGE)}: {name}")
    for path in sorted(PACKAGE.rglob("*.py"))
    for name in sorted(set(re.findall(r"`fedhip\.([a-z]\w*(?:\.\w+)+)`", path.read_text(encoding="utf-8"))))
]


@pytest.mark.parametrize(("path", "name"), MENTIONS)
def test_what_a_docstring_refers_to_is_there(path: Path, name: str) -> None:
    """`fedhip.part.module`, and the name after it, if there is one."""
    at, steps = PACKAGE, name.split(".")
    while steps and (at / steps[0]).is_dir():
        at /= steps.pop(0)
    if steps and (module := at / f"{steps[0]}.py").is_file():
        steps.pop(0)
    else:
        module = at / "__init__.py"
    text = module.read_text(encoding="utf-8")
    assert not steps or re.search(rf"\b{steps[0]}\b", text), f"{path} refers to fedhip.{name}"
