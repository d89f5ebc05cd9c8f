"""The round in apps of others: the same sum, β and models as `fedhip run --head ridge` on the same rows."""

from __future__ import annotations

import sys
import tomllib
import warnings
from collections.abc import Iterable
from importlib import import_module
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
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import FedHiPError
from fedhip.flower import client_app, federate, personalize
from fedhip.heads.model import Model
from fedhip.simulation.client import Client
from fedhip.simulation.driver import federate as federate_here
from fedhip.simulation.personalization import Personalization
from tests.federation.samples import FOUR, ONE_SUM, Trial, sum_of
from tests.pages import DOCS, blocks
from tests.runs.samples import CLASSES, rows_of

NAMES = ("north", "south", "west", "east")


class InProcess(Grid):
    """Nodes by number, whose app answers when it is asked."""

    def __init__(self, app: ClientApp, names: Iterable[str] = NAMES, *configs: Any, **run: Any) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
        self.app, self.replies, self.wire = app, dict[str, Message](), list[RecordDict]()
        configs = configs or tuple({"site": name} for name in names)
        self.contexts = {10 + at: Context(7, 10 + at, each, RecordDict(), run) for at, each in enumerate(configs)}

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
    found, nodes = federate(grid, len(CLASSES), sites=4)
    assert found.grid == expected.grid
    assert (found.beta, found.fold_betas) == (expected.beta, expected.fold_betas)
    assert torch.equal(found.common.weights, expected.common.weights)
    assert personalize(grid, found, nodes) == [10, 11, 12, 13]
    for client in clients():
        own = Personalization.of(expected, client)
        model = kept[client.name]
        assert (model.alpha, model.own, model.total) == (own.alpha, own.own, expected.digest)
        assert torch.equal(model.weights, own.model.weights)


