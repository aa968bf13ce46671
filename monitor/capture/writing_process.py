"""A process of its own that makes the files of spans and writes them: what a thread does of that is taken from the
training's turns at the interpreter (cProfile: 0.4 ms a span of 164 functions; pyinstrument: 2 ms for 13 samples; each
system call: one more turn; measured). Owns that process; where there can be none, the thread writes."""

from __future__ import annotations

import gc
import logging
import marshal
import os
import select
import subprocess
import sys
import threading
from typing import Any, TypeAlias

from monitor.capture.folders import NodeFolder, Place
from monitor.capture.snapshots import Packed, files_of

logger = logging.getLogger("phasewatch.capture")

PROGRAM = "import sys; sys.path[:] = {path!r}; from monitor.capture.writing_process import serve; serve()"
LENGTH_BYTES = 8
LONGEST_WAIT_SECONDS = 1.0
NICENESS = 10
MARSHAL_VERSIONS = {"cprofile": 2, "pyinstrument": 4}
"""2 looks for no objects that come twice, and is twice as fast; a session repeats its texts for every sample."""

Outcome: TypeAlias = int | str
"""The bytes of a span that was written, or what went wrong."""


class WritingProcess:
    """Writes spans for the threads that would. Ends when its input does, so with the training at the latest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = self._failed = False

    @property
    def started(self) -> bool:
        """Whether there is one."""
        return self._process is not None

    def ready(self, *, wait: bool) -> bool:
        """Start it if need be; tell whether it is there to write. It takes a tenth of a second to start, or many on a
        busy machine.

        Args:
            wait: for it to have started.
        """
        with self._lock:
            if not self._failed and not self._ready:
                try:
                    self._ready = self._greet(wait=wait)
                except (OSError, EOFError, ValueError, TypeError) as error:
                    self._give_up(error)
            return self._ready

    def store(self, place: Place, spans: list[bytes]) -> list[Outcome] | None:
        """Have spans written, each as message() makes it; None where the process is gone, and perhaps some spans are
        there and half of one."""
        with self._lock:
            process = self._process
            if process is None:
                return None
            try:
                incoming, outgoing = pipes(process)
                send(incoming, (place, spans))
                answer: list[Outcome] = receive(outgoing)
            except (OSError, EOFError, ValueError, TypeError) as error:
                self._give_up(error)
                return None
            return answer

    def close(self) -> None:
        """End the process, which has nothing in hand unless the disk is stuck; a later span would begin another."""
        if self._lock.acquire(timeout=LONGEST_WAIT_SECONDS):
            self._end()
            self._lock.release()

    def forget(self) -> None:
        """In a forked child: leave the process to the parent, and begin anew."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        self._ready = False
        if process is not None:
            close_pipes(process)
            process.returncode = 0  # it is not this process's child, so nobody here waits for it

    def _greet(self, *, wait: bool) -> bool:
        """Start the process; True once it has said that it is there."""
        if self._process is None:
            if getattr(sys, "frozen", False):
                raise OSError("a frozen program has no interpreter, and would itself be started again")
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", PROGRAM.format(path=sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,  # no buffer that a forked child would write once more
                process_group=0,  # Ctrl-C is for the training, whose last spans are still to be written
            )
        _, outgoing = pipes(self._process)
        poll = select.poll()
        poll.register(outgoing, select.POLLIN)
        return bool(poll.poll(None if wait else 0)) and bool(receive(outgoing))

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        self._end()
        logger.warning(
            "the process that writes spans is gone (%s: %s): a thread of the training writes them from now on, which "
            "takes more of its time",
            type(error).__name__,
            error,
        )

    def _end(self) -> None:
        process, ready = self._process, self._ready
        self._process, self._ready = None, False
        if process is None:
            return
        close_pipes(process)
        if not ready:
            process.kill()  # it is still starting, or does not answer
        try:
            process.wait(LONGEST_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


writing_process = WritingProcess()
"""One for all captures of this process; a forked child makes its own."""
os.register_at_fork(after_in_child=writing_process.forget)


def pipes(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Return where to write to and to read from."""
    if process.stdin is None or process.stdout is None:
        raise OSError("the process has no pipes")
    return process.stdin.fileno(), process.stdout.fileno()


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    """Let the other end see the end of its input."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def serve() -> None:
    """Write what comes in on standard input until it ends, behind everything else that wants the processor."""
    os.nice(NICENESS)
    gc.set_threshold(50_000)
    send(1, True)
    while True:
        try:
            place, spans = receive(0)
        except EOFError:
            return
        folder = NodeFolder(*place)
        send(1, [store(folder, *marshal.loads(span)) for span in spans])


def message(name: str, packed: Packed) -> bytes:
    """Write down a span for the process."""
    return marshal.dumps((name, packed), MARSHAL_VERSIONS[packed[0]])


def store(folder: NodeFolder, name: str, packed: Packed) -> Outcome:
    """Make the files of a span and write them; says what goes wrong, for whatever that is, the next span goes on."""
    try:
        return folder.store(name, files_of(packed))
    except Exception as error:  # noqa: BLE001  # one span
        return f"{type(error).__name__}: {error}"


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
