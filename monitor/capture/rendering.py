"""Renders pyinstrument's sessions in a process of its own: drawing one takes milliseconds of Python (2 ms for 13
samples, measured), which in a thread would be taken from the training's turns at the interpreter. Owns that process;
where there can be none, rendering happens in the calling thread."""

from __future__ import annotations

import logging
import marshal
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from monitor.layout import HTML_FILE, data_file

if TYPE_CHECKING:
    from pyinstrument.session import Session

logger = logging.getLogger("phasewatch.capture")

UNRECORDED_JSON = b'{"root_frame": null}'
UNRECORDED_HTML = b"An error occurred during profiling!"
PROGRAM = "import sys; sys.path[:] = {path!r}; from monitor.capture.rendering import serve; serve()"
LENGTH_BYTES = 8
LONGEST_WAIT_SECONDS = 1.0
NICENESS = 10


class RenderingProcess:
    """Draws sessions one at a time, for the thread that writes. Ends when its input does, so with the training at the
    latest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._failed = False

    def render(self, session: Session) -> dict[str, bytes]:
        """Draw a session, elsewhere if that can be."""
        with self._lock:
            if not self._failed:
                try:
                    return self._ask(session)
                except (OSError, ValueError, EOFError, TypeError) as error:
                    logger.debug("sessions are rendered in the training process from now on: %s", error)
                    self._failed = True
                    self._end()
        return draw(session)

    def close(self) -> None:
        """End the process, which has nothing in hand unless the disk is stuck; a later session would begin another."""
        if self._lock.acquire(timeout=LONGEST_WAIT_SECONDS):
            self._end()
            self._lock.release()

    def forget(self) -> None:
        """In a forked child: leave the process to the parent, and begin anew."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        if process is not None:
            close_pipes(process)
            process.returncode = 0  # it is not this process's child, so nobody here waits for it

    def _ask(self, session: Session) -> dict[str, bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM.format(path=sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,  # no buffer that a forked child would write once more
                start_new_session=True,  # Ctrl-C is for the training, whose last spans are still to be drawn
            )
        incoming, outgoing = self._process.stdin, self._process.stdout
        if incoming is None or outgoing is None:
            raise OSError("the process has no pipes")
        send(incoming.fileno(), session.to_json())
        answer: dict[str, bytes] = receive(outgoing.fileno())
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        close_pipes(process)
        try:
            process.wait(LONGEST_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    """Let the other end see the end of its input."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def serve() -> None:
    """Draw what comes in on standard input until it ends, behind everything else that wants the processor."""
    from pyinstrument.session import Session

    os.nice(NICENESS)
    while True:
        try:
            document = receive(0)
        except EOFError:
            return
        send(1, draw(Session.from_json(document)))


def draw(session: Session) -> dict[str, bytes]:
    """Render a session as the original does: the data, and its picture."""
    from pyinstrument.renderers import HTMLRenderer, JSONRenderer

    try:
        data, page = JSONRenderer().render(session).encode(), HTMLRenderer().render(session).encode()
    except Exception:  # noqa: BLE001  # as the original: a session that cannot be rendered is written down as such
        data, page = UNRECORDED_JSON, UNRECORDED_HTML
    return {data_file("pyinstrument"): data, HTML_FILE: page}


def send(pipe: int, value: Any) -> None:
    """Write a value with its length before it."""
    data = marshal.dumps(value)
    rest = memoryview(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def receive(pipe: int) -> Any:
    """Read what send() wrote at the other end, which is this same program.

    Raises:
        EOFError: the other end is gone.
    """
    return marshal.loads(read_whole(pipe, int.from_bytes(read_whole(pipe, LENGTH_BYTES), "big")))


def read_whole(pipe: int, length: int) -> bytes:
    """Read exactly so many bytes."""
    parts: list[bytes] = []
    while length:
        part = os.read(pipe, length)
        if not part:
            raise EOFError("the other end is gone")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
