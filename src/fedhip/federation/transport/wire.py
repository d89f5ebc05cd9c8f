"""What travels: an envelope, a few named values, and arrays.

    fedhip    protocol, session, agreement, roster, step, round, attempt, code      who speaks of what
    body      values of the step                                                   names, keys, shares, signatures
    arrays    raw little-endian numbers                                            vectors, and the encoder in pieces

Read strictly: a field of another kind, a name too long, a piece too many is a `MessageError`. Arrays are bytes and a
length, with nothing to load that could be anything else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhip.federation.errors import MessageError
from fedhip.federation.status_codes import SiteCode

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

#: 2: every sum is bound to its question, and masked vectors are signed.
PROTOCOL = 2
SESSION_BYTES = 32
#: Of names, keys and shares together: ten thousand sites would fit.
LARGEST_BODY = 16 << 20
_LONGEST_TEXT = 256
_KINDS: dict[str, np.dtype[Any]] = {
    "uint64": np.dtype("<u8"),
    "int32": np.dtype("<i4"),
    "uint8": np.dtype("u1"),
}
_FORMAT = "fedhip.little-endian"

Value = bool | int | float | str | bytes | list[str] | list[bytes]
Body = dict[str, Value]
Arrays = dict[str, NDArray[Any]]


class RoundStep(StrEnum):
    """The steps of a round."""

    HELLO = "hello"
    ENCODER = "encoder"
    KEYS = "keys"
    SHARE = "share"
    MASK = "mask"
    AGREE = "agree"
    UNMASK = "unmask"
    PERSONALIZE = "personalize"

    @property
    def message_type(self) -> str:
        """The engine's name of it."""
        category = {RoundStep.MASK: "train", RoundStep.PERSONALIZE: "evaluate"}.get(self, "query")
        return f"{category}.{self.value}"


@dataclass(frozen=True)
class Envelope:
    """Which federation, which session and which step a message belongs to.

    `round` numbers the sums of a session: 0 is the census, and 1 the first after it.
    """

    session: bytes
    agreement: str
    roster: str
    step: RoundStep
    attempt: int = 1
    round: int = 1

    @property
    def sum_session(self) -> bytes:
        """What the secure sum of this round is bound to, together with `context_of`: another for each attempt."""
        if (self.round, self.attempt) == (1, 1):
            return self.session
        return hashlib.sha256(b"fedhip sum %d %d\n" % (self.round, self.attempt) + self.session).digest()


