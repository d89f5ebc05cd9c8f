"""A disk that is full at a site or at the server, in any step: no sum is another than that of the sites it names."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedhip.federation.server import checkpoint, event_log
from fedhip.federation.site import state
from fedhip.federation.status_codes import SiteCode
from fedhip.utils.files import append_private, write_private
from tests.federation.samples import FOUR, ONE_SUM, Trial, sum_of

pytestmark = pytest.mark.usefixtures("sums_only")

STEPS = ("hello", "keys", "share", "mask", "unmask", "personalize")


def full(write: Callable[..., Any], when: Callable[[Path], bool]) -> Callable[..., Any]:
    """Writes until the disk is full."""

    def attempt(path: Path, *given: Any) -> Any:
        if when(Path(path)):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, *given)

    return attempt


@pytest.mark.parametrize("what", ["write_private", "append_private"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.sampled(3)
def test_a_site_whose_disk_is_full_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, what: str
) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3, **ONE_SUM)
    trial.grid.keys_apart, asked = step == "keys", trial.grid.asked

    def is_full(path: Path) -> bool:
        return "site-c" in str(path) and (trial.node("c"), step) in asked

    monkeypatch.setattr(state, what, full(getattr(state, what), is_full))
    inside = FOUR if step in ("unmask", "personalize") else ("a", "b", "d")
    assert trial.run().total() == sum_of(inside, trial.agreement)
    assert trial.codes()["c"] in (SiteCode.INTERNAL, SiteCode.FOLDER)


@pytest.mark.parametrize(
    ("module", "writer", "number"),
    [
        *((checkpoint, write_private, number) for number in (1, 2, 3)),
        *((event_log, append_private, number) for number in (2, 12, 22)),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.sampled(3)
def test_a_server_whose_disk_was_full_goes_on_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, writer: Callable[..., None], number: int
) -> None:
    """Whether it could not keep what it knows, or write its log."""
    trial = Trial.make(tmp_path, **ONE_SUM)
    written: list[str] = []

    def is_full(path: Path) -> bool:
        written.append(path.name)
        return len(written) == number

    with monkeypatch.context() as patch:
        patch.setattr(module, writer.__name__, full(writer, is_full))
        with pytest.raises(OSError, match="No space left"):
            trial.run()
    trial.again()
    assert trial.run().total() == sum_of(FOUR, trial.agreement)
    assert trial.codes() == {}
