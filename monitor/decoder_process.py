"""One decoder process: how it is started, talked to and ended. Decides nothing about files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio
import msgspec
from anyio.abc import Process

import monitor
from monitor.decode_worker import PLACE
from monitor.profiles.raw import LENGTH

STOP_SECONDS = 1.0
START_SECONDS = 30.0
LARGEST_ANSWER_BYTES = 2**31
PIPE_BYTES = 2**20
PACKAGE_HOMES = list(dict.fromkeys(str(Path(str(module.__file__)).parent.parent) for module in (msgspec, monitor)))
"""Where a child finds what it imports. It does without `site`, which takes as long as the rest of Python's start and
runs whatever other packages have put there."""


@dataclass(slots=True)
class Worker:
    """One child, and the descriptors for talking to it: requests out, answers in, and the place it is at."""

    process: Process
    requests: int
    answers: int
    place_file: int

    def place(self) -> int:
        """Return the place of the file that the child is at, or was at when it died."""
        data = os.pread(self.place_file, PLACE.size, 0)
        return PLACE.unpack(data)[0] if len(data) == PLACE.size else 0

    def forget_place(self) -> None:
        """Say that the child has not begun."""
        os.pwrite(self.place_file, PLACE.pack(0), 0)

    async def end(self) -> None:
        """Kill the child and wait for it; never waits long, even when cancelled."""
        with anyio.move_on_after(STOP_SECONDS, shield=True):
            if self.process.returncode is None:
                self.process.kill()
            await self.process.wait()
        for descriptor in (self.requests, self.answers, self.place_file):
            os.close(descriptor)


async def start_worker(memory_bytes: int) -> Worker:
    """Start a child with an environment that holds nothing of ours."""
    code = (
        "import gc, sys; gc.disable(); "  # importing makes no garbage, and is a tenth faster like this
        f"sys.path += {PACKAGE_HOMES!r}; from monitor.decode_worker import main; main(sys.argv[1:])"
    )
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as childs:
        place_file = os.memfd_create("phasewatch-place")
        ours.callback(os.close, place_file)
        os.pwrite(place_file, PLACE.pack(0), 0)
        stdin, requests = wide_pipe()
        childs.callback(os.close, stdin)
        ours.callback(os.close, requests)
        answers, stdout = wide_pipe()
        ours.callback(os.close, answers)
        childs.callback(os.close, stdout)
        # A start that is cancelled half way would leave a child that nobody knows.
        with anyio.fail_after(START_SECONDS, shield=True):
            process = await anyio.open_process(
                [sys.executable, "-I", "-S", "-c", code, str(memory_bytes), str(place_file)],
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                pass_fds=[place_file],
                start_new_session=True,
            )
        ours.pop_all()
    return Worker(process=process, requests=requests, answers=answers, place_file=place_file)


def wide_pipe() -> tuple[int, int]:
    """Make a pipe that holds much, so that a batch crosses it in few turns; returns its reading and writing ends."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # beyond the user's limit for pipes it stays as it is
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing


def exchange(worker: Worker, request: bytes) -> bytearray | None:
    """Send a request and receive its answer; None where the child ends before. Blocks."""
    try:
        send_all(worker.requests, LENGTH.pack(len(request)))
        send_all(worker.requests, request)
    except BrokenPipeError:
        return None
    head = receive_exactly(worker.answers, LENGTH.size)
    if head is None or (length := LENGTH.unpack(head)[0]) > LARGEST_ANSWER_BYTES:
        return None
    return receive_exactly(worker.answers, length)


def send_all(descriptor: int, data: bytes) -> None:
    """Write everything."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(descriptor, view) :]


def receive_exactly(descriptor: int, length: int) -> bytearray | None:
    """Read so many bytes; None where there are fewer."""
    data = bytearray(length)
    view = memoryview(data)
    while len(view):
        count = os.readv(descriptor, [view[: 2**20]])
        if not count:
            return None
        view = view[count:]
    return data
