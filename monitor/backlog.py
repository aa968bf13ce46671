"""The bounded backlog between sources and decoders. No I/O; one event loop.

Putting waits while the backlog is full, so that a source slows down instead of filling memory. Taking gives one file at
once when nothing was taken for a while, and otherwise lingers, so that a trickle costs few transactions and a flood is
taken in large batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogStatistics:
    """How many items wait to be taken, and how many have no verdict yet, the taken ones included."""

    waiting: int
    unfinished: int


class Backlog(Generic[ItemT]):
    """A queue of items in order of arrival that knows when all that came before some moment is finished.

    Args:
        most: how many items may wait before `put` waits.
        linger_seconds: the least time between two takes while items only trickle in.
    """

    def __init__(self, *, most: int, linger_seconds: float) -> None:
        self._most = most
        self._linger_seconds = linger_seconds
        self._items: deque[ItemT] = deque()
        self._changed = anyio.Event()
        self._accepted = 0
        self._finished = 0
        self._next_take = float("-inf")

    async def put(self, items: Iterable[ItemT]) -> None:
        """Add items; waits while the backlog is full. A cancel while waiting adds nothing."""
        while len(self._items) >= self._most:
            await self._changed.wait()
        self.put_nowait(items)

    def put_nowait(self, items: Iterable[ItemT]) -> None:
        """Add items even if the backlog is full (files tried again, which were in it before)."""
        before = len(self._items)
        self._items.extend(items)
        self._accepted += len(self._items) - before
        self._wake()

    async def take(self, most: int, key: Callable[[ItemT], object]) -> list[ItemT]:
        """Wait for items and take up to `most` from the front that share the first one's key.

        The caller must pass them to `finish`, whatever becomes of them.
        """
        while True:
            while not self._items:
                await self._changed.wait()
            pause = self._next_take - anyio.current_time()
            if pause <= 0 or len(self._items) >= most:
                break
            await anyio.sleep(pause)
        self._next_take = anyio.current_time() + self._linger_seconds
        wanted = key(self._items[0])
        taken: list[ItemT] = []
        while self._items and len(taken) < most and key(self._items[0]) == wanted:
            taken.append(self._items.popleft())
        self._wake()
        return taken

    def finish(self, count: int) -> None:
        """Say that this many taken items got their verdict."""
        self._finished += count
        self._wake()

    async def drained(self) -> None:
        """Wait until all that was accepted before this call is finished."""
        target = self._accepted
        while self._finished < target:
            await self._changed.wait()

    def statistics(self) -> BacklogStatistics:
        """Say how many items wait."""
        return BacklogStatistics(waiting=len(self._items), unfinished=self._accepted - self._finished)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
