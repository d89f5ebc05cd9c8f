"""scripts/faults.py puts old faults back into a copy of the package, and says which tests do not notice."""

import ast
import shutil
from pathlib import Path

import pytest

from scripts.faults import PACKAGE, ROOT, Change, Fault, faults, unnoticed

FAULTS = faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_can_be_put_in_and_its_tests_are_there(fault: Fault, tmp_path: Path) -> None:
    for change in fault.changes:
        copy = tmp_path / change.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists():
            shutil.copy(PACKAGE / change.file, copy)
        change.apply(tmp_path)
        ast.parse(copy.read_text(encoding="utf-8"))
    assert fault.tests
    for test in fault.tests:
        path, _, name = test.partition("::")
        assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), test


@pytest.mark.slow
def test_a_fault_is_noticed_and_one_that_changes_nothing_is_not() -> None:
    test = "tests/core/test_standardization.py::test_other_widths_are_refused"
    for becomes, left in (("if False:", []), ("if not width == len(self.mean):", [test])):
        change = Change("core/standardization.py", "if width != len(self.mean):", becomes)
        assert unnoticed(Fault("", "", (test,), (change,))) == left
