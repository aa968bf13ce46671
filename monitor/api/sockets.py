"""The unix socket: owned by one daemon at a time, never open to more people than it should be, gone when it stops."""

from __future__ import annotations

import errno
import fcntl
import os
import socket as sockets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from monitor.activation import path_of
from monitor.errors import ConfigError

BACKLOG = 128
PROBE_SECONDS = 1.0


@contextmanager
def unix_listener(path: Path, mode: int, group: int = -1) -> Iterator[sockets.socket]:
    """Listen on a unix socket with these access rights; a stale one is replaced, and ours is removed at the end.

    Args:
        group: its group by number, -1 for that of the daemon.

    Raises:
        ConfigError: another daemon listens there, or something is in the way.
    """
    with locked(path):
        remove_stale(path)
        listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            try:
                bind(listener, path, mode, group)
            except OSError as error:
                raise ConfigError(
                    f"cannot make the socket {path}: {error.strerror or error}; choose another with --socket"
                ) from error
            inode = path.lstat().st_ino
            listener.listen(BACKLOG)
            listener.setblocking(False)
            try:
                yield listener
            finally:
                if path.exists() and path.lstat().st_ino == inode:
                    path.unlink()
        finally:
            listener.close()


@contextmanager
def query_listener(
    path: Path, mode: int, group: int, inherited: sockets.socket | None
) -> Iterator[tuple[sockets.socket, Path]]:
    """Use the listener that a service manager made, whose file is the manager's, or make one; gives it and its path.

    Raises:
        ConfigError: as `unix_listener`.
    """
    if inherited is None:
        with unix_listener(path, mode, group) as listener:
            yield listener, path
        return
    with inherited:
        yield inherited, path_of(inherited)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock beside a socket, so that two daemons never both take a stale one for theirs."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot write {lock}: {error.strerror}; choose another place with --socket") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise ConfigError(in_use(path)) from error
    try:
        yield
    finally:
        os.close(descriptor)


def remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on; refuse a live one and everything that is no socket."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{path} is in the way and is no socket; move it, or choose another place with --socket")
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # somebody is there, though slow
    raise ConfigError(in_use(path))


def bind(listener: sockets.socket, path: Path, mode: int, group: int) -> None:
    """Bind under a name of our own and move it into place, so that it never stands there with other rights.

    The folder is named by its descriptor, which is short: the own name may be longer than an address has room for.
    """
    unready = path.with_name(f".{path.name}.{os.getpid()}")
    unready.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    before = os.umask(0o777 & ~mode)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{unready.name}")
    finally:
        os.umask(before)
        os.close(folder)
    if group >= 0:
        give_group(unready, group)
    unready.chmod(mode)
    unready.rename(path)


def give_group(path: Path, group: int) -> None:
    """Hand a socket to a group."""
    try:
        os.chown(path, -1, group)
    except OSError as error:
        path.unlink()
        raise ConfigError(
            f"daemon.socket_group: the socket cannot be given to group {group}: {error.strerror}; the daemon must be "
            "root or in that group (with systemd, SupplementaryGroups= and PrivateUsers=no, or phasewatch.socket)"
        ) from error


@contextmanager
def tcp_listeners(listen: str) -> Iterator[list[sockets.socket]]:
    """Listen on every address that HOST:PORT means.

    Raises:
        ConfigError: it is taken, or no address of this machine.
    """
    host, _, port = listen.rpartition(":")
    with ExitStack() as stack:
        try:
            found = sockets.getaddrinfo(host.strip("[]"), int(port), type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE)
            listeners = []
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listener = stack.enter_context(sockets.socket(family, kind, protocol))
                listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
                if family == sockets.AF_INET6:
                    listener.setsockopt(sockets.IPPROTO_IPV6, sockets.IPV6_V6ONLY, 1)
                try:
                    listener.bind(address)
                except OSError as error:
                    if error.errno == errno.EADDRNOTAVAIL and len(found) > 1:
                        continue  # a name may stand for ::1 where there is no IPv6
                    raise
                listener.listen(BACKLOG)
                listener.setblocking(False)
                listeners.append(listener)
            if not listeners:
                raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {listen}: {error.strerror or error}; choose another with --listen HOST:PORT"
            ) from error
        yield listeners


def in_use(path: Path) -> str:
    """Say what to do about another daemon."""
    return (
        f"another phasewatch listens on {path}: ask it with `phasewatch query --socket {path} status`, "
        "stop it, or choose another place with --socket"
    )
