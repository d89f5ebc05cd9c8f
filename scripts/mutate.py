"""Change one operator, comparison or number at a time, and see whether a test fails.

    python scripts/mutate.py src/fedhip/core/path.py tests/core/test_path.py tests/core/test_theorems.py

A change that no test notices, a survivor, is printed with its line: a hole in the tests, or a change that changes
nothing. One process for each mutant, forked from one in which torch and the test tools are already imported.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
#: Imported before anything is forked: nothing of ours, for all must import the mutant, and no plugin of pytest.
TOOLS = ("torch", "numpy", "pytest", "mpmath", "sklearn.linear_model", "safetensors.torch")

Change = Callable[[], None]


def main() -> int:
    """Try every mutant; 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the module to change")
    parser.add_argument("tests", nargs="+", help="what to hold against it")
    parser.add_argument("--seconds", type=int, default=300, help="a mutant that takes longer is caught (default: 300)")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="the mutants of these numbers")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="a sample: every N-th mutant (default: all)")
    args = parser.parse_args()
    for name in TOOLS:
        importlib.import_module(name)
    text = args.source.read_text(encoding="utf-8")
    module = ".".join(args.source.with_suffix("").parts).split("src.")[-1]
    if not passes(compile(text, args.source, "exec"), module, args.tests, args.seconds):
        parser.error("the tests fail without any change")
    survivors, tried = [], 0
    for number, (line, was, became, code) in enumerate(mutants(text, args.source), start=1):
        if number % args.every or (args.only and number not in args.only):
            continue
        tried += 1
        survived = passes(code, module, args.tests, args.seconds)
        print(f"{number:4d} {'SURVIVED' if survived else 'caught'} line {line}: {was}  →  {became}", flush=True)
        if survived:
            survivors.append(line)
    print(f"{args.source}: {tried - len(survivors)} of {tried} caught; survivors in lines {survivors}")
    return int(bool(survivors))


def mutants(text: str, path: Path) -> Iterator[tuple[int, str, str, CodeType]]:
    """Every mutant: its line, the expression before and after, the compiled module."""
    whole = ast.parse(text)
    code = running(whole)
    places = [place for place, node in enumerate(ast.walk(whole)) if node in code and changes(node)]
    for place, way in itertools.product(places, range(2)):
        tree = ast.parse(text)
        node = next(itertools.islice(ast.walk(tree), place, None))
        change = changes(node)[way : way + 1]
        if not change:
            continue
        was = ast.unparse(node)
        change[0]()
        yield node.lineno, was, ast.unparse(node), compile(ast.fix_missing_locations(tree), path, "exec")  # type: ignore[attr-defined]


def changes(node: ast.AST) -> list[Change]:
    """What can be done to a node, each in place."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        return [lambda: setattr(node, "op", SWAPS[type(node.op)]())]
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        return [lambda: node.ops.__setitem__(0, SWAPS[type(node.ops[0])]())]  # type: ignore[call-overload]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [lambda: setattr(node, "op", ast.UAdd())]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return [lambda: setattr(node, "value", not node.value)]
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = node.value
        return [lambda: setattr(node, "value", value + 1), lambda: setattr(node, "value", -value or 2)]
    return []


def running(tree: ast.Module) -> set[ast.AST]:
    """The code that runs: what functions do, and not their defaults, decorators or the messages of errors."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = {node for function in functions for statement in function.body for node in ast.walk(statement)}
    raised = [node for node in inside if isinstance(node, ast.Raise)]
    return inside - {node for statement in raised for node in ast.walk(statement)}


def passes(code: CodeType, module: str, tests: Sequence[str], seconds: int) -> bool:
    """Whether the tests pass when `module` is `code`, in a process of its own."""
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        sys.meta_path.insert(0, Mutant(module, code))
        sys.path.insert(0, "src")
        import pytest

        os._exit(int(pytest.main(["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Mutant(MetaPathFinder, Loader):
    """Gives the changed module to whoever imports it."""

    def __init__(self, name: str, code: CodeType) -> None:
        self.name, self.code = name, code

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Ours, for the one name."""
        return ModuleSpec(name, self, origin=self.code.co_filename) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed code as the module."""
        exec(self.code, module.__dict__)  # noqa: S102


if __name__ == "__main__":
    sys.exit(main())
