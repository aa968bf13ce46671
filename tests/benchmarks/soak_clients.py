"""Who asks a daemon that is killed all the time: clients that try again for a while, and a scraper that remembers all.

A question counts as answered when an answer came within PATIENCE_SECONDS, over as many attempts as that takes: one that
is under way in the moment of a kill is asked again. How many needed that is counted too. That a node is not known yet
is an answer; "try again" (503) is none.
"""

from __future__ import annotations

import http
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from monitor.client import Client
from monitor.errors import QueryError, SourceUnavailable
from tests.benchmarks.soak_files import Written

PATIENCE_SECONDS = 15.0
PAUSE_SECONDS = 0.05
SCRAPE_SECONDS = 0.5
KEPT_FAMILIES = ("phasewatch_function_", "phasewatch_profiles_total")
"""These count what was ever stored. The others count since the daemon's start."""

AnswerT = TypeVar("AnswerT")


@dataclass(slots=True)
class Clients:
    """Asks all kinds of questions, several at a time.

    Attributes:
        seconds: how long each answer took, attempts that failed included.
        retried: questions that needed more than one attempt. refused: messages of answers that were errors.
    """

    socket: Path
    chance: random.Random
    asked: int = 0
    answered: int = 0
    retried: int = 0
    refused: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    fallen: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    scrapes: int = 0
    series: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """End soon."""
        self._stop.set()

    def ask(self, question: Callable[[Client], AnswerT]) -> AnswerT | None:
        """Ask until there is an answer, for so long; None where there is none."""
        client = Client(self.socket, timeout_seconds=PATIENCE_SECONDS)
        started, attempts = time.monotonic(), 0
        answer: AnswerT | None = None
        refused = False
        while answer is None and time.monotonic() - started < PATIENCE_SECONDS:
            attempts += 1
            try:
                answer = question(client)
            except SourceUnavailable:
                time.sleep(PAUSE_SECONDS)
            except QueryError as error:
                self.refused.append(error.message)
                if error.status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                    refused = True
                    break
                time.sleep(PAUSE_SECONDS)
        with self._lock:
            self.asked += 1
            self.answered += refused or answer is not None
            self.retried += attempts > 1
            self.seconds.append(time.monotonic() - started)
        return answer

    def run(self) -> None:
        """Ask one question after the other."""
        while not self._stop.is_set():
            self.ask(self.any_question())
            self._stop.wait(PAUSE_SECONDS)

    def any_question(self) -> Callable[[Client], object]:
        """Choose what to ask."""
        first = self.chance.randrange(5000)
        at = 1_700_000_000.0 + self.chance.randrange(50)
        return self.chance.choice(
            (
                lambda client: client.step(first, first + 20),
                lambda client: client.step(first, first + 5, callers=True, node="1-host-1"),
                lambda client: client.time(at, at + 0.5),
                lambda client: client.modes("train", "eval"),
                lambda client: client.job_phases(),
                lambda client: client.training_phases(),
                lambda client: client.nodes(),
                lambda client: client.profiles(limit=100),
                lambda client: client.raw("/v1/stats/step", start=first, format="pstats"),
                lambda client: client.raw("/v1/stats/step", start=first, format="folded", profiler="pyinstrument"),
                lambda client: client.status(),
            )
        )

    def scrape(self) -> None:
        """Scrape, and note each series that counts what was ever stored and that falls or is gone."""
        before: dict[str, float] = {}
        while not self._stop.wait(SCRAPE_SECONDS):
            answer = self.ask(lambda client: client.raw("/metrics"))
            if answer is None:
                continue
            now = kept_series(answer[1].decode())
            self.scrapes += 1
            self.fallen += [
                f"{key}: {before[key]} -> {value}" for key, value in now.items() if value < before.get(key, value)
            ]
            self.vanished += [key for key in before if key not in now]
            self.series = len(now)
            before |= now

    def is_stored(self, span: Written) -> bool | None:
        """Ask whether the daemon has a span."""
        start = span.at_seconds - 1e-5
        answer = self.ask(
            lambda client: client.raw(
                "/v1/stats/time", start=start, end=start + 2e-5, format="profiles", profiler=span.profiler
            )
        )
        return None if answer is None else span.name.encode() in answer[1]


def kept_series(page: str) -> dict[str, float]:
    """Read the series of a page that count what was ever stored."""
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if line.startswith(KEPT_FAMILIES))
    return {key: float(value) for key, value in lines}
