"""What the documentation shows is what the package does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedhip.methods import METHODS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/methods.md"])
def test_python_examples_run(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})  # noqa: S102


def test_every_method_is_in_the_docs_with_its_options() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    # Of several tables that name a method, the first is that of options.
    rows = dict(reversed(re.findall(r"^\| `([a-z-]+)` \|(.*)$", page, re.MULTILINE)))
    assert rows.keys() == METHODS.keys()
    for name, method in METHODS.items():
        for option, value in method.defaults.items():
            assert f"`{option}` {value:g}" in rows[name]
        for option in method.optional:
            assert f"`{option}`" in rows[name]


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
