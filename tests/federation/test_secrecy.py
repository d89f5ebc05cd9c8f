"""What the server has of one site: every byte of every message, file and log is read, and nothing plain is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.core.exact.columns import Survey
from fedhip.core.exact.fixedpoint import decode
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.init import draft
from fedhip.federation.secure_sum import Collector
from fedhip.federation.site.inputs import make_vector
from fedhip.federation.sums.kind import SiteInputs, SumKind, SumStage
from fedhip.federation.sums.vector import Layout, Vector
from tests.federation.grid import ServerKilled
from tests.federation.samples import (
    CLASSES,
    FOUR,
    WIDTH,
    Trial,
    clients,
    encoding,
    rows_of,
    sum_of,
    survey_of,
    vector_of,
)

LAYOUT = Layout(WIDTH, len(CLASSES))


def pairs(vector: Vector) -> dict[str, bytes]:
    """Any two neighbouring values; two zeros, or small counts side by side, are found in any file and say nothing."""
    signed = vector.view(np.int64)
    large = np.abs(signed) > 1 << 20
    return {f"values {i} and {i + 1}": signed[i : i + 2].tobytes() for i in np.flatnonzero(large[:-1] & large[1:])}


def traces(site: str, agreement: Agreement) -> dict[str, bytes]:
    """What would give a site's statistics away: any two neighbouring values of gram, cross or counts, and its rows.

    Of its survey the same, but for those that are in the sum of all: a value in whose order of magnitude nobody else
    has one is told by the sum.
    """
    vector = vector_of(site, agreement)
    found = {f"{site}: {where}": pair for where, pair in pairs(vector).items()}
    own = pairs(survey_of([site]))
    told = [survey_of(sites).tobytes() for sites in (FOUR, tuple(s for s in FOUR if s != "b"))]
    alone = [where for where, pair in own.items() if any(pair in sums for sums in told)]
    assert len(own) > 20
    assert len(alone) <= 2
    found |= {f"{site}: survey, {where}": pair for where, pair in own.items() if where not in alone}
    counts = LAYOUT.counts(vector)
    found[f"{site}: counts"] = counts.tobytes()
    found[f"{site}: counts as text"] = json.dumps(counts.tolist()).encode()
    found[f"{site}: counts as lines"] = json.dumps(counts.tolist(), indent=1).encode()
    features = rows_of(site)[0]
    found[f"{site}: a row"] = features[0].tobytes()
    found[f"{site}: a value as text"] = repr(float(features[0, 0])).encode()
    return found


def files_of_the_server(trial: Trial) -> dict[str, bytes]:
    sites = [trial.site_folder(site) for site in FOUR]
    return {
        str(path.relative_to(trial.folder)): path.read_bytes()
        for path in trial.folder.rglob("*")
        if path.is_file() and not any(path.is_relative_to(site) for site in sites)
    }


def holds(haystack: dict[str, bytes], needles: dict[str, bytes]) -> list[str]:
    return [
        f"{what} in {where}" for where, data in haystack.items() for what, trace in needles.items() if trace in data
    ]


def all_traces(trial: Trial) -> dict[str, bytes]:
    return {what: trace for site in FOUR for what, trace in traces(site, trial.agreement).items()}


def wire(trial: Trial) -> dict[str, bytes]:
    return {f"message {i} ({step}, node {node})": data for i, (node, step, data) in enumerate(trial.grid.wire)}


@pytest.mark.parametrize(
    ("gone", "number"), [(None, 0), ("mask", 1), ("keys", 2), ("mask", 2), ("mask", 3), ("unmask", 3)]
)
@pytest.mark.sampled(3)
def test_no_plain_statistics_in_any_message_or_file(tmp_path: Path, gone: str | None, number: int) -> None:
    """Nor of what columns are like, nor of what β is chosen by, in any of the three sums."""
    trial = Trial.make(tmp_path, quorum=3, threshold=3)
    trial.grid.carry = True
    if gone is not None:
        trial.fault("silent", "b", gone, round=number)
        for site in FOUR:
            trial.policy(site, "allow_leavers = true")
    trial.run()
    needles = all_traces(trial)
    assert len(needles) > 4 * 50
    assert holds(wire(trial), needles) == []
    assert holds(files_of_the_server(trial), needles) == []
    total = (trial.result / "results.json").read_text()
    assert not re.search(r'"train": \d', total)


@pytest.mark.parametrize(
    ("settings", "stopped", "least"),
    [({"head": "logistic", "gradient_rounds": 2}, 5, 50), ({}, 3, 40)],
    ids=["logistic", "beta"],
)
def test_no_plain_term_of_a_later_sum_in_any_message_or_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sums_only: None,
    settings: dict[str, Any],
    stopped: int,
    least: int,
) -> None:
    """Losses, gradients and accuracies over β of a site are masked like its statistics."""
    found: dict[str, bytes] = {}

    def kept(kind: SumKind, inputs: SiteInputs) -> Vector:
        vector = make_vector(kind, inputs)
        if kind.stage > SumStage.STATISTICS:
            name = f"{inputs.client.name}: {{}} of sum {inputs.session.round}"
            found.update({name.format(where): pair for where, pair in pairs(vector).items()})
        return vector

    monkeypatch.setattr("fedhip.federation.site.site.make_vector", kept)
    trial = Trial.make(tmp_path, **settings)
    trial.grid.carry = True
    trial.grid.stop_at = ("unmask", 4 * (stopped - 1) + 2)
    with pytest.raises(ServerKilled):
        trial.run()
    files, first = files_of_the_server(trial), wire(trial)
    trial.again()
    trial.grid.carry = True
    trial.run()
    assert {what[0] for what in found} == set(FOUR)
    assert len(found) > 4 * least
    for haystack in (files, first, wire(trial), files_of_the_server(trial)):
        assert holds(haystack, found) == []


def test_no_plain_statistics_in_a_checkpoint(tmp_path: Path, another_user: Callable[[], None]) -> None:
    for step, number in (("unmask", 2), ("unmask", 6), ("unmask", 10), ("personalize", 2)):
        another_user()
        trial = Trial.make(tmp_path / f"{step}-{number}")
        trial.grid.stop_at = (step, number)
        with pytest.raises(ServerKilled):
            trial.run()
        files = files_of_the_server(trial)
        assert any("checkpoint" in name and len(data) > 8 * LAYOUT.size for name, data in files.items())
        assert holds(files, all_traces(trial)) == []


def test_the_search_finds_what_it_looks_for(tmp_path: Path, sums_only: None) -> None:
    """Without masks every site's statistics are in its message, and are found there."""
    trial = Trial.make(tmp_path, secure_sum=False)
    trial.grid.carry = True
    for site in FOUR:
        trial.policy(site, "require_secure_sum = false")
    trial.run()
    found = holds(wire(trial), all_traces(trial))
    for site in FOUR:
        assert any(f"{site}: values" in line for line in found)
        assert any(f"{site}: counts in" in line for line in found)
        assert any(f"{site}: survey, values" in line for line in found)


