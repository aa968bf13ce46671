"""The unix socket: its rights, what may stand in its place, two daemons at once, and that it goes when we go."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.api.sockets import unix_listener
from monitor.errors import ConfigError

REPOSITORY = Path(__file__).parents[2]
OWNER = """
import sys
from pathlib import Path
from monitor.api.sockets import unix_listener
from monitor.errors import ConfigError
sys.stdin.readline()
try:
    with unix_listener(Path(sys.argv[1]), 0o600):
        print("listening", flush=True)
        sys.stdin.readline()
except ConfigError as error:
    print(error, flush=True)
"""


@contextmanager
def umask(bits: int) -> Iterator[None]:
    """Change the rights that new files lose."""
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def owners(path: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that will listen on a path when they are sent a line, and leave at the next one."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", OWNER, str(path)]
    pipe = subprocess.PIPE
    children = [subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.communicate(timeout=60)


def told(child: subprocess.Popen[str]) -> str:
    """Read a child's next line."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


def send_line(child: subprocess.Popen[str]) -> None:
    """Let a child go on."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def answers(path: Path) -> bool:
    """Tell whether somebody listens."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


@pytest.fixture
def path(short_tmp_path: Path) -> Path:
    return short_tmp_path / "s.sock"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_socket_has_exactly_the_rights_asked_for(path: Path, mode: int, mask: int) -> None:
    path.parent.chmod(0o700)
    path.with_name("s.sock.lock").touch(mode=0o600)
    with umask(mask), unix_listener(path, mode):
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert stat.S_IMODE(path.lstat().st_mode) == mode


def test_it_listens_and_does_not_block(path: Path) -> None:
    with unix_listener(path, 0o660) as listener:
        assert not listener.getblocking()
        assert answers(path)
        connection, _ = listener.accept()
        connection.close()


def test_it_goes_at_the_end_and_leaves_nothing_but_its_lock(path: Path) -> None:
    with unix_listener(path, 0o660):
        assert answers(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["s.sock.lock"]


def test_it_goes_in_an_error_too(path: Path) -> None:
    def fail() -> None:
        with unix_listener(path, 0o660):
            raise RuntimeError("the daemon fails")

    with pytest.raises(RuntimeError, match="the daemon fails"):
        fail()
    assert not path.exists()
    with unix_listener(path, 0o660):
        assert answers(path)


def test_a_stale_socket_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    before = path.lstat()
    with unix_listener(path, 0o660):
        assert answers(path)
        assert path.lstat().st_ctime_ns > before.st_ctime_ns


def test_the_socket_of_a_killed_daemon_is_replaced(path: Path) -> None:
    with owners(path, 1) as (child,):
        send_line(child)
        assert told(child) == "listening"
        child.kill()
        child.wait(timeout=60)
        assert path.exists()
        with unix_listener(path, 0o660):
            assert answers(path)


def test_a_live_daemon_is_refused_with_advice_and_goes_on(path: Path) -> None:
    with unix_listener(path, 0o660) as listener:
        with pytest.raises(ConfigError) as caught, unix_listener(path, 0o660):
            pass
        assert str(caught.value) == (
            f"another phasewatch listens on {path}: ask it with `phasewatch query --socket {path} status`, "
            "stop it, or choose another place with --socket"
        )
        assert answers(path)
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert listener.fileno() >= 0


def test_whoever_else_listens_is_refused_and_kept(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ConfigError, match=f"listens on {path}"), unix_listener(path, 0o660):
            pass
        assert answers(path)


def test_a_socket_whose_queue_is_full_is_alive(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.api.sockets.PROBE_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as first:
        other.bind(str(path))
        other.listen(0)
        first.connect(str(path))
        with pytest.raises(ConfigError, match=f"listens on {path}"), unix_listener(path, 0o660):
            pass
        assert path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling link"])
def test_what_is_no_socket_is_refused_and_kept(path: Path, kind: str) -> None:
    target = path.with_name("target")
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    else:
        if kind == "link":
            target.write_text("precious")
        path.symlink_to(target)
    before = path.lstat()
    with pytest.raises(ConfigError) as caught, unix_listener(path, 0o660):
        pass
    assert str(caught.value) == (
        f"{path} is in the way and is no socket; move it, or choose another place with --socket"
    )
    after = path.lstat()
    assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)


def test_what_somebody_puts_in_its_place_is_kept(path: Path) -> None:
    with unix_listener(path, 0o660):
        path.unlink()
        path.write_text("theirs")
    assert path.read_text() == "theirs"


def test_a_socket_that_somebody_removed_is_no_trouble(path: Path) -> None:
    with unix_listener(path, 0o660):
        path.unlink()
    assert not path.exists()


def test_its_folder_is_made_for_its_owner_alone(short_tmp_path: Path) -> None:
    path = short_tmp_path / "a" / "b" / "s.sock"
    with umask(0), unix_listener(path, 0o660):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.with_name("s.sock.lock").stat().st_mode) == 0o600


@pytest.mark.parametrize("obstacle", ["file above", "link for lock", "folder for lock"])
def test_a_place_that_cannot_be_used_is_told(short_tmp_path: Path, obstacle: str) -> None:
    path = short_tmp_path / "s.sock"
    target = short_tmp_path / "target"
    target.write_text("precious")
    lock = path.with_name("s.sock.lock")
    if obstacle == "file above":
        path, lock = target / "s.sock", target / "s.sock.lock"
    elif obstacle == "link for lock":
        lock.symlink_to(target)
    else:
        lock.mkdir()
    said = rf"cannot write {re.escape(str(lock))}: .*; choose another place with --socket"
    with pytest.raises(ConfigError, match=said), unix_listener(path, 0o660):
        pass
    assert target.read_text() == "precious"


def test_what_an_earlier_start_left_half_made_is_no_obstacle(path: Path) -> None:
    path.with_name(f".s.sock.{os.getpid()}").write_text("half")
    with unix_listener(path, 0o660):
        assert answers(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["s.sock.lock"]


@pytest.mark.parametrize("stale", [False, True])
def test_of_daemons_that_start_together_exactly_one_listens(path: Path, stale: bool) -> None:
    if stale:
        with socket.socket(socket.AF_UNIX) as old:
            old.bind(str(path))
    with owners(path, 6) as children:
        for child in children:
            send_line(child)
        lines = [told(child) for child in children]
        assert lines.count("listening") == 1
        refused = [line for line in lines if line != "listening"]
        assert all(line.startswith(f"another phasewatch listens on {path}: ask it with") for line in refused)
        assert answers(path)
        winner = children[lines.index("listening")]
        send_line(winner)
        winner.wait(timeout=60)
    assert not path.exists()


def test_the_next_daemon_may_start_at_once(path: Path) -> None:
    for _ in range(20):
        with unix_listener(path, 0o660):
            assert answers(path)
