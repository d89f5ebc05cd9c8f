"""Change one operator, comparison or number of a module at a time, and see whether a test fails.

    python scripts/mutate.py src/fedhip/core/ridge/path.py tests/core/ridge/test_path.py tests/core/test_theorems.py

A change that no test notices, a survivor, is printed with its line: a hole in the tests, or a change that changes
nothing. The tests are imported and collected once. Each mutant is then a fork of that process in which one function has
other code: nothing is imported anew, and no file is written. Of the tests, those run that reach the changed line, the
quickest first. Hypothesis draws few examples, and does not shrink them (HYPOTHESIS_PROFILE=default: as many as
ever).
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

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
#: Before torch is imported. Forks of a process with threads of its own would hang.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HYPOTHESIS_PROFILE": "mutants"}
#: What a mutant may take of memory beyond what the tests take by being imported.
MEMORY = 6 * 2**30

Change = Callable[[], None]


def main() -> int:
    """Try every mutant; 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the module to change")
    parser.add_argument("tests", nargs="+", help="what to hold against it")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="the mutants of these numbers")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="a sample: every N-th mutant (default: all)")
    parser.add_argument("--list", action="store_true", help="survivors alone, not every mutant")
    args = parser.parse_args()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    sys.path[:0] = ["src", "."]
    text = args.source.read_text(encoding="utf-8")
    every = [(number, *which) for number, which in enumerate(ways(text), start=1)]
    chosen = [one for one in every if one[0] % args.every == 0 and (not args.only or one[0] in args.only)]
    trial = Trial(args.source.resolve(), text, chosen, quiet=args.list)
    with tempfile.TemporaryDirectory() as folder:
        options = ["-x", "-q", "-s", "--tb=no", "--no-header", "--no-summary", f"--basetemp={folder}/tests"]
        code = pytest.main([*options, "-p", "no:cacheprovider", "-p", "no:xdist", *args.tests], plugins=[trial])
    if code or not trial.ready:
        parser.error("the tests fail without any change, or there are none")
    caught = len(chosen) - len(trial.survivors)
    sample = f" (of {len(every)})" if len(chosen) < len(every) else ""
    print(f"{args.source}: {caught} of {len(chosen)}{sample} caught; survivors {trial.survivors}")
    return int(bool(trial.survivors))


@dataclass(frozen=True)
class Reached:
    """What a test did without any change: the lines of the module that it ran, and its seconds."""

    lines: frozenset[int]
    seconds: float


class Trial:
    """A plugin of pytest that runs the tests collected once for each mutant, each time in a fork."""

    def __init__(self, path: Path, text: str, chosen: Sequence[tuple[int, int, int]], quiet: bool) -> None:
        self.path, self.text, self.chosen, self.quiet = path, text, chosen, quiet
        self.survivors: list[int] = []
        self.ready = False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own loop."""
        reached = self.unchanged(session)
        functions = self.functions()
        same = compile(self.text, self.path, "exec")
        if (
            not (reached and functions)
            or forked(partial(runs, session, session.items, functions, same), limit=600.0) != b"passed"
        ):
            return True
        self.ready = True
        limit = 3.0 + 5.0 * sum(test.seconds for test in reached)
        for number, place, way in self.chosen:
            line, was, became, code = mutant(self.text, self.path, place, way)
            order = sorted((test.seconds, i) for i, test in enumerate(reached) if line in test.lines)
            items = [session.items[i] for _, i in order] or session.items
            survived = forked(partial(runs, session, items, functions, code), limit) == b"passed"
            if survived:
                self.survivors.append(number)
            if survived or not self.quiet:
                print(f"{number:4d} {'SURVIVED' if survived else 'caught'} line {line}: {was}  →  {became}", flush=True)
        return True

    def functions(self) -> list[FunctionType]:
        """The module's, methods and what is decorated included."""
        # type(...) and not isinstance: some of what lies around answers the latter with a warning.
        found = [thing for thing in gc.get_objects() if type(thing) is FunctionType]
        return [function for function in found if function.__code__.co_filename == str(self.path)]

    def unchanged(self, session: pytest.Session) -> list[Reached] | None:
        """What each test reaches; None where one fails."""
        answer = forked(lambda: traced(session, str(self.path)), limit=600.0)
        return [Reached(frozenset(lines), seconds) for lines, seconds in json.loads(answer)] if answer else None


def traced(session: pytest.Session, path: str) -> bytes:
    """The lines of the module at `path` that each test runs, and its seconds, as JSON; nothing where one fails."""
    lines, found = set[int](), []

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        return seen if frame.f_code.co_filename == path else None

    def seen(frame: FrameType, event: str, argument: object) -> Any:
        lines.add(frame.f_lineno)
        return seen

    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        lines.clear()
        start = time.process_time()
        sys.settrace(entered)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        sys.settrace(None)
        if session.testsfailed:
            return b""
        found.append((sorted(lines), time.process_time() - start))
    return json.dumps(found).encode()


def runs(
    session: pytest.Session, items: Sequence[pytest.Item], functions: Sequence[FunctionType], changed: CodeType
) -> bytes:
    """Run the tests, until one fails, when a module's functions are those of a changed one."""
    new = {(code.co_qualname, code.co_firstlineno): code for code in codes(changed)}
    for function in functions:
        code = function.__code__
        function.__code__ = new[code.co_qualname, code.co_firstlineno]
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return b"failed"
    return b"passed"


def codes(code: CodeType) -> Iterator[CodeType]:
    """All code objects within one."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from codes(part)


def forked(work: Callable[[], bytes], limit: float) -> bytes:
    """What `work` returns in a process of its own; nothing if that dies, or takes more seconds of a core."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_VIRTUAL, limit)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            answer = work()
            while answer:
                answer = answer[os.write(write, answer) :]
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def ways(text: str) -> list[tuple[int, int]]:
    """Every mutant, by the place of its node in the tree and the number of the change."""
    tree = ast.parse(text)
    code = running(tree)
    places = [(place, node) for place, node in enumerate(ast.walk(tree)) if node in code]
    return [(place, way) for place, node in places for way in range(len(changes(node)))]


def mutant(text: str, path: Path, place: int, way: int) -> tuple[int, str, str, CodeType]:
    """A mutant: its line, the expression before and after, the compiled module."""
    tree = ast.parse(text)
    node = list(ast.walk(tree))[place]
    was = ast.unparse(node)
    changes(node)[way]()
    line: int = node.lineno  # type: ignore[attr-defined]
    return line, was, ast.unparse(node), compile(ast.fix_missing_locations(tree), path, "exec")


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


if __name__ == "__main__":
    sys.exit(main())
