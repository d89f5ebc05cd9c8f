"""For who runs Flower already: the round of the ridge as a ClientApp's handler, and two calls in a ServerApp's main.

    app = client_app(rows, keep)                      # rows(context) gives features and labels, keep(context, model)

    @app.main()
    def main(grid, context):                          # of a ServerApp
        federation, nodes = federate(grid, num_classes=3)  # the sum, β, the global model; who is in the sum
        personalize(grid, federation, nodes)          # each site chooses its α, and keeps its model

Uploads are plain: the server sees each site's statistics. Sum, β and models are those of `fedhip run --head ridge` on
the same rows. With the secure sum it sees no site's own; keys and agreement are then those of `fedhip federation`:

    app = secure_client_app()                         # the site's folder and its rows are in the node configuration

    @app.main()
    def main(grid, context):
        secure_round(grid, "fed")                     # the coordinator's folder
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import ArrayLike, NDArray

from fedhip.core.choice.selection import FOLDS
from fedhip.core.exact.columns import COLUMN_BITS, Columns, Survey
from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.core.exact.outweighing import Spread, outweighed
from fedhip.core.ridge.regularization import choose_betas
from fedhip.core.statistics import pack, unpack
from fedhip.errors import FedHiPError, InputError
from fedhip.federation.client_app import register
from fedhip.federation.operations.paths import ServerPaths
from fedhip.federation.operations.supervisor import write_json
from fedhip.federation.server.round import Round
from fedhip.federation.site.folder import open_site
from fedhip.federation.transport.exchange import Exchange
from fedhip.heads.model import Model
from fedhip.runs.models import personal_model
from fedhip.simulation.beta import score_betas, scoring_betas
from fedhip.simulation.client import Client
from fedhip.simulation.encoding import RowEncoding
from fedhip.simulation.federation import Federation
from fedhip.simulation.personalization import Personalization

Rows = Callable[[Context], tuple[ArrayLike, ArrayLike]]
Keep = Callable[[Context, Model], None]

#: Under which a site is asked: `query.fedhip`.
ACTION = "fedhip"
#: Under which it is asked who it is, before a secure sum.
_WHO = "fedhip_site"
_LOG = logging.getLogger("fedhip.flower")
_PAUSE = 0.2
#: A site should not begin to work on a question that nobody waits for; clocks differ by less than this.
_SLACK = 60.0

_Arrays = dict[str, NDArray[Any]]


def client_app(rows: Rows, keep: Keep, app: ClientApp | None = None) -> ClientApp:
    """A ClientApp that takes part, or `app` with one handler more.

    `rows(context)` gives a site's training rows: features (N, m), and class numbers (N,) that mean the same everywhere.
    `keep(context, model)` takes its model, such as `model.to_file(context.node_config["out"])`.
    """
    app = app or ClientApp()

    @app.query(ACTION)
    def answer(message: Message, context: Context) -> Message:
        try:
            arrays = _answer(message.content, rows, keep, context)
        except Exception as error:  # what it says may be of rows: it stays here
            _LOG.exception("the site cannot answer")
            return Message(RecordDict({ACTION: ConfigRecord({"failed": type(error).__name__})}), reply_to=message)
        return Message(_records(arrays), reply_to=message)

    return app


def federate(grid: Grid, num_classes: int, *, sites: int = 2, timeout: float = 600.0) -> tuple[Federation, list[int]]:
    """Phases 0 to 2 with the nodes that are there, once there are `sites`: their sum, β by their rows left out, who.

    A node that fails, or is silent for `timeout` seconds, is left out of what follows, and logged by its number. Fewer
    than `sites` are an error.
    """
    nodes = _wait_for(grid, sites, timeout)
    _require(nodes, sites, "are connected")
    surveys: dict[int, Survey] = {}
    for node, arrays in _ask(grid, nodes, "survey", {}, timeout):
        surveys[node] = Survey.from_vector(arrays["survey"], (len(arrays["survey"]) - 1) // (Survey.size(1) - 1))
    _require(surveys, sites, "told what their columns look like")
    survey: Survey = sum(surveys.values(), start=0)  # type: ignore[assignment]
    encoding = RowEncoding(Columns.of(survey), surveyed=True)
    asked = _of_columns(encoding) | {"classes": np.array([num_classes]), "survey": survey.to_vector()}
    added: list[int] = []
    total: GridStatistics | None = None
    for node, arrays in _ask(grid, surveys, "statistics", asked, timeout):
        own = _grid(arrays)
        if own.num_classes != num_classes or own.num_features != encoding.columns.width:
            raise InputError(
                f"node {node} sent statistics of {own.num_features} features and {own.num_classes} classes, and "
                f"{encoding.columns.width} and {num_classes} are agreed on; all need the same backbone and classes"
            )
        total = own if total is None else total + own
        added.append(node)
    _require(added, sites, "sent their statistics")
    if total is None:
        raise InputError("no site has training rows, so there is nothing to sum; give at least one some")
    federation = Federation.of(total, 0.0, encoding)
    federation.warn_of_labels()
    betas = scoring_betas(federation.total)
    soft = torch.zeros((FOLDS + 1, len(betas)), dtype=torch.float64)
    for _, arrays in _ask(grid, added, "beta", _of(federation), timeout):
        soft += torch.from_numpy(arrays["soft"])
    beta, *without = choose_betas(betas, soft)
    return federation.with_beta(beta, tuple(without)), added


def personalize(grid: Grid, federation: Federation, nodes: list[int], *, timeout: float = 600.0) -> list[int]:
    """Phase 3 at the nodes in the sum: each is sent it, chooses its α and keeps its model. The nodes that have one.

    α is chosen by leaving rows out of the sum, so that a node which is not in it would choose by rows that are not.
    """
    return [node for node, _ in _ask(grid, nodes, "personalize", _of(federation), timeout)]


def secure_client_app(app: ClientApp | None = None) -> ClientApp:
    """A ClientApp that takes part in the round of `fedhip federation`, or `app` with its handlers more.

    The node configuration names `site-folder`, which `fedhip federation accept` has made, and `data`; `out` is where
    the result goes. What the site refuses is what it refuses under `fedhip federation site`: it is the same code, and
    the same ledger of sums.
    """
    app = app or ClientApp()
    register(app)

    @app.query(_WHO)
    def who(message: Message, context: Context) -> Message:
        try:
            said = {"site": open_site(str(context.node_config["site-folder"])).name}
        except Exception as error:  # what it says may be of this machine: it stays here
            _LOG.exception("the site's folder cannot be opened")
            said = {"failed": type(error).__name__}
        return Message(RecordDict({ACTION: ConfigRecord({**said})}), reply_to=message)

    return app


def secure_round(grid: Grid, folder: str | Path) -> Path:
    """The round of the federation in the coordinator's folder, with the nodes of this grid; the result's folder.

    It waits for as many nodes as there are sites, up to the agreed deadline. Which node is which site the nodes say,
    and then sign.
    """
    paths = ServerPaths.open(folder)
    agreement, roster = paths.agreement(), paths.roster()
    names: dict[str, str] = {}
    nodes = _wait_for(grid, len(roster.names), agreement.deadline)
    for node, said in _tell(grid, nodes, _WHO, RecordDict, agreement.deadline):
        names[str(node)] = str(said.config_records[ACTION].get("site"))
    write_json(paths.nodes, names)
    return Round.open(paths.path, lambda deadline: Exchange(grid, deadline)).run()


def _answer(content: RecordDict, rows: Rows, keep: Keep, context: Context) -> _Arrays:
    """What a site says to a question."""
    question, step = _arrays(content), content.config_records[ACTION]["step"]
    given = rows(context)
    features, labels = np.asarray(given[0]), np.array(given[1])
    if labels.dtype.kind not in "iu":
        raise InputError(f"labels are {labels.dtype}; give class numbers that mean the same at all sites")
    client = Client(str(context.node_id), (features, labels), (features[:0], labels[:0]))
    if step == "survey":
        return {"survey": client.survey().to_vector()}
    encoding = RowEncoding(
        Columns(torch.from_numpy(question["offset"]), torch.from_numpy(question["exponent"])), surveyed=True
    )
    if step == "statistics":
        others = Survey.from_vector(question["survey"] - client.survey().to_vector(), features.shape[1])
        if (words := outweighed(features, Spread.of_survey(others))) is not None:
            _LOG.warning("%s", words)
        return _of_grid(encoding.statistics(client, int(question["classes"][0])))
    federation = Federation(
        _grid(question), float(question["betas"][0]), encoding, fold_betas=tuple(question["betas"][1:].tolist())
    )
    if step == "beta":
        path = federation.beta_path(scoring_betas(federation.total))
        return {"soft": score_betas(federation, path, client, "loo").soft.numpy()}
    if step != "personalize":
        raise InputError(f"there is no step {step!r}; install the same version of fedhip at server and sites")
    found = Personalization.of(federation, client)
    names = tuple(str(number) for number in range(federation.grid.num_classes))
    model = personal_model(
        federation, client.name, found.model, found.alpha, found.own, found.local_classes,
        class_names=names, only_local_classes=False, backbone=None,
    )  # fmt: skip
    keep(context, model)
    return {}


def _wait_for(grid: Grid, sites: int, timeout: float) -> list[int]:
    """The nodes that are there, once there are so many, or after so many seconds."""
    end = time.monotonic() + timeout
    while len(nodes := list(grid.get_node_ids())) < sites and time.monotonic() < end:
        time.sleep(_PAUSE)
    return nodes


def _ask(
    grid: Grid, nodes: Mapping[int, object] | list[int], step: str, arrays: _Arrays, timeout: float
) -> Iterator[tuple[int, _Arrays]]:
    """A step of the round with plain uploads."""
    for node, content in _tell(grid, nodes, ACTION, lambda: _records(arrays, step=step), timeout):
        yield node, _arrays(content)


def _tell(
    grid: Grid, nodes: Mapping[int, object] | list[int], action: str, content: Callable[[], RecordDict], timeout: float
) -> Iterator[tuple[int, RecordDict]]:
    """Ask all at once, and take the answers one at a time, as they come."""
    asked: dict[str, int] = {}
    for node in nodes:
        (number,) = grid.push_messages([Message(content(), node, f"query.{action}", ttl=timeout + _SLACK)])
        if number:
            asked[number] = node
    end = time.monotonic() + timeout
    while asked:
        for number in list(asked):
            for message in grid.pull_messages([number]):
                node = asked.pop(number)
                if (why := _why_none(message)) is None:
                    yield node, message.content
                else:
                    _LOG.warning("node %d is left out: %s", node, why)
        if asked and time.monotonic() >= end:
            _LOG.warning("left out, silent for %g s: nodes %s", timeout, sorted(asked.values()))
            return
        if asked:
            time.sleep(_PAUSE)


def _why_none(message: Message) -> str | None:
    """Why a message is no answer; None if it is one."""
    if message.has_error():
        return "the engine lost its answer, or its app broke off"
    failed = message.content.config_records.get(ACTION, {"failed": "what it sent is no answer"}).get("failed")
    return None if failed is None else str(failed)


def _require(nodes: Mapping[int, object] | list[int], sites: int, what: str) -> None:
    if len(nodes) < sites:
        raise FedHiPError(
            f"{len(nodes)} sites {what}, and {sites} are needed; the nodes' logs say why the others are not among them"
        )


def _records(arrays: _Arrays, **values: str) -> RecordDict:
    held = {name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()}
    return RecordDict({ACTION: ConfigRecord({"fedhip": 1, **values}), "arrays": ArrayRecord(held)})


def _arrays(content: RecordDict) -> _Arrays:
    return {name: np.array(array.numpy()) for name, array in content.array_records["arrays"].items()}


def _of_columns(encoding: RowEncoding) -> _Arrays:
    return {"offset": encoding.columns.offset.numpy(), "exponent": encoding.columns.exponent.numpy()}


def _of_grid(grid: GridStatistics) -> _Arrays:
    return {"gram": pack(grid.gram).numpy(), "cross": grid.cross.numpy(), "counts": grid.counts.numpy()}


def _grid(arrays: _Arrays) -> GridStatistics:
    gram, cross, counts = (torch.from_numpy(arrays[name]) for name in ("gram", "cross", "counts"))
    return GridStatistics(unpack(gram), cross, counts, COLUMN_BITS)


def _of(federation: Federation) -> _Arrays:
    """What sites need to know of it."""
    betas = np.array([federation.beta, *federation.fold_betas])
    return _of_columns(federation.encoding) | _of_grid(federation.grid) | {"betas": betas}
