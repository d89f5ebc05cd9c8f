"""The round in apps of others: the same sum, β and models as `fedhip run --head ridge` on the same rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedhip import flower
from fedhip.errors import FedHiPError
from fedhip.flower import client_app, federate, personalize
from fedhip.heads.model import Model
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate as federate_here
from fedhip.simulation.personalization import Personalization
from tests.runs.samples import CLASSES, rows_of

NAMES = ("north", "south", "west", "east")


class InProcess(Grid):
    """Nodes by number, whose app answers when it is asked."""

    def __init__(self, app: ClientApp, names: Iterable[str] = NAMES) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
        self.app, self.replies, self.wire = app, dict[str, Message](), list[RecordDict]()
        self.contexts = {
            10 + at: Context(7, 10 + at, {"site": name}, RecordDict(), {}) for at, name in enumerate(names)
        }

    def set_run(self, run: Run) -> None:
        raise AssertionError(run)

    @property
    def run(self) -> Run:
        raise AssertionError

    def create_message(self, *args: Any, **more: Any) -> Message:
        raise AssertionError(args, more)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise AssertionError(messages, timeout)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            number = f"{len(self.wire)}"
            message.metadata.__dict__["_message_id"] = number
            self.wire.append(message.content)
            self.replies[number] = self.app(message, self.contexts[message.metadata.dst_node_id])
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(number) for number in message_ids if number in self.replies]


@pytest.fixture
def kept() -> dict[str, Model]:
    return {}


@pytest.fixture
def app(kept: dict[str, Model]) -> ClientApp:
    def keep(context: Context, model: Model) -> None:
        kept[str(context.node_config["site"])] = model

    return client_app(lambda context: rows_of(str(context.node_config["site"]), 30), keep)


def clients(names: Iterable[str] = NAMES) -> list[Client]:
    rows = {name: rows_of(name, 30) for name in names}
    return [Client(name, (F, y), (F[:0], y[:0])) for name, (F, y) in rows.items()]


def test_sum_beta_and_models_are_those_of_a_run(app: ClientApp, kept: dict[str, Model]) -> None:
    grid, expected = InProcess(app), federate_here(clients(), len(CLASSES), "auto")
    found = federate(grid, len(CLASSES), sites=4)
    assert found.grid == expected.grid
    assert (found.beta, found.fold_betas) == (expected.beta, expected.fold_betas)
    assert torch.equal(found.common.weights, expected.common.weights)
    assert personalize(grid, found) == [10, 11, 12, 13]
    for client in clients():
        own = Personalization.of(expected, client)
        model = kept[client.name]
        assert (model.alpha, model.own, model.total) == (own.alpha, own.own, expected.digest)
        assert torch.equal(model.weights, own.model.weights)


def test_a_model_is_a_file_like_any_other(app: ClientApp, kept: dict[str, Model], tmp_path: Path) -> None:
    grid = InProcess(app)
    personalize(grid, federate(grid, len(CLASSES)))
    kept["west"].to_file(tmp_path / "west.safetensors")
    F, labels = rows_of("west", 30)
    scores = Model.from_file(tmp_path / "west.safetensors").scores(F)
    assert float((scores.argmax(dim=1).numpy() == labels).mean()) > 0.5


def test_the_handler_stands_beside_those_of_the_app(kept: dict[str, Model]) -> None:
    own = ClientApp()

    @own.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    assert client_app(lambda context: rows_of("north"), lambda context, model: None, own) is own
    assert len(list(InProcess(own).push_messages([Message(RecordDict(), 10, "query.hello")]))) == 1


def test_who_fails_is_left_out_and_nothing_of_its_rows_travels(kept: dict[str, Model]) -> None:
    def rows(context: Context) -> tuple[Any, Any]:
        if context.node_config["site"] == "south":
            raise ValueError("the secret 8.25 stands in row 3")
        return rows_of(str(context.node_config["site"]), 30)

    grid = InProcess(client_app(rows, lambda context, model: None))
    found = federate(grid, len(CLASSES), sites=3)
    assert found.grid == federate_here(clients(("north", "west", "east")), len(CLASSES), 0.0).grid
    lonely = InProcess(grid.app, ("south",))
    (refused,) = lonely.push_messages([Message(flower._records({}, step="survey"), 10, "query.fedhip")])
    assert "8.25" not in repr(lonely.replies[refused].content)
    with pytest.raises(FedHiPError, match="3 sites told what their columns look like, and 4 are needed"):
        federate(InProcess(grid.app), len(CLASSES), sites=4)


def test_another_width_is_named(kept: dict[str, Model]) -> None:
    def rows(context: Context) -> tuple[Any, Any]:
        F, y = rows_of(str(context.node_config["site"]), 30)
        return (F[:, :5] if context.node_config["site"] == "south" else F), y

    with pytest.raises(FedHiPError, match="columns"), warnings.catch_warnings():
        federate(InProcess(client_app(rows, lambda context, model: None)), len(CLASSES))


def test_too_few_nodes_are_waited_for_and_then_refused(app: ClientApp) -> None:
    with pytest.raises(FedHiPError, match="2 sites are connected, and 3 are needed"):
        federate(InProcess(app, ("north", "west")), len(CLASSES), sites=3, timeout=0.3)


def test_rows_do_not_travel(app: ClientApp) -> None:
    grid = InProcess(app)
    personalize(grid, federate(grid, len(CLASSES)))
    for content in grid.wire:
        for name, array in flower._arrays(content).items():
            assert name in {"offset", "exponent", "classes", "gram", "cross", "counts", "betas"}
            assert not (array.ndim == 2 and np.shape(array)[0] == 30)