def test_a_site_is_told_of_values_that_cost_all_others_a_column(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As by `fedhip run`: two sites with a stray each, and nothing else is said."""

    def rows(context: Context) -> tuple[Any, Any]:
        site = str(context.node_config["site"])
        F, y = rows_of(site, 30)
        F[3, 1] = 1e5 if site in ("south", "west") else F[3, 1]
        return F, y

    grid = InProcess(client_app(rows, lambda context, model: None))
    with caplog.at_level("WARNING", "fedhip.flower"):
        federate(grid, len(CLASSES), sites=4)
    assert [record.getMessage().split(", and")[0] for record in caplog.records] == ["column 1 goes to 1e+05"] * 2


def test_a_model_is_a_file_like_any_other(app: ClientApp, kept: dict[str, Model], tmp_path: Path) -> None:
    grid = InProcess(app)
    personalize(grid, *federate(grid, len(CLASSES)))
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
    found, nodes = federate(grid, len(CLASSES), sites=3)
    assert nodes == [10, 12, 13]
    assert found.grid == federate_here(clients(("north", "west", "east")), len(CLASSES), 0.0).grid
    lonely = InProcess(grid.app, ("south",))
    (refused,) = lonely.push_messages([Message(flower._records({}, step="survey"), 10, "query.fedhip")])
    assert "8.25" not in repr(lonely.replies[refused].content)
    with pytest.raises(FedHiPError, match="3 sites told what their columns look like, and 4 are needed"):
        federate(InProcess(grid.app), len(CLASSES), sites=4)


def test_who_is_not_in_the_sum_gets_no_model(kept: dict[str, Model]) -> None:
    """It would choose α by leaving its rows out of a sum that they are not in."""
    calls: list[str] = []

    def rows(context: Context) -> tuple[Any, Any]:
        site = str(context.node_config["site"])
        calls.append(site)
        if site == "south" and calls.count(site) == 1:
            raise OSError("the disk is not there yet")
        return rows_of(site, 30)

    grid = InProcess(client_app(rows, lambda context, model: kept.update({str(context.node_config["site"]): model})))
    assert personalize(grid, *federate(grid, len(CLASSES), sites=3)) == [10, 12, 13]
    assert set(kept) == {"north", "west", "east"}


@pytest.mark.parametrize("labels", [np.array(["ape"] * 30), np.zeros(30), np.full(30, len(CLASSES)), np.full(30, -1)])
def test_labels_that_are_no_class_numbers(labels: Any, caplog: pytest.LogCaptureFixture) -> None:
    grid = InProcess(client_app(lambda context: (rows_of("north", 30)[0], labels), lambda context, model: None))
    with pytest.raises(FedHiPError, match="0 sites"):
        federate(grid, len(CLASSES))
    assert "class number" in caplog.text or "label" in caplog.text


def test_an_answer_that_is_none(app: ClientApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site is left out; the others go on."""
    grid = InProcess(app)

    def pulled(numbers: Iterable[str]) -> Iterable[Message]:
        for message in InProcess.pull_messages(grid, numbers):
            if message.metadata.src_node_id == 11:
                message.content = RecordDict()
            yield message

    monkeypatch.setattr(grid, "pull_messages", pulled)
    assert federate(grid, len(CLASSES), sites=3)[1] == [10, 12, 13]


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
    personalize(grid, *federate(grid, len(CLASSES)))
    for content in grid.wire:
        for name, array in flower._arrays(content).items():
            assert name in {"offset", "exponent", "survey", "classes", "gram", "cross", "counts", "betas"}
            assert not (array.ndim == 2 and np.shape(array)[0] == 30)


def page() -> list[dict[str, Any]]:
    """What the blocks of the page define: of the site and the server with plain uploads, then with the secure sum."""
    found: list[dict[str, Any]] = []
    for text in blocks(DOCS / "howto" / "flower.md", "python"):
        found.append({})
        exec(text, found[-1])  # noqa: S102
    return found


def test_the_page_word_by_word(tmp_path: Path) -> None:
    site, server = page()[:2]
    configs = []
    for name in NAMES:
        features, labels = rows_of(name, 30)
        np.savez(tmp_path / f"{name}.npz", features=features, labels=labels)
        configs.append({"data": str(tmp_path / f"{name}.npz"), "out": str(tmp_path / f"{name}.safetensors")})
    grid = InProcess(site["app"], (), *configs)
    server["main"](grid, Context(7, 1, {}, RecordDict(), {}))
    expected = federate_here(clients(), 10, "auto")
    for client in clients():
        model = Model.from_file(tmp_path / f"{client.name}.safetensors")
        assert torch.equal(model.weights, Personalization.of(expected, client).model.weights)


def test_the_page_s_secure_sum_word_by_word(tmp_path: Path, sums_only: None, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial.make(tmp_path, **ONE_SUM)
    expected = sum_of(FOUR, trial.agreement)
    trial.folder.rename(tmp_path / "fed")
    monkeypatch.chdir(tmp_path)
    configs = [{"site-folder": f"fed/site-{site}", "data": f"{site}.npz"} for site in trial.sites]
    site, server = page()[2:]
    server["main"](InProcess(site["app"], (), *configs), Context(7, 1, {}, RecordDict(), {}))
    assert GridStatistics.from_file(tmp_path / "fed/site-a/result/total.safetensors") == expected


# The app to begin with.


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, dict[str, Any]]:
    """Site, server, and what the run's configuration says."""
    folder = DOCS.parent / "examples" / "flower-app"
    monkeypatch.syspath_prepend(str(folder))
    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    found = [import_module(f"sites.{name}") for name in ("client", "server")]
    for name in ("sites", "sites.client", "sites.server"):
        monkeypatch.delitem(sys.modules, name)
    return found[0], found[1], config


def simulated(nodes: int) -> list[dict[str, Any]]:
    """The node configurations of Flower's simulation."""
    return [{"partition-id": number, "num-partitions": nodes} for number in range(nodes)]


def run_example(example: tuple[Any, Any, dict[str, Any]], *configs: Any, **given: Any) -> None:
    site, server, config = example
    config = {**config, **given}
    assert config.keys() == example[2].keys(), "flwr run takes no other"
    server.main(InProcess(site.app, (), *configs, **config), Context(7, 1, {}, RecordDict(), config))


def names_of(labels: Any) -> Any:
    return np.array(CLASSES)[labels]


def test_the_app_as_it_stands(tmp_path: Path, example: tuple[Any, Any, dict[str, Any]]) -> None:
    run_example(example, *simulated(2), out=str(tmp_path))
    assert Model.from_file(tmp_path / "site-1.safetensors").class_names == ("ape", "bee", "cat")


def test_virtual_sites_of_a_feature_file_and_of_a_table(
    tmp_path: Path, example: tuple[Any, Any, dict[str, Any]]
) -> None:
    rows = [rows_of(name, 30) for name in NAMES]
    features, labels = np.concatenate([F for F, _ in rows]), names_of(np.concatenate([y for _, y in rows]))
    owner = np.repeat(NAMES, 30)
    np.savez(tmp_path / "rows.npz", features=features, labels=labels, clients=owner)
    table = ["who,what," + ",".join(f"c{column}" for column in range(features.shape[1]))]
    table += [
        f"{who},{what}," + ",".join(map(repr, F.tolist())) for who, what, F in zip(owner, labels, features, strict=True)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(table))
    expected = federate_here(clients(), len(CLASSES), "auto")
    usual = {"sites": 4, "classes": ",".join(CLASSES)}
    run_example(example, *simulated(4), data=str(tmp_path / "rows.npz"), out=str(tmp_path / "a"), **usual)
    columns = {"label": "what", "client": "who"}
    run_example(example, *simulated(4), data=str(tmp_path / "rows.csv"), out=str(tmp_path / "b"), **columns, **usual)
    for folder in "ab":
        for number, name in enumerate(sorted(NAMES)):
            (client,) = clients([name])
            model = Model.from_file(tmp_path / folder / f"site-{number}.safetensors")
            assert model.class_names == CLASSES
            assert torch.equal(model.weights, Personalization.of(expected, client).model.weights)
    with pytest.raises(FedHiPError, match="0 sites"):  # each client is one node: none is left out, none is in twice
        run_example(example, *simulated(2), data=str(tmp_path / "rows.npz"), **{**usual, "sites": 2})


def test_sites_whose_files_lack_a_class_sum_what_they_mean(
    tmp_path: Path, example: tuple[Any, Any, dict[str, Any]]
) -> None:
    """Each file numbers the classes that it has: 0 is an ape here and a bee there. Another name is refused."""
    configs = []
    for name in NAMES:
        features, labels = rows_of(name, 30)
        few = labels > 0 if name == "south" else labels >= 0
        np.savez(tmp_path / f"{name}.npz", features=features[few], labels=names_of(labels[few]))
        configs.append({"data": str(tmp_path / f"{name}.npz"), "out": str(tmp_path / f"{name}.safetensors")})
    usual = {"sites": 4, "classes": ",".join(CLASSES)}
    run_example(example, *configs, **usual)
    whole = clients()
    features, labels = rows_of("south", 30)
    whole[1] = Client("south", (features[labels > 0], labels[labels > 0]), (features[:0], labels[:0]))
    expected = federate_here(whole, len(CLASSES), "auto")
    for client in whole:
        model = Model.from_file(tmp_path / f"{client.name}.safetensors")
        assert model.total == expected.digest
        assert torch.equal(model.weights, Personalization.of(expected, client).model.weights)
    with pytest.raises(FedHiPError, match="1 sites"):
        run_example(example, *configs, **{**usual, "classes": "bee, cat"})


def test_a_table_at_a_node_needs_its_agreed_description(
    tmp_path: Path, example: tuple[Any, Any, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """Each site's own would make other columns of the same table."""
    (tmp_path / "rows.csv").write_text("a,what\n1,ape\n2,bee\n")
    with pytest.raises(FedHiPError, match="0 sites"):
        run_example(example, {"data": str(tmp_path / "rows.csv"), "out": ""}, {"data": str(tmp_path / "rows.csv")})
    assert "give the agreed description" in caplog.text