def test_every_number_is_masked_like_the_rest(tmp_path: Path, sums_only: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a mask a count is any 64-bit number; a plain one has 60 zero bits. A plain survey is zeros for the most."""
    received: list[Vector] = []
    add = Collector.add

    def keep(self: Collector, site: str, vector: Vector, signature: bytes) -> None:
        received.append(vector.copy())
        add(self, site, vector, signature)

    monkeypatch.setattr(Collector, "add", keep)
    Trial.make(tmp_path).run()
    assert [len(vector) for vector in received] == [52 * WIDTH + 1] * 4 + [LAYOUT.size] * 4 + [48] * 4
    assert (survey_of(FOUR) == 0).mean() > 0.5
    for vector in received[4:8]:
        assert (vector[-len(CLASSES) :] > 1 << 40).all()
    for number in range(3):
        masked = np.stack(received[4 * number : 4 * number + 4])
        assert (masked > 1 << 24).all()
        ones = np.unpackbits(masked.view(np.uint8).reshape(4, -1, 8), axis=2).mean(axis=(0, 1))
        deviation = 0.5 / (4 * masked.shape[1]) ** 0.5
        assert (np.abs(ones - 0.5) < 6.0 * deviation).all()  # each of the 64 bits is a fair coin
        assert len(np.unique(masked)) == masked.size


def test_what_the_survey_and_the_statistics_tell_of_a_leaver_and_why_sites_refuse() -> None:
    """The one with a site and the other without: its rows, and of each column its sum and that of its squares."""
    agreement = draft(name="x", sites=FOUR, classes=CLASSES, width=WIDTH)
    everybody = Survey.from_vector(survey_of(FOUR).view(np.int64), WIDTH).moments()
    others, units = decode(sum_of(("a", "b", "d"), agreement, FOUR)), encoding(agreement).columns
    rows, scale = others.num_samples, torch.ldexp(torch.ones(WIDTH, dtype=torch.float64), units.exponent)
    moved = others.cross.sum(dim=1)  # in the columns' units
    sums = scale * moved + rows * units.offset
    squares = scale**2 * others.gram.diagonal() + 2.0 * units.offset * scale * moved + rows * units.offset**2
    (c,) = clients(["c"])
    assert int(everybody.rows[-1, 0]) - rows == len(c.train[1])
    told = everybody.first[-1].astype(float) * everybody.unit - sums.numpy()
    np.testing.assert_allclose(told, c.train[0].sum(axis=0), atol=1e-2)
    told = everybody.second[-1].astype(float) * everybody.unit**2 - squares.numpy()
    np.testing.assert_allclose(told, np.square(c.train[0]).sum(axis=0), atol=1e-2)


def test_what_the_survey_tells_of_a_value_that_is_alone_in_its_order_of_magnitude() -> None:
    survey = Survey.from_vector(survey_of(FOUR, {"b": 123_456.7}).view(np.int64), WIDTH)
    values, sums = survey.table[:, 0, 0], survey.table[:, 1, 0]
    highest = int(np.flatnonzero(values)[-1])
    assert values[highest] == 1
    assert sums[highest] * 2.0 ** (24 - 30) == pytest.approx(123_456.7, rel=1e-6)  # 2^16 to 2^24, in 30 bits


def test_no_word_of_a_sites_log_reaches_the_server(tmp_path: Path, sums_only: None) -> None:
    trial = Trial.make(tmp_path, quorum=3, threshold=3)
    trial.grid.carry = True
    features, labels = rows_of("c")
    names = np.array(["ape", "bee", "gout", "dog"])
    np.savez(trial.data("c"), features=features, labels=labels, class_names=names)
    trial.run()
    assert "gout" in trial.log("c")
    everything = {**wire(trial), **files_of_the_server(trial)}
    paths = {"the class": b"gout", "the path": str(trial.data("c")).encode(), "an error": b"Error"}
    assert holds(everything, paths) == []
    assert trial.codes() == {"c": "classes"}
