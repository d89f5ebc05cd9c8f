"""The benchmarks run, at sizes that take seconds, and say what they measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import floor, neighbours, phases, privacy, scale, tree, uploads
from benchmarks.measure import Setup, best_seconds, peak_memory, slope
from benchmarks.table import Line, faster, machine, share
from fedhip import Statistics
from fedhip.core.statistics import pack
from fedhip.privacy.public import PublicMap
from tests.methods.problems import CLASSES, federation

TOY = Setup("toy", torch.device("cpu"))


@pytest.mark.parametrize("name", command.SECTIONS)
def test_every_section_runs(name: str) -> None:
    lines = list(command.SECTIONS[name](TOY))
    assert lines
    for line in lines:
        assert line.what
        assert line.reading
        assert line.value is not None
        assert math.isfinite(line.value), line


def test_the_table_is_written_as_it_goes_and_a_failure_does_not_cost_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [tmp_path / "new" / "table.md", tmp_path / "table.json"]

    def good(setup: Setup) -> Iterator[Line]:
        """Good things."""
        assert setup.size == "quick"
        yield faster("this", 1.0, "that", 142.4, "fast")
        assert "142 × as fast" in out[0].read_text()

    def bad(setup: Setup) -> Iterator[Line]:
        """Bad things."""
        yield share("first", 0.5712, "whole")
        raise RuntimeError("out of something")

    monkeypatch.setattr(command, "SECTIONS", {"bad": bad, "good": good})
    assert command.main(["--quick", "--out", *map(str, out)]) == 1
    written = json.loads(out[1].read_text())["sections"]
    assert [line["value"] for line in written["good"]["lines"]] == [142.4]
    assert written["good"]["lines"][0]["details"] == {"ours": 1.0, "theirs": 142.4}
    assert [line["reading"] for line in written["bad"]["lines"]] == ["57.1 %", "failed: out of something"]
    assert "| this | that | 142 × as fast | fast |" in out[0].read_text()
    assert "142 × as fast" in capsys.readouterr().out
    assert command.main(["--quick", "--only", "good", "--out", *map(str, out)]) == 0
    assert json.loads(out[1].read_text())["sections"].keys() == {"bad", "good"}  # what is not measured anew stays
    assert "failed: out of something" in out[0].read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--out", "table.txt"], "neither in .md nor in .json"), (["--only", "nothing"], "invalid choice")],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_scikit_learn_is_left_out_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "find_spec", lambda name: None)
    (line,) = phases.against_scikit_learn(TOY)
    assert line.value is None
    assert "not installed" in line.reading


def test_the_slope_of_a_power_is_its_exponent() -> None:
    sizes = [10, 100, 1_000]
    assert slope(sizes, [3e-5 * size**2.5 for size in sizes]) == pytest.approx(2.5)


def test_the_best_of_turns() -> None:
    turns: list[str] = []
    seconds = best_seconds(TOY, lambda: turns.append("a"), lambda: turns.append("b"), repeats=3)
    assert turns == ["a", "b"] * 4
    assert len(seconds) == 2
    assert all(value > 0 for value in seconds)


def hold(device: torch.device, megabytes: int) -> torch.Tensor:
    return torch.ones(megabytes * 2**20, dtype=torch.uint8, device=device)


@pytest.mark.slow
def test_peak_memory_is_that_of_the_work_alone() -> None:
    assert peak_memory(Setup("quick", torch.device("cpu")), hold, 100) == pytest.approx(100 * 2**20, rel=0.2)


def test_the_floor_counts_what_it_calls() -> None:
    clients = floor.uneven_clients(4, 10, 3, 100, TOY.device)
    local, system, personal = floor.bare_phases(clients, 3)
    rows = sum(len(F) for F, _ in clients)
    with floor.Counting() as counting:
        for item in local.items:
            local.work(item)
    assert counting.calls == {"products": 8}
    assert counting.operations == 2 * rows * 10 * (10 + 3)
    assert system.needs() == "1 Cholesky factorisations, 2 triangular solves"
    assert personal.needs().endswith("GFLOP in products)")
    assert "4 eigendecompositions" in personal.needs()


def test_the_floor_is_of_the_same_models() -> None:
    """Phase 2 of the floor gives the library's global model: nothing that is needed was left out."""
    clients = floor.uneven_clients(4, 10, 3, 100, TOY.device)
    (ours,), (bare,) = floor.library_phases(clients, 3)[1].run(), floor.bare_phases(clients, 3)[1].run()
    assert isinstance(ours, torch.Tensor)
    assert isinstance(bare, torch.Tensor)
    assert torch.allclose(ours, bare, rtol=1e-9)


