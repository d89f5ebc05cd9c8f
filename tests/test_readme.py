"""What the documentation shows is what the package does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedhip.methods import METHODS

ROOT = Path(__file__).parent.parent
#: Pages that people read first, or in a hurry.
PLAIN = (
    "quickstart.md",
    "tutorials/federation.md",
    "runs.md",
    "cli.md",
    *(
        f"{folder}/{page.name}"
        for folder in ("howto", "explanation")
        for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    ),
)


@pytest.mark.usefixtures("no_report", "few_digits")
@pytest.mark.parametrize("page", ["README.md", "docs/methods.md", "docs/explanation/in-short.md"])
def test_python_examples_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And those of the README print what it shows."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})  # noqa: S102
    for line in capsys.readouterr().out.splitlines() if page == "README.md" else ():
        assert line in text


def test_the_readme_begins_with_words_that_need_no_other_page() -> None:
    """What it is, how it is installed and what it prints, before any symbol; and no sentence that runs on."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    screen = text.split("## Two commands")[0]
    assert not re.search("[αβλ]|N_k|F_k", text)
    for shown in ("pip install", "Python 3.11", "fedhip run --data", "```python", "round.svg", "quickstart.md"):
        assert shown in screen
    assert "badge" not in text
    assert not long_sentences(text)


def long_sentences(text: str) -> list[str]:
    """Those of more than 25 words; tables, code and headings have no sentences."""
    prose = re.sub(r"^```.*?^```$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^#.*?$|^\|.*?$|^    .*?$", "\n", prose, flags=re.MULTILINE)
    words = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", prose)
    words = re.sub(r"^\s*(?:-|\d+\.) ", "\n\n", words, flags=re.MULTILINE)
    return [s.strip() for s in re.split(r"[.:;?](?=[\s)*])|\n\n", words) if len(s.split()) > 25]


def test_long_sentences_are_found() -> None:
    long = " ".join(["word"] * 26)
    assert long_sentences(f"Short. {long}.\n\n- {long}; short\n\n| {long} |\n\n# {long}\n\n    {long}\n") == [long] * 2


@pytest.mark.parametrize("page", PLAIN)
def test_pages_that_are_read_most_have_no_sentence_that_runs_on(page: str) -> None:
    assert not long_sentences((ROOT / "docs" / page).read_text(encoding="utf-8"))


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
