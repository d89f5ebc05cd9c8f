"""Every method that trains by gradients has the numbers of a plain loop over clients with autograd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedhip.methods import GRADIENT, METHODS, Protocol
from fedhip.methods.engine import network
from fedhip.methods.engine.laboratory import Laboratory, Models, for_each, sgd
from fedhip.methods.engine.protocol import Network
from fedhip.methods.trained.fedpcl import PROJECTION
from fedhip.simulation.orders import participants
from tests.methods import oracle
from tests.methods.problems import CLASSES, PROTOCOL, federation

HEADS: tuple[Network, ...] = ("linear", "mlp")


def trained(
    name: str,
    protocol: Protocol,
    told: Mapping[str, float] = MappingProxyType({}),
    *,
    together: bool | None = False,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    **options: float,
) -> tuple[Models, Any]:
    """The models after all rounds, and the last state."""
    lab = Laboratory(federation(), CLASSES, protocol, device, dtype=dtype, together=together)
    method = GRADIENT[name].of(lab, {**METHODS[name].defaults, **told, **options})
    state = method.start()
    for number in range(protocol.rounds):
        present = participants(lab.size, protocol.participation, protocol.seed, number)
        state, _ = method.round(state, number, present)
    return method.models(state, protocol.rounds), state


def world(protocol: Protocol) -> tuple[oracle.World, tuple[Tensor, ...]]:
    clients = federation()
    return oracle.World(clients, protocol), Laboratory(clients, CLASSES, protocol, dtype=torch.float64).initial()


def assert_same(models: Models, networks: list[nn.Module] | list[oracle.Network], rtol: float = 1e-9) -> None:
    for k, other in enumerate(networks):
        for ours, theirs in zip(models.personal, oracle.flat(other), strict=True):
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


@pytest.mark.parametrize("tensors", [1, 2, 4])
def test_fedala(protocol: Protocol, together: bool, tensors: int) -> None:
    told = {"ala_rate": 1.5, "slice_percent": 70, "threshold": 0.001, "start_epochs": 14, "adapted_tensors": tensors}
    models, state = trained("fedala", protocol, told, together=together)
    assert_same(
        models,
        oracle.fedala(*world(protocol), rate=1.5, percent=70, threshold=0.001, cap=14, tensors=tensors),
    )
    assert min(float(a.min()) for a in state.A) < 1, "no weight was learnt"


def test_fedala_learns_until_the_loss_has_settled(protocol: Protocol) -> None:
    """With 200 passes allowed it matters when the first phase ends."""
    told = {"ala_rate": 1.0, "slice_percent": 80, "threshold": 0.002, "start_epochs": 200, "adapted_tensors": 2}
    models, _ = trained("fedala", protocol, told)
    there, start = world(protocol)
    kept = {"rate": 1.0, "percent": 80.0, "tensors": 2, "cap": 200}
    assert_same(models, oracle.fedala(there, start, threshold=0.002, **kept))  # type: ignore[arg-type]
    later = oracle.fedala(there, start, threshold=1e-9, **kept)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        assert_same(models, later)


def test_fedselect(protocol: Protocol, together: bool) -> None:
    longer = replace(protocol, rounds=6)
    told = {"la_epochs": 2, "every_rounds": 2, "percent": 30, "limit_percent": 40}
    models, state = trained("fedselect", longer, told, together=together)
    networks, masks = oracle.fedselect(*world(longer), turns=2, every=2, percent=30, limit=40)
    assert_same(models, networks)
    for k, mask in enumerate(masks):
        for ours, theirs in zip(state.mask, mask, strict=True):
            assert torch.equal(ours[k], (theirs.T if theirs.ndim == 2 else theirs) == 1)
    assert 0 < float(state.mask[0].double().mean()) < 1
    assert not state.mask[-1].any(), "a bias became personal"


@pytest.mark.parametrize("momentum", [1.0, 0.4])
def test_feddbe(protocol: Protocol, together: bool, momentum: float) -> None:
    gentle = replace(protocol, learning_rate=0.1)
    models, state = trained("feddbe", gentle, together=together, momentum=momentum, kappa=5)
    server, offsets = oracle.feddbe(*world(gentle), momentum, kappa=5)
    assert_same(replace(models, personal=models.personal[:-1]), [server] * 5)
    torch.testing.assert_close(state.z, torch.stack(offsets), rtol=1e-9, atol=1e-12)
    clients = federation()
    for k, client in enumerate(clients):
        x = torch.from_numpy(client.test[0])
        ours = models.scores(tuple(p[k : k + 1] for p in models.personal), x[None])[0]
        torch.testing.assert_close(ours, server.head(server.base(x) + offsets[k]).detach(), rtol=1e-9, atol=1e-9)


def test_feddbe_draws_hidden_means_together() -> None:
    """κ has an effect on an mlp, and none on a linear head."""
    for head in HEADS:
        protocol = replace(PROTOCOL, head=head, learning_rate=0.1)
        without, strong = (trained("feddbe", protocol, kappa=kappa)[0].personal[0] for kappa in (0, 5))
        assert torch.equal(without, strong) == (head == "linear")


def test_fedas(together: bool) -> None:
    protocol = replace(PROTOCOL, head="mlp")
    models, _ = trained("fedas", protocol, together=together, align_rate=0.2, align_batch=16)
    assert_same(models, oracle.fedas(*world(protocol), align_rate=0.2, align_batch=16))


def test_fedas_on_a_linear_head_is_local_training() -> None:
    models, alone = trained("fedas", PROTOCOL)[0], trained("local-sgd", PROTOCOL)[0]
    assert all(torch.equal(a, b) for a, b in zip(models.personal, alone.personal, strict=True))


def test_fedpcl(together: bool) -> None:
    models, _ = trained("fedpcl", PROTOCOL, together=together, temperature=0.5)
    clients = federation()
    lab = Laboratory(clients, CLASSES, PROTOCOL, dtype=torch.float64)
    start = network.initial((lab.width, PROJECTION), PROTOCOL.seed, torch.float64, lab.device)
    projections, prototypes = oracle.fedpcl(oracle.World(clients, PROTOCOL), start, 0.5, CLASSES)
    assert_same(replace(models, personal=models.personal[:2]), projections, rtol=1e-8)
    torch.testing.assert_close(models.personal[2], torch.stack(prototypes), rtol=1e-8, atol=1e-12)
    for k, client in enumerate(clients):
        x = torch.from_numpy(client.test[0])
        own = np.unique(client.train[1])
        with torch.no_grad():
            distances = torch.cdist(torch.nn.functional.normalize(projections[k](x), dim=1), prototypes[k][own])
        nearest = own[distances.argmin(dim=1).numpy()]
        ours = models.scores(tuple(p[k : k + 1] for p in models.personal), x[None])[0].argmax(dim=1)
        assert np.array_equal(ours.numpy(), nearest)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [name for name, info in METHODS.items() if info.gradient])
def test_a_gpu_gives_the_numbers_of_a_cpu(name: str, protocol: Protocol) -> None:
    """Steps replayed as CUDA graphs, all clients at once, with some of the clients in each round."""
    some = replace(protocol, participation=0.8, rounds=4, learning_rate=0.05)
    there, here = (trained(name, some, together=None, device=device)[0] for device in ("cuda", "cpu"))
    for ours, theirs in zip(there.personal, here.personal, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-8, atol=1e-10)


def test_a_client_without_a_pass_stays_as_it_was_beside_one_that_trains() -> None:
    """FedALA's clients that have learnt their weights sit out while others learn."""
    lab = Laboratory(federation(), CLASSES, Protocol(batch=32), dtype=torch.float64, together=True)
    start = for_each(lab.initial(), lab.size)
    order = np.arange(lab.rows[3])
    trained = lab.train(sgd, start, present=range(lab.size), orders=lambda k: [order] if k == 3 else [])
    for before, after in zip(start, trained, strict=True):
        moved = (before != after).flatten(1).any(dim=1).tolist()
        assert moved == [k == 3 for k in range(lab.size)]
