"""Who imports whom, for docs/maintain/architecture.md and its picture: python -m scripts.draw_architecture.

The page's first table is written by hand: the parts of the package, what each is for, where to begin reading, in an
order in which each part imports only parts above it. The second table and the picture are drawn from the imports in the
sources, so that neither can tell anything else.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.draw_pictures import CLIENTS, GREY, INK, SERVER, Drawing

COMMAND = "python -m scripts.draw_architecture"
ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "fedhip"
PAGE = Path("docs/maintain/architecture.md")
PICTURE = Path("docs/pictures/architecture.svg")

BEGIN = f"<!-- drawn from the imports by {COMMAND} -->"
END = "<!-- end -->"

#: An import runs with its module, or later (in a function, or when a name is first asked for), or never (for types).
AT_ONCE, LATE, TYPES = "at once", "late", "types"
#: Parts that nearly everybody imports: in the picture a floor, without arrows.
FLOOR = ("errors", "utils")
#: Calls whose module cannot be read from the source: `late` itself, whose tables are read instead, and tries of
#: packages that are not ours, and apps that a folder names.
UNREADABLE = {
    *("utils/late.py", "doctor.py", "export/file.py"),
    *(f"federation/transport/{name}.py" for name in ("executor", "node", "warm")),
}


@dataclass(frozen=True)
class Import:
    """One file imports one module of the package."""

    file: str
    line: int
    module: str
    kind: str

    @property
    def importer(self) -> str:
        """The part that imports: a folder or a file of the package, `fedhip` for the package itself."""
        first = self.file.partition("/")[0].removesuffix(".py")
        return "fedhip" if first in ("__init__", "__main__") else first

    @property
    def imported(self) -> str:
        """The part that is imported."""
        return self.module.split(".")[1] if "." in self.module else "fedhip"


@dataclass(frozen=True)
class Part:
    """A line of the page's first table."""

    name: str
    role: str
    purpose: str
    begin: str


def main() -> None:
    """Write the page's second table, and the picture."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path, text in drawn().items():
        (ROOT / path).write_text(text, encoding="utf-8")


def drawn() -> dict[Path, str]:
    """The page and the picture as they should be."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    parts, edges = parts_of(page), edges_of(read_imports(PACKAGE))
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    table = f"{before}{BEGIN}\n\n{table_of_imports(parts, edges)}\n{END}{after}"
    return {PAGE: table, PICTURE: draw(parts, edges)}


def read_imports(package: Path) -> list[Import]:
    """Every import of the package's own modules, wherever and however it is written.

    Seen are import statements, tables of `fedhip.utils.late`, and modules named by a string, as `import_module` and
    `python -m` take them. What `from fedhip import` gives is looked up in the package's own table.
    """
    modules = {module_of(path, package): path for path in sorted(package.rglob("*.py"))}
    given = dict(names_given(parse(package / "__init__.py")))
    found: list[Import] = []
    for name, path in modules.items():
        file = path.relative_to(package).as_posix()
        inside = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node, kind in statements(parse(path)):
            for module in modules_named(node, inside, modules, given):
                found.append(Import(file, node.lineno, module, kind if kind == TYPES or not runs_late(node) else LATE))
            if file not in UNREADABLE and unreadable(node):
                raise ValueError(f"{file}:{node.lineno} imports a module that only running it would tell; name it")
    return found


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_of(path: Path, package: Path) -> str:
    """The name that a file is imported by."""
    return ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")


def statements(tree: ast.AST, kind: str = AT_ONCE) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Every statement and expression of a tree, and when it would run."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for statement in child.body:
                yield from ((node, TYPES) for node in ast.walk(statement) if isinstance(node, ast.stmt))
            for statement in child.orelse:
                yield from statements(ast.Module([statement], []), kind)
            continue
        if isinstance(child, (ast.expr, ast.stmt)):
            yield child, kind
        inner = LATE if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else kind
        yield from statements(child, inner)


def modules_named(node: ast.AST, inside: str, modules: Mapping[str, Path], given: Mapping[str, str]) -> Iterator[str]:
    """The package's modules that one statement or expression imports; `inside` is the package that it stands in."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "fedhip")
    elif isinstance(node, ast.ImportFrom):
        above = ".".join(inside.split(".")[: inside.count(".") + 2 - node.level]) if node.level else ""
        source = ".".join(word for word in (above, node.module or "") if word)
        if source.partition(".")[0] == "fedhip":
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield full if full in modules else given.get(alias.name, source) if source == "fedhip" else source
    elif isinstance(node, ast.Call) and called(node) == "late":
        yield from set(late_table(node, inside).values())
    elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        beginning = str(node.values[0].value).rpartition(".")[0]
        if beginning in modules and beginning != "fedhip":
            yield beginning
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value and node.value in modules:
        yield node.value


def called(call: ast.Call) -> str:
    """The name of the function that is called, whatever it is an attribute of."""
    return ast.unparse(call.func).rpartition(".")[2]


def late_table(call: ast.Call, package: str) -> dict[str, str]:
    """What a call of `late` promises: each name, and the module that it comes from."""
    table: dict[str, str] = {}
    for keyword in call.keywords:
        value = ast.literal_eval(keyword.value)
        table |= {keyword.arg: value} if keyword.arg else value
    return {name: f"{package}.{module}" for module, names in table.items() for name in names.split()}


def names_given(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that the package itself gives, at once or late, and the modules that they come from."""
    for node, _ in statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, node.module) for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) == "late":
            yield from late_table(node, "fedhip").items()


