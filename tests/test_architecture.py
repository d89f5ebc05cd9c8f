"""The package is built as docs/maintain/architecture.md says, which is drawn from its imports."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from scripts import draw_architecture
from scripts.draw_architecture import AT_ONCE, COMMAND, LATE, PACKAGE, PAGE, ROOT, TYPES, Import, read_imports

PARTS = draw_architecture.parts_of((ROOT / PAGE).read_text(encoding="utf-8"))
ORDER = {part.name: number for number, part in enumerate(PARTS)}
#: Modules in one folder, `__init__.py` not counted: what fits on a screen.
ROOM = 16
#: Lines of a module: what can be read at a stretch.
LENGTH = 600
#: Folders of tests that are of no folder of the package: attacks go by their own names.
OTHER_TESTS = {"benchmarks", "compatibility", "federation/attacks", "scripts"}


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return read_imports(PACKAGE)


def test_the_page_tells_of_every_part() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert set(ORDER) == parts - {"__init__", "__main__"}, f"the first table of {PAGE} needs one line for each part"
    assert len(ORDER) == len(PARTS)
    for part in PARTS:
        folder = PACKAGE / part.name if (PACKAGE / part.name).is_dir() else PACKAGE
        for name in re.findall(r"`([\w/]+\.py)`", part.begin):
            assert (folder / name).is_file(), f"{PAGE} says that {part.name} begins at {name}"


def test_a_part_imports_only_parts_above_it(imports: list[Import]) -> None:
    """Strictly: at once, late or for types alone, so that no two parts can import each other."""
    for one in imports:
        if one.importer not in (one.imported, "fedhip") and one.imported != "fedhip":
            assert ORDER[one.imported] < ORDER[one.importer], f"{one.file}:{one.line} imports {one.module} ({one.kind})"


def test_the_package_itself_imports_nothing_heavy_at_once(imports: list[Import]) -> None:
    """`fedhip/__init__.py` runs before any of its modules: what it imports, all of them do."""
    at_once = {one.imported for one in imports if one.file == "__init__.py" and one.kind == AT_ONCE}
    assert at_once <= {"errors", "utils", "core"}


def test_no_modules_import_each_other(imports: list[Import]) -> None:
    """At import: what works by the order in which modules happen to be imported fails when somebody sorts a list."""
    below: dict[str, set[str]] = {}
    for one in imports:
        if one.kind == AT_ONCE:
            importer = draw_architecture.module_of(PACKAGE / one.file, PACKAGE)
            below.setdefault(importer, set()).add(one.module)
    done: set[str] = set()

    def visit(module: str, chain: tuple[str, ...]) -> None:
        assert module not in chain, " → ".join((*chain[chain.index(module) :], module))
        if module not in done:
            for other in sorted(below.get(module, ())):
                visit(other, (*chain, module))
            done.add(module)

    for module in sorted(below):
        # `from fedhip import __version__`: the package is there before any of its modules
        below[module].discard("fedhip")
    for module in sorted(below):
        visit(module, ())


@pytest.mark.parametrize("path", [PAGE, draw_architecture.PICTURE], ids=str)
def test_page_and_picture_are_drawn_from_the_imports(path: Path) -> None:
    should = draw_architecture.drawn()[path]
    assert (ROOT / path).read_text(encoding="utf-8") == should, f"{path} is older than the imports; renew: {COMMAND}"


def test_the_first_line_of_a_module_says_what_it_is_for() -> None:
    """And of no two the same: whoever reads the first lines of a folder knows which file to open."""
    first_lines: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        line = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        assert len(line.split()) >= 3, f"{file} should begin with a docstring that says what it is for; it has {line!r}"
        assert line.endswith("."), f"the first line of {file} should be a sentence; it is {line!r}"
        first_lines[file] = line
    twice = {line for line, number in Counter(first_lines.values()).items() if number > 1}
    assert not twice, [file for file, line in first_lines.items() if line in twice]


def test_no_folder_is_crowded() -> None:
    crowded = {
        folder: number
        for folder, number in Counter(
            path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.stem != "__init__"
        ).items()
        if number > ROOM
    }
    assert not crowded, f"give the modules of these folders rooms of their own: {crowded}"


def test_no_module_is_long() -> None:
    lines = {path.relative_to(PACKAGE): len(path.read_text("utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    long = {path.as_posix(): number for path, number in lines.items() if number > LENGTH}
    assert not long, f"divide these modules by purpose: {long}"


def test_tests_lie_where_what_they_test_lies() -> None:
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")} - {"."}
    strange = {folder for folder in folders - OTHER_TESTS if not (PACKAGE / folder).is_dir()}
    assert not strange, f"these folders of tests are of no folder of the package: {strange}"


def test_every_kind_of_import_is_seen(tmp_path: Path) -> None:
    package = tmp_path / "fedhip"
    for name, text in {
        "__init__.py": (
            "from typing import TYPE_CHECKING\nfrom fedhip.low.tools import late\n"
            "if TYPE_CHECKING:\n    from fedhip.top import run\n"
            "else:\n    __getattr__ = late(__name__, top='run stop', **{'low.tools': 'hammer'})\n__version__ = '1'\n"
        ),
        "low/__init__.py": "",
        "low/tools.py": "",
        "low/more.py": (
            "from . import tools\nfrom ..top import run as go\nimport fedhip.side.one as one\nfrom fedhip import stop\n"
            "from fedhip import __version__\n"
        ),
        "low/late.py": (
            "from importlib import import_module\n"
            "def f():\n    from fedhip.side import one\n"
            "class C:\n    from fedhip.side import two\n"
            "a = import_module('fedhip.top')\nb = lambda n: import_module(f'fedhip.side.{n}')\n"
            "c = {'x': 'fedhip.side.two', 'y': 'fedhip.unknown', 'z': 'speak of fedhip.top'}\n"
        ),
        "side/__init__.py": "",
        "side/one.py": "",
        "side/two.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fedhip.low.tools import late\n",
        "top.py": "",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    assert {(one.file, one.line, one.module, one.kind) for one in read_imports(package)} == {
        ("__init__.py", 2, "fedhip.low.tools", AT_ONCE),
        ("__init__.py", 4, "fedhip.top", TYPES),
        ("__init__.py", 6, "fedhip.top", LATE),
        ("__init__.py", 6, "fedhip.low.tools", LATE),
        ("low/more.py", 1, "fedhip.low.tools", AT_ONCE),
        ("low/more.py", 2, "fedhip.top", AT_ONCE),
        ("low/more.py", 3, "fedhip.side.one", AT_ONCE),
        ("low/more.py", 4, "fedhip.top", AT_ONCE),
        ("low/more.py", 5, "fedhip", AT_ONCE),
        ("low/late.py", 3, "fedhip.side.one", LATE),
        ("low/late.py", 5, "fedhip.side.two", AT_ONCE),
        ("low/late.py", 6, "fedhip.top", LATE),
        ("low/late.py", 7, "fedhip.side", LATE),
        ("low/late.py", 8, "fedhip.side.two", LATE),
        ("side/two.py", 3, "fedhip.low.tools", TYPES),
    }


def test_an_import_that_nobody_can_read_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "fedhip"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "odd.py").write_text("import importlib\nname = 'fedhip.' + 'core'\nimportlib.import_module(name)\n")
    with pytest.raises(ValueError, match=r"^odd\.py:3 imports a module that only running it would tell"):
        read_imports(package)
