"""A copy of the stored files for each test to work in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.compatibility.stored import FILES
from tests.federation.conftest import no_reports, own_cache, reports  # noqa: F401  # they take time


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All stored files, where they may be changed."""
    return Path(shutil.copytree(FILES, tmp_path / "compatibility"))
