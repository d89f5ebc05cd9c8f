"""What a run gives back: tests, bytes, participation, checkpoints, divergence, and refusals."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedhip.errors import FedHiPError, FileError, InputError
from fedhip.methods import METHODS, MethodRun, Network, Protocol, run_method
from fedhip.methods.engine.laboratory import Laboratory
from fedhip.methods.trained.fedas import trace_weights
from fedhip.simulation.client import Client
from fedhip.simulation.orders import participants
from tests.methods import oracle
from tests.methods.one_round.rounds import SMALL
from tests.methods.problems import CLASSES, PROTOCOL, WIDTH, federation, rows

GRADIENT = [name for name, info in METHODS.items() if info.gradient]
LINEAR, MLP = PROTOCOL, replace(PROTOCOL, head="mlp")
#: Bytes of a linear head, and of the two layers of an mlp, in float32.
HEAD = 4 * (WIDTH * CLASSES + CLASSES)
SURVEY, STATISTICS = 8 * (52 * WIDTH + 1), 8 * (28 + WIDTH * CLASSES + CLASSES)
BASE, TOP = 4 * (WIDTH * 6 + 6), 4 * (6 * CLASSES + CLASSES)


def same(a: MethodRun, b: MethodRun) -> bool:
    """But for the time they took."""
    first, second = asdict(a), asdict(b)
    for run in (first, second):
        for entry in (run, *run["history"]):
            del entry["seconds"]
    return first == second


def test_every_method_has_a_name() -> None:
    names = (
        "fedavg fedavg-ft fedprox fedprox-ft ditto fedala feddbe fedas fedpcl fedselect fedhip local local-sgd global"
    )
    one_round = "fedcof fedcgs gh-nb gh-lda gh-qda fedpft deepafl safle apfl knn-per knn-per-lda fedncm pfedfda"
    assert set(METHODS) == {*names.split(), *one_round.split(), "global-oll", "fedhip-lda", "fedhip-logistic", "auto"}
    assert all(info.name == name and info.title and info.description for name, info in METHODS.items())
    assert METHODS["fedprox"].defaults["mu"] == 0.01
    assert METHODS["ditto"].defaults["mu"] == 1


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.sampled(3)
def test_every_method_learns(name: str, head: Network) -> None:
    protocol = Protocol(rounds=12, epochs=2, learning_rate=0.1, head=head, hidden=16)
    options = {"kappa": 1.0} if name == "feddbe" else SMALL.get(name)
    run = run_method(name, federation((60, 70, 80)), CLASSES, protocol, options=options)
    known = [value for value in run.accuracy if value is not None]
    assert len(known) == 3
    assert np.mean(known) > 0.5
    assert run.history[-1].accuracy == pytest.approx(np.mean(known))
    assert (run.name, run.diverged) == (name, None)


def test_accuracy_is_that_of_the_model_on_the_test_rows() -> None:
    clients = federation()
    run = run_method("fedavg", clients, CLASSES, LINEAR)
    start = Laboratory(clients, CLASSES, LINEAR, dtype=torch.float64).initial()
    server = oracle.fedavg(oracle.World(clients, LINEAR), start)
    expected = [float((server(torch.from_numpy(c.test[0])).argmax(1).numpy() == c.test[1]).mean()) for c in clients]
    assert run.accuracy == expected


def test_fedavg_of_one_client_is_centralised_sgd() -> None:
    clients = federation((70,))
    run = run_method("fedavg", clients, CLASSES, replace(LINEAR, evaluate_every=1))
    alone = run_method("local-sgd", clients, CLASSES, replace(LINEAR, evaluate_every=1))
    assert [e.accuracy for e in run.history] == [e.accuracy for e in alone.history]


def test_another_client_does_not_change_what_a_client_does_alone() -> None:
    few, many = federation((33, 64)), federation((33, 64, 70))
    a, b = (run_method("local-sgd", clients, CLASSES, LINEAR) for clients in (few, many))
    assert a.accuracy == b.accuracy[:2]


def test_participation() -> None:
    drawn = [participants(10, 0.35, seed=0, round_=r) for r in range(200)]
    assert all(len(set(present)) == 3 for present in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=10)
    assert counts.min() > 30
    assert participants(3, 0.1, 0, 0)[0] in range(3)
    assert participants(3, 1.0, 0, 0) == [0, 1, 2]


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("name", GRADIENT)
def test_part_of_the_clients_in_each_round(name: str, head: Network) -> None:
    """Two of five: two fifths of the bytes, and only those drawn are trained."""
    clients = federation((40, 40, 40, 40, 40))
    protocol = replace(LINEAR, head=head, participation=0.4, rounds=7)
    options = {"kappa": 1.0} if name == "feddbe" else None
    run = run_method(name, clients, CLASSES, protocol, options=options)
    assert run.diverged is None
    assert all(value is not None for value in run.accuracy)
    if name in ("fedavg", "fedprox", "ditto", "fedala"):
        size = HEAD if head == "linear" else BASE + TOP
        assert run.upload_bytes_per_client == run.download_bytes_per_client == round(7 * 2 * size / 5)


def test_a_client_that_was_not_drawn_keeps_its_model() -> None:
    clients, protocol = federation((40, 40, 40)), replace(LINEAR, participation=0.34, rounds=1)
    (drawn,) = participants(3, 0.34, protocol.seed, 0)
    once = run_method("ditto", clients, CLASSES, protocol)
    start = Laboratory(clients, CLASSES, protocol).initial()
    for k, client in enumerate(clients):
        scores = torch.from_numpy(client.test[0]).float() @ start[0] + start[1]
        untrained = float((scores.argmax(1).numpy() == client.test[1]).mean())
        assert (once.accuracy[k] == untrained) == (k != drawn)


@pytest.mark.parametrize(
    ("name", "protocol", "up", "down"),
    [
        ("fedavg", LINEAR, 3 * HEAD, 3 * HEAD),
        ("fedavg-ft", LINEAR, 3 * HEAD, 3 * HEAD),
        ("fedprox", MLP, 3 * (BASE + TOP), 3 * (BASE + TOP)),
        ("ditto", LINEAR, 3 * HEAD, 3 * HEAD),
        ("fedala", LINEAR, 3 * HEAD, 3 * HEAD),
        ("feddbe", LINEAR, 3 * HEAD, 3 * HEAD),
        # one warm-up: the model down, the hidden means up and down
        ("feddbe", replace(MLP, learning_rate=0.01), 3 * (BASE + TOP) + 24, 4 * (BASE + TOP) + 24),
        ("fedas", LINEAR, 0, 0),
        ("fedas", MLP, 3 * (BASE + 4), 3 * BASE),
        ("local-sgd", LINEAR, 0, 0),
        ("local", LINEAR, 0, 0),
        ("fedncm", LINEAR, 8 * (WIDTH * CLASSES + CLASSES), 8 * WIDTH * CLASSES),
        # the survey of the columns; what β is chosen by, for which the sum is needed
        ("fedhip", LINEAR, SURVEY + STATISTICS + 8 * 48, SURVEY + STATISTICS),
        ("global", LINEAR, SURVEY + STATISTICS + 8 * 48, SURVEY + STATISTICS),
        ("fedhip-lda", LINEAR, SURVEY + STATISTICS, SURVEY + STATISTICS),
        ("fedcgs", LINEAR, 8 * (28 + WIDTH * CLASSES + CLASSES), 8 * (WIDTH + 1) * CLASSES),
        ("gh-nb", LINEAR, 8 * (2 * WIDTH * CLASSES + CLASSES), 8 * (2 * WIDTH + 1) * CLASSES),
        ("gh-lda", LINEAR, 8 * (28 + WIDTH * CLASSES + CLASSES), 8 * (WIDTH + 1) * CLASSES),
        ("gh-qda", LINEAR, 8 * (28 + WIDTH + 1) * CLASSES, 8 * (28 + WIDTH + 1) * CLASSES),
        # the base's, losses over 21 temperatures and the temperature
        ("knn-per", LINEAR, SURVEY + STATISTICS + 8 * (48 + 21), SURVEY + STATISTICS + 8),
        ("pfedfda", LINEAR, 8 * (28 + WIDTH * CLASSES + CLASSES), 8 * (28 + WIDTH * CLASSES + CLASSES)),
        # masks of one bit an entry; nothing is personal yet
        ("fedselect", replace(LINEAR, rounds=2), 2 * (HEAD + 4), 2 * HEAD),
    ],
)
def test_bytes_by_hand(name: str, protocol: Protocol, up: int, down: int) -> None:
    run = run_method(name, federation(), CLASSES, protocol)
    assert (run.upload_bytes_per_client, run.download_bytes_per_client) == (up, down)


def test_bytes_of_fedselect_shrink_as_weights_become_personal() -> None:
    protocol, options = replace(LINEAR, rounds=3), {"every_rounds": 1.0, "percent": 25.0}
    run = run_method("fedselect", federation(), CLASSES, protocol, options=options)
    # chosen after the upload of the second round: a quarter of 28 weights does not travel in the third
    assert run.upload_bytes_per_client == 3 * (HEAD + 4) - 7 * 4
    assert run.download_bytes_per_client == 3 * HEAD - 7 * 4


def test_bytes_of_fedpcl() -> None:
    clients = federation((40, 50))  # three classes each, all four between them
    run = run_method("fedpcl", clients, CLASSES, replace(LINEAR, rounds=2))
    assert run.upload_bytes_per_client == 2 * (3 * 256 * 4 + CLASSES)
    assert run.download_bytes_per_client == (4 + 3 + 3) * 256 * 4 + 3 * CLASSES


def test_history() -> None:
    run = run_method("fedavg", federation(), CLASSES, replace(LINEAR, rounds=7, evaluate_every=3))
    assert [entry.round for entry in run.history] == [3, 6, 7]
    assert [entry.upload_bytes_per_client for entry in run.history] == [3 * HEAD, 6 * HEAD, 7 * HEAD]
    seconds = [entry.seconds for entry in run.history]
    assert seconds == sorted(seconds)
    until_3 = run_method("fedavg", federation(), CLASSES, replace(LINEAR, rounds=3))
    assert until_3.history[-1].accuracy == run.history[0].accuracy


@pytest.mark.parametrize("name", GRADIENT)
def test_tests_on_the_way_do_not_change_the_end(name: str) -> None:
    protocol = replace(LINEAR, rounds=4)
    often = run_method(name, federation(), CLASSES, replace(protocol, evaluate_every=1))
    assert often.accuracy == run_method(name, federation(), CLASSES, protocol).accuracy


def test_reports_come_round_by_round() -> None:
    heard: list[tuple[str, int, int]] = []
    run_method("ditto", federation(), CLASSES, LINEAR, report=lambda *told: heard.append(told))
    assert heard == [("Ditto", 1, 3), ("Ditto", 2, 3), ("Ditto", 3, 3)]


class Interrupted(BaseException):
    """As by ctrl-C."""


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("name", GRADIENT)
def test_a_resumed_run_gives_the_same_numbers(name: str, head: Network, tmp_path: Path) -> None:
    protocol = replace(LINEAR, head=head, rounds=5, participation=0.7, evaluate_every=2, learning_rate=0.05)
    options = {"every_rounds": 1.0} if name == "fedselect" else None
    whole = run_method(name, federation(), CLASSES, protocol, options=options)
    rounds: list[int] = []

    def interrupt(phase: str, done: int, total: int) -> None:
        rounds.append(done)
        if done == 3 and rounds.count(3) == 1:
            raise Interrupted

    path = tmp_path / "state.safetensors"
    with pytest.raises(Interrupted):
        run_method(name, federation(), CLASSES, protocol, options=options, checkpoint=path, report=interrupt)
    resumed = run_method(name, federation(), CLASSES, protocol, options=options, checkpoint=path, report=interrupt)
    assert rounds == [1, 2, 3, 4, 5]
    assert same(resumed, whole)
    assert resumed.seconds > 0
    again = run_method(name, federation(), CLASSES, protocol, options=options, checkpoint=path, report=interrupt)
    assert rounds == [1, 2, 3, 4, 5]
    assert same(again, whole)


def test_a_round_cut_short_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_method("ditto", federation(), CLASSES, LINEAR)
    calls, train = [0], Laboratory.train

    def failing(self: Laboratory, *args: object, **kwargs: object) -> object:
        calls[0] += 1
        if calls[0] == 4:  # the second half of round 2
            raise Interrupted
        return train(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Laboratory, "train", failing)
    path = tmp_path / "state.safetensors"
    with pytest.raises(Interrupted):
        run_method("ditto", federation(), CLASSES, LINEAR, checkpoint=path)
    assert same(run_method("ditto", federation(), CLASSES, LINEAR, checkpoint=path), whole)
    assert calls[0] == 4 + 4


def test_checkpoints_are_written_from_time_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "state.safetensors", list[bool]()
    for every in (0.0, 1e9):
        monkeypatch.setattr("fedhip.methods.engine.training.CHECKPOINT_EVERY", every)
        run_method(
            "fedavg", federation(), CLASSES, LINEAR, checkpoint=path, report=lambda *_: seen.append(path.exists())
        )
        path.unlink()
    assert seen == [True] * 3 + [False] * 3


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    path, clients = tmp_path / "state.safetensors", federation()
    run_method("fedprox", clients, CLASSES, LINEAR, checkpoint=path)
    run_method("fedprox", clients, CLASSES, LINEAR, checkpoint=path)
    others = federation()
    others[2].train[0][3, 3] += 1e-3
    for name, rows_, protocol, options in (
        ("fedavg", clients, LINEAR, {}),
        ("fedprox", others, LINEAR, {}),
        ("fedprox", clients, replace(LINEAR, seed=1), {}),
        ("fedprox", clients, LINEAR, {"mu": 0.02}),
    ):
        with pytest.raises(FileError, match="another"):
            run_method(name, rows_, CLASSES, protocol, options=options, checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FileError, match="not a readable checkpoint"):
        run_method("fedprox", clients, CLASSES, LINEAR, checkpoint=path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(FileError, match="no checkpoint"):
        run_method("fedprox", clients, CLASSES, LINEAR, checkpoint=path)


def test_a_diverging_method_stops_and_says_when() -> None:
    protocol = replace(MLP, learning_rate=1e18, rounds=50, evaluate_every=10)
    run = run_method("fedavg", federation(), CLASSES, protocol)
    assert run.diverged is not None
    assert run.diverged.endswith(", learning rate 1e+18")
    assert run.diverged.startswith(f"round {run.rounds},")
    assert run.rounds < 50
    assert run.accuracy == [None] * 5


def test_divergence_in_fine_tuning_counts() -> None:
    protocol = replace(LINEAR, learning_rate=50.0, rounds=2)
    run = run_method(
        "fedprox-ft", federation(), CLASSES, protocol, options={"finetune_mu": 10.0, "finetune_epochs": 200.0}
    )
    assert run.diverged == "round 2, learning rate 50"
    assert run.accuracy == [None] * 5


def without_rows(test: int = 10) -> Client:
    nothing = (np.empty((0, WIDTH)), np.empty(0, np.int64))
    return Client("nobody", nothing, rows(test, np.random.default_rng(5)))


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.sampled(3)
def test_odd_clients(name: str, head: Network) -> None:
    """One row; one class; nothing to test on; nothing to train on, at the front, so that places and numbers differ."""
    untested = replace(federation((20,), test=0, seed=3)[0], name="untested")
    clients = [without_rows(), *federation((1, 4, 40)), untested]
    protocol = replace(LINEAR, head=head, learning_rate=0.05)
    run = run_method(name, clients, CLASSES, protocol, options=SMALL.get(name))
    assert run.diverged is None
    assert run.accuracy[4] is None
    assert all(value is not None for value in run.accuracy[1:4])
    has_common = name not in ("local", "local-sgd", "fedas", "fedpcl", "fedselect")
    assert (run.accuracy[0] is not None) == has_common


@pytest.mark.parametrize("name", METHODS)
def test_features_of_float32_and_float16_are_taken(name: str) -> None:
    clients = [
        Client(c.name, (c.train[0].astype(t), c.train[1]), (c.test[0].astype(t), c.test[1]))
        for c, t in zip(federation((30, 40)), ("f4", "f2"), strict=True)
    ]
    assert run_method(name, clients, CLASSES, LINEAR, options=SMALL.get(name)).diverged is None


@pytest.mark.parametrize("name", ["fedavg", "fedncm", "pfedfda"])
def test_rows_that_cannot_be_written_to_are_taken(name: str) -> None:
    clients = federation((30, 40))
    for client in clients:
        for array in (*client.train, *client.test):
            array.setflags(write=False)
    assert run_method(name, clients, CLASSES, LINEAR).diverged is None


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.sampled(3)
def test_only_local_classes(name: str) -> None:
    """A client of one class whose test rows are of it cannot be wrong."""
    clients = federation((5, 60, 60))
    run = run_method(
        name, clients, CLASSES, replace(LINEAR, rounds=1, only_local_classes=True), options=SMALL.get(name)
    )
    assert run.accuracy[0] == 1
    free = run_method(name, clients, CLASSES, replace(LINEAR, rounds=1), options=SMALL.get(name))
    if name in ("fedavg", "fedncm", "global", "ditto"):
        assert free.accuracy[0] != 1


def test_notes() -> None:
    assert run_method("fedas", federation(), CLASSES, LINEAR).note == "degenerates to local training on a linear head"
    assert run_method("fedas", federation(), CLASSES, MLP).note is None
    assert "linear head" in str(run_method("feddbe", federation(), CLASSES, LINEAR).note)


def test_traces_that_are_no_numbers_give_way_to_rows() -> None:
    shares = torch.tensor([0.25, 0.75])
    assert torch.equal(trace_weights(torch.tensor([3.0, 1.0]), shares), torch.tensor([0.75, 0.25]))
    for traces in ([0.0, 0.0], [torch.nan, 1.0], [torch.inf, 1.0]):
        assert torch.equal(trace_weights(torch.tensor(traces), shares), shares)


def test_epochs_of_a_method_follow_the_protocol() -> None:
    protocol = replace(LINEAR, epochs=5, rounds=1)
    assert run_method("ditto", federation(), CLASSES, protocol).options["personal_epochs"] == 5
    given = run_method("ditto", federation(), CLASSES, protocol, options={"personal_epochs": 1})
    assert given.options == {"mu": 1.0, "personal_epochs": 1.0}


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'fedprox'") as error:
        run_method("fedprx", federation(), CLASSES)
    assert isinstance(error.value, FedHiPError)
    assert isinstance(error.value, ValueError)
    with pytest.raises(InputError, match="Ditto has no option 'personal_epoch'; did you mean 'personal_epochs'"):
        run_method("ditto", federation(), CLASSES, options={"personal_epoch": 1})
    with pytest.raises(InputError, match="FedAvg has no option 'mu'; it has none"):
        run_method("fedavg", federation(), CLASSES, options={"mu": 1})


@pytest.mark.parametrize("name", ["fedavg", "fedhip"])
def test_two_clients_of_one_name_are_refused(name: str) -> None:
    clients = federation()
    with pytest.raises(InputError, match=f"two clients are called '{clients[0].name}'"):
        run_method(name, [*clients, clients[0]], CLASSES)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("fedprox", "mu", -1.0),
        ("fedprox", "mu", float("nan")),
        ("ditto", "personal_epochs", 1.5),
        ("ditto", "personal_epochs", 0.0),
        ("fedpcl", "temperature", 0.0),
        ("fedselect", "percent", 120.0),
        ("pfedfda", "beta", 1.5),
    ],
)
def test_options_that_make_no_sense(name: str, option: str, value: float) -> None:
    with pytest.raises(InputError, match=option):
        run_method(name, federation(), CLASSES, LINEAR, options={option: value})


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("rounds", 0),
        ("epochs", 1.5),
        ("batch", 0),
        ("learning_rate", 0.0),
        ("learning_rate", float("inf")),
        ("participation", 0.0),
        ("participation", 1.1),
        ("head", "deep"),
        ("hidden", 0),
        ("seed", -1),
        ("evaluate_every", -1),
    ],
)
def test_protocols_that_make_no_sense(word: str, value: object) -> None:
    with pytest.raises(InputError, match=word):
        run_method("fedavg", federation(), CLASSES, replace(LINEAR, **{word: value}))  # type: ignore[arg-type]


def test_rows_that_make_no_sense() -> None:
    good, (x, y) = federation((20,))[0], federation((20,))[0].train
    for says, train in (
        ("not finite", (np.where(x > 1, np.nan, x), y)),
        ("give a row for each label", (x[:-1], y)),
        ("give class numbers from 0", (x, y + CLASSES)),
        ("use one backbone", (x[:, :-1], y)),
    ):
        with pytest.raises(InputError, match=f"'odd'.*{says}"):
            run_method("fedavg", [good, Client("odd", train, good.test)], CLASSES, LINEAR)
    with pytest.raises(InputError, match="no client has training rows"):
        run_method("fedavg", [without_rows()], CLASSES, LINEAR)
