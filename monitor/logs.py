"""Logging: human lines on a terminal, JSON lines elsewhere, each with the same fields; complaints that are made once; a
bound on how many lines of one kind are written. Formats and counts; decides nothing else."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, TypeAlias

LogFormat: TypeAlias = Literal["auto", "human", "json"]
LEVELS = ("debug", "info", "warning", "error")
MOST_REMEMBERED = 4096
WINDOW_SECONDS = 60.0
MOST_A_WINDOW = 20
"""So many lines of one kind are written in a window: of one logger, level and message without its arguments."""

STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "suppressed"}


class HumanFormatter(logging.Formatter):
    """`12:03:44 info    ingest: stored 312 profiles`."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        name = record.name.removeprefix("phasewatch.")
        line = f"{clock} {record.levelname.lower():<7} {name}: {printable(record.getMessage())}"
        if suppressed := suppressed_before(record):
            line += f" ({suppressed} more like this were left out)"
        if record.exc_info:
            line += "".join(f"\n    {printable(text)}" for text in self.formatException(record.exc_info).split("\n"))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and how many lines like it were left out before; then what
    the call passed as `extra`, and an exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "suppressed": suppressed_before(record),
        }
        entry |= {name: value for name, value in record.__dict__.items() if name not in STANDARD_FIELDS}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


@dataclass(slots=True)
class Kind:
    """What was written of one kind of line since its window began."""

    began: float
    written: int = 0
    suppressed: int = 0


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes so many lines of one kind in a window, and counts the others.

    How many were left out is told by the next line of their kind, or once the window is over by a line of its own,
    before the next line of any kind, at a call of `tell_suppressed`, and at the end.

    Args:
        clock: seconds that only rise.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._kinds: OrderedDict[tuple[str, int, str], Kind] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it."""
        now = self._clock()
        key = (record.name, record.levelno, str(record.msg))
        _counts.lines[record.levelname.lower()] += 1
        kind = self._kinds.get(key)
        if kind is not None and now - kind.began < WINDOW_SECONDS:
            if kind.written >= MOST_A_WINDOW:
                kind.suppressed += 1
                _counts.suppressed += 1
                return
            kind.written += 1
        else:
            record.suppressed = 0 if kind is None else kind.suppressed
            self._kinds.pop(key, None)
            self._kinds[key] = Kind(began=now, written=1)
        self._tell_over(now - WINDOW_SECONDS)
        super().emit(record)

    def tell_suppressed(self) -> None:
        """Tell what was left out in windows that are over."""
        with self.lock or nullcontext():
            self._tell_over(self._clock() - WINDOW_SECONDS)

    def close(self) -> None:
        """Tell what was left out."""
        if not self.stream.closed:
            self._tell_over(float("inf"))
        super().close()

    def _tell_over(self, last_began: float) -> None:
        """End the windows that began no later, the oldest first."""
        while self._kinds:
            (name, level, message), kind = next(iter(self._kinds.items()))
            if kind.began > last_began and len(self._kinds) <= MOST_REMEMBERED:
                return
            self._kinds.popitem(last=False)
            if kind.suppressed:
                line = logging.LogRecord(name, level, "", 0, "%s", (message,), None)
                line.suppressed = kind.suppressed
                super().emit(line)


@dataclass(slots=True)
class LogCounts:
    """Counts since the start: lines that were to be written, by level, and those of them that were left out."""

    lines: Counter[str]
    suppressed: int = 0


_counts = LogCounts(Counter())


def log_counts() -> LogCounts:
    """Say how much was logged."""
    return _counts


def suppressed_before(record: logging.LogRecord) -> int:
    """Tell how many lines of this one's kind were left out before it."""
    return int(getattr(record, "suppressed", 0))


def configure_logging(level: str, log_format: LogFormat = "auto", stream: TextIO | None = None) -> None:
    """Send the project's logs to a stream (default standard error), replacing what was set before."""
    target = sys.stderr if stream is None else stream
    human = log_format == "human" or (log_format == "auto" and target.isatty())
    handler = LimitedHandler(target)
    handler.setFormatter(HumanFormatter() if human else JsonFormatter())
    root = logging.getLogger("phasewatch")
    for before in [each for each in root.handlers if isinstance(each, LimitedHandler)]:
        before.close()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
    # What libraries complain of goes the same way: Python would write it bare where nobody has set up the root logger.
    logging.lastResort = LimitedHandler(target)
    logging.lastResort.setLevel(logging.WARNING)
    logging.lastResort.setFormatter(handler.formatter)


def tell_suppressed() -> None:
    """Write how many lines were left out, for kinds that have become quiet."""
    for handler in logging.getLogger("phasewatch").handlers:
        if isinstance(handler, LimitedHandler):
            handler.tell_suppressed()


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
