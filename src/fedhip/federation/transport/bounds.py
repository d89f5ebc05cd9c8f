"""How large a site's answer can be, by the agreement; what is larger is refused before it is held in memory.

The engine takes an answer apart: the message, its records, and arrays in pieces, each of them an object that is sent in
a call of its own. A site may send whatever it likes, so there are three counts. The proxy counts the bytes of a call,
the engine's server the objects of an answer, and the server app the bytes as they come and what they will unfold to: an
array lists its pieces, and may list one piece a million times.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from fedhip.federation.errors import EngineError, MessageError
from fedhip.federation.sums.vector import Layout

if TYPE_CHECKING:
    from fedhip.federation.agreement.agreement import Agreement

#: The engine's pieces of an array.
PIECE = 5 << 20
#: Of the sums that do not grow with the features: losses and rows right, over places and priors.
_FEW = 1 << 16
#: Objects of an answer that are no pieces: an honest one has six.
_RECORDS = 16
#: Seconds until we look again for a piece that is on its way.
_SOON = 0.05
#: Of a body: its envelope, and for each site a name and a sealed share.
_ENVELOPE, _PER_SITE = 64 << 10, 2 << 10


class TooLargeError(MessageError):
    """A site's answer is larger than any that the agreement asks for."""


@dataclass(frozen=True)
class Bounds:
    """What an answer has at most: numbers, and a body that grows with the number of sites."""

    numbers: int
    sites: int

    @classmethod
    def of(cls, agreement: Agreement) -> Bounds:
        """No row of the table of sums is longer: statistics, gradients (a few more for each class), a survey, others.

        Without the table's own lengths, for which torch would be loaded by processes that do not compute. A test holds
        every row to it.
        """
        layout, raw = (agreement.wide or agreement).layout, Layout(agreement.width, 1)
        return cls(max(layout.size + 4 * layout.d, raw.size, 64 * raw.m) + _FEW, len(agreement.sites))

    @property
    def body(self) -> int:
        """Bytes of what is no array."""
        return _ENVELOPE + _PER_SITE * self.sites

    @property
    def call(self) -> int:
        """Bytes of one call: a piece, or a body, and what the engine puts around it."""
        return max(PIECE, self.body) + _ENVELOPE

    @property
    def objects(self) -> int:
        """Objects of an answer."""
        return -(-8 * self.numbers // PIECE) + _RECORDS

    @property
    def reply(self) -> int:
        """Bytes of an answer."""
        return 8 * self.numbers + self.body


def bound_pushes(objects: int, came: Callable[[str], None]) -> None:
    """From here on, a server of the engine in this process takes answers only: of who signed, of so many objects.

    `came` is told which question an answer is to.
    """
    from fastapi import HTTPException
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.superlink.servicer.fleet import fleet_handlers

    inner = of_engine(fleet_handlers, "push_messages")

    def checked(request: Any, state: Any) -> Any:
        messages, trees = request.messages_list, request.message_object_trees
        if len(messages) != 1 or len(trees) != 1:
            raise HTTPException(413, "one answer at a time")
        about = messages[0].metadata
        # The engine compares the node that signed with the call's, not with the answer's, which then is another's.
        if not about.reply_to_message_id or about.src_node_id != request.node.node_id:
            raise HTTPException(403, "this is no answer of the node that signed the call")
        if trees[0].object_id != about.message_id:
            raise HTTPException(403, "these are the objects of another answer")
        if sum(1 for _ in islice(iterate_object_tree(trees[0]), objects + 1)) > objects:
            raise HTTPException(413, f"an answer has at most {objects} objects, by the agreement")
        response = inner(request=request, state=state)
        came(about.reply_to_message_id)
        return response

    fleet_handlers.push_messages = checked


def bound_pulls(bounds: Bounds, patience: float, came_with: Callable[[], Mapping[str, bytes]] = dict) -> None:
    """From here on, this process's grid stops where an answer is too large, or takes too long to come.

    Objects that `came_with` the message itself are not asked for.
    """
    from flwr.superlink.grid import http_grid

    inner = of_engine(http_grid, "pull_objects")

    def bounded(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
        if len(object_ids) > bounds.objects:
            raise TooLargeError(f"an answer of {len(object_ids)} objects; by the agreement it has {bounds.objects}")
        lock, came, here = threading.Lock(), 0, came_with()

        def counted(object_id: str) -> bytes:
            nonlocal came
            content = here.get(object_id) or pull_object_fn(object_id)
            with lock:
                came += len(content)
                if came > bounds.reply:
                    raise TooLargeError(f"an answer of more than {bounds.reply:,} bytes, the most by the agreement")
            return content

        contents: dict[str, bytes] = inner(object_ids, counted, max_time=patience, initial_backoff=_SOON)
        if (size := _unfolded(contents)) > bounds.reply:
            raise TooLargeError(f"an answer that unfolds to {size:,} bytes; by the agreement it has {bounds.reply:,}")
        return contents

    http_grid.pull_objects = bounded  # type: ignore[assignment, attr-defined]


def _unfolded(contents: Mapping[str, bytes]) -> int:
    """The bytes of all arrays, once the engine has put their pieces together."""
    from flwr.supercore.inflatable import inflatable_object as engine

    size = 0
    for content in contents.values():
        kind, children, _ = engine.get_object_head_values_from_object_content(content)
        if kind == "Array":
            listed = json.loads(engine._get_object_body(content))["arraychunk_ids"]
            size += sum(len(contents[children[index]]) for index in listed)
    return size


def of_engine(module: Any, name: str) -> Any:
    """A function of the engine that a check is put in front of.

    Where the engine was rebuilt inside, the check would stand beside the way: rather no server at all.
    """
    if not hasattr(module, name):
        raise EngineError(f"this Flower has no {name}; install the version that fedhip names")
    return getattr(module, name)
