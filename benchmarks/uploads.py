"""Bytes that one client sends, against the paper's full matrices and the rivals."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gradient import federation
from benchmarks.measure import Setup
from benchmarks.table import Line, share
from fedhip.methods import METHODS, CheckedClients, Protocol, run_method

#: Of the paper's protocol.
ROUNDS = 200


def section(setup: Setup) -> Iterator[Line]:
    """Bytes that one client sends, against the paper's C and L in float64.

    Counted from the tensors that travel, on a few rows of every class and in the first rounds, and taken as often as
    there are rounds.
    """
    m, d, counted = setup.pick(toy=(8, 3, 2), quick=(768, 100, 4), full=(768, 100, 20))
    cohort, protocol = CheckedClients(federation(2, 2 * d, m, d)), Protocol(rounds=counted, epochs=1)
    options: dict[str, dict[str, float]] = setup.pick(toy={"deepafl": {"blocks": 2, "width": 8}}, quick={}, full={})
    literal = 8 * (m * m + m * d)
    against = f"the paper's C and L, {literal / 1e6:.2f} MB, m = {m}, d = {d}"
    for name, info in METHODS.items():
        run = run_method(name, cohort, d, protocol, options=options.get(name), device=setup.device)
        if run.rounds == 0:
            continue
        rounds, times = (ROUNDS, ROUNDS / counted) if info.gradient else (run.rounds, 1.0)
        sent, received = times * run.upload_bytes_per_client, times * run.download_bytes_per_client
        what = f"{info.title}, {rounds} round{'s' * (rounds != 1)}"
        yield share(what, sent / literal, against, upload_bytes=sent, download_bytes=received)
