"""A socket that was handed over is taken when it is one listening unix stream socket, else refused with a reason."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from monitor.activation import checked, path_of, take_listener
from monitor.errors import ConfigError


def listening(family: socket.AddressFamily, kind: socket.SocketKind, address: object) -> int:
    """Make a socket and return a descriptor of it that nobody else owns."""
    with socket.socket(family, kind) as made:
        made.bind(address)  # type: ignore[arg-type]
        if kind == socket.SOCK_STREAM:
            made.listen()
        descriptor = os.dup(made.fileno())
    os.set_inheritable(descriptor, True)
    return descriptor


def test_a_listener_is_taken_and_kept_from_children(short_tmp_path: Path) -> None:
    descriptor = listening(socket.AF_UNIX, socket.SOCK_STREAM, str(short_tmp_path / "q.sock"))
    with checked(descriptor, "query") as listener:
        assert listener.fileno() == descriptor
        assert not os.get_inheritable(descriptor)
        assert not listener.getblocking()
        assert path_of(listener) == short_tmp_path / "q.sock"


def test_an_abstract_address_is_shown_with_an_at() -> None:
    name = f"phasewatch-test-{os.getpid()}"
    with checked(listening(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + name), "query") as listener:
        assert path_of(listener) == Path("@" + name)


def test_tcp_is_refused() -> None:
    descriptor = listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
    with pytest.raises(ConfigError, match=r"\(web\) is no listening unix stream socket: give phasewatch one Listen"):
        checked(descriptor, "web")


def test_datagrams_are_refused(short_tmp_path: Path) -> None:
    descriptor = listening(socket.AF_UNIX, socket.SOCK_DGRAM, str(short_tmp_path / "d.sock"))
    with pytest.raises(ConfigError, match="no listening unix stream socket"):
        checked(descriptor, "d")


def test_a_connection_is_refused() -> None:
    one, other = socket.socketpair()
    with other, pytest.raises(ConfigError, match="no listening unix stream socket"):
        checked(one.detach(), "c")


def test_a_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        with pytest.raises(ConfigError, match=r"\(f\) is no socket"):
            checked(file.fileno(), "f")
        file.write("still open")


def test_several_sockets_are_refused() -> None:
    environ = {"LISTEN_FDS": "2", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "query:web"}
    with pytest.raises(ConfigError, match=r"2 sockets were handed over \(query:web\), and one is used"):
        take_listener(environ)
    assert environ == {}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
        {"LISTEN_FDS": "0", "LISTEN_PID": str(os.getpid())},
        {"LISTEN_FDS": "one", "LISTEN_PID": str(os.getpid())},
    ],
)
def test_what_is_not_for_this_process_is_left_alone(environ: dict[str, str]) -> None:
    given = dict(environ)
    assert take_listener(given) is None
    assert given == {}
