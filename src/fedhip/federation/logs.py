"""Logs of all processes of a federation: lines as people read them or, with `--log-format json`, one object a line.

Each object has `time` (UTC), `level`, `part` (which process or log) and `text`; `error` has what a traceback says.
What the engine prints goes the same way, line by line. Which format it is, processes learn from their environment.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import sys
from datetime import UTC, datetime
from typing import TextIO

FORMATS = TEXT, JSON = "text", "json"
VARIABLE = "FEDHIP_LOG_FORMAT"
#: Colours and marks of a terminal.
_MARKS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def use(log_format: str) -> None:
    """From here on, this process and those that it starts write so."""
    os.environ[VARIABLE] = log_format


def is_json() -> bool:
    """Whether logs are objects."""
    return os.environ.get(VARIABLE) == JSON


def line_of(part: str, text: str, level: str = "INFO", time: datetime | None = None, error: str | None = None) -> str:
    """One object."""
    stamp = (time or datetime.now(UTC)).isoformat(timespec="milliseconds")
    more = {} if error is None else {"error": error}
    return json.dumps({"time": stamp, "level": level, "part": part, "text": text, **more})


def text_of(line: str) -> str:
    """What a line says, in either format."""
    if line.startswith('{"time"'):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(line)["text"])
    return line


class JsonFormatter(logging.Formatter):
    """A record as an object."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        """The object, on one line."""
        error = None if record.exc_info is None else self.formatException(record.exc_info)
        when = datetime.fromtimestamp(record.created, UTC)
        return line_of(self._part, record.getMessage(), record.levelname, when, error)


def formatter(part: str, form: str) -> logging.Formatter:
    """Of a process's own log: `form` is what a line of text looks like."""
    return JsonFormatter(part) if is_json() else logging.Formatter(form)


class _Lines(io.TextIOBase):
    """A stream whose lines become objects; those that are objects already stay."""

    def __init__(self, stream: TextIO, part: str, level: str) -> None:
        self._stream, self._part, self._level, self._rest = stream, part, level, ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.startswith('{"time"'):
                self._stream.write(f"{line}\n")
            elif said := _MARKS.sub("", line).strip():
                self._stream.write(f"{line_of(self._part, said, self._level)}\n")
        self._stream.flush()
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def begin(part: str) -> None:
    """In a program of ours, before it imports the engine: what it prints from here on is in the chosen format."""
    if is_json():
        sys.stdout, sys.stderr = _Lines(sys.stdout, part, "INFO"), _Lines(sys.stderr, part, "INFO")
