"""The sum of fewer rows than features is taken apart into the rows, masks or not: so rows are counted first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.federation.errors import RoundError
from fedhip.privacy.attacks import Upload, recover_rows
from tests.federation.samples import CLASSES, FOUR, Trial, rows_of

pytestmark = pytest.mark.usefixtures("sums_only")


def few(tmp_path: Path, **settings: Any) -> Trial:
    """One training row at each site, four in all, and six features."""
    trial = Trial.make(tmp_path, columns="plain", beta=1.0, **settings)
    for site in FOUR:
        features, labels = rows_of(site, 3)
        split = np.array([0, 1, 1], np.int8)
        np.savez(trial.data(site), features=features, labels=labels, split=split, class_names=np.array(CLASSES))
        trial.policy(site, "smallest_class = 1")
    return trial


def test_without_a_census_the_server_has_every_row(tmp_path: Path) -> None:
    trial = few(tmp_path)
    found = recover_rows(Upload.of(trial.run().total()))
    assert found is not None
    for site in FOUR:
        row = np.rint(rows_of(site, 3)[0][0] * 2.0 ** (trial.bits // 2))
        seen = np.asarray(found.rows, dtype=float)  # each row, or its negative
        assert any(np.array_equal(one, row) or np.array_equal(-one, row) for one in seen)


def test_with_a_census_the_sites_refuse(tmp_path: Path) -> None:
    trial = few(tmp_path, few_rows=False)
    with pytest.raises(RoundError, match=r"a: few-rows, b: few-rows, c: few-rows, d: few-rows"):
        trial.run()
    for site in FOUR:
        assert "the other sites have 3 training rows together, and there are 6 features" in trial.log(site)
        assert not (trial.site_folder(site) / "state" / "vector.bin").exists()
