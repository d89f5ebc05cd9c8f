"""Sites' reports take their time; those tests that look at one ask for `reports`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own libraries warn one another while they are imported
    import flwr.clientapp
    import flwr.serverapp  # noqa: F401


@pytest.fixture(autouse=True)
def no_reports(request: pytest.FixtureRequest) -> None:
    if "reports" not in request.fixturenames:
        request.getfixturevalue("no_report")


@pytest.fixture
def reports() -> None:
    """Write them."""


@pytest.fixture
def sums_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites keep the sum that they get, and make no models of it."""
    from fedhip.federation.site import personalization

    def keep(out: Path, client: Any, received: personalization.ReceivedSum, *_: Any) -> Any:
        out.mkdir()
        received.grid.to_file(out / "total.safetensors")
        return SimpleNamespace(accuracy={})

    monkeypatch.setattr(personalization, "personalize", keep)


@pytest.fixture
def another_user(surroundings: pytest.MonkeyPatch, new_folders: Iterator[Path]) -> Callable[[], None]:
    """What follows is done by users whose ledgers of sums are empty."""
    return lambda: surroundings.setenv("FEDHIP_STATE", str(next(new_folders)))


@pytest.fixture(autouse=True)
def own_cache(surroundings: pytest.MonkeyPatch, new_folders: Iterator[Path]) -> None:
    surroundings.setenv("FEDHIP_CACHE", str(next(new_folders)))
