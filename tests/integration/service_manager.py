"""What stands in for systemd in tests: its programs, and the receiving end of a NOTIFY_SOCKET."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.corpora import node_folder, span_names, write_span
from tests.integration.daemons import DEADLINE_SECONDS


def tool(name: str) -> str:
    """Find a program of systemd's."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is missing: `bash tests/run` installs it, or apt-get install -y systemd")
    return found


class Manager:
    """The receiving end of a NOTIFY_SOCKET; `heard` has all states in their order."""

    def __init__(self, receiver: socket.socket, address: str) -> None:
        self.receiver = receiver
        self.variables = {"NOTIFY_SOCKET": address}
        self.heard: list[str] = []

    def hear(self, seconds: float) -> bool:
        """Take one message, which must come soon enough."""
        self.receiver.settimeout(seconds)
        try:
            self.heard += self.receiver.recv(65536).decode().split("\n")
        except TimeoutError:
            return False
        return True

    def wait_for(self, beginning: str, after: int = 0) -> int:
        """Wait for a state; returns its place among all that were heard."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            for place in range(after, len(self.heard)):
                if self.heard[place].startswith(beginning):
                    return place
            self.hear(1.0)
        raise AssertionError(f"{beginning} was not heard after {after} in {self.heard}")

    def hear_all(self) -> None:
        """Take what has come until now."""
        while self.hear(0.05):
            pass


@contextmanager
def listening(address: str) -> Iterator[Manager]:
    """Listen as a service manager does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + address[1:] if address.startswith("@") else address)
        yield Manager(receiver, address)


def read_line_with(process: subprocess.Popen[bytes], word: str) -> str:
    """Read the log up to a line with a word."""
    assert process.stderr is not None
    for line in process.stderr:
        if word in line.decode():
            return line.decode()
    raise AssertionError(f"no line with {word}")


def write_one(base: Path, data_dir: Path, name: str) -> None:
    write_span(node_folder(base, "0-host"), name, (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes())


def write_some(base: Path, data_dir: Path) -> Path:
    """Leave seven profiles; returns the folder."""
    for name in list(span_names(2))[:-1]:
        write_one(base, data_dir, name)
    return base
