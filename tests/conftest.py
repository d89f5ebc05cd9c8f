"""Hypothesis draws other problems each day; HYPOTHESIS_PROFILE=explore draws many, mutants few and the same.

The day's seed is printed at the top of a run of the tests; FEDHIP_SEED repeats another day's.
"""

import itertools
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import Phase, settings

from tests.browser import browser  # noqa: F401 - for all tests
from tests.drawing import ONE_OF
from tests.http_server import Site, serve

# Two test processes of two threads each would fight over two cores.
torch.set_num_threads(1)

# A shell starts what it runs in the background with Ctrl-C ignored, and tests that press it would wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("default", deadline=None, max_examples=60, database=None, print_blob=True)
settings.register_profile("quick", settings.get_profile("default"), max_examples=60 // ONE_OF)
settings.register_profile("explore", deadline=None, max_examples=2000)
# A mutant needs one example that fails, not the smallest.
settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    max_examples=12,
    database=None,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def daily_seed() -> int:
    """What tests that draw draw by: another each day (UTC), the same all day long."""
    return int(os.environ.get("FEDHIP_SEED") or datetime.now(UTC).strftime("%Y%m%d"))


def pytest_configure(config: pytest.Config) -> None:
    """The day's seed, or Hypothesis' own option: given on the command line, that counts. `make test` draws fewer."""
    os.environ.setdefault("FEDHIP_SEED", str(daily_seed()))  # workers that start past midnight have it too
    if os.environ.get("HYPOTHESIS_PROFILE") is not None:
        return
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(daily_seed())
    if config.option.markexpr == "not slow":
        settings.load_profile("quick")


def pytest_report_header() -> str:
    """Where a failure of another day can be had again."""
    return f"problems are drawn by the day's seed: FEDHIP_SEED={daily_seed()} draws them again"


#: What is not tested where something is missing: files of tests, what they are of, and what brings it.
LEFT_OUT = (
    ("test_in_browser", "PAGES WERE NOT TESTED IN A BROWSER", "apt install chromium chromium-driver"),
    ("tests/engines/", "THE ENGINE ON RAY WAS NOT TESTED", "pip install -c constraints.txt '.[ray]'"),
)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not tested is said where nobody overlooks it."""
    for files, what, remedy in LEFT_OUT:
        skipped = [report for report in terminalreporter.stats.get("skipped", []) if files in report.nodeid]
        if skipped:
            terminalreporter.section(what, sep="!", red=True, bold=True)
            terminalreporter.line(f"{len(skipped)} tests or files of tests were skipped: {remedy}, and run again")


#: Files that take half a minute and more, the longest first. Begun last, one of them would keep the others waiting.
LONG = (
    *("test_real_processes.py", "test_odd_machines.py", "test_examples.py", "test_pages.py", "test_estimates.py"),
    *("test_classifier.py", "test_units.py", "test_helpers.py"),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, the others in the order in which they lie; most cases of what is sampled are slow."""
    sampled: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            sampled.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    for cases in sampled.values():
        mark = cases[0].get_closest_marker("sampled")
        assert mark is not None
        of = min(*mark.args, len(cases))
        for number, case in enumerate(cases):
            if number % of != daily_seed() % of:
                case.add_marker(pytest.mark.slow)
    rank = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.name, len(LONG)))


@pytest.fixture(scope="session")
def new_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One after another; pytest itself would look through all that it has made to find a name for the next."""

    def made() -> Iterator[Path]:
        place = tmp_path_factory.mktemp("new")
        for number in itertools.count():
            folder = place / str(number)
            folder.mkdir(mode=0o700)
            yield folder

    return made()


@pytest.fixture
def surroundings() -> Iterator[pytest.MonkeyPatch]:
    """What is changed for every test, apart from what a test changes and may undo."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(autouse=True)
def own_ledger_of_sums(surroundings: pytest.MonkeyPatch, new_folders: Iterator[Path]) -> None:
    surroundings.setenv("FEDHIP_STATE", str(next(new_folders)))


@pytest.fixture(autouse=True)
def no_power_cuts(surroundings: pytest.MonkeyPatch) -> None:
    """A disk takes its time to make sure."""
    surroundings.setattr(os, "fsync", lambda _: None)


#: What draws the pictures of a report.
DRAWN = {
    "figures": (
        *("accuracy_by_client", "alphas_chosen", "candidates", "confusion", "differences_of_clients", "gain_against"),
        *("leave_one_out_curve", "means_of_runs", "partition", "seconds_by_phase", "spread_of_methods"),
    ),
    "curves": ("gains_by_client", "reliability", "roc"),
    "regression": ("TargetPage.picture",),
}


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, surroundings: pytest.MonkeyPatch) -> None:
    """Reports whole but for their pictures, which take several times as long as the run; `pictures` has them drawn."""
    if "pictures" not in request.fixturenames:
        for module, names in DRAWN.items():
            for name in names:
                surroundings.setattr(f"fedhip.runs.report.{module}.{name}", lambda *_: "<svg></svg>")


@pytest.fixture
def pictures() -> None:
    """Draw them."""


@pytest.fixture
def no_report(surroundings: pytest.MonkeyPatch) -> None:
    """Runs whose report nobody looks at: drawing it takes longer than most of them."""
    surroundings.setattr("fedhip.runs.report.render_report", lambda _: "<html></html>")


@pytest.fixture
def few_digits(surroundings: pytest.MonkeyPatch) -> None:
    """A quarter of scikit-learn's digits, for pages whose code is to run, whatever it reaches."""
    from sklearn import datasets

    features, labels = datasets.load_digits(return_X_y=True)

    def load_digits(*, return_X_y: Literal[True]) -> tuple[Any, Any]:
        return features[::4], labels[::4]

    surroundings.setattr(datasets, "load_digits", load_digits)


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server whose manners a test can choose."""
    with serve() as state:
        yield state
