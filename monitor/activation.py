"""The listening socket that a service manager made for the daemon (sd_listen_fds(3)): takes it, or says why not."""

from __future__ import annotations

import os
import socket as sockets
import stat
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from monitor.errors import ConfigError

FIRST_DESCRIPTOR = 3
VARIABLES = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
ADVICE = "give phasewatch one ListenStream=/run/… and nothing else"


def take_listener(environ: MutableMapping[str, str]) -> sockets.socket | None:
    """Take the query socket that was handed over, or None; the variables are taken out of the environment.

    Raises:
        ConfigError: what was handed over is not one listening unix stream socket.
    """
    count, owner, names = (environ.pop(name, "") for name in VARIABLES)
    if owner != str(os.getpid()) or not (count.isascii() and count.isdigit()) or int(count) == 0:
        return None  # nothing, or meant for a parent of ours
    if int(count) > 1:
        raise ConfigError(f"{count} sockets were handed over ({names or 'without names'}), and one is used: {ADVICE}")
    return checked(FIRST_DESCRIPTOR, names or "without a name")


def checked(descriptor: int, name: str) -> sockets.socket:
    """Make a socket of a descriptor, where it is what it must be."""
    try:
        is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        is_socket = False
    if not is_socket:
        raise ConfigError(f"the descriptor that was handed over ({name}) is no socket: {ADVICE}")
    os.set_inheritable(descriptor, False)
    listener = sockets.socket(fileno=descriptor)
    listening = False
    with suppress(OSError):
        listening = listener.getsockopt(sockets.SOL_SOCKET, sockets.SO_ACCEPTCONN) == 1
    if listener.family != sockets.AF_UNIX or listener.type != sockets.SOCK_STREAM or not listening:
        listener.close()
        raise ConfigError(f"the socket that was handed over ({name}) is no listening unix stream socket: {ADVICE}")
    listener.setblocking(False)
    return listener


def path_of(listener: sockets.socket) -> Path:
    """Return where a listener listens; an abstract address begins with @, as elsewhere."""
    address = listener.getsockname()
    return Path(os.fsdecode(address)) if isinstance(address, str) else Path("@" + os.fsdecode(address[1:]))
