"""A daemon that systemd-socket-activate starts takes over its socket, and leaves it there."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor import cli
from monitor.client import Client
from tests.integration.daemons import DEADLINE_SECONDS, stop, wait_for_answer
from tests.integration.service_manager import read_line_with, tool, write_some

ROOT = Path(__file__).parents[2]


@pytest.fixture
def source(data_dir: Path, tmp_path: Path) -> Path:
    """A folder with some profiles."""
    return write_some(tmp_path / "profiles", data_dir)


def activated(folder: Path, source: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start systemd-socket-activate, which runs a daemon when somebody connects."""
    command = [
        tool("systemd-socket-activate"),
        f"--setenv=PYTHONPATH={ROOT}",
        *options,
        sys.executable,
        "-m",
        "monitor",
    ]
    command += ["run", str(source), "--state-dir", str(folder / "state"), "--socket", str(folder / "own.sock")]
    return subprocess.Popen([*command, "--listen", ""], stderr=subprocess.PIPE)


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """End a process with the block."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_the_socket_of_the_manager_is_used_and_stays(source: Path, short_tmp_path: Path) -> None:
    made = short_tmp_path / "made.sock"
    with ended(activated(short_tmp_path, source, [f"--listen={made}", "--fdname=query"])) as process:
        client = Client(made)
        wait_for_answer(process, client)
        assert client.status()["socket"] == str(made)
        assert client.status()["pid"] == process.pid
        assert not (short_tmp_path / "own.sock").exists()
        assert not (short_tmp_path / "own.sock.lock").exists()
        assert client.training_phases(fresh=True).phases
        stop(process)
        assert process.returncode == 0
        assert made.is_socket()


def test_a_question_that_came_before_the_daemon_is_answered(source: Path, short_tmp_path: Path) -> None:
    made = short_tmp_path / "made.sock"
    with ended(activated(short_tmp_path, source, [f"--listen={made}"])) as process:
        assert "Listening on" in read_line_with(process, "Listening")
        with socket.socket(socket.AF_UNIX) as early:
            early.settimeout(DEADLINE_SECONDS)
            early.connect(str(made))  # the daemon is started by this
            early.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert early.recv(4096).startswith(b"HTTP/1.1 200 ")
        stop(process)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen={0}/a", "--listen={0}/b", "--fdname=query:more"], "2 sockets were handed over (query:more)"),
        (["--listen={0}/a", "--datagram", "--fdname=query"], "(query) is no listening unix stream socket"),
    ],
)
def test_other_sockets_are_refused_with_advice(
    source: Path, short_tmp_path: Path, options: list[str], said: str
) -> None:
    given = [option.format(short_tmp_path) for option in options]
    with ended(activated(short_tmp_path, source, given)) as process:
        assert "Listening on" in read_line_with(process, "Listening")
        kind = socket.SOCK_DGRAM if "--datagram" in options else socket.SOCK_STREAM
        deadline = time.monotonic() + DEADLINE_SECONDS
        with socket.socket(socket.AF_UNIX, kind) as caller:
            while True:
                try:
                    caller.connect(str(short_tmp_path / "a"))
                    break
                except (FileNotFoundError, ConnectionRefusedError):  # the line is written before it listens
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            caller.send(b"hello")
            line = read_line_with(process, "phasewatch: ")
        assert said in line
        assert "give phasewatch one ListenStream=/run/… and nothing else" in line
        assert process.wait(DEADLINE_SECONDS) == 2


def test_the_machine_s_daemon_is_asked_where_there_is_none_of_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, made, without = (tmp_path / "phasewatch" / "phasewatch.sock", tmp_path / "made", tmp_path / "without")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(cli, "SERVICE_SOCKETS", (made, without))
    assert cli.find_socket() == own
    own.parent.mkdir()
    for there in (without, made, own):
        there.touch()
        assert cli.find_socket() == there
    monkeypatch.setenv("PHASEWATCH_DAEMON_SOCKET", "/said")
    assert cli.find_socket() == Path("/said")