@dataclass(frozen=True)
class Letter:
    """A question or an answer."""

    envelope: Envelope
    body: Body = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    code: SiteCode = SiteCode.OK

    def reply(self, body: Body | None = None, arrays: Arrays | None = None, code: SiteCode = SiteCode.OK) -> Letter:
        """An answer to this question."""
        return Letter(self.envelope, body or {}, arrays or {}, code)

    @property
    def body_size(self) -> int:
        """Bytes of the body."""
        return _size_of(self.body)

    def digest(self) -> str:
        """Which question it is: the same for the same question asked again, and for no other."""
        envelope = self.envelope
        sha = hashlib.sha256(envelope.session)

        def add(*words: object) -> None:
            for word in words:  # each with its length, so that none can reach into the next
                data = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
                sha.update(f"{len(data)}:".encode() + data)

        add(envelope.agreement, envelope.roster, envelope.step, envelope.round, len(self.body), len(self.arrays))
        for name, value in sorted(self.body.items()):
            items = value if isinstance(value, list) else [value]
            add(name, type(value).__name__, len(items))
            for item in items:
                add(type(item).__name__, item)
        for name, array in sorted(self.arrays.items()):
            add(name, array.dtype.name, array.shape)
            sha.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
        return sha.hexdigest()

    def text(self, name: str) -> str:
        """A short text of the body."""
        value = self.body.get(name)
        if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
            raise MessageError(f"'{name}' is missing, or is no short text")
        return value

    def data(self, name: str) -> bytes:
        """Bytes of the body."""
        value = self.body.get(name)
        if not isinstance(value, bytes):
            raise MessageError(f"'{name}' is missing, or is not bytes")
        return value

    def number(self, name: str, least: int = 0, most: int = 1 << 62) -> int:
        """A whole number of the body."""
        value = self.body.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise MessageError(f"'{name}' is missing, or is no whole number from {least} to {most}")
        return value

    def real(self, name: str) -> float:
        """A finite number of the body."""
        value = self.body.get(name)
        if not isinstance(value, float) or not np.isfinite(value):
            raise MessageError(f"'{name}' is missing, or is no finite number")
        return value

    def flag(self, name: str) -> bool:
        """Yes or no."""
        value = self.body.get(name)
        if not isinstance(value, bool):
            raise MessageError(f"'{name}' is missing, or is neither yes nor no")
        return value

    def names(self, name: str) -> list[str]:
        """Names of the body, each once."""
        value = self.body.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise MessageError(f"'{name}' is missing, or is no list of names")
        names = [str(item) for item in value]
        if len(set(names)) != len(names) or any(len(item) > _LONGEST_TEXT for item in names):
            raise MessageError(f"'{name}' holds a name twice, or one too long")
        return names

    def mapping(self, name: str) -> dict[str, bytes]:
        """Bytes by the name of a site: the lists `name` and `name`-of."""
        keys, values = self.names(f"{name}-of"), self.body.get(name)
        if not isinstance(values, list) or len(values) != len(keys):
            raise MessageError(f"'{name}' is missing, or does not have one entry for each site")
        found: dict[str, bytes] = {}
        for key, value in zip(keys, values, strict=True):
            if not isinstance(value, bytes):
                raise MessageError(f"'{name}' is not bytes for each site")
            found[key] = value
        return found

    def array(self, name: str) -> NDArray[Any]:
        """An array; read-only, as it came."""
        if name not in self.arrays:
            raise MessageError(f"the array '{name}' is missing")
        return self.arrays[name]


def without_proofs(question: Letter) -> Letter:
    """The question as it was, of a sum that is asked for again with proofs of who has spoilt it."""
    return replace(question, body={name: v for name, v in question.body.items() if name not in ("proofs", "proofs-of")})


def by_site(name: str, values: Mapping[str, bytes]) -> Body:
    """Body fields that `Letter.mapping` reads."""
    return {f"{name}-of": list(values), name: list(values.values())}


