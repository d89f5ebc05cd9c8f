"""Objects of a message in the call that speaks of it, instead of a call for each.

The engine takes a message apart, and pushes and fetches each object by a call of its own: four or more for a message
of a few hundred bytes, and each takes the server milliseconds. Here the calls that push a message, and the answers to
those that ask for one, have the objects in them, as far as they fit: in a field that the engine's protocol does not
have. Who does not know it passes it over, and who wants objects in an answer says so. What is not in it goes by calls
of its own, as ever.

An object's name is the digest of its content, so that names need not be sent, and none can be given another content.

Who has a message whole says so in a call, too, after which the server forgets it. That call is saved where the server
knows: a site has the question that it answers, and the server's app what was given whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fedhip.federation.transport.bounds import PIECE, of_engine

if TYPE_CHECKING:
    from flwr.app import Message

#: A field of bytes, often or never there, beyond all that the engine's messages have.
_FIELD = 61_002
_BYTES = 2  # its kind on the wire
#: Bytes of the objects in one call, which the proxy lets through; and how many there may be.
_MOST, _MANY = PIECE, 1 << 14


def put(proto: Any, contents: Iterable[bytes]) -> None:
    """Lay objects into a message of the engine's protocol, and nothing else that was laid in before."""
    proto.DiscardUnknownFields()
    proto.MergeFromString(b"".join(_varint(_FIELD << 3 | _BYTES) + _varint(len(each)) + each for each in contents))


def objects_in(proto: Any) -> dict[str, bytes]:
    """The objects that were laid in, by their names."""
    from flwr.supercore.inflatable.inflatable_object import get_object_id

    return {get_object_id(content): content for content in _laid_in(proto) if content}


def wants_objects(request: Any) -> bool:
    """Whether a call asks for objects in the answer, which an empty one says."""
    return b"" in _laid_in(request)


def fitting(contents: Iterable[bytes]) -> list[bytes]:
    """Those of the objects that go with one call."""
    found, left = [], _MOST
    for content in contents:
        if len(content) <= left:
            found.append(content)
            left -= len(content)
    return found


def _laid_in(proto: Any) -> list[bytes]:
    from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

    fields = UnknownFieldSet(proto)
    if len(fields) > _MANY:  # a million empty ones would take a while to look at
        return []
    return [each.data for each in fields if (each.field_number, each.wire_type) == (_FIELD, _BYTES)]


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


class Parcels:
    """At a client of the engine's server: the objects that came with the latest call, and those to go with the next."""

    def __init__(self) -> None:
        self.came: dict[str, bytes] = {}
        self.going: list[bytes] = []
        self.is_whole = False  # all objects of the messages that came are here

    def carry(self, client: type[Any]) -> None:
        """From here on, what this class of the engine's clients pushes and pulls has objects in it."""
        push, pull = of_engine(client, "PushMessages"), of_engine(client, "PullMessages")

        def pushed(calls: Any, request: Any) -> Any:
            put(request, self.going)
            return push(calls, request)

        def pulled(calls: Any, request: Any) -> Any:
            put(request, [b""])
            answer = pull(calls, request)
            self.came = objects_in(answer)
            self.is_whole = set(_names(answer.message_object_trees)) <= self.came.keys()
            return answer

        client.PushMessages, client.PullMessages = pushed, pulled

    def confirm_what_is_not_whole(self, client: type[Any]) -> None:
        """From here on, this class of the engine's clients confirms no message that came whole."""
        confirm = of_engine(client, "ConfirmMessageReceived")

        def confirmed(calls: Any, request: Any) -> Any:
            from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse

            is_known = self.is_whole and request.message_object_id in self.came
            return ConfirmMessageReceivedResponse() if is_known else confirm(calls, request)

        client.ConfirmMessageReceived = confirmed

    def carry_questions(self, grid: type[Any]) -> None:
        """From here on, this class of the engine's grids has the objects of messages in the call that pushes them."""
        push = of_engine(grid, "_try_push_messages")

        def pushed(of: Any, run: int, messages: Any) -> Any:
            self.going = fitting(_contents(messages))
            try:
                return push(of, run, messages)
            finally:
                self.going = []

        grid._try_push_messages = pushed


