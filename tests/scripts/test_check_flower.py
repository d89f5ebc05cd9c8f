"""The versions of Flower that are stated are those that are tested: on the page, by the script, and by the job."""

from __future__ import annotations

import re

import yaml  # type: ignore[import-untyped]

from fedhip.federation.transport.engine import VERSION
from tests.pages import DOCS

ROOT = DOCS.parent


def test_both_ends_of_the_stated_range_are_tested() -> None:
    page = (DOCS / "howto" / "flower.md").read_text(encoding="utf-8")
    stated = re.search(r"^\| `flwr run` of .*\| ([0-9.]+) and ([0-9.]+) \|", page, re.MULTILINE)
    assert stated is not None
    assert stated[2] == VERSION, "the later end is what all tests have"
    assert f"set -- {stated[1]} {stated[2]}\n" in (ROOT / "scripts" / "check-flower").read_text(encoding="utf-8")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "flower.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["both-ends"]
    assert job["strategy"]["matrix"]["flwr"] == [stated[1], stated[2]]
    assert job["steps"][-1]["run"] == "scripts/check-flower ${{ matrix.flwr }}"
