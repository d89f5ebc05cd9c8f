"""scripts/mutate.py finds the changes that tests do not notice, and writes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

SCRIPT = Path(__file__).parents[2] / "scripts" / "mutate.py"
SOURCE = """
class Till:
    @property
    def price(self):
        return 2 * 10

def change(given):
    if given > 90:
        raise ValueError(f"{given + 1} is too much")
    left = 0
    while left < given - 20:
        left += 1
    return left
"""
TESTS = """
import pytest
from {name} import Till, change

def test_change():
    assert change(25) == 5
    with pytest.raises(ValueError):
        change(95)

def test_price():
    assert Till().price {price}
"""


def mutate(folder: Path, name: str, price: str) -> subprocess.CompletedProcess[str]:
    """The script on a module and its tests, in `folder`."""
    (folder / "src").mkdir()
    (folder / "src" / f"{name}.py").write_text(SOURCE, encoding="utf-8")
    (folder / "test_it.py").write_text(TESTS.format(name=name, price=price), encoding="utf-8")
    command = [sys.executable, str(SCRIPT), f"src/{name}.py", "test_it.py", "--list"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603


@pytest.mark.slow
def test_survivors_are_those_that_no_test_can_tell(tmp_path: Path) -> None:
    done = mutate(tmp_path, "shop", price="> 0")
    survived = {line.split(": ", 1)[1] for line in done.stdout.splitlines() if " SURVIVED " in line}
    # Above zero it stays, no test comes near 90, and one may count from 1 or 2 to 5.
    assert survived == {
        "2 * 10  →  2 / 10",
        "2  →  3",
        "10  →  11",
        "given > 90  →  given >= 90",
        "90  →  91",
        "0  →  1",
        "0  →  2",
    }
    assert done.returncode == 1
    assert "9 of 16 caught" in done.stdout  # left += -1 among them, which never ends
    assert (tmp_path / "src" / "shop.py").read_text(encoding="utf-8") == SOURCE


def test_tests_that_fail_anyway_say_nothing(tmp_path: Path) -> None:
    done = mutate(tmp_path, "shop", price="== 0")
    assert done.returncode == 2
    assert "the tests fail without any change" in done.stderr
