"""Who is told of new spans: one bounded queue for each reader, so that a slow one harms nobody. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from monitor.answers import Dropped, SpanRow, WatchEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchStatistics:
    """How many read now, and how many events were dropped because a reader was slow."""

    readers: int
    dropped: int


class Subscription:
    """The events for one reader. When more than `most` wait, the oldest are dropped and their number is told."""

    def __init__(self, most: int) -> None:
        self._waiting: deque[SpanRow] = deque()
        self._most = most
        self._dropped = 0
        self._changed = anyio.Event()

    def offer(self, rows: Sequence[SpanRow]) -> int:
        """Add events; returns how many older ones had to go."""
        self._waiting.extend(rows)
        gone = max(0, len(self._waiting) - self._most)
        for _ in range(gone):
            self._waiting.popleft()
        self._dropped += gone
        self._changed.set()
        return gone

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._waiting:
            self._changed = anyio.Event()
            await self._changed.wait()
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            return Dropped(count=dropped)
        return self._waiting.popleft()


class Watchers:
    """All readers of new spans."""

    def __init__(self, *, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._readers: set[Subscription] = set()
        self._dropped = 0

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """Listen until the block is left."""
        reader = Subscription(self._most_waiting)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    def publish(self, rows: Sequence[SpanRow]) -> None:
        """Tell every reader; never waits."""
        for reader in self._readers:
            self._dropped += reader.offer(rows)

    def __bool__(self) -> bool:
        return bool(self._readers)

    def statistics(self) -> WatchStatistics:
        """Count readers and losses."""
        return WatchStatistics(readers=len(self._readers), dropped=self._dropped)