def _contents(messages: Iterable[Message]) -> Iterable[bytes]:
    """The objects of messages, each once, those left out that are too large for any call."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    every = {name: each for message in messages for name, each in get_all_nested_objects(message).items()}
    return (each.deflate() for each in every.values() if len(getattr(each, "data", b"")) < _MOST)


def take_objects() -> None:
    """From here on, a server of the engine in this process takes objects with the calls that push messages."""
    of_sites, of_apps = _handlers()

    def answered(request: Any, state: Any) -> None:
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        about = request.messages_list[0].metadata
        call = ConfirmMessageReceivedRequest(
            node=request.node, run_id=about.run_id, message_object_id=about.reply_to_message_id
        )
        of_sites.confirm_message_received(request=call, state=state, store=state.object_store)

    of_sites.push_messages = _taking(of_engine(of_sites, "push_messages"), answered)
    of_apps.push_messages = _taking(of_engine(of_apps, "push_messages"))


def give_objects() -> None:
    """From here on, a server of the engine in this process gives objects with messages, to those that ask for them."""
    of_sites, of_apps = _handlers()
    of_sites.pull_messages = _giving(of_engine(of_sites, "pull_messages"), to_sites=True)
    of_apps.pull_messages = _giving(of_engine(of_apps, "pull_messages"), to_sites=False)


def _handlers() -> tuple[Any, Any]:
    """The engine's functions that answer the calls of sites and of apps."""
    from flwr.superlink.servicer.fleet import fleet_handlers
    from flwr.superlink.servicer.runtime import runtime_handlers

    return fleet_handlers, runtime_handlers


def _taking(inner: Callable[..., Any], whole: Callable[[Any, Any], None] = lambda *_: None) -> Callable[..., Any]:
    """Take the objects of a call in; `whole` is done where the message needs no more."""

    def push(request: Any, state: Any, *more: Any, **named: Any) -> Any:
        response = inner(request, state, *more, **named)
        contents = objects_in(request)
        run = request.messages_list[0].metadata.run_id
        wanted = [
            name
            for name in response.objects_to_push
            if name not in contents or not state.store_object(run, response.session_id, name, contents[name])
        ]
        del response.objects_to_push[:]
        response.objects_to_push.extend(wanted)
        if contents and not wanted:
            whole(request, state)
        return response

    return push


def _giving(inner: Callable[..., Any], *, to_sites: bool) -> Callable[..., Any]:
    """Give objects with messages. What the server's app has whole is forgotten: as a message it is by then anyway."""

    def pull(request: Any, state: Any, *more: Any, **named: Any) -> Any:
        response = inner(request, state, *more, **named)
        if not response.messages_list or not wants_objects(request):
            return response
        run = response.messages_list[0].metadata.run_id
        contents = list(_at_hand(response.message_object_trees, lambda name: state.get_object(run, name)))
        if not contents:  # the message is there before its objects
            return response
        if to_sites:
            state.store_traffic(run, bytes_sent=sum(map(len, contents)), bytes_recv=0)
        given = type(response)()  # the response itself may be kept, to be given again
        given.CopyFrom(response)
        put(given, contents)
        if not to_sites and len(contents) == len(_names(response.message_object_trees)):
            for message in response.messages_list:
                state.object_store.delete(message.metadata.message_id)
        return given

    return pull


def _names(trees: Iterable[Any]) -> list[str]:
    """The objects of messages, each once, the parts before the whole."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    return list(dict.fromkeys(each.object_id for tree in trees for each in iterate_object_tree(tree)))


def _at_hand(trees: Iterable[Any], read: Callable[[str], bytes | None]) -> Iterator[bytes]:
    """Objects of messages, the smaller parts first, until one does not fit or has not come."""
    left = _MOST
    for name in reversed(_names(trees)):
        content = read(name)
        if not content or (left := left - len(content)) < 0:
            return
        yield content
