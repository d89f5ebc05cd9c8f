"""The files of a federation's site and server are for their owner, from the moment they exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhip.federation.site.ledger import default_state
from tests.federation.samples import FOUR, Trial
from tests.utils.test_private_files import Watch, watch  # noqa: F401


@pytest.mark.parametrize("secure", [True, False])
def test_a_round(watch: Watch, tmp_path: Path, secure: bool) -> None:  # noqa: F811
    trial = Trial.make(tmp_path, secure_sum=secure)
    for site in FOUR:
        trial.policy(site, f"require_secure_sum = {str(secure).lower()}")
        (trial.site_folder(site) / "site.toml").chmod(0o600)
    (trial.folder / "state" / "nodes.json").chmod(0o600)
    watch.made.clear()
    trial.run()
    watch.require_private(trial.folder, default_state(), least=60)
