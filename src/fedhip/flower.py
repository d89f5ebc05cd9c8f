"""For who runs Flower already: the round of the ridge as a ClientApp's handler, and two calls in a ServerApp's main.

    app = client_app(rows, keep)                      # rows(context) gives features and labels, keep(context, model)

    @app.main()
    def main(grid, context):                          # of a ServerApp
        federation = federate(grid, num_classes=3)    # the sum, β, the global model
        personalize(grid, federation)                 # each site chooses its α, and keeps its model

Uploads are plain: the server sees each site's statistics. Sums under masks, and all that a federation agrees on before,
are `fedhip federation`. Sum, β and models are those of `fedhip run --head ridge` on the same rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
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
from fedhip.core.ridge.regularization import choose_betas
from fedhip.core.statistics import pack, unpack
from fedhip.errors import FedHiPError, InputError
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


def federate(grid: Grid, num_classes: int, *, sites: int = 2, timeout: float = 600.0) -> Federation:
    """Phases 0 to 2 with the nodes that are there, once there are `sites`: their sum, and β by their rows left out.

    A node that fails, or is silent for `timeout` seconds, is left out of what follows, and logged by its number. Fewer
    than `sites` are an error.
    """
    nodes = _wait_for(grid, sites, timeout)
    surveys: dict[int, Survey] = {}
    for node, arrays in _ask(grid, nodes, "survey", {}, timeout):
        surveys[node] = Survey.from_vector(arrays["survey"], (len(arrays["survey"]) - 1) // (Survey.size(1) - 1))
    _require(surveys, sites, "told what their columns look like")
    encoding = RowEncoding(Columns.of(sum(surveys.values(), start=0)), surveyed=True)  # type: ignore[arg-type]
    asked = _of_columns(encoding) | {"classes": np.array([num_classes])}
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
    return federation.with_beta(beta, tuple(without))


def personalize(grid: Grid, federation: Federation, *, timeout: float = 600.0) -> list[int]:
    """Phase 3 at every node: it is sent the sum, chooses its α and keeps its model. The nodes that have one."""
    return [node for node, _ in _ask(grid, list(grid.get_node_ids()), "personalize", _of(federation), timeout)]


def _answer(content: RecordDict, rows: Rows, keep: Keep, context: Context) -> _Arrays:
    """What a site says to a question."""
    question, step = _arrays(content), content.config_records[ACTION]["step"]
    features, labels = (np.asarray(part) for part in rows(context))
    client = Client(str(context.node_id), (features, labels), (features[:0], labels[:0]))
    if step == "survey":
        return {"survey": client.survey().to_vector()}
    encoding = RowEncoding(
        Columns(torch.from_numpy(question["offset"]), torch.from_numpy(question["exponent"])), surveyed=True
    )
    if step == "statistics":
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
    end = time.monotonic() + timeout
    while len(nodes := list(grid.get_node_ids())) < sites and time.monotonic() < end:
        time.sleep(_PAUSE)
    _require(nodes, sites, "are connected")
    return nodes


def _ask(
    grid: Grid, nodes: Mapping[int, object] | list[int], step: str, arrays: _Arrays, timeout: float
) -> Iterator[tuple[int, _Arrays]]:
    """Ask all at once, and take the answers one at a time, as they come."""
    asked: dict[str, int] = {}
    for node in nodes:
        content = _records(arrays, step=step)
        (number,) = grid.push_messages([Message(content, node, f"query.{ACTION}", ttl=timeout + _SLACK)])
        if number:
            asked[number] = node
    end = time.monotonic() + timeout
    while asked:
        for number in list(asked):
            for message in grid.pull_messages([number]):
                node = asked.pop(number)
                if message.has_error() or "failed" in message.content.config_records[ACTION]:
                    why = (
                        "the engine lost it"
                        if message.has_error()
                        else message.content.config_records[ACTION]["failed"]
                    )
                    _LOG.warning("node %d is left out of %r: %s", node, step, why)
                else:
                    yield node, _arrays(message.content)
        if asked and time.monotonic() >= end:
            _LOG.warning("left out of %r, silent for %g s: nodes %s", step, timeout, sorted(asked.values()))
            return
        if asked:
            time.sleep(_PAUSE)


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
