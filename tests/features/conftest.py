from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
