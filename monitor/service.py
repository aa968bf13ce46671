"""Tells the service manager how the daemon does: ready, what it does, that it lives, that it reloads or stops.

It lives as long as the task that stores profiles comes round; a loop that answers questions but stores nothing is not
alive. Nothing here may fail or hold up the daemon.
"""

from __future__ import annotations

import logging
import socket as sockets
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from monitor.logs import log_once
from monitor.notify import Notifier, extend, reloading, status
from monitor.status import Parts

logger = logging.getLogger("phasewatch.service")

STARTING_SECONDS = 0.1
LOOK_SECONDS = 1.0
LOOKS_A_WATCHDOG = 4
SHORTEST_WATCHDOG_SECONDS = 3.0
"""An idle storing task comes round once a second."""
MORE_TIME_SECONDS = 120.0
MOST_SOURCES_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a service manager gives the daemon: nothing, where there is none.

    Attributes:
        notifier: tells it how the daemon does. listener: the query socket, where it has made one.
    """

    notifier: Notifier = field(default_factory=Notifier)
    listener: sockets.socket | None = None


@dataclass(slots=True)
class Service:
    """What the service manager knows of the daemon.

    Args:
        notifier: may have nobody to tell, as outside a service.
    """

    notifier: Notifier
    _ready: bool = False
    _was_ready: bool = False
    _text: str = ""
    _pulse: tuple[object, int] | None = None

    def loading(self, done: int, total: int) -> None:
        """Say how much of the store is loaded. Called in a thread."""
        self.notifier.send(status(f"loading the store: {done} of {total} profiles"), extend(MORE_TIME_SECONDS))

    def reloading(self) -> None:
        """Say that the settings are read again; `run` says when that is over."""
        if self._ready and self.notifier.send(reloading(), status("reading the settings again")):
            self._ready, self._was_ready, self._text = False, True, ""

    def stopping(self) -> None:
        """Say that the daemon stops."""
        self.notifier.send("STOPPING=1", status("stopping: saving the totals"))

    async def run(self, parts: Callable[[], Parts]) -> None:
        """Tell one round's news until cancelled."""
        if not self.notifier:
            return
        self.check_watchdog()
        while True:
            self.tell(parts())
            await anyio.sleep(self.look_seconds())

    def look_seconds(self) -> float:
        """Return how long it is to the next look."""
        if not self._ready:
            return STARTING_SECONDS
        watchdog = self.notifier.watchdog_seconds
        return min(LOOK_SECONDS, watchdog / LOOKS_A_WATCHDOG) if watchdog else LOOK_SECONDS

    def tell(self, parts: Parts) -> None:
        """Tell what has changed; what could not be sent is told again at the next look.

        Once ready, the daemon is ready again after a reload as soon as the new round runs.
        """
        states: list[str] = []
        ready = self._ready or self._was_ready or all(parts.first_polls)
        if ready and not self._ready:
            states.append("READY=1")
        text = describe(parts)
        if text != self._text:
            states.append(status(text))
        pulse = (parts.ingest, parts.ingest.turns)
        if pulse != self._pulse:
            if not ready:
                states.append(extend(MORE_TIME_SECONDS))
            elif self.notifier.watchdog_seconds:
                states.append("WATCHDOG=1")
        if not states:
            return
        if self.notifier.send(*states):
            self._ready, self._text, self._pulse = ready, text, pulse
        else:
            log_once(
                logger,
                "notify",
                "the service manager could not be told how the daemon does; tried again",
                level=logging.WARNING,
            )

    def check_watchdog(self) -> None:
        """Warn of a watchdog that would bite a daemon that is well."""
        seconds = self.notifier.watchdog_seconds
        if 0 < seconds < SHORTEST_WATCHDOG_SECONDS:
            log_once(
                logger,
                "watchdog",
                "WatchdogSec=%g is too short: choose at least %g",
                seconds,
                SHORTEST_WATCHDOG_SECONDS,
                level=logging.WARNING,
            )


def describe(parts: Parts) -> str:
    """Say in one line what the daemon does."""
    numbers = parts.ingest.statistics()
    names = [source.name for source in parts.sources]
    more = f" and {len(names) - MOST_SOURCES_NAMED} more" if len(names) > MOST_SOURCES_NAMED else ""
    doing = "watching" if all(parts.first_polls) else "looking for the first time at"
    named = ", ".join(names[:MOST_SOURCES_NAMED]) or "for jobs to appear"
    if parts.state.rebuilding:
        doing = "rebuilding the store from"
    text = f"{doing} {named}{more}: {numbers.stored} profiles stored since the start"
    away = sum(not source.statistics().available for source in parts.sources)
    counts = (
        (numbers.waiting, "waiting"),
        (numbers.retrying, "tried again"),
        (sum(numbers.set_aside.values()), "set aside"),
        (away, "sources unavailable" if away > 1 else "source unavailable"),
    )
    return ", ".join([text, *(f"{count} {what}" for count, what in counts if count)])
