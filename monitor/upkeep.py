"""What the storing task does between batches: choosing metric series, retention, checkpoints of the totals.

All of it writes to the store, so all of it runs in the one task that does, never at the same time as a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import numpy as np

from monitor.bookmarks import Bookmarks
from monitor.budgets import AllBudgets
from monitor.checkpoint import save_totals
from monitor.endings import META_KEY, Endings
from monitor.errors import StoreDamaged, StoreError
from monitor.index import Index
from monitor.logs import log_once
from monitor.profiles.columns import Ids
from monitor.state import State
from monitor.store import Store

logger = logging.getLogger("phasewatch.upkeep")

CHECKPOINT_EVERY_SPANS = 20_000
DAY_SECONDS = 86_400.0
ARRIVALS_EVERY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long rows of single spans are kept; 0 keeps them for ever. Totals are kept in any case."""

    days: float = 0.0
    spans: int = 0
    every_seconds: float = 60.0


class Upkeep:
    """The chores of the storing task.

    Args:
        bookmarks: cursors of sources, which are written with the rest. endings: the same of when jobs wrote last.
        wall_clock: seconds since the epoch; a span's age is counted from its end.
        choose_every_seconds: how often the choice of metric series may change.
    """

    def __init__(
        self,
        *,
        store: Store,
        index: Index,
        budgets: AllBudgets,
        state: State,
        retention: Retention,
        wall_clock: Callable[[], float],
        choose_every_seconds: float = 1.0,
        bookmarks: Bookmarks | None = None,
        endings: Endings | None = None,
    ) -> None:
        self._bookmarks = bookmarks
        self._endings = endings
        self._arrivals = "" if endings is None else endings.dumped()
        self._store = store
        self._index = index
        self._budgets = budgets
        self._state = state
        self._retention = retention
        self._wall_clock = wall_clock
        self._choose_every = choose_every_seconds
        self._next_choice = self._next_retention = self._next_arrivals = float("-inf")
        self._checkpointed = index.next_number

    async def run_due(self) -> None:
        """Do what is due. A store that cannot be written is logged, and tried again when it is due next.

        Raises:
            StoreDamaged: the store's file cannot be read, as whoever came upon it has found.
        """
        if self._store.damage is not None:
            raise self._store.damage
        now = anyio.current_time()
        try:
            await anyio.to_thread.run_sync(self._look_after)
            if now >= self._next_choice and not self._state.rebuilding:
                self._next_choice = now + self._choose_every
                await self._choose_series()
            if now >= self._next_retention:
                self._next_retention = now + self._retention.every_seconds
                await self._drop_old()
            if self._index.next_number - self._checkpointed >= CHECKPOINT_EVERY_SPANS:
                await self.checkpoint()
            if self._bookmarks is not None:
                await self._bookmarks.write()
            if now >= self._next_arrivals:
                self._next_arrivals = now + ARRIVALS_EVERY_SECONDS
                await self._keep_arrivals()
        except StoreDamaged:
            raise
        except StoreError as error:
            log_once(logger, f"upkeep:{error}", "%s; tried again later", error, level=logging.ERROR)

    async def checkpoint(self) -> None:
        """Save the totals, so that the next start has less to add up."""
        await anyio.to_thread.run_sync(self._save, np.empty(0, dtype=np.int32))

    async def finish(self) -> None:
        """Save the totals at a stop; a store that cannot be written costs the next start some time, no more."""
        try:
            await self.checkpoint()
            await self._keep_arrivals()
        except StoreError as error:
            logger.warning("the totals were not saved, the next start adds them up anew: %s", error)

    def _look_after(self) -> None:
        self._store.revive()
        self._state.note(self._index.next_number)

    async def _choose_series(self) -> None:
        for budgets in self._budgets.each:
            changes = budgets.plan(self._index)
            if changes:
                await anyio.to_thread.run_sync(budgets.save, self._store, changes)
                budgets.apply(changes)

    async def _drop_old(self) -> None:
        numbers = expired(self._index, self._retention, self._wall_clock())
        if len(numbers):
            await anyio.to_thread.run_sync(self._save, numbers)
            self._index.drop_spans(numbers)
            logger.info("dropped the rows of %d spans past retention; their totals stay", len(numbers))

    async def _keep_arrivals(self) -> None:
        arrivals = "" if self._endings is None else self._endings.dumped()
        if arrivals != self._arrivals:
            await anyio.to_thread.run_sync(self._save_arrivals, arrivals)
            self._arrivals = arrivals

    def _save_arrivals(self, arrivals: str) -> None:
        with self._store.transaction():
            self._store.set_meta(META_KEY, arrivals)

    def _save(self, expired_spans: Ids) -> None:
        with self._store.transaction():
            save_totals(self._store, self._index)
            if len(expired_spans):
                self._store.drop_rows(expired_spans)
        self._checkpointed = self._index.next_number


def expired(index: Index, retention: Retention, now_seconds: float) -> Ids:
    """Return the numbers of the spans whose rows are past retention."""
    number, end_us = index.spans.column("number"), index.spans.column("end_us")
    gone = np.zeros(len(number), dtype=np.bool_)
    if retention.days > 0:
        gone |= end_us < (now_seconds - retention.days * DAY_SECONDS) * 1e6
    if retention.spans > 0 and len(number) > retention.spans:
        gone[: len(number) - retention.spans] = True
    return number[gone].astype(np.int32)
