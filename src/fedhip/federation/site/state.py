"""What a site remembers between two questions: each is answered by a process of its own.

    state/lock            one question at a time, whatever the engine does
    state/session.bin     the session: which steps were answered, and the site's part in the secure sum
    state/vector.bin      what this site gives to a sum, from when it is computed until it is masked
    state/sent.bin        that as it was sent, until the server goes on: the answer may have been lost on its way
    state/moments.bin     the sums that came back, by the names that the table of sums shares them under, until the
    state/total.bin       model is made
    state/openings/       what this site masked, and by which masks, where an auditor is agreed on
    state/sum.json        the digest of the sum of the statistics, and its sites, to be compared
    state/finished.json   agreements under which a sum was finished
    state/sums.head       the last line that this site wrote to the user's ledger of sums
    state/cache/          features of the site's images, so that each step need not compute them again
    state/site.log        what happened here, for the site's own people

All of it is readable by its owner alone. The session is on disk before an answer leaves, so that no step is done twice.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

from fedhip.federation.logs import formatter
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.table import TABLE, TOTALS
from fedhip.federation.sums.vector import Vector, as_bytes
from fedhip.utils.files import append_private, private_folder, write_private

SCHEMA = 1

#: As session.bin holds them; a session of a version before there were several sums lacks them.
_LATER = ("round", "attempt", "ask", "done", "cohort", "weights", "head", "data", "unmasked")
#: Sums that a session of before there was a table of them names, whether they came or not.
_OLDEST = ("moments", "total")
_RECEIVED = [kind.shared_as for kind in TABLE if kind.shared_as is not None and kind.is_kept]


@dataclass
class Session:
    """One session of one agreement.

    `answers` holds, for each step that was answered, the digest of the question and the answer, but for its vector,
    or None where the site was broken off; it is of the latest sum. `cohort` are the sites that were in the sum
    before, as this site knows it. `ask` is the row of the table of sums that is under way, in which `round` (the
    number of the sum) and `attempt`; `done` are those before. `received` are the digests of the sums that came
    back, by the name that they are shared under, `weights` those of the weights that were asked about, with the
    round, and `head` that of the head that priors are chosen for. `data` is that of the rows in the ledger of sums,
    and `unmasked` that of the question of the sum under way, once it was unmasked. `release` is which noisy numbers are
    given, with differential privacy. `choice` are the digests of the sums that models are chosen by, as they came with
    later questions.
    """

    session: bytes
    agreement: str
    roster: str
    member: bytes | None = None
    answers: dict[str, tuple[str, dict[str, Any] | None]] = field(default_factory=dict)
    round: int = 1
    attempt: int = 1
    ask: str = "statistics"
    done: list[str] = field(default_factory=list)
    cohort: list[str] = field(default_factory=list)
    received: dict[str, str] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    head: str | None = None
    data: str | None = None
    unmasked: str | None = None
    choice: dict[str, str] = field(default_factory=dict)
    release: str | None = None

    @property
    def has_total(self) -> bool:
        """Whether a sum of the statistics was told, which is to be the only one for the agreement."""
        return any(kind.name in self.done for kind in TOTALS) or "personalize" in self.answers

    @property
    def bound_to(self) -> tuple[str | None, str | None]:
        """The digests of what columns are like and of the statistics, as this site has them: later sums are about them.

        With a lift that competes, what columns are like is said by two sums.
        """
        columns = [self.received[name] for name in ("moments", "products") if name in self.received]
        totals = [
            self.received[name] for name in map(str, (kind.shared_as for kind in TOTALS)) if name in self.received
        ]
        return "\n".join(columns) or None, "\n".join(totals) or None

    def to_bytes(self) -> bytes:
        """As JSON; bytes in base 64."""
        content = {
            "schema": SCHEMA,
            "session": self.session.hex(),
            "agreement": self.agreement,
            "roster": self.roster,
            "member": None if self.member is None else base64.b64encode(self.member).decode(),
            "answers": {step: [digest, _dump(body)] for step, (digest, body) in self.answers.items()},
            **{name: getattr(self, name) for name in _LATER},
            **({} if self.release is None else {"release": self.release}),
            **{name: self.received.get(name) for name in _RECEIVED if name in (*_OLDEST, *self.received)},
            **({"choice": self.choice} if self.choice else {}),
        }
        return json.dumps(content).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Session:
        """Read what `to_bytes` wrote."""
        content = json.loads(data)
        if content["schema"] != SCHEMA:
            raise ValueError("another schema")
        member = content["member"]
        return cls(
            bytes.fromhex(content["session"]),
            content["agreement"],
            content["roster"],
            None if member is None else base64.b64decode(member, validate=True),
            {step: (digest, _load(body)) for step, (digest, body) in content["answers"].items()},
            **{name: content[name] for name in (*_LATER, "release") if name in content},
            received={name: content[name] for name in _RECEIVED if content.get(name) is not None},
            choice=dict(content.get("choice", {})),
        )


class SiteState:
    """The files of a site's state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"
        self.log = self.folder / "site.log"
        self.cache = self.folder / "cache"
        self.openings = self.folder / "openings"
        self.witness = self.folder / "sums.head"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process, and one thread, at a time."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.folder.chmod(0o700)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def write_log(self, level: int, text: str, error: Exception | None = None) -> None:
        """A line in the site's own log; the engine's logs may be read by others."""
        # A few words of it may be the server's: they are to make no lines of their own, and no colours.
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        logger = logging.Logger("fedhip.site")
        with TextIOWrapper(append_private(self.log), "utf-8", errors="backslashreplace") as file:
            handler = logging.StreamHandler(file)
            handler.setFormatter(formatter("site", "%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)
            logger.log(level, text, exc_info=error)

    def session(self) -> Session | None:
        """The session there is."""
        path = self.folder / "session.bin"
        try:
            return Session.from_bytes(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
            raise SiteRefusalError(
                SiteCode.FOLDER, f"{path} is damaged; remove it, and the next session begins anew"
            ) from None

    def keep(self, session: Session) -> None:
        """Write the session."""
        write_private(self.folder / "session.bin", session.to_bytes())

    def begin(self, session: Session) -> None:
        """A new session: nothing of the last one stays, not even what a process was killed over."""
        self.drop_vector()
        self.keep_sent(None)
        self.drop_sums()
        for half in self.folder.glob(".*-*"):
            half.unlink()
        self.keep(session)

    def keep_vector(self, vector: Vector) -> None:
        """Write what is to be masked."""
        write_private(self.folder / "vector.bin", as_bytes(vector))

    def vector(self) -> Vector | None:
        """What is to be masked, if it was computed in this session."""
        return self._read("vector.bin")

    def drop_vector(self) -> None:
        """Forget it."""
        (self.folder / "vector.bin").unlink(missing_ok=True)

    def keep_sent(self, vector: Vector | None) -> None:
        """Write what leaves with the latest answer, in place of what left before."""
        if vector is None:
            (self.folder / "sent.bin").unlink(missing_ok=True)
        else:
            write_private(self.folder / "sent.bin", as_bytes(vector))

    def sent(self) -> Vector | None:
        """What left with the latest answer."""
        return self._read("sent.bin")

    def keep_opening(self, session: Session, opening: bytes) -> None:
        """Write what was masked in the sum under way, in place of an earlier attempt at it."""
        path = private_folder(self.openings) / f"{session.session.hex()[:12]}-{session.round}-{session.ask}.opening"
        write_private(path, opening)

    def keep_received(self, name: str, total: Vector) -> None:
        """Write a sum that came back, by the name that it is shared under."""
        write_private(self.folder / f"{name}.bin", as_bytes(total))

    def received(self, name: str) -> Vector | None:
        """A sum that came back, if it did in this session."""
        return self._read(f"{name}.bin")

    def keep_sum(self, ask: str, digest: str, sites: Sequence[str]) -> None:
        """Write which sum came, to be compared with other sites'."""
        content = {"ask": str(ask), "digest": digest, "sites": list(sites)}
        write_private(self.folder / "sum.json", json.dumps(content, indent=1).encode())

    def sum(self) -> dict[str, Any] | None:
        """Which sum came last; None if none did, or nobody can say."""
        try:
            content = json.loads((self.folder / "sum.json").read_text(encoding="utf-8"))
            return {"digest": str(content["digest"]), "sites": [str(site) for site in content["sites"]]}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def drop_sums(self) -> None:
        """Forget the sums that came."""
        for name in _RECEIVED:
            (self.folder / f"{name}.bin").unlink(missing_ok=True)

    def _read(self, name: str) -> Vector | None:
        try:
            return np.fromfile(self.folder / name, "<u8").astype(np.uint64, copy=False)
        except FileNotFoundError:
            return None

    def finished(self) -> dict[str, str]:
        """Sessions by the agreement under which their sum was finished."""
        path = self.folder / "finished.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return {str(agreement): str(session) for agreement, session in content.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError):
            raise SiteRefusalError(
                SiteCode.FOLDER,
                f"{path} is damaged, so nobody can say in which sums this site has taken part; restore it",
            ) from None

    def finish(self, session: Session) -> None:
        """Remember that the server can finish this sum from now on."""
        content = {**self.finished(), session.agreement: session.session.hex()}
        write_private(self.folder / "finished.json", json.dumps(content, indent=1).encode())


def _dump(value: Any) -> Any:
    """A body as JSON can hold it."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_dump(item) for item in value]
    return {name: _dump(item) for name, item in value.items()} if isinstance(value, dict) else value


def _load(value: Any) -> Any:
    """What `_dump` was given."""
    if isinstance(value, list):
        return [_load(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"bytes"} and isinstance(value["bytes"], str):
        return base64.b64decode(value["bytes"], validate=True)
    return {name: _load(item) for name, item in value.items()}
