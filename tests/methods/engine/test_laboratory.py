"""What a GPU is spared: waiting for the host, looking at every round, and the same rows again for every method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from fedhip.methods import GRADIENT, METHODS, CheckedClients, Network, Protocol, run_method
from fedhip.methods.engine.clients import DeviceRows
from fedhip.methods.engine.laboratory import Laboratory, places, sgd
from fedhip.methods.engine.recording import Recorded, buffer_like, fill
from fedhip.simulation.client import Client
from fedhip.simulation.orders import participants
from tests.methods.problems import CLASSES, PROTOCOL, federation

META = torch.device("meta")


def without_data(protocol: Protocol) -> Laboratory:
    """Clients whose rows are shapes alone: whoever asks for a number of theirs, or mixes devices, is told off."""
    cohort = CheckedClients(federation())
    placed = cohort.to_device(CLASSES, torch.device("cpu"), torch.float32)
    for name, value in vars(placed).items():
        if isinstance(value, Tensor):
            setattr(placed, name, value.to(META))
    placed.device = META
    cohort._placed[CLASSES, META, torch.float32] = placed
    return Laboratory(cohort, CLASSES, protocol, META)


@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize(
    "name", ["fedavg", "fedavg-ft", "fedprox", "fedprox-ft", "ditto", "fedala", "feddbe", "fedas", "local-sgd"]
)
@pytest.mark.sampled(3)
def test_a_round_waits_for_no_number(name: str, head: Network, participation: float) -> None:
    protocol = replace(PROTOCOL, head=head, participation=participation)
    lab = without_data(protocol)
    method: Any = GRADIENT[name].of(lab, METHODS[name].defaults)
    state = method.start()
    if name == "fedala":  # before a client has learnt its weights, when it may stop depends on its losses
        state = replace(state, learnt=torch.ones(lab.size, dtype=torch.bool))
    for number in range(2):
        state, _ = method.round(state, number, participants(lab.size, participation, 0, number))
    with pytest.raises(RuntimeError, match="meta"):
        float(lab.features[0, 0])


def test_an_epoch_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rounds and epochs of a method are replays, with all clients or with as many others."""
    spy = mock.Mock(side_effect=Recorded.__init__, return_value=None)
    monkeypatch.setattr(Recorded, "__init__", lambda *args: spy(*args))
    lab = Laboratory(federation(), CLASSES, PROTOCOL, together=True)
    start = tuple(tensor.expand(3, *tensor.shape) for tensor in lab.initial())
    for number, present in enumerate(([0, 1, 2], [1, 3, 4], [0, 1, 2])):
        lab.train(sgd, start, start, present=present, orders=lab.shuffled(number))
    assert spy.call_count == 1


def test_a_recording_has_buffers_of_its_own() -> None:
    shared, own = torch.arange(3.0).expand(2, 3), torch.ones(2, 3)
    buffers = buffer_like(shared), buffer_like(own)
    assert (buffers[0].stride(0), buffers[1].stride(0)) == (0, 3)
    assert buffers[0].data_ptr() != shared.data_ptr()
    fill(buffers[0], shared + 1)
    fill(buffers[1], shared)
    assert buffers[0].tolist() == [[1, 2, 3]] * 2
    assert buffers[1].tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("evaluate_every", [0, 3, 10])
