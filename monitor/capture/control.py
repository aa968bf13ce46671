"""Requests to profile while training runs: a small JSON file in the base folder, noticed by one stat at each step, and
the file that answers it. Trusts nobody: only the owner of the base folder may ask; nothing in the file can end the
training."""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from monitor.capture.settings import PROFILER_NAMES, STEP_MODES, read_modes
from monitor.capture.snapshots import ProfilerName
from monitor.errors import MonitorError
from monitor.layout import ANSWER_FILE, REQUEST_FILE
from monitor.spans import PythonProfileModes

logger = logging.getLogger("phasewatch.capture")

LARGEST_REQUEST_BYTES = 4096
MOST_STEPS = 1_000_000
LONGEST_ID = 64

Signature: TypeAlias = tuple[int, int, int]


class RefusedRequest(MonitorError):
    """A request that will not be followed; the text says why.

    Attributes:
        id: the request's, where it could be read.
    """

    id: str | None = None


@dataclass(slots=True, kw_only=True)
class Request:
    """A request that was accepted; counts down its steps.

    Attributes:
        steps: how many steps are still to be profiled.
        profiler: None is the capture's own.
        modes: None is all.
    """

    id: str
    steps: int
    profiler: ProfilerName | None
    modes: frozenset[PythonProfileModes] | None

    def take(self, mode: PythonProfileModes) -> bool:
        """Tell whether a step that starts now belongs to the request, and count it."""
        if self.steps <= 0 or (self.modes is not None and mode not in self.modes):
            return False
        self.steps -= 1
        return True


class ControlFile:
    """The requests to one node.

    A file that lies there already when the capture is made is stale: it was meant for an earlier run.
    """

    __slots__ = ("_base", "_last_id", "_path", "_seen")

    def __init__(self, base: Path) -> None:
        self._base = base
        self._path = str(base / REQUEST_FILE)
        self._last_id = ""
        self._seen: Signature | None = None
        self.changed()

    def changed(self) -> bool:
        """Look whether there is a file that was not there at the last look; costs one stat."""
        try:
            found = os.stat(self._path, follow_symlinks=False)  # noqa: PTH116 - hot, and Path is slow
        except OSError:
            self._seen = None
            return False
        signature = (found.st_mtime_ns, found.st_ino, found.st_size)
        if signature == self._seen:
            return False
        self._seen = signature
        return True

    def read(self, node: str) -> Request | None:
        """Read the request; None where it is for other nodes, was taken before, or has gone.

        Raises:
            RefusedRequest: says why it is not followed.
        """
        try:
            document = json.loads(self._read_trusted())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise RefusedRequest(f"it cannot be read: {error}") from error
        try:
            request = parse_request(document, node)
        except RefusedRequest as error:
            name = document.get("id") if isinstance(document, dict) else None
            error.id = name if isinstance(name, str) else None
            raise
        if request is None or request.id == self._last_id:
            return None
        self._last_id = request.id
        return request

    def _read_trusted(self) -> bytes:
        """Read the file if the owner of the base folder wrote it and nobody else can."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_REQUEST_BYTES:
                raise RefusedRequest(f"it is no plain file of at most {LARGEST_REQUEST_BYTES} bytes")
            if found.st_uid != self._base.stat().st_uid:
                raise RefusedRequest("it belongs to somebody who does not own the base folder")
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise RefusedRequest("others than its owner may write to it")
            return os.read(descriptor, LARGEST_REQUEST_BYTES)
        finally:
            os.close(descriptor)


def parse_request(document: object, node: str, now: float | None = None) -> Request | None:
    """Check a request; None where it is for other nodes.

    Raises:
        RefusedRequest: a field is missing or wrong, or the request has expired.
    """
    if not isinstance(document, dict):
        raise RefusedRequest("it is no JSON object")
    name, steps, expires = (document.get(key) for key in ("id", "steps", "expires"))
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID or not name.isprintable():
        raise RefusedRequest(f"its id is no text of 1 to {LONGEST_ID} characters")
    if not isinstance(steps, int) or isinstance(steps, bool) or not 0 < steps <= MOST_STEPS:
        raise RefusedRequest(f"steps is no whole number from 1 to {MOST_STEPS}")
    if not isinstance(expires, int | float) or expires < (time.time() if now is None else now):
        raise RefusedRequest("it has expired")
    nodes, profiler, modes = (document.get(key) for key in ("nodes", "profiler", "modes"))
    if not (nodes is None or (isinstance(nodes, list) and all(isinstance(each, str) for each in nodes))):
        raise RefusedRequest("nodes is no list of names")
    if profiler is not None and profiler not in PROFILER_NAMES:
        raise RefusedRequest(f"profiler is none of {', '.join(PROFILER_NAMES)}")
    try:
        chosen = read_modes(modes)
    except (TypeError, ValueError) as error:
        raise RefusedRequest(f"modes are not some of {', '.join(STEP_MODES)}") from error
    if nodes and node not in nodes:
        return None
    return Request(id=name, steps=steps, profiler=profiler, modes=chosen)


def write_answer(base: Path, node: str, answer: dict[str, object]) -> None:
    """Say in the base folder what became of a request; a failure is logged and hurts nobody."""
    path = base / ANSWER_FILE.format(node=node)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.unlink(missing_ok=True)
        # Others may be able to write to the folder: what they put there is not written through.
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps({"node": node, "pid": os.getpid(), "time": time.time(), **answer}))
        beside.replace(path)
    except OSError as error:
        logger.warning("cannot answer a request to profile in %s: %s", path, error)
