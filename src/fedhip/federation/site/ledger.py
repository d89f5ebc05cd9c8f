"""The ledger of sums: which sums this user's rows have been in, and so which others a site refuses.

    sums.jsonl   one line for each event, each bound to the one before by its hash
    sums.head    how many lines there are, and the hash of the last, so that a ledger that was cut off is noticed
    sums.key     what rows are hashed with, and lines: without it nobody can try out whether a row is in a sketch

Two sums that differ by few sites tell of these sites: their difference is the sum of what these gave. No site can
refuse a sum that it is not in, so the others refuse it. A site compares a sum that it is asked to take part in with
those that it took part in with some of the same rows. The difference is made by the sites that are in one of the two
sums only (sites are the same by name or by key), and by this site itself, where its rows have changed.

The same sites with the same rows are no difference, and such a sum may be repeated under another agreement. One whose
other rows changed is guarded by the ledger of the site that they belong to.

A site that is proven to have dealt wrong shares makes no difference either: the server may have its part from itself,
and so it is not counted among those that hide one another. The sums of a session that it spoilt are made again, under
the same agreement, by exactly the others.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhip.errors import OpenPlaceError
from fedhip.federation.errors import PolicyError
from fedhip.federation.site.rows import SiteRows
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.utils.files import append_private, private_folder, write_private

SCHEMA = 1
#: So many of the smallest hashes stand for all rows: of a data set that is no larger, each row is among them. A site
#: has no more rows where nothing else is agreed on (`max_rows`), so that what was paid for a single row is known.
SKETCH = 1 << 17
_FIRST = "0" * 64

Line = dict[str, Any]


@dataclass(frozen=True)
class Fingerprint:
    """Training rows, without a row: whether they are the very same (`digest`), and whether some are (`sketch`).

    `kind` says what the hashes are of; those of two kinds cannot be compared.
    """

    kind: str
    digest: str
    rows: int
    sketch: NDArray[np.uint64]

    def overlaps(self, other: Fingerprint) -> bool | None:
        """Whether some rows are in both; None where that cannot be told."""
        if self.kind != other.kind:
            return None
        return bool(np.isin(self.sketch, other.sketch).any())


@dataclass(frozen=True)
class SumRequest:
    """A sum that a site is asked to take part in; `keys` are those of the roster by site."""

    site: str
    keys: Mapping[str, bytes]
    agreement: str
    roster: str
    session: bytes
    number: int = 1
    ask: str = "statistics"
    attempt: int = 1

    def who(self, names: Iterable[str]) -> dict[str, str]:
        """The members by name, with a digest of their keys."""
        return {name: hashlib.sha256(self.keys[name]).hexdigest() for name in sorted(names)}

    @property
    def round(self) -> Line:
        """Which session of which agreement."""
        return {"agreement": self.agreement, "roster": self.roster, "session": self.session.hex()}


@dataclass(frozen=True)
class Allowance:
    """A person's word for one session; `token` is of one start of the site."""

    reason: str
    token: str

    @classmethod
    def given(cls, reason: str) -> Allowance:
        """A reason that somebody gave now."""
        words = " ".join(reason.split())
        if not words or not words.isprintable():
            raise PolicyError("--allow wants a reason, which is written into the ledger of sums; say it in a few words")
        return cls(words, secrets.token_hex(16))