def test_divergence_is_dated_right_when_rounds_are_looked_at_together(
    evaluate_every: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The round, the bytes and the history are those of looking at every round."""
    protocol = replace(
        PROTOCOL, head="mlp", learning_rate=1e18, rounds=50, evaluate_every=evaluate_every, participation=0.2
    )
    plain = run_method("fedavg", federation(), CLASSES, protocol)
    init, path = Laboratory.__init__, tmp_path / "state.safetensors"

    def far_ahead(self: Laboratory, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.ahead = 7

    monkeypatch.setattr(Laboratory, "__init__", far_ahead)
    ahead = run_method("fedavg", federation(), CLASSES, protocol, checkpoint=path)
    resumed = run_method("fedavg", federation(), CLASSES, protocol, checkpoint=path)
    assert plain.diverged is not None
    for run in (ahead, resumed):
        assert (run.diverged, run.rounds, run.accuracy) == (plain.diverged, plain.rounds, plain.accuracy)
        assert run.upload_bytes_per_client == plain.upload_bytes_per_client
        assert [e.round for e in run.history] == [e.round for e in plain.history]


def test_interrupted_while_ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is written is the last round that gave numbers, or the first that did not."""
    protocol = replace(PROTOCOL, head="mlp", learning_rate=1e18, rounds=50)
    plain, path = run_method("fedavg", federation(), CLASSES, protocol), tmp_path / "state.safetensors"
    init = Laboratory.__init__

    def far_ahead(self: Laboratory, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.ahead = 100

    def interrupt(phase: str, done: int, total: int) -> None:
        if done == plain.rounds + 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Laboratory, "__init__", far_ahead)
    with pytest.raises(KeyboardInterrupt):
        run_method("fedavg", federation(), CLASSES, protocol, checkpoint=path, report=interrupt)
    resumed = run_method("fedavg", federation(), CLASSES, protocol, checkpoint=path, report=interrupt)
    assert (resumed.diverged, resumed.rounds) == (plain.diverged, plain.rounds)


def test_a_cohort_is_its_clients() -> None:
    clients = federation()
    cohort = CheckedClients(clients)
    assert (len(cohort), list(cohort), cohort[2], list(cohort[1:3])) == (5, clients, clients[2], clients[1:3])
    assert CheckedClients.of(cohort) is cohort
    for name in ("fedavg", "fedpcl", "fedhip", "pfedfda", "local"):
        a, b = (run_method(name, given, CLASSES, PROTOCOL) for given in (clients, cohort))
        assert a.accuracy == b.accuracy


def test_the_rows_of_a_cohort_are_placed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    placed, hashed = (
        mock.Mock(side_effect=DeviceRows.__init__, return_value=None),
        mock.Mock(wraps=np.ascontiguousarray),
    )
    monkeypatch.setattr(DeviceRows, "__init__", lambda *args: placed(*args))
    monkeypatch.setattr("fedhip.methods.engine.clients.np.ascontiguousarray", hashed)
    cohort = CheckedClients(federation())
    for name in ("fedavg", "ditto", "fedas"):
        run_method(name, cohort, CLASSES, PROTOCOL, checkpoint=tmp_path / name)
    assert placed.call_count == 1
    assert hashed.call_count == 4 * len(cohort)


def test_a_digest_is_of_names_and_rows() -> None:
    """An order of rows depends on the client's name, so a checkpoint does."""
    clients = federation()
    digest = CheckedClients(clients).digest
    assert digest == CheckedClients(federation()).digest
    renamed = [Client("another", clients[0].train, clients[0].test), *clients[1:]]
    swapped = [Client(clients[0].name, clients[0].test, clients[0].train), *clients[1:]]
    assert (
        len(
            {digest, CheckedClients(renamed).digest, CheckedClients(swapped).digest, CheckedClients(clients[1:]).digest}
        )
        == 4
    )


def test_places_are_kept() -> None:
    first = places((0, 2), torch.device("cpu"))
    assert first.tolist() == [0, 2]
    assert places((0, 2), torch.device("cpu")) is first


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("name", [name for name, info in METHODS.items() if info.gradient])
def test_every_epoch_is_a_graph_on_a_gpu_and_gives_a_cpus_numbers(
    name: str, head: Network, participation: float
) -> None:
    """Nothing falls back to kernel after kernel unseen."""
    protocol = replace(PROTOCOL, head=head, participation=participation, learning_rate=0.05)
    found = []
    for device in ("cuda", "cpu"):
        lab = Laboratory(federation(), CLASSES, protocol, device, dtype=torch.float64)
        method: Any = GRADIENT[name].of(lab, METHODS[name].defaults)
        state = method.start()
        for number in range(4):
            state, _ = method.round(state, number, participants(lab.size, participation, protocol.seed, number))
        found.append(method.models(state, 4).personal)
        if device == "cuda":
            epochs = [epoch.run for epoch in lab._epochs.values()]
            assert epochs
            assert all(run.graph is not None for run in epochs)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-8, atol=1e-10)
