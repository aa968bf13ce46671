"""What the service manager is told over NOTIFY_SOCKET (sd_notify(3)). Without one, telling does nothing.

Telling never waits, and never fails the daemon: a message that cannot be sent is reported as not sent, and that is all.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import time
from collections.abc import MutableMapping

LONGEST_STATUS = 500
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Sends states to the service manager; safe to use from any thread.

    Attributes:
        watchdog_seconds: the manager ends the daemon when it hears no WATCHDOG=1 for so long; 0 for never.
    """

    def __init__(self, address: str = "", *, watchdog_seconds: float = 0.0) -> None:
        self._address = b"\0" + os.fsencode(address[1:]) if address.startswith("@") else os.fsencode(address)
        self._socket: sockets.socket | None = None
        self.watchdog_seconds = watchdog_seconds
        if address.startswith(("/", "@")):  # the manager may also name a host of virtual machines, which is not ours
            with contextlib.suppress(OSError):
                self._socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM)
                self._socket.setblocking(False)

    def __bool__(self) -> bool:
        """Somebody is to be told."""
        return self._socket is not None

    def send(self, *states: str) -> bool:
        """Tell all states in one message; returns False where it could not be sent, for example to a full queue."""
        if self._socket is None:
            return False
        try:
            self._socket.sendto("\n".join(states).encode(errors="replace"), self._address)
        except (OSError, ValueError):
            return False
        return True

    def close(self) -> None:
        """Tell nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def take_notifier(environ: MutableMapping[str, str]) -> Notifier:
    """Make the notifier that the environment describes, and take that out of it: it is not for children."""
    address, watchdog, owner = (environ.pop(name, "") for name in VARIABLES)
    ours = owner in ("", str(os.getpid()))
    seconds = int(watchdog) / 1e6 if ours and watchdog.isascii() and watchdog.isdigit() else 0.0
    return Notifier(address, watchdog_seconds=seconds)


def status(text: str) -> str:
    """Make a STATUS of a text, which may hold names that others chose: one line, not too long."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return "STATUS=" + (line if len(line) <= LONGEST_STATUS else line[: LONGEST_STATUS - 1] + "…")


def reloading() -> str:
    """Say that a reload begins; the time lets the manager tell it from an earlier one."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"


def extend(seconds: float) -> str:
    """Ask for so much more time to start or stop."""
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"
