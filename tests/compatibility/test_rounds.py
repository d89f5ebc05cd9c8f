"""Rounds of a federation give the sums and models that they gave in an earlier version.

The sums' digests, the agreement's digest, the settings and what is said of the round exactly; models to the precision
of linear algebra. The keys and masks are new in each round: nothing of them may be in a result.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.compatibility.rounds import ROUNDS, play
from tests.compatibility.stored import FILES, assert_same_run


@pytest.mark.parametrize("name", ROUNDS)
def test_a_round_gives_the_same_results(tmp_path: Path, name: str) -> None:
    played = play(name, tmp_path / "played" / name)
    for part, path in played.items():
        result = Path(shutil.copytree(path, tmp_path / part))
        assert_same_run(result, FILES / "rounds" / name / part, tmp_path)
