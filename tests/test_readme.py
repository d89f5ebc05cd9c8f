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


def anchors(page: Path) -> set[str]:
    """What can stand behind # in a link to this page: headings as words with dashes, and targets `(x)=`."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    targets = re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)
    github = {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}
    return github | {re.sub(r"[^a-z0-9]+", "-", heading).strip("-") for heading in plain} | set(targets)


def test_links_to_headings_lead_to_one() -> None:
    seen = 0
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            other = page.parent / target if target else page
            if other.suffix == ".md":
                seen += 1
                assert anchor in anchors(other), f"{page.name} links to {target}#{anchor}, and there is no such heading"
    assert seen > 20
