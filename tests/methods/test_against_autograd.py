"""Every method that trains by gradients has the numbers of a plain loop over clients with autograd (tests/methods/oracle.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedhip.methods import _GRADIENT, METHODS, Protocol
from fedhip.methods.engine import Laboratory, Models, participants
from fedhip.methods.protocol import Head
from tests.methods import oracle
from tests.methods.problems import CLASSES, PROTOCOL, federation

HEADS: tuple[Head, ...] = ("linear", "mlp")


def trained(
    name: str, protocol: Protocol, *, together: bool = False, dtype: torch.dtype = torch.float64, **options: float
) -> tuple[Models, Any]:
    """The models after all rounds, and the last state."""
    lab = Laboratory(federation(), CLASSES, protocol, dtype=dtype, together=together)
    method = _GRADIENT[name](lab, {**METHODS[name].defaults, **options})
    state = method.start()
    for number in range(protocol.rounds):
        present = participants(lab.size, protocol.participation, protocol.seed, number)
        state, _ = method.round(state, number, present)
    return method.models(state, protocol.rounds), state


def world(protocol: Protocol) -> tuple[oracle.World, tuple[Tensor, ...]]:
    clients = federation()
    return oracle.World(clients, protocol), Laboratory(clients, CLASSES, protocol, dtype=torch.float64).initial()


def assert_same(models: Models, networks: list[nn.Module] | list[oracle.Network], rtol: float = 1e-9) -> None:
    for k, network in enumerate(networks):
        for ours, theirs in zip(models.personal, oracle.flat(network), strict=True):
            assert torch.linalg.norm(ours[k] - theirs) <= rtol * torch.linalg.norm(theirs), f"client {k}"


@pytest.fixture(params=HEADS)
def protocol(request: pytest.FixtureRequest) -> Protocol:
    return replace(PROTOCOL, head=request.param)


@pytest.fixture(params=(False, True), ids=("one by one", "together"))
def together(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_fedavg(protocol: Protocol, together: bool) -> None:
    models, _ = trained("fedavg", protocol, together=together)
    assert_same(models, [oracle.fedavg(*world(protocol))] * 5)


def test_fedavg_in_float32(protocol: Protocol) -> None:
    models, _ = trained("fedavg", protocol, dtype=torch.float32)
    assert_same(models, [oracle.fedavg(*world(protocol))] * 5, rtol=1e-5)


def test_fedprox(protocol: Protocol, together: bool) -> None:
    models, _ = trained("fedprox", protocol, together=together, mu=0.7)
    assert_same(models, [oracle.fedavg(*world(protocol), mu=0.7)] * 5)


def test_fedavg_ft(protocol: Protocol) -> None:
    models, _ = trained("fedavg-ft", protocol, finetune_epochs=4)
    there, start = world(protocol)
    assert_same(models, oracle.fine_tuned(there, oracle.fedavg(there, start), 4))


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_fedprox_ft(protocol: Protocol, mu: float) -> None:
    models, _ = trained("fedprox-ft", protocol, mu=0.7, finetune_epochs=3, finetune_mu=mu)
    there, start = world(protocol)
    assert_same(models, oracle.fine_tuned(there, oracle.fedavg(there, start, 0.7), 3, mu))


def test_ditto(protocol: Protocol, together: bool) -> None:
    models, _ = trained("ditto", protocol, together=together, mu=0.8, personal_epochs=3)
    assert_same(models, oracle.ditto(*world(protocol), mu=0.8, personal_epochs=3))


def test_local_sgd(protocol: Protocol, together: bool) -> None:
    models, _ = trained("local-sgd", protocol, together=together)
    assert_same(models, oracle.local_sgd(*world(protocol)))


def test_fedprox_without_pull_is_fedavg(protocol: Protocol) -> None:
    without, plain = trained("fedprox", protocol, mu=0.0)[0], trained("fedavg", protocol)[0]
    assert all(torch.equal(a, b) for a, b in zip(without.personal, plain.personal, strict=True))


def test_ditto_hardly_pulled_is_local_sgd(protocol: Protocol) -> None:
    hardly, alone = trained("ditto", protocol, mu=1e-9, personal_epochs=2)[0], trained("local-sgd", protocol)[0]
    for ours, theirs in zip(hardly.personal, alone.personal, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_ditto_strongly_pulled_stays_at_the_model_received(protocol: Protocol) -> None:
    slow = replace(protocol, learning_rate=0.001)
    (models, state), average = trained("ditto", slow, mu=900.0, personal_epochs=2), trained("fedavg", slow)[0]
    for w, v, ours in zip(state.w, models.personal, average.personal, strict=True):
        assert torch.equal(w, ours[0])
        torch.testing.assert_close(v, w.expand_as(v), rtol=0.05, atol=0.05)