def test_uploads_against_the_paper() -> None:
    m, d = 8, 3
    lines = {line.what: line for line in uploads.section(TOY)}
    literal, triangle = 8 * (m * m + m * d), 8 * (m * (m + 1) // 2 + m * d + d)
    survey, scores = 8 * (52 * m + 1), 8 * 48
    assert lines["FedHiP, 1 round"].value == pytest.approx((survey + triangle + scores) / literal)
    assert lines["FedAvg, 200 rounds"].value == pytest.approx(200 * 4 * (m * d + d) / literal)


def test_the_trees_sum_has_the_bits_of_the_flat_one() -> None:
    fans = (3, 2, 2)
    levels, flat = [tree.Level(fan) for fan in fans], tree.Level(1)
    root, alone = tree.both_ways(levels, flat, tree.clients(12))
    assert root.digest() == alone.digest()
    assert root.num_samples == 12 * tree.ROWS
    assert [len(level.seconds) for level in levels] == [4, 2, 1]


def test_a_deployments_bytes_are_those_of_its_tensors() -> None:
    deployment = scale.Deployment("some", 10, 12, 3, 20, 1e6, 10, 2)
    own = Statistics.from_data(torch.randn(20, 12), torch.arange(20) % 3, 3)
    assert deployment.upload == sum(tensor.nbytes for tensor in (pack(own.gram), own.cross, own.counts))
    assert deployment.state == sum(tensor.nbytes for tensor in (own.gram, own.cross, own.counts))


def test_readable_units() -> None:
    assert [scale.show(value) for value in (3e-6, 0.0042, 2.5, 90.0, 7200.0, 172800.0)] == [
        "3 µs",
        "4.2 ms",
        "2.5 s",
        "1.5 min",
        "2 h",
        "2 days",
    ]
    assert [scale.size("", count, "").reading for count in (512, 67.9e6, 3.2e12)] == ["512 B", "67.9 MB", "3.2 TB"]


def test_a_table_says_where_it_was_measured() -> None:
    assert "toy sizes" in machine(TOY)
    assert torch.__version__ in machine(TOY)


def test_accuracy_against_epsilon_is_measured_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clients = federation((120, 120, 120), seed=1)
    public = PublicMap.of_length(clients[0].train[0].shape[1], 4.0)
    data, epsilons = (clients, CLASSES, public), [3.0, 0.001]
    found = [*privacy.measured(data, epsilons), *privacy.rivals(data, epsilons, 0)]
    lines = privacy.together([{"cell": "toy", "seed": 0, **line} for line in found])
    exact, little, some = lines
    assert exact["epsilon"] is None
    assert exact["personal"] > 50.0
    assert {"alone", "global", "personal", "dp_fedavg"} <= set(some)
    assert "epsilon is 0.001" in little["refused"]
    privacy.print_table(lines)
    assert "| toy | 0.001 |" in capsys.readouterr().out
    privacy.draw(lines, tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").stat().st_size > 1000


def test_the_rival_learns_where_there_is_hardly_any_noise() -> None:
    clients = federation((120, 120, 120), seed=1)
    public = PublicMap.of_length(clients[0].train[0].shape[1], 4.0)

    def best(epsilon: float) -> tuple[float, float, int, float]:
        return max(privacy.dp_fedavg(clients, CLASSES, public, epsilon, 0))

    right, accuracy, *_ = best(1e6)
    exact = next(privacy.measured((clients, CLASSES, public), []))
    assert accuracy > exact["global"] - 10.0
    assert right > best(0.01)[0]


def is_cut(left: frozenset[int], sites: int, reach: int) -> bool:
    """Whether those that are left of a circle, each with so many neighbours on either side, do not hang together."""
    found, new = set[int](), {min(left)}
    while new:
        found |= new
        near = {(place + step) % sites for place in new for step in range(-reach, reach + 1)}
        new = (near & left) - found
    return found != left


@pytest.mark.parametrize(
    ("sites", "accomplices", "gone", "k"), [(9, 2, 2, 4), (9, 3, 2, 4), (9, 1, 3, 4), (10, 3, 3, 6), (10, 2, 3, 6)]
)
def test_the_bound_on_neighbours_holds_of_all_circles(sites: int, accomplices: int, gone: int, k: int) -> None:
    """By trying all: every place of the accomplices, and every choice of who is gone."""
    places = list(combinations(range(sites), accomplices))
    stretches = [{(start + step) % sites for step in range(k // 2)} for start in range(sites)]
    pairs = [one | other for one, other in combinations(stretches, 2) if not one & other]
    cut, met = 0, dict.fromkeys(map(frozenset, pairs), 0)
    for theirs in places:
        honest = frozenset(range(sites)) - set(theirs)
        can = any(is_cut(honest - set(away), sites, k // 2) for away in combinations(sorted(honest), gone))
        few = [pair for pair in met if len(pair & honest) <= gone]
        assert bool(few) >= can
        cut += can
        for pair in few:
            met[pair] += 1
    bits = neighbours.failure_bits(sites, accomplices, gone, k)
    of_one = set(met.values())
    assert len(of_one) == 1
    assert max(of_one) / len(places) * math.comb(sites, 2) == pytest.approx(2.0**-bits)
    assert len(pairs) <= math.comb(sites, 2)
    assert (cut > 0) == (bits < math.inf)


def test_where_one_neighbour_less_would_do_for_a_server_that_chooses() -> None:
    """Without accomplices it must remove all neighbours: one more than may be gone are enough, and no fewer."""
    for sites, gone in ((9, 3), (10, 5), (12, 5)):
        k = neighbours.least_neighbours(sites, 0, gone, 40.0)
        assert k == gone + 1 + (gone + 1) % 2
        every = frozenset(range(sites))
        assert not any(is_cut(every - set(away), sites, k // 2) for away in combinations(range(sites), gone))
        assert any(is_cut(every - set(away), sites, k // 2 - 1) for away in combinations(range(sites), gone))


def test_more_neighbours_are_needed_for_more_accomplices_and_never_more_than_all() -> None:
    found = [neighbours.least_neighbours(200, accomplices, 66, 40.0) for accomplices in (0, 10, 66)]
    assert found == sorted(found)
    assert found[0] == 68
    assert [neighbours.least_neighbours(12, some, 4, 40.0) for some in (4, 7)] == [10, 11]
