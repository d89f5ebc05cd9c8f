"""One canonical encoding for all that is hashed, signed, sealed, sent or stored.

A value is a list of byte strings, each preceded by its length in eight bytes. Different lists have different
encodings, and each list has one; nothing is allocated beyond the size of what was received.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fedhip.federation.secure_sum.errors import Reason, require

_PREFIX = 8


def pack(parts: Iterable[bytes]) -> bytes:
    """The parts as one byte string."""
    return b"".join(pieces(parts))


def pieces(parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """What `pack` joins; to hash large parts without a copy of them."""
    for part in parts:
        yield memoryview(part).nbytes.to_bytes(_PREFIX, "little")
        yield part


def unpack(data: bytes) -> list[bytes]:
    """The parts that `pack` was given; all of `data` must be used."""
    parts, position = [], 0
    while position < len(data):
        start = position + _PREFIX
        require(start <= len(data), Reason.MALFORMED)
        position = start + int.from_bytes(data[start - _PREFIX : start], "little")
        require(position <= len(data), Reason.MALFORMED)
        parts.append(data[start:position])
    return parts


def pack_names(names: Iterable[str]) -> bytes:
    """Site names in the order given."""
    return pack(name.encode() for name in names)


def pack_mapping(values: Mapping[str, bytes]) -> bytes:
    """Sites and their values, in the order of the names."""
    return pack(part for name in sorted(values) for part in (name.encode(), values[name]))


def unpack_mapping(data: bytes) -> dict[str, bytes]:
    """What `pack_mapping` was given, names in order and each once."""
    parts = unpack(data)
    require(len(parts) % 2 == 0, Reason.MALFORMED)
    names = [text(part) for part in parts[::2]]
    require(names == sorted(set(names)), Reason.MALFORMED)
    return dict(zip(names, parts[1::2], strict=True))


def number(value: int) -> bytes:
    """A small whole number in four bytes."""
    return value.to_bytes(4, "little")


def whole(data: bytes) -> int:
    """The number that `number` was given."""
    require(len(data) == 4, Reason.MALFORMED)
    return int.from_bytes(data, "little")


def text(data: bytes) -> str:
    """A name in plain characters."""
    require(data.isascii(), Reason.MALFORMED)
    return data.decode()
