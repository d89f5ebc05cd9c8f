"""Some seconds of odd input, other input each day: `python -m scripts.fuzz` looks for longer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scripts import fuzz
from tests.conftest import daily_seed
from tests.drawing import one_of

#: Of all tests, `make test` has a part of it; the seed says which inputs.
SECONDS, MOST = 10.0, 400


@pytest.mark.filterwarnings("ignore")
def test_odd_input_ends_in_no_traceback_no_hang_and_no_lie(record_property: Callable[[str, object], None]) -> None:
    seed = daily_seed()
    record_property("seed", seed)
    inputs = iter(range(MOST))
    found = [
        f"--seed {seed} --only {n}: {what}\n{fault}"
        for n, what, fault in fuzz.findings(seed, inputs, SECONDS / one_of())
    ]
    assert not found, "\n\n".join(found)
    assert next(inputs, MOST) > 20 / one_of()  # it looked


def test_the_fuzzer_sees_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback, an exit code that is none, two lines, words beside a refusal, a success that must not be."""

    def fake(code: int, out: str = "", err: str = "") -> None:
        monkeypatch.setattr(fuzz, "call", lambda _: (code, out, err))

    def fails(_: object) -> None:
        raise KeyError("x")

    fake(0, "{}")
    assert fuzz.fault_of(["run", "--json"], must_fail=False) is None
    assert "succeeded" in str(fuzz.fault_of(["run", "--json"], must_fail=True))
    fake(0, '{"a": NaN}')
    assert "printed no JSON (NaN)" in str(fuzz.fault_of(["run", "--json"], must_fail=False))
    fake(3, err="fedhip: no\n")
    assert fuzz.fault_of(["run"], must_fail=True) is None
    fake(3, "half", "fedhip: no\n")
    assert "and printed" in str(fuzz.fault_of(["run"], must_fail=True))
    fake(3, err="fedhip: no\nreally\n")
    assert "refused" in str(fuzz.fault_of(["run"], must_fail=True))
    fake(3)
    assert "without a line" in str(fuzz.fault_of(["run"], must_fail=True))
    fake(77)
    assert fuzz.fault_of(["run"], must_fail=True) == "exit code 77"
    monkeypatch.setattr(fuzz, "call", fails)
    assert "KeyError" in str(fuzz.fault_of(["run"], must_fail=True))


def test_the_same_seed_and_number_are_the_same_input() -> None:
    drawn = [fuzz.spoil_bytes(np.random.default_rng([5, number]), b"twenty or so bytes..") for number in (*range(9), 0)]
    assert drawn[0] == drawn[9]
    assert len(set(drawn[:9])) > 5


def test_every_command_is_among_those_that_are_fuzzed() -> None:
    from fedhip.cli.common.parser import commands_of
    from fedhip.cli.main import build_parser

    assert {parser.prog.removeprefix("fedhip ") for parser in commands_of(build_parser())} == set(fuzz.BASE)
