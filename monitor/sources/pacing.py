"""How fast a service is asked, and when a request that failed is tried again. Knows no library and no service.

The number of requests at the same time grows by one with each round of successes and is halved when the service says
that it is too much, once for each round of refusals. After a refusal nobody asks until a pause has passed, which
doubles with each further one and is drawn at random below that, so that many clients do not come back at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from monitor.errors import RequestFailed

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 20.0
OVERLOAD_KINDS = frozenset({"throttled", "timeout"})
"""The service is asked too much: fewer requests at the same time."""
OWN_KINDS = frozenset({"broken_body"})
"""One answer was bad; the others need not wait."""
PASSING_KINDS = OVERLOAD_KINDS | OWN_KINDS | {"connection", "server", "expired", "clock_skew", "credentials"}
"""The same request may succeed later, without anything changing about what is asked."""

AnswerT = TypeVar("AnswerT")


class Pacer:
    """Lets so many requests through at the same time as the service bears.

    Args:
        most: requests at the same time; starts with a quarter of it.
        chance: gives numbers in [0, 1) for the pauses.

    Attributes:
        requests: how many were sent, by (operation, result); a result is "ok" or the class of the failure.
        pausing: class of the failures since the last success, or "".
    """

    def __init__(self, *, most: int = 32, chance: Callable[[], float] = random.random) -> None:
        self._most = most
        self._room = max(1.0, most / 4)
        self._limiter = anyio.CapacityLimiter(int(self._room))
        self._chance = chance
        self._not_before = float("-inf")
        self._refused = 0
        self._lowered = self._succeeded = float("-inf")
        self.requests: Counter[tuple[str, str]] = Counter()
        self.pausing = ""

    @property
    def room(self) -> int:
        """How many requests may be under way now."""
        return int(self._room)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many requests were sent, by operation and then by result."""
        counts: dict[str, dict[str, int]] = {}
        for (operation, result), number in sorted(self.requests.items()):
            counts.setdefault(operation, {})[result] = number
        return counts

    async def ask(
        self, operation: str, request: Callable[[], Awaitable[AnswerT]], *, attempts: int, patient: bool = False
    ) -> AnswerT:
        """Send a request when there is room, again after failures that pass.

        Args:
            operation: one word for counting.
            attempts: how often it is sent at most.
            patient: go on for ever while no request of any kind succeeds: it is the service then, not this request.

        Raises:
            RequestFailed: the failure does not pass, or the last attempt failed.
        """
        began = anyio.current_time()
        attempt = 1
        while True:
            try:
                return await self._ask_once(operation, request)
            except RequestFailed as error:
                hopeless = attempt >= attempts and not (patient and self._succeeded < began)
                if error.kind not in PASSING_KINDS or hopeless:
                    raise
                if error.kind in OWN_KINDS:
                    await anyio.sleep(self._pause(attempt))
            attempt += 1

    async def _ask_once(self, operation: str, request: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        async with self._turn():
            sent = anyio.current_time()
            try:
                answer = await request()
            except RequestFailed as error:
                self.requests[operation, error.kind] += 1
                if error.kind in PASSING_KINDS - OWN_KINDS:
                    self._step_back(error.kind, sent)
                elif error.kind not in OWN_KINDS:
                    self._go_on()  # it was answered
                raise
            self.requests[operation, "ok"] += 1
            self._go_on()
            return answer

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with self._limiter:
            while anyio.current_time() < self._not_before:  # noqa: ASYNC110 - refusals of others put it off meanwhile
                await anyio.sleep_until(self._not_before)
            yield

    def _pause(self, refused: int) -> float:
        longest: float = min(FIRST_PAUSE_SECONDS * 2 ** min(refused - 1, 30), LONGEST_PAUSE_SECONDS)
        return longest * (0.5 + self._chance() / 2)

    def _go_on(self) -> None:
        self._succeeded = anyio.current_time()
        self._refused = 0
        self.pausing = ""
        self._set_room(self._room + 1 / self._room)

    def _step_back(self, kind: str, sent: float) -> None:
        """Ask less after a failure; failures of requests that were sent before the last step count with that one."""
        self.pausing = kind
        now = anyio.current_time()
        if sent < self._lowered:
            return
        self._lowered = now
        self._refused += 1
        self._not_before = now + self._pause(self._refused)
        if kind in OVERLOAD_KINDS:
            self._set_room(self._room / 2)

    def _set_room(self, room: float) -> None:
        self._room = min(max(room, 1.0), float(self._most))
        self._limiter.total_tokens = int(self._room)