def default_state() -> Path:
    """$FEDHIP_STATE, or the user's folder for what programs must not forget."""
    if chosen := os.environ.get("FEDHIP_STATE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedhip"
    except RuntimeError:
        raise SiteRefusalError(
            SiteCode.LEDGER, "you have no home folder for the ledger of sums; set FEDHIP_STATE to a folder of your own"
        ) from None


class SumLedger:
    """The ledger of one user, read and checked; open only while its lock is held."""

    def __init__(self, folder: Path, key: bytes, lines: list[Line]) -> None:
        self.folder, self._key, self.lines = folder, key, lines

    @classmethod
    @contextmanager
    def open(cls, *, witness: Path | None = None, allow: Allowance | None = None) -> Iterator[SumLedger]:
        """The ledger, locked. `witness` is a copy of the head in a site's folder, of when the site last took part.

        One that was cut off or edited is refused; with `allow` it is put aside, and a new one begins with the reason.
        """
        folder = default_state()
        try:
            private_folder(folder)
            with append_private(folder / "sums.lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield cls._read(folder, witness, allow)
        except OpenPlaceError as error:
            raise SiteRefusalError(SiteCode.LEDGER, f"the ledger of sums: {error}") from error
        except OSError as error:
            raise SiteRefusalError(
                SiteCode.LEDGER,
                f"the ledger of sums in {folder} cannot be read or written ({error.strerror or error}); give yourself "
                "the right to, or set FEDHIP_STATE to a folder of your own",
            ) from error

    @classmethod
    def _read(cls, folder: Path, witness: Path | None, allow: Allowance | None) -> SumLedger:
        try:
            return cls(folder, *_checked(folder, witness))
        except _BrokenError as broken:
            if allow is None:
                raise SiteRefusalError(
                    SiteCode.LEDGER,
                    f"{folder / 'sums.jsonl'} {broken}, so nobody can say in which sums these rows were; restore it "
                    "from a copy, or begin a new one with --allow REASON",
                ) from None
            stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
            for name in ("sums.jsonl", "sums.head", "sums.key"):
                if (folder / name).exists():
                    (folder / name).rename(folder / f"{name}.until-{stamp}")
            if witness is not None:
                witness.unlink(missing_ok=True)
            begun = cls(folder, *_checked(folder, None))
            begun._append({"event": "begun-anew", "why": str(broken), "reason": allow.reason})
            return begun

    def fingerprint(self, rows: SiteRows, classes: Iterable[str]) -> Fingerprint:
        """Of the training rows, with hashes that nobody can compute without the ledger's key."""
        kind, contents = rows.contents()
        names = list(classes)
        try:
            row_hashes = [hmac.digest(self._key, b"row" + content, "sha256") for content in contents]
        except OSError as error:
            raise SiteRefusalError(SiteCode.DATA, f"a row cannot be read: {error}") from error
        labelled = sorted(
            hashlib.sha256(row + names[label].encode()).digest()
            for row, label in zip(row_hashes, rows.labels[rows.split == 0], strict=True)
        )
        digest = hmac.digest(self._key, b"rows" + kind.encode() + b"".join(labelled), "sha256").hex()
        short = np.array([int.from_bytes(row[:8], "big") for row in row_hashes], np.uint64)
        return Fingerprint(kind, digest, len(row_hashes), np.unique(short)[:SKETCH])

    def data(self, digest: str) -> Fingerprint:
        """A fingerprint that was written down."""
        line = next(line for line in self.lines if line["event"] == "data" and line["digest"] == digest)
        sketch = np.frombuffer(base64.b64decode(line["sketch"]), "<u8").astype(np.uint64)
        return Fingerprint(line["kind"], digest, line["rows"], sketch)

    def keep_data(self, found: Fingerprint) -> None:
        """Write a fingerprint down, once."""
        if not any(line["event"] == "data" and line["digest"] == found.digest for line in self.lines):
            sketch = base64.b64encode(found.sketch.astype("<u8").tobytes()).decode()
            content = {"digest": found.digest, "kind": found.kind, "rows": found.rows, "sketch": sketch}
            self._append({"event": "data", **content})

    def finished(self, question: SumRequest) -> str | None:
        """The session in which this site finished a sum of this agreement; a census may be asked for again."""
        spoilt = self.spoilt(question)
        for line in self._sums("unmasked"):
            same = (line["site"], line["agreement"]) == (question.site, question.agreement)
            if same and line["ask"] != "census" and line["session"] not in spoilt:
                return str(line["session"])
        return None

    def cheated(self, question: SumRequest, dealer: str) -> None:
        """Write down that a site is proven to have dealt wrong shares in this sum."""
        content = {"number": question.number, "attempt": question.attempt, "members": question.who([dealer])}
        self._append({"event": "cheated", "site": question.site, **question.round, **content})

    def cheaters(self, question: SumRequest) -> set[str]:
        """Who is proven to this site to have cheated under this agreement."""
        return {name for line in self._cheated(question) for name in line["members"]}

    def spoilt(self, question: SumRequest) -> set[str]:
        """Sessions of this agreement in which a site is proven to have cheated: their sums are to be made again."""
        return {line["session"] for line in self._cheated(question)}

    def is_spoilt(self, question: SumRequest, attempt: int) -> bool:
        """Whether a site is proven to have cheated in this attempt of this sum."""
        sums = [(line["session"], line["number"], line["attempt"]) for line in self._cheated(question)]
        return (question.session.hex(), question.number, attempt) in sums

    def require_no_cheater(self, question: SumRequest, members: Iterable[str]) -> None:
        """Refuse a sum with a site that is proven to have cheated under this agreement."""
        if known := sorted(self.cheaters(question) & set(members)):
            raise SiteRefusalError(
                SiteCode.COHORT,
                f"{', '.join(known)} dealt wrong shares under this agreement before, and is to be left out",
            )

    def require_new_session(self, question: SumRequest) -> None:
        """Refuse a session that began before, of which the site's folder knows nothing any more."""
        for line in self._sums("masked", "unmasked", "plain"):
            if line["site"] == question.site and _round_of(line) == question.round:
                raise SiteRefusalError(
                    SiteCode.SECOND_SUM,
                    f"this site was in this session before, by line {line['line']} of the ledger of sums, and its "
                    "folder is older; a second part in it could tell of single sites",
                )

    def require_one_unmasking(self, question: SumRequest, members: Iterable[str]) -> None:
        """Refuse to unmask a sum again, in another attempt or for other sites: the folder may have been restored.

        But for one that a site is proven to have spoilt, in a later attempt, for exactly the others.
        """
        attempt, who, cheaters = question.attempt, question.who(members), self.cheaters(question)
        for line in self._sums("unmasked"):
            same = line["site"] == question.site and _round_of(line) == question.round
            if not same or line["number"] != question.number or (line["attempt"], line["members"]) == (attempt, who):
                continue
            others = {name: key for name, key in line["members"].items() if name not in cheaters}
            if not (who == others and line["attempt"] < attempt and self.is_spoilt(question, line["attempt"])):
                raise SiteRefusalError(
                    SiteCode.SECOND_SUM,
                    f"sum {question.number} was unmasked before, by line {line['line']} of the ledger of sums, and "
                    "this site's folder is older; a second time would tell of single sites",
                )

    def require_difference(
        self,
        question: SumRequest,
        members: Iterable[str],
        data: Fingerprint,
        least: int,
        allow: Allowance | None = None,
        *,
        other_agreements: bool = False,
    ) -> None:
        """Refuse a sum of these members that differs by too few sites from one with overlapping rows, and say which.

        With `other_agreements` sums of this very agreement are passed over.
        """
        who, spoilt = question.who(members), self.spoilt(question)
        cheaters = {key for line in self._sums("cheated") for key in line["members"].values()}
        for line in self._sums("masked", "unmasked", "plain"):
            if _round_of(line) == question.round:
                continue  # the sums of one session: see `require_nobody_left` in order.py
            same_agreement = (line["agreement"], line["roster"]) == (question.agreement, question.roster)
            if same_agreement and other_agreements:
                continue
            if line["event"] == "masked" and (same_agreement or self._was_unmasked(line)):
                continue  # asked for again with fresh keys, where nobody unmasked it; or it is judged by its end
            before = self.data(line["data"])
            overlap = data.overlaps(before)
            if overlap is False or (overlap is None and not _is_same_site(line, question)):
                continue
            both = {**line["members"], **who}
            differ = [name for name in _difference(line["members"], who) if both[name] not in cheaters]
            changed = before.digest != data.digest
            count = len(differ) + changed
            exact = same_agreement and line["session"] in spoilt  # made again, so of the very same sites
            if (exact and count) or (0 < count < least and not self._allowed(question, line, allow)):
                raise SiteRefusalError(
                    SiteCode.DIFFERENCE, _refusal(line, differ, changed, overlap, None if exact else least)
                )

    def took_part(self, question: SumRequest, event: str, members: Iterable[str], data: Fingerprint) -> None:
        """Write down a part in a sum, before it leaves."""
        line = {
            "event": event,
            "site": question.site,
            **question.round,
            "number": question.number,
            "ask": question.ask,
            "attempt": question.attempt,
            "members": question.who(members),
            "data": data.digest,
        }
        known = [{name: known[name] for name in line} for known in self._sums(event)]
        if line not in known:
            self._append(line)

    def secret(self, purpose: str, *about: str | bytes | memoryview) -> bytes:
        """32 bytes that follow from the ledger's key and what they are for: known to nobody else, and always the same.

        The key is not in a site's folder, and outlives whatever becomes of that.
        """
        sha = hmac.new(self._key, f"fedhip.{purpose}".encode(), "sha256")
        for part in about:
            data = part.encode() if isinstance(part, str) else part
            sha.update(memoryview(data).nbytes.to_bytes(8, "big"))
            sha.update(data)
        return sha.digest()

    def spend(
        self, question: SumRequest, data: Fingerprint, release: str, rho: float, epsilon: float, delta: float
    ) -> None:
        """Write down what a release costs, once."""
        if not any(line["release"] == release for line in self._sums("spent")):
            cost = {"rho": rho, "epsilon": epsilon, "delta": delta}
            content = {"site": question.site, **question.round, "members": question.who([question.site])}
            self._append({"event": "spent", **content, "data": data.digest, "release": release, **cost})

    def spent(self, question: SumRequest, data: Fingerprint) -> list[Line]:
        """What was paid for any of these rows, or for rows of which nobody can say whether they are these."""
        found = []
        for line in self._sums("spent"):
            overlap = data.overlaps(self.data(line["data"]))
            if overlap or (overlap is None and _is_same_site(line, question)):
                found.append(line)
        return found

    def _cheated(self, question: SumRequest) -> list[Line]:
        own = (question.site, question.agreement)
        return [line for line in self._sums("cheated") if (line["site"], line["agreement"]) == own]

    def _sums(self, *events: str) -> Iterator[Line]:
        return (line for line in self.lines if line["event"] in events)

    def _was_unmasked(self, masked: Line) -> bool:
        return any(
            line["site"] == masked["site"]
            and _round_of(line) == _round_of(masked)
            and line["number"] == masked["number"]
            for line in self._sums("unmasked")
        )

    def _allowed(self, question: SumRequest, about: Line, allow: Allowance | None) -> bool:
        """Whether a person has allowed this; written down for the session, and good for one."""
        if allow is None:
            return False
        used = [line for line in self._sums("allowed") if line["token"] == allow.token]
        if any(_round_of(line) != question.round for line in used):
            return False
        if not any(line["about"] == about["line"] for line in used):
            content = {"site": question.site, **question.round, "token": allow.token, "reason": allow.reason}
            self._append({"event": "allowed", **content, "about": about["line"]})
        return True

    @property
    def head(self) -> bytes:
        """How many lines there are, and the hash of the last."""
        return json.dumps({"line": len(self.lines), "hash": self.lines[-1]["hash"]}).encode()

    def _append(self, content: Line) -> None:
        previous = self.lines[-1]["hash"] if self.lines else _FIRST
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = {"schema": SCHEMA, "line": len(self.lines) + 1, "time": now, **content, "previous": previous}
        line["hash"] = _hash(self._key, line)
        with append_private(self.folder / "sums.jsonl") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.append(line)
        write_private(self.folder / "sums.head", self.head)


class _BrokenError(Exception):
    """What is wrong with a ledger, to follow its name."""


def _checked(folder: Path, witness: Path | None) -> tuple[bytes, list[Line]]:
    """The key and all lines, if each is bound to the one before, and none is missing at the end."""
    path, key_path = folder / "sums.jsonl", folder / "sums.key"
    heads = [_head(place) for place in (folder / "sums.head", witness) if place is not None and place.exists()]
    if not key_path.exists():
        if path.exists() or heads:
            raise _BrokenError("lacks its key beside it, or is itself gone")
        write_private(key_path, secrets.token_bytes(32), new=True)
    key = key_path.read_bytes()
    whole = path.read_bytes() if path.exists() else b""
    *complete, rest = whole.split(b"\n")
    lines: list[Line] = []
    for number, text in enumerate(complete, start=1):
        try:
            line = json.loads(text)
            bound = line["previous"] == (lines[-1]["hash"] if lines else _FIRST) and line["line"] == number
            if not bound or not hmac.compare_digest(str(line["hash"]), _hash(key, line)):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _BrokenError(f"was edited (line {number})") from None
        if line["schema"] != SCHEMA:
            raise _BrokenError(f"has a line of another version of fedhip (line {number})")
        lines.append(line)
    for number, digest in heads:
        if number > len(lines) or lines[number - 1]["hash"] != digest:
            raise _BrokenError(f"was cut off or replaced: it had {number} lines, and has {len(lines)} of its own")
    if rest:  # killed while it wrote, so that what this line was about has not left
        os.truncate(path, len(whole) - len(rest))
    return key, lines


def _head(path: Path) -> tuple[int, str]:
    try:
        content = json.loads(path.read_bytes())
        return int(content["line"]), str(content["hash"])
    except (ValueError, KeyError, TypeError):
        raise _BrokenError(f"has a damaged head ({path})") from None


def _hash(key: bytes, line: Line) -> str:
    fields = {name: value for name, value in line.items() if name != "hash"}
    return hmac.digest(key, json.dumps(fields, sort_keys=True).encode(), "sha256").hex()


def _round_of(line: Line) -> Line:
    return {name: line[name] for name in ("agreement", "roster", "session")}


def _difference(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The sites that are in one of two sums only; one with another key, or with another name, is the same."""
    only_before = [name for name, key in before.items() if name not in now and key not in now.values()]
    only_now = [name for name, key in now.items() if name not in before and key not in before.values()]
    return sorted(only_before + only_now)


def _is_same_site(line: Line, question: SumRequest) -> bool:
    own = question.who([question.site])[question.site]
    return bool(line["site"] == question.site or line["members"].get(line["site"]) == own)


def _refusal(line: Line, differ: list[str], changed: bool, overlap: bool | None, least: int | None) -> str:
    """Which sum, by what the new one differs from it, and what to do."""
    by = [*differ, *(["this site, whose rows have changed"] if changed else [])]
    rows = "some of these rows" if overlap else "rows that may be these"
    doubt = ", which the server may have finished" if line["event"] == "masked" else ""
    rule = f"minimum_difference = {least} in site.toml; --allow REASON takes part nevertheless"
    if least is None:
        rule = "a sum that one site has spoilt is made again by all others, with the same rows"
    return (
        f"line {line['line']} of the ledger of sums, {line['time']}: a sum of {', '.join(line['members'])} with "
        f"{rows}{doubt}; this one differs from it only by {', '.join(by)}, so that their difference is the sum of so "
        f"few; it is refused ({rule})"
    )
