"""The engine's messages as bytes: about the message, and its objects by name; in a stream between processes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.app import Message

_LENGTH = struct.Struct("!Q")


@dataclass
class PackedMessage:
    """A message taken apart, as it travels: `about` and `tree` are the engine's, objects lie below the tree."""

    about: bytes
    tree: bytes
    objects: dict[str, bytes]

    @classmethod
    def of(cls, message: Message) -> PackedMessage:
        """Take a message apart; it is used up."""
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            no_object_id_recompute,
        )

        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            about = message_to_proto(remove_content_from_message(message)).SerializeToString()
            tree = get_object_tree(message).SerializeToString()
            parts = get_all_nested_objects(message)
            return cls(about, tree, {name: parts.pop(name).deflate() for name in list(parts)})

    def message(self) -> Message:
        """The message; the objects are used up."""
        from flwr.app import Message
        from flwr.common.serde import message_from_proto
        from flwr.proto.message_pb2 import Message as MessageProto
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        number = message_from_proto(MessageProto.FromString(self.about)).metadata.message_id
        whole = inflate_object_from_contents(number, self.objects)
        if not isinstance(whole, Message):
            raise TypeError("what came is no message")
        whole.metadata.__dict__["_message_id"] = number
        return whole


def send(stream: socket.socket, packed: PackedMessage) -> None:
    """Send a message, whole."""
    pieces = [packed.about, packed.tree]
    for name in list(packed.objects):
        pieces += [name.encode(), packed.objects.pop(name)]
    stream.sendall(_LENGTH.pack(len(pieces)))
    for index, piece in enumerate(pieces):
        stream.sendall(_LENGTH.pack(len(piece)))
        stream.sendall(piece)
        pieces[index] = b""  # a vector is large: whoever has it need not hold it twice


def receive(stream: socket.socket) -> PackedMessage:
    """A message that was sent; EOFError where the other side has ended in the middle of it."""
    (count,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    about, tree, *rest = (_piece(stream) for _ in range(count))
    pairs: Iterator[bytes] = iter(rest)
    return PackedMessage(bytes(about), bytes(tree), {name.decode(): next(pairs) for name in pairs})


def _piece(stream: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return _exactly(stream, length)


def _exactly(stream: socket.socket, length: int) -> bytes:
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        if not (count := stream.recv_into(view)):
            raise EOFError
        view = view[count:]
    return bytes(buffer)