def runs_late(node: ast.AST) -> bool:
    """Not an import statement: the module is imported when somebody asks, or in another process."""
    return not isinstance(node, (ast.Import, ast.ImportFrom))


def unreadable(node: ast.AST) -> bool:
    """An import by a name that is put together elsewhere."""
    if not isinstance(node, ast.Call) or called(node) not in ("import_module", "__import__"):
        return False
    name = node.args[0] if node.args else None
    return not isinstance(name.values[0] if isinstance(name, ast.JoinedStr) else name, ast.Constant)


def edges_of(imports: list[Import]) -> dict[tuple[str, str], str]:
    """Which part imports which, and when the first of such imports runs."""
    earliest = [AT_ONCE, LATE, TYPES]
    edges: dict[tuple[str, str], str] = {}
    for one in imports:
        edge = one.importer, one.imported
        if one.imported not in (one.importer, "fedhip"):
            edges[edge] = min(edges.get(edge, TYPES), one.kind, key=earliest.index)
    return edges


def parts_of(page: str) -> list[Part]:
    """The lines of the page's first table, in their order."""
    line = re.compile(r"^\| `(\w+)` \| \*\*(.+?)\*\*:? ?(.*?) \| (.+?) \|$", re.MULTILINE)
    return [Part(*groups) for groups in line.findall(page.split(BEGIN)[0])]


def table_of_imports(parts: list[Part], edges: Mapping[tuple[str, str], str]) -> str:
    """The page's second table."""
    order = [part.name for part in parts]
    lines = ["| part | imports | late, or for types alone |", "|---|---|---|"]
    for name in (*order, "fedhip"):
        kinds = {other: edges[name, other] for other in order if (name, other) in edges}
        now = ", ".join(f"`{other}`" for other, kind in kinds.items() if kind == AT_ONCE)
        later = ", ".join(f"`{other}`" for other, kind in kinds.items() if kind != AT_ONCE)
        lines.append(f"| `{name}` | {now or '-'} | {later or '-'} |")
    return "\n".join(lines) + "\n"


def columns(names: list[str], edges: Mapping[tuple[str, str], str]) -> dict[str, int]:
    """For each part the length of the longest chain of imports below it; `names` stand in an order of imports."""
    depth: dict[str, int] = {}
    for name in names:
        depth[name] = 1 + max((depth[other] for other in depth if (name, other) in edges), default=-1)
    return depth


def draw(parts: list[Part], edges: Mapping[tuple[str, str], str]) -> str:
    """The parts in columns, each right of all that it imports; an arrow where no chain of other arrows says it."""
    roles = {part.name: part.role for part in parts}
    names = [name for name in roles if name not in FLOOR]
    above = {name: {other for other in names if (name, other) in edges} for name in names}
    for name in names:
        above[name] |= {far for near in above[name] for far in above[near]}
    depth = columns(names, edges)
    users = {name: sum(name in below for below in above.values()) for name in names}
    rows: dict[str, int] = {}
    for column in range(max(depth.values()) + 1):
        for row, name in enumerate(sorted((n for n in names if depth[n] == column), key=lambda n: -users[n])):
            rows[name] = row
    step, wide, tall, top = 132, 106, 52, 50
    width = 2 * 14 + step * max(depth.values()) + wide
    lane = top + (tall + 14) * (1 + max(rows.values())) + 6
    art = Drawing(width, lane + 104, "The parts of fedhip: each imports only what stands to its left")
    art.text(14, 28, "rows → features → statistics → sum → models → report", size=15, bold=True, anchor="start")

    def corner(name: str) -> tuple[float, float]:
        return 14 + step * depth[name], top + (tall + 14) * rows[name]

    for name in names:
        direct = [n for n in names if n in above[name] and not any(n in above[via] for via in above[name])]
        x, y = corner(name)
        for other in direct:
            to_x, to_y = corner(other)
            if depth[name] - depth[other] == 1:
                art.arrow(x, y + tall / 2, to_x + wide, to_y + tall / 2)
                continue
            start, end = x + wide / 2, to_x + wide / 2
            art.line(start, y + tall, start, lane)
            art.line(start, lane, end, lane)
            art.arrow(end, lane, end, to_y + tall)
    for name in names:
        x, y = corner(name)
        colour = (*CLIENTS, SERVER)[min(3, depth[name] // 3)]
        art.box(x, y, wide, tall, colour, filled=True)
        art.text(x + wide / 2, y + 22, name, size=13, colour=colour, bold=True)
        art.text(x + wide / 2, y + 40, roles[name], size=10)
    floor = [name for name in FLOOR if name in roles]
    art.box(14, lane + 18, width - 28, 40, GREY, filled=True)
    words = " · ".join(f"{name}: {roles[name]}" for name in floor)
    art.text(width / 2, lane + 43, f"{words}; everybody may import {'them' if len(floor) > 1 else 'it'}", size=13)
    art.text(14, lane + 88, "An arrow is an import that no chain of other arrows implies.", colour=INK, anchor="start")
    return art.svg()


if __name__ == "__main__":
    main()
