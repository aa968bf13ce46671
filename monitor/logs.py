"""Logging: human lines on a terminal, JSON lines elsewhere, and complaints that are made once. Formats; decides
nothing."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, TypeAlias

LogFormat: TypeAlias = Literal["auto", "human", "json"]
LEVELS = ("debug", "info", "warning", "error")
MOST_REMEMBERED = 4096

STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class HumanFormatter(logging.Formatter):
    """`12:03:44 info    ingest: stored 312 profiles`."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        name = record.name.removeprefix("phasewatch.")
        line = f"{clock} {record.levelname.lower():<7} {name}: {printable(record.getMessage())}"
        if record.exc_info:
            line += "".join(f"\n    {printable(text)}" for text in self.formatException(record.exc_info).split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the fields that the call passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in record.__dict__.items() if name not in STANDARD_FIELDS}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure_logging(level: str, log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Send the project's logs to a stream (default standard error), replacing what was set before."""
    target = sys.stderr if stream is None else stream
    human = log_format == "human" or (log_format == "auto" and target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(HumanFormatter() if human else JsonFormatter())
    root = logging.getLogger("phasewatch")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def printable(text: str) -> str:
    """Escape what could forge a line or move a cursor: file names come from others."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


class Once:
    """Remembers keys, the most recent ones only."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._keys: OrderedDict[str, None] = OrderedDict()

    def first(self, key: str) -> bool:
        """Tell whether a key is new, and remember it."""
        known = key in self._keys
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._most:
            self._keys.popitem(last=False)
        return not known


_said = Once()


def log_once(logger: logging.Logger, key: str, message: str, *arguments: object, level: int = logging.INFO) -> None:
    """Log a complaint about an object once, however often it is found again."""
    if _said.first(key):
        logger.log(level, message, *arguments)
