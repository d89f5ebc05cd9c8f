"""Life after the round: each change leaves the bytes of a run in which things had always been so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedhip.core.exact.fixedpoint import round_features
from fedhip.errors import FileError, InputError
from fedhip.runs import Change, Run, life, verify
from fedhip.simulation.client import Client
from tests.core.problems import Array
from tests.runs.samples import (
    BITS,
    CLASSES,
    EXACT,
    NAMES,
    ROWS,
    WIDTH,
    contents,
    make_run,
    one_grid,
    rows_of,
    the_client,
)

FIXED: dict[str, Any] = {"alpha": 7.5, "beta": 2.0}
CHOICES = {"fixed": FIXED, "β from the sum": {"alpha": 7.5, "beta": "gcv"}, "β = 0": {"alpha": 3.0, "beta": 0.0}}
choices = pytest.mark.parametrize("settings", CHOICES.values(), ids=CHOICES)


def forget(path: Path, client: str) -> Change:
    return life.forget(Run.open(path), client)


def join(path: Path, client: str) -> Change:
    return life.join(Run.open(path), the_client(client))


def update(path: Path, client: Client) -> Change:
    return life.update(Run.open(path), client)


def personalize(path: Path, *clients: Client) -> Change:
    return life.personalize(Run.open(path), {client.name: client for client in clients})


def some_rows(client: str, rows: int, seed: int) -> Client:
    F, y = rows_of(client, rows, seed)
    return Client(client, (F, y), (F[:0], y[:0]))


def changes(path: Path) -> list[Callable[[], Change]]:
    """One of each."""
    return [
        lambda: forget(path, "north"),
        lambda: join(path, "east"),
        lambda: update(path, some_rows("north", 3, 1)),
        lambda: personalize(path, the_client("north")),
    ]


def exact(path: Path) -> dict[str, bytes]:
    return contents(path, EXACT)


def is_well(path: Path) -> bool:
    return all(check.problem is None for check in verify(Run.open(path)))


@choices
@pytest.mark.parametrize("who", NAMES)
def test_forget_equals_never_joined_bit_exact(tmp_path: Path, settings: dict[str, Any], who: str) -> None:
    make_run(tmp_path / "run", **settings)
    never = make_run(tmp_path / "never", [name for name in NAMES if name != who], **settings).path
    forget(tmp_path / "run", who)
    assert exact(tmp_path / "run") == exact(never)
    assert len(exact(never)) == 6
    assert is_well(tmp_path / "run")


@pytest.mark.parametrize("only_local", [False, True], ids=["all classes", "only local classes"])
@pytest.mark.parametrize("beta", ["auto", 2.0])
def test_forget_then_personalize_equals_never_joined_bit_exact(tmp_path: Path, only_local: bool, beta: Any) -> None:
    """α by leave-one-out, chosen again by those who stay; then their accuracies and temperature too."""
    make_run(tmp_path / "run", beta=beta, only_local_classes=only_local)
    never = make_run(tmp_path / "never", NAMES[:2], beta=beta, only_local_classes=only_local)
    forget(tmp_path / "run", "west")
    change = personalize(tmp_path / "run", *map(the_client, NAMES[:2]))
    assert exact(tmp_path / "run") == exact(never.path)
    again = Run.open(tmp_path / "run")
    assert again.details == never.details
    assert again.results["methods"].keys() == never.results["methods"].keys()
    for name, method in again.results["methods"].items():
        other = never.results["methods"][name]
        assert (method["per_client"], method["accuracy"]) == (other["per_client"], other["accuracy"])
    assert again.results["leave_one_out"] == never.results["leave_one_out"]
    assert (change.stale, change.measured) == (None, 2)


@choices
def test_join_equals_always_there_bit_exact(tmp_path: Path, settings: dict[str, Any]) -> None:
    make_run(tmp_path / "run", NAMES[:2], **settings)
    join(tmp_path / "run", "west")
    assert exact(tmp_path / "run") == exact(make_run(tmp_path / "always", **settings).path)
    assert is_well(tmp_path / "run")


@choices
def test_join_then_forget_restores_the_bytes(tmp_path: Path, settings: dict[str, Any]) -> None:
    run = make_run(tmp_path / "run", **settings).path
    before = exact(run)
    join(run, "east")
    assert exact(run) != before
    forget(run, "east")
    assert exact(run) == before
    assert is_well(run)


@choices
def test_the_order_of_joins_does_not_matter(tmp_path: Path, settings: dict[str, Any]) -> None:
    found = []
    for order in itertools.permutations(("a", "b", "c")):
        path = make_run(tmp_path / "".join(order), NAMES[:1], **settings).path
        for name in order:
            join(path, name)
        found.append(exact(path))
    assert all(other == found[0] for other in found)


@choices
def test_update_equals_a_run_with_all_rows_bit_exact(tmp_path: Path, settings: dict[str, Any]) -> None:
    """The rows of two joins of one client are the rows of one."""
    first, more = some_rows("east", 9, 1), some_rows("east", 4, 2)
    rows = [np.concatenate(parts) for parts in zip(first.train, more.train, strict=True)]
    whole = Client("east", (rows[0], rows[1]), first.test)
    for name, clients in {"steps": [first, more], "at once": [whole]}.items():
        path = make_run(tmp_path / name, **settings).path
        life.join(Run.open(path), clients[0])
        if clients[1:]:
            update(path, more)
    assert exact(tmp_path / "steps") == exact(tmp_path / "at once")
    assert Run.open(tmp_path / "steps").details["clients"]["east"]["train_counts"] == np.bincount(
        whole.train[1], minlength=3
    ).tolist()  # fmt: skip
    assert is_well(tmp_path / "steps")


def test_update_then_personalize_equals_a_run_with_all_rows(tmp_path: Path) -> None:
    first, more = some_rows("east", 9, 1), some_rows("east", 4, 2)
    rows = [np.concatenate(parts) for parts in zip(first.train, more.train, strict=True)]
    whole = Client("east", (rows[0], rows[1]), first.test)
    path, other = (make_run(tmp_path / name).path for name in ("steps", "at once"))
    life.join(Run.open(path), first)
    update(path, more)
    life.join(Run.open(other), whole)
    everyone = [*map(the_client, NAMES), whole]
    for each in (path, other):
        assert personalize(each, *everyone).stale is None
    assert exact(path) == exact(other)
    assert Run.open(path).details == Run.open(other).details


def test_personal_models_are_weighted_ridge_of_rounded_features(tmp_path: Path) -> None:
    """After a join, an update and a forgetting, against scikit-learn on the rows that are left."""
    path = make_run(tmp_path / "run", **FIXED).path
    join(path, "east")
    update(path, some_rows("north", 6, 5))
    forget(path, "south")
    rows: dict[str, tuple[Array, Array]] = {name: the_client(name).train for name in ("north", "west", "east")}
    extra = some_rows("north", 6, 5).train
    rows["north"] = tuple(np.concatenate(parts) for parts in zip(rows["north"], extra, strict=True))  # type: ignore[assignment]
    F = round_features(torch.from_numpy(np.concatenate([F for F, _ in rows.values()])), BITS).numpy()
    Y = np.eye(len(CLASSES))[np.concatenate([y for _, y in rows.values()])]
    owner = np.repeat(list(rows), [len(y) for _, y in rows.values()])
    run = Run.open(path)
    X = (F - F.mean(0)) / F.std(0)
    for name in (None, *rows):
        ridge = Ridge(2.0, solver="svd").fit(X, Y, sample_weight=1.0 + 7.5 * (owner == name))
        np.testing.assert_allclose(run.model(name).scores(F), ridge.predict(X), atol=1e-9)


def test_nothing_of_the_forgotten_client_is_left_but_in_the_ledger(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", ["north", "south", "unmistakable"]).path
    forget(path, "unmistakable")
    named = {name for name, content in contents(path).items() if b"unmistakable" in content}
    # partition.json says which rows of the data were whose, and holds none of them.
    assert named <= {"ledger.jsonl", "partition.json", "results.json", *(f for f in named if "receipts/" in f)}
    run = Run.open(path)
    assert "unmistakable" not in str(run.details)
    assert "unmistakable" not in str(run.results["methods"])
    assert run.results["num_clients"] == 2


def test_a_class_that_only_the_forgotten_client_had_stays_a_class(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", **FIXED).path
    F = np.random.default_rng(0).normal(size=(6, WIDTH))
    labels = np.full(6, 2)
    life.join(Run.open(path), Client("only", (F, labels), (F[:0], labels[:0])))
    for name in ("north", "south"):
        forget(path, name)
    forget(path, "west")
    assert Run.open(path).total().counts.tolist() == [0, 0, 6]
    assert is_well(path)
    with pytest.raises(InputError, match=r"'only' is the last one.*delete"):
        forget(path, "only")


def test_who_must_run_phase_3_again_is_said(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run").path
    assert Run.open(path).results["stale"] is None
    assert personalize(path, the_client("north")).stale is None  # nothing had changed
    change = join(path, "east")
    assert change.stale is not None
    assert "of 'north', 'south', 'west' were measured before the last change (entry 2 of the ledger: join" in (
        change.stale
    )
    # One after another, as in a federation where each does it at home.
    assert "'south', 'west' were" in str(personalize(path, the_client("north")).stale)
    assert "of 'west' were" in str(personalize(path, the_client("south")).stale)
    assert personalize(path, the_client("west")).stale is None
    assert Run.open(path).results["stale"] is None
    assert "of 4 clients were" in str(update(path, some_rows("north", 3, 3)).stale)
    assert "'east', 'south', 'west'" in str(forget(path, "north").stale)
    assert "forget 'north'" in str(personalize(path, the_client("south")).stale)


def test_bulk_personalization_passes_over_who_has_other_rows_now(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run").path
    update(path, some_rows("north", 4, 3))
    everyone = {name: the_client(name) for name in NAMES}
    with pytest.raises(InputError, match=r"'north': these are not the 16 training rows.*12 here"):
        life.personalize(Run.open(path), everyone)
    change = life.personalize(Run.open(path), everyone, skip_changed=True)
    assert change.measured == 2
    assert "of 'north' were" in str(change.stale)
    nobody = {"north": the_client("north")}
    with pytest.raises(InputError, match="none of these clients; give a client's rows"):
        life.personalize(Run.open(path), nobody, skip_changed=True)


def test_rows_are_not_counted_twice(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run").path
    with pytest.raises(InputError, match="'north' is in the run already"):
        join(path, "north")
    twin = the_client("north")
    with pytest.raises(InputError, match="these very rows are in the run already, as client 'north'"):
        life.join(Run.open(path), Client("alias", twin.train, twin.test))
    with pytest.raises(InputError, match="'north': these very rows were added before"):
        update(path, twin)
    update(path, some_rows("north", 4, 1))
    with pytest.raises(InputError, match="these very rows were added before"):
        update(path, some_rows("north", 4, 1))


def test_rows_that_left_with_a_client_may_come_back(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", **FIXED).path
    update(path, some_rows("north", 4, 1))
    forget(path, "north")
    join(path, "north")
    update(path, some_rows("north", 4, 1))
    other = make_run(tmp_path / "other", **FIXED).path
    update(other, some_rows("north", 4, 1))
    assert exact(path) == exact(other)


def test_two_clients_with_the_same_rows_are_two(tmp_path: Path) -> None:
    from fedhip.data import FeatureSet, make_partition
    from fedhip.runs.round.settings import RoundSettings
    from fedhip.runs.run import run_round

    F, y = rows_of("north")
    who = np.repeat(["twin-1", "twin-2"], len(y))
    data = FeatureSet(np.tile(F, (2, 1)), np.tile(y, 2), CLASSES, clients=who, split=np.zeros(2 * len(y), dtype=int))
    partition = make_partition(data.labels, "natural", clients=data.clients)
    config = {"alpha": 1.0, "beta": 1.0, "seed": 0}
    settings = RoundSettings(1.0, 1.0, ridge=one_grid())
    run_round(tmp_path / "run", data, partition, settings, title="", config=config)
    assert is_well(tmp_path / "run")
    forget(tmp_path / "run", "twin-1")
    assert is_well(tmp_path / "run")
    left = Run.open(tmp_path / "run")
    assert left.total() == left.statistics("twin-2")
    with pytest.raises(InputError, match="is the last one"):
        forget(tmp_path / "run", "twin-2")


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run").path
    before = contents(path)
    F, y = np.zeros((3, WIDTH + 1)), np.zeros(3, dtype=np.int64)
    with pytest.raises(InputError, match=r"'east': features are 9 wide, and the run's 8; use the backbone"):
        life.join(Run.open(path), Client("east", (F, y), (F, y)))
    F = F[:, :WIDTH]
    with pytest.raises(InputError, match="'east' brings no training row"):
        life.join(Run.open(path), Client("east", (F[:0], y[:0]), (F, y)))
    with pytest.raises(InputError, match="'north' brings no training row"):
        update(path, Client("north", (F[:0], y[:0]), (F, y)))
    with pytest.raises(InputError, match="no client 'nroth'; near it: 'north'"):
        forget(path, "nroth")
    with pytest.raises(InputError, match="no client 'nroth'; near it: 'north'"):
        update(path, some_rows("nroth", 3, 1))
    assert contents(path) == before


def test_without_statistics_nothing_can_change(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", statistics=False).path
    before = contents(path)
    for change in changes(path):
        with pytest.raises(FileError, match=r"keeps no statistics.*--no-statistics"):
            change()
    assert contents(path) == before
    assert is_well(path)


@pytest.mark.parametrize("methods", [("local",), ("global",), ("local", "global")])
def test_a_run_of_other_methods_has_no_models_to_keep_up(tmp_path: Path, methods: tuple[str, ...]) -> None:
    path = make_run(tmp_path / "run", methods=methods).path
    before = contents(path)
    for change in changes(path):
        with pytest.raises(FileError, match=rf"--methods {','.join(methods)}.*run again with fedhip"):
            change()
    assert contents(path) == before
    assert is_well(path)


def with_a_tester(path: Path) -> Path:
    """Two clients, and one without training rows."""
    from fedhip.data import FeatureSet, make_partition
    from fedhip.runs.round.settings import RoundSettings
    from fedhip.runs.run import run_round

    parts = [rows_of(name) for name in NAMES]
    data = FeatureSet(
        np.concatenate([F for F, _ in parts]),
        np.concatenate([y for _, y in parts]),
        CLASSES,
        clients=np.repeat(NAMES, ROWS),
        split=np.r_[np.zeros(2 * ROWS, dtype=int), np.ones(ROWS, dtype=int)],
    )
    partition = make_partition(data.labels, "natural", clients=data.clients)
    config = {"alpha": 7.5, "beta": 2.0, "seed": 0}
    settings = RoundSettings(7.5, 2.0, ridge=one_grid())
    run_round(path, data, partition, settings, title="", config=config)
    return path


def test_a_client_that_only_tests_can_be_forgotten_and_can_join(tmp_path: Path) -> None:
    path = with_a_tester(tmp_path / "run")
    assert Run.open(path).clients == ["north", "south"]
    assert is_well(path)
    before = exact(path)
    change = forget(path, "west")
    assert (change.rows, change.clients) == (0, 2)
    assert exact(path) == before
    assert list(Run.open(path).details["clients"]) == ["north", "south"]
    assert Run.open(path).results["num_clients"] == 2
    assert is_well(path)
    with pytest.raises(InputError, match="no client 'west'"):
        forget(path, "west")
    other = with_a_tester(tmp_path / "other")
    join(other, "west")
    assert is_well(other)
    run = Run.open(other)
    assert (run.results["num_clients"], run.clients) == (3, list(NAMES))
    with pytest.raises(InputError, match="already"):
        join(other, "west")


def test_the_receipt_is_that_of_the_entry(tmp_path: Path) -> None:
    import json

    path = make_run(tmp_path / "run").path
    change = forget(path, "north")
    receipt = json.loads((path / change.receipt).read_text())
    ledger = Run.open(path).ledger
    assert receipt["entry"] == change.entry == ledger.entries[-1]
    assert ledger.require_receipt(receipt, "") == change.entry
    assert (change.entry["event"], change.entry["client"], change.entry["rows"]) == ("forget", "north", 12)
    assert [entry["event"] for entry in ledger.entries] == ["run", "forget"]


@pytest.mark.parametrize("name", ["global", "total", ".x", "a/b", "a b", "名前", "x" * 300, "\udcff"])
def test_awkward_names_live_like_others(tmp_path: Path, name: str) -> None:
    path = make_run(tmp_path / "run", **FIXED).path
    before = exact(path)
    join(path, name)
    assert is_well(path)
    run = Run.open(path)
    assert run.model(name).client == name
    assert len(list((path / "models").iterdir())) == 4
    forget(path, name)
    assert exact(path) == before
    assert is_well(path)


@pytest.mark.parametrize("name", ["..", "", " ", "\u2028", "a\nb"])
def test_names_that_are_none_do_not_join(tmp_path: Path, name: str) -> None:
    path = make_run(tmp_path / "run", **FIXED).path
    before = exact(path)
    with pytest.raises(InputError, match="give the client another"):
        life.join(Run.open(path), some_rows(name, 8, 1))
    assert exact(path) == before


def test_upper_and_lower_case_are_two_clients(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", ["site", "SITE", "Site"], **FIXED).path
    assert is_well(path)
    assert {Run.open(path).model(name).client for name in ("site", "SITE", "Site")} == {"site", "SITE", "Site"}
