"""SGD in dual form has the numbers of a plain loop over clients with autograd."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from fedhip.methods import _GRADIENT, METHODS, Head, Protocol, heads
from fedhip.methods.dual import Dual, worthwhile
from fedhip.methods.engine import Laboratory, Models, ProximalSGD, Step, for_each, sgd
from fedhip.methods.orders import participants
from tests.methods import oracle
from tests.methods.problems import CLASSES, PROTOCOL, WIDTH, federation

#: One row; fewer than a batch; batches that come out even, and such that do not; enough for several blocks of batches.
SIZES = (1, 5, 33, 64, 70)
SMALL = replace(PROTOCOL, batch=4)


def trained(
    name: str, protocol: Protocol, options: Mapping[str, float], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> tuple[Models, Any]:
    """The models after all rounds, and the last state; with an epoch of SGD in no other form."""
    lab = Laboratory(federation(SIZES), CLASSES, protocol, dtype=dtype, together=True, dual=True)
    spy = mock.Mock(side_effect=Dual.train)
    monkeypatch.setattr(Dual, "train", lambda *args: spy(*args))
    method = _GRADIENT[name].of(lab, {**METHODS[name].defaults, **options})
    state = method.start()
    for number in range(protocol.rounds):
        present = participants(lab.size, protocol.participation, protocol.seed, number)
        state, _ = method.round(state, number, present)
    models = method.models(state, protocol.rounds)
    assert spy.call_count >= protocol.rounds
    return models, state


def assert_same(models: Models, networks: Sequence[nn.Module], rtol: float = 1e-9) -> None:
    for k, network in enumerate(networks):
        for ours, theirs in zip(models.personal, oracle.flat(network), strict=True):
            assert torch.linalg.norm(ours[k] - theirs) <= rtol * torch.linalg.norm(theirs), f"client {k}"


def expected(name: str, protocol: Protocol, told: Mapping[str, float]) -> Sequence[nn.Module]:
    clients = federation(SIZES)
    start = Laboratory(clients, CLASSES, protocol, dtype=torch.float64).initial()
    world = oracle.World(clients, protocol)
    match name:
        case "local-sgd":
            return oracle.local_sgd(world, start)
        case "ditto":
            return oracle.ditto(world, start, told["mu"], int(told["personal_epochs"]))
        case "fedala":
            return oracle.fedala(world, start, rate=1.5, percent=70, threshold=0.001, cap=14, tensors=2)
    server = oracle.fedavg(world, start, told.get("mu", 0.0))
    if name.endswith("-ft"):
        epochs = int(told["finetune_epochs"])
        return oracle.fine_tuned(world, server, epochs, told.get("finetune_mu", 0.0))
    return [server] * len(SIZES)


CASES: dict[str, tuple[str, dict[str, float]]] = {
    "fedavg": ("fedavg", {}),
    "fedavg-ft": ("fedavg-ft", {"finetune_epochs": 4}),
    "fedprox": ("fedprox", {"mu": 0.7}),
    "fedprox, the largest pull": ("fedprox", {"mu": 2 / 0.3}),
    "fedprox, back to the centre in each step": ("fedprox", {"mu": 1 / 0.3}),
    "fedprox-ft": ("fedprox-ft", {"mu": 0.7, "finetune_epochs": 3, "finetune_mu": 0.5}),
    "fedprox-ft, plain": ("fedprox-ft", {"mu": 0.7, "finetune_epochs": 1, "finetune_mu": 0.0}),
    "ditto": ("ditto", {"mu": 0.8, "personal_epochs": 3}),
    "local-sgd": ("local-sgd", {}),
    "fedas": ("local-sgd", {}),
    "fedala": (
        "fedala",
        {"ala_rate": 1.5, "slice_percent": 70, "threshold": 0.001, "start_epochs": 14, "adapted_tensors": 2},
    ),
}


@pytest.mark.parametrize("batch", [4, 32, 200])
@pytest.mark.parametrize("case", CASES)
def test_three_rounds_are_those_of_autograd(case: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, told = CASES[case]
    protocol = replace(PROTOCOL, batch=batch)
    models, _ = trained(name, protocol, told, monkeypatch, torch.float64)
    assert_same(models, expected(name, protocol, told))


def test_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    models, _ = trained("fedprox", SMALL, {"mu": 0.7}, monkeypatch, torch.float32)
    assert_same(models, expected("fedprox", SMALL, {"mu": 0.7}), rtol=1e-5)


def test_part_of_the_clients_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ditto, three of five each round: those not drawn keep their models."""
    protocol, mu = replace(SMALL, participation=0.6, rounds=4), 0.8
    models, state = trained("ditto", protocol, {"mu": mu, "personal_epochs": 2}, monkeypatch, torch.float64)
    clients = federation(SIZES)
    server = oracle.Network(Laboratory(clients, CLASSES, protocol, dtype=torch.float64).initial())
    personal, world = [copy.deepcopy(server) for _ in clients], oracle.World(clients, protocol)
    drawn = [participants(5, 0.6, protocol.seed, number) for number in range(4)]
    assert len({tuple(present) for present in drawn}) > 1
    for number, present in enumerate(drawn):
        networks = [copy.deepcopy(server) for _ in present]
        for k, network in zip(present, networks, strict=True):
            world.sgd(personal[k], k, number, range(2), oracle.prox(server, mu))
            world.sgd(network, k, number)
        world.average(networks, server, [SIZES[k] for k in present])
    assert_same(models, personal)
    assert_same(Models(for_each(state.w, 1)), [server])


def test_one_client_and_no_pass() -> None:
    lab = Laboratory(federation((70,)), CLASSES, SMALL, dtype=torch.float64, together=True, dual=True)
    start = for_each(lab.initial(), 1)
    same = lab.train(sgd, start, present=[0], orders=lab.shuffled(0, 0))
    assert all(torch.equal(a, b) for a, b in zip(same, start, strict=True))
    network = oracle.Network(lab.initial())
    oracle.World(federation((70,)), SMALL).sgd(network, 0, 3)
    found = lab.train(sgd, start, present=[0], orders=lab.shuffled(3))
    assert_same(Models(found), [network])


def masked_step(params: tuple[Tensor, ...], fixed: tuple[Tensor, ...], batch: heads.Batch) -> None:
    sgd(params, fixed, batch)


@pytest.mark.parametrize(
    ("step", "head", "dual"),
    [
        (sgd, "linear", True),
        (ProximalSGD(0.5), "linear", True),
        (ProximalSGD(2.1), "linear", False),
        (sgd, "mlp", False),
        (masked_step, "linear", False),
    ],
)
def test_what_has_a_dual_form(step: Step, head: Head, dual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(federation(), CLASSES, replace(SMALL, head=head), together=True, dual=True)
    start, spy = for_each(lab.initial(), lab.size), mock.Mock()
    monkeypatch.setattr(Dual, "train", spy)
    lab.train(step, start, start, present=range(lab.size), orders=lab.shuffled(0))
    assert spy.called == dual


def test_when_it_is_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never on a CPU; on a GPU where clients have few rows for their features, and their products find room."""
    placed = Laboratory(federation((20, 28)), CLASSES, SMALL).placed
    assert not worthwhile(placed, 4)
    placed.device = torch.device("cuda")
    memory = SimpleNamespace(total_memory=2 * 28**2 * 4 * 16)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    assert worthwhile(placed, 4)
    assert not worthwhile(placed, 32), f"32 rows for {WIDTH} features"
    memory.total_memory -= 1
    assert not worthwhile(placed, 4)
