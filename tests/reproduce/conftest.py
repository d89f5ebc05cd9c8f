"""What tests of the paper's tables share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fedhip.reproduce.figures import Picture


@pytest.fixture(autouse=True)
def no_figures(request: pytest.FixtureRequest, surroundings: pytest.MonkeyPatch) -> None:
    """Empty files in place of figures, which take longer than most studies; `pictures` has them drawn."""

    def write(folder: Path, pictures: Sequence[Picture]) -> list[Path]:
        paths = [folder / f"{picture.name}.{kind}" for picture in pictures for kind in ("svg", "pdf")]
        for path in paths:
            path.touch()
        return paths

    if "pictures" not in request.fixturenames:
        for module in ("study", "studies.natural", "studies.fine_tuning"):
            surroundings.setattr(f"fedhip.reproduce.{module}.write_pictures", write)