def which_to_upgrade(server: str, site: str) -> str | None:
    """One line on two versions of fedhip that are not the same; None if they are."""
    if server == site:
        return None

    def release(version: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", version)]

    older = "server" if release(server) < release(site) else "site"
    return f"the server has fedhip {server[:32]} and the site {site[:32]}: upgrade the {older}"


def hello_statement(envelope: Envelope, site: str, node: int) -> bytes:
    """What a site signs to say that it is at this node, in this session."""
    fields = (f"fedhip hello {PROTOCOL}", envelope.agreement, envelope.roster, site, str(node), envelope.session.hex())
    return "\n".join(fields).encode()


def context_of(question: Letter, moments: str | None, total: str | None) -> bytes:
    """What a secure sum is bound to: all that a site reads from the server to make its vector.

    That is the question of step `keys`, whole, and the sums of before by their digests. It is in each signature, each
    sealed share and each mask, so that sites that were asked different things have no sum in common.
    """
    envelope = question.envelope
    fields = (envelope.agreement, envelope.roster, str(envelope.round), question.digest(), moments or "", total or "")
    return "\n".join((f"fedhip round {PROTOCOL}", *fields)).encode()


def to_records(letter: Letter, protocol: int = PROTOCOL) -> RecordDict:
    """The letter as the engine sends it; a refusal may be said in another version of the protocol."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    envelope = letter.envelope
    header: dict[str, Any] = {
        "protocol": protocol,
        "session": envelope.session,
        "agreement": envelope.agreement,
        "roster": envelope.roster,
        "step": envelope.step.value,
        "attempt": envelope.attempt,
        "round": envelope.round,
        "code": letter.code.value,
    }
    records = RecordDict({"fedhip": ConfigRecord(header), "body": ConfigRecord(dict(letter.body))})
    if letter.arrays:
        arrays = ArrayRecord()
        for name, values in letter.arrays.items():
            kind = values.dtype.name
            data = values.astype(_KINDS[kind], copy=False).tobytes()
            arrays[name] = Array(dtype=kind, shape=values.shape, stype=_FORMAT, data=data)
        records["arrays"] = arrays
    return records


def from_message(message: Message) -> Letter:
    """The letter in a message, which loses its arrays: the letter alone keeps their memory."""
    if not message.has_content():
        raise MessageError("the message has no content")
    return from_records(message.content)


def from_records(records: RecordDict) -> Letter:
    """Read strictly what `to_records` wrote; the arrays move from the records to the letter."""
    from flwr.app import ArrayRecord, ConfigRecord

    if not set(records) <= {"fedhip", "body", "arrays"}:
        raise MessageError("the message holds records of another protocol")
    header, body = records.get("fedhip"), records.get("body")
    if not isinstance(header, ConfigRecord) or not isinstance(body, ConfigRecord):
        raise MessageError("the message lacks its envelope or its body")
    if type(protocol := header.get("protocol")) is not int:
        raise MessageError("the message does not say which protocol it speaks")
    if protocol != PROTOCOL:
        raise ProtocolError(protocol)
    envelope = _envelope(header)
    try:
        code = SiteCode(str(header.get("code")))
    except ValueError:
        raise MessageError("the message has a code that is none") from None
    size = _size_of(body)
    if size > LARGEST_BODY or len(body) > 32:
        raise MessageError(f"the message has {len(body)} fields of {size} bytes; that is too much")
    arrays: Arrays = {}
    record = records.get("arrays")
    if record is not None:
        if not isinstance(record, ArrayRecord) or len(record) > 4:
            raise MessageError("the message's arrays are none, or too many")
        for name in list(record):
            arrays[name] = _array(record.pop(name))
    return Letter(envelope, dict(body), arrays, code)  # type: ignore[arg-type]


class ProtocolError(MessageError):
    """The message is of another version of the protocol."""

    def __init__(self, protocol: int) -> None:
        older = "whoever sent it" if protocol < PROTOCOL else "this machine"
        super().__init__(f"the message speaks protocol {protocol}, and this fedhip {PROTOCOL}; upgrade {older}")
        self.protocol = protocol


def _envelope(header: Mapping[str, Any]) -> Envelope:
    # A version that knows of one sum alone does not number it.
    session, attempt, number = header.get("session"), header.get("attempt"), header.get("round", 1)
    if not isinstance(session, bytes) or len(session) != SESSION_BYTES:
        raise MessageError(f"the session is not {SESSION_BYTES} bytes")
    if type(attempt) is not int or attempt < 1:
        raise MessageError("the attempt is no number from 1")
    if type(number) is not int or number < 0:
        raise MessageError("the round is no number from 0")
    digests = [header.get(name) for name in ("agreement", "roster")]
    if not all(isinstance(digest, str) and len(digest) <= _LONGEST_TEXT for digest in digests):
        raise MessageError("the digests of agreement and roster are missing")
    try:
        step = RoundStep(str(header.get("step")))
    except ValueError:
        raise MessageError("the message names no step of a round") from None
    return Envelope(session, str(digests[0]), str(digests[1]), step, attempt, number)


def _size_of(body: Mapping[str, Any]) -> int:
    """Bytes of all values; of numbers eight each."""
    items = [item for value in body.values() for item in (value if isinstance(value, list) else [value])]
    return sum(len(item) if isinstance(item, str | bytes) else 8 for item in items)


def _array(array: Any) -> NDArray[Any]:
    """Numbers without a copy; length and kind must fit."""
    kind = _KINDS.get(array.dtype)
    if array.stype != _FORMAT or kind is None or len(array.shape) != 1:
        raise MessageError("an array is of another kind or format than this protocol's")
    if len(array.data) != array.shape[0] * kind.itemsize:
        raise MessageError(f"an array has {len(array.data)} bytes, and its length asks for another number: truncated?")
    values: NDArray[Any] = np.frombuffer(array.data, kind)
    return values.astype(kind.newbyteorder("="), copy=False)
