"""From references to durable, indexed profiles: read, decode, store, count; try again, set aside.

Owns the order of things: a span is added to the index only after its transaction is durable, by one task, so every
reader sees whole batches. It never blocks the event loop and never gives up on account of one file.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import anyio
import numpy as np
from anyio.abc import ObjectSendStream, TaskStatus

from monitor.backlog import Backlog
from monitor.catalog import Catalog, CatalogMark, SeriesKey
from monitor.decoding import Decoded, DecodePool
from monitor.errors import StoreDamaged, StoreError
from monitor.index import Index
from monitor.layout import SpanKey
from monitor.logs import log_once
from monitor.profiles.columns import Failure
from monitor.reading import Version
from monitor.retry import RetryBook, Trouble
from monitor.rows import ProfileRows, SpanRows, columns_of, profile_rows
from monitor.sidecars import Sidecars
from monitor.sources.base import FileRef, Source

logger = logging.getLogger("phasewatch.ingest")

MOST_RETRIES_AT_ONCE = 500
UPKEEP_SECONDS = 1.0
FINAL_KINDS = ("too_large", "refused")
"""Trying again is pointless, or harmful, unless the file changes."""
LONGEST_STORE_PAUSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Whose spans lie in a node folder, and the names of those that are stored: the index's own set."""

    source: int
    series: SeriesKey
    names: Set[str]


class Item:
    """One file of one source on its way; equal when source and path are. Not to be changed."""

    __slots__ = ("place", "ref")

    def __init__(self, place: Place, ref: FileRef) -> None:
        self.place = place
        self.ref = ref

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Item) and self.ref.path == other.ref.path and self.place.source == other.place.source

    def __hash__(self) -> int:
        return hash(self.ref.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A batch between decoding and storing: `items[i]` is file i of `decoded`."""

    items: list[Item]
    decoded: Decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestStatistics:
    """Counts since the start; times in seconds.

    Attributes:
        stored, empty: files stored; how many of them were known to hold nothing.
        failures: attempts that failed, by kind; set_aside: files given up now, by kind.
        waiting, retrying: files that wait for their first attempt, or for the next one.
        lag_seconds: the age, at storing, of the last stored span, by the clock of its writer.
        store_failures: transactions that failed and were tried again.
    """

    stored: int
    empty: int
    bytes: int
    batches: int
    failures: Mapping[str, int]
    set_aside: Mapping[str, int]
    waiting: int
    retrying: int
    lag_seconds: float
    store_failures: int


class Keeper(Protocol):
    """Keeps the rows of profiles, and what the catalogue has got since the last batch."""

    def commit(self, spans: SpanRows, profiles: ProfileRows, catalog: Catalog, since: CatalogMark) -> CatalogMark:
        """Keep a batch, whole or not at all; raises StoreError where it may be tried again."""


class Ingest:
    """The way of files into store and index.

    Attributes:
        turns: how often the storing task came round, at least once a second but for a batch or a chore that takes
            longer, also while the store cannot be written; it stands still when that task does.

    Args:
        sources: where files come from; `Place.source` is a position in it.
        stored_mark: how much of the index's catalogue the store has already.
        on_stored: called on the loop after each batch with its spans.
        upkeep: awaited by the storing task between batches and at least every second, so that all writing to the
            store is one task's.
        wall_clock: seconds since the epoch, for the lag.
        sidecars: takes what nodes say about how they were profiled; None passes over it.
        guard: entered for each change of the index, where other threads read it.
        backlog_files: how many files may wait before `accept` does.
        linger_seconds: how long a trickle of files is collected before the next transaction.
    """

    def __init__(
        self,
        *,
        sources: Sequence[Source],
        pool: DecodePool,
        store: Keeper,
        index: Index,
        stored_mark: CatalogMark,
        on_stored: Callable[[SpanRows], None],
        upkeep: Callable[[], Awaitable[None]],
        wall_clock: Callable[[], float],
        batch_files: int = 300,
        backlog_files: int = 5_000,
        linger_seconds: float = 0.05,
        max_file_bytes: int = 64 * 2**20,
        broken_after_seconds: float = 30.0,
        recheck_seconds: float = 30.0,
        workers: int = 2,
        guard: AbstractContextManager[object] | None = None,
        sidecars: Sidecars | None = None,
    ) -> None:
        self._guard = nullcontext() if guard is None else guard
        self._sources = sources
        self._pool = pool
        self._store = store
        self._index = index
        self._mark = stored_mark
        self._on_stored = on_stored
        self._upkeep = upkeep
        self._wall_clock = wall_clock
        self._batch_files = batch_files
        self._max_file_bytes = max_file_bytes
        self._workers = workers
        self._in_hand: set[Item] = set()
        self._book: RetryBook[Item] = RetryBook(
            broken_after_seconds=broken_after_seconds, recheck_seconds=recheck_seconds
        )
        self._retries_changed = anyio.Event()
        self._backlog: Backlog[Item] = Backlog(most=backlog_files, linger_seconds=linger_seconds)
        self._failures: Counter[str] = Counter()
        self._stored = self._empty = self._bytes = self._batches = self._store_failures = 0
        self._lag_seconds = 0.0
        self.sidecars = sidecars
        self.turns = 0

    # -- coming in -------------------------------------------------------------------------------------------------

    async def accept(self, source: int, refs: Iterable[FileRef]) -> None:
        """Take references from a source; waits while the backlog is full. Known spans are passed over."""
        fresh = [item for item in self._items(source, refs) if item not in self._in_hand]
        if self._book:
            fresh = [item for item in fresh if item not in self._book]
        self._in_hand.update(fresh)
        try:
            await self._backlog.put(fresh)
        except BaseException:
            self._in_hand.difference_update(fresh)
            raise

    async def refresh(self) -> None:
        """Poll all sources and wait until what they found is stored or known not to be ready.

        Files that were set aside are looked at too: who asks for what is new means one that was mended.
        """
        for source in self._sources:
            await source.poll()
        await self._look_again([*self._book.waiting(), *self._book.set_aside()])
        await self._backlog.drained()

    async def settled(self) -> None:
        """Wait until all that was accepted before this call is stored, or known not to be ready."""
        waiting = set(self._in_hand)
        while waiting:
            await self._backlog.drained()
            waiting &= self._in_hand

    def is_stored(self, source: int, ref: FileRef) -> bool:
        """Tell whether a span of a source is stored."""
        return ref.key.span in self._place(source, ref.key).names

    @property
    def stored_mark(self) -> CatalogMark:
        """How much of the catalogue is durable."""
        return self._mark

    @property
    def at_rest(self) -> bool:
        """Nothing is on its way, and no file is in trouble."""
        return not self._in_hand and not self._book

    def troubles(self) -> tuple[list[Trouble[Item]], list[Trouble[Item]]]:
        """Return the files that are tried again, and those that are set aside."""
        return self._book.waiting(), self._book.set_aside()

    def statistics(self) -> IngestStatistics:
        """Say what happened since the start."""
        return IngestStatistics(
            stored=self._stored,
            empty=self._empty,
            bytes=self._bytes,
            batches=self._batches,
            failures=dict(self._failures),
            set_aside=self._book.count_aside(),
            waiting=self._backlog.statistics().unfinished,
            retrying=self._book.count_waiting(),
            lag_seconds=self._lag_seconds,
            store_failures=self._store_failures,
        )

    # -- the tasks -------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled. A transaction under way is finished first."""
        send, receive = anyio.create_memory_object_stream[Taken](1)
        async with send, receive, anyio.create_task_group() as group:
            for _ in range(self._workers):
                group.start_soon(self._decode_batches, send)
            group.start_soon(self._retry_failed)
            task_status.started()
            while True:
                self.turns += 1
                taken = None
                with anyio.move_on_after(UPKEEP_SECONDS):
                    taken = await receive.receive()
                if taken is not None:
                    await self._store_batch(taken)
                await self._upkeep()

    async def _decode_batches(self, send: ObjectSendStream[Taken]) -> None:
        while True:
            items = await self._backlog.take(self._batch_files, lambda item: item.place.source)
            await send.send(await self._read_and_decode(items))

    async def _read_and_decode(self, items: list[Item]) -> Taken:
        source = self._sources[items[0].place.source]
        files = await source.read([item.ref for item in items], max_bytes=self._max_file_bytes)
        profilers = [item.ref.key.profiler for item in items]
        decoded = await self._pool.decode(list(zip(profilers, files, strict=True)))
        return Taken(items=items, decoded=decoded)

    async def _retry_failed(self) -> None:
        while True:
            due = self._book.next_due()
            with anyio.CancelScope(deadline=float("inf") if due is None else due):
                await self._retries_changed.wait()
            self._retries_changed = anyio.Event()
            await self._look_again(self._book.due(anyio.current_time(), MOST_RETRIES_AT_ONCE))

    async def _look_again(self, troubles: Sequence[Trouble[Item]]) -> None:
        for number, source in enumerate(self._sources):
            mine = [trouble for trouble in troubles if trouble.ref.place.source == number]
            if not mine:
                continue
            versions = await source.versions([trouble.ref.ref for trouble in mine])
            now = anyio.current_time()
            for trouble, version in zip(mine, versions, strict=True):
                if trouble.ref in self._in_hand:
                    self._book.put_off(trouble, now)  # its batch is still being stored
                elif version is None and trouble.aside:
                    self._book.settled(trouble.ref)  # its folder is gone; the source names it again if it comes back
                elif self._book.looked(trouble, version or (), now):
                    self._in_hand.add(trouble.ref)
                    self._backlog.put_nowait([trouble.ref])

    # -- verdicts --------------------------------------------------------------------------------------------------

    async def _store_batch(self, taken: Taken) -> None:
        batch = taken.decoded.batch
        postponed: list[Item] = []
        for place, failure in batch.failures.items():
            if failure.kind == "postponed":
                postponed.append(taken.items[place])
            else:
                self._note_failure(taken.items[place], failure, taken.decoded.versions[place])
        places = self._new_places(taken)
        if places:
            spans = self._span_rows(taken, places)
            with self._guard:
                profiles = profile_rows(self._index.catalog, batch, places, spans.number)
            await self._commit(spans, profiles)
            with self._guard:
                groups = self._index.add_spans(spans)
                self._index.add_rows(spans.number, groups, profiles)
            self._note_stored(taken, places, spans)
            await self._keep_sidecars(taken, places, spans)
        self._in_hand.difference_update(taken.items)
        self._in_hand.update(postponed)
        self._backlog.put_nowait(postponed)
        self._backlog.finish(len(taken.items))

    async def _keep_sidecars(self, taken: Taken, places: Sequence[int], spans: SpanRows) -> None:
        """Keep what the newest sidecar of each node in a batch says; what cannot be kept now comes with a later one."""
        if self.sidecars is None:
            return
        newest = {int(series): taken.items[place] for series, place in zip(spans.series, places, strict=True)}
        source = self._sources[taken.items[0].place.source]
        try:
            await self.sidecars.keep(source, {series: item.ref for series, item in newest.items()})
        except StoreError as error:
            self._store_failures += 1
            log_once(logger, f"sidecar:{error}", "%s; sidecar files are not kept", error, level=logging.ERROR)

    async def _commit(self, spans: SpanRows, profiles: ProfileRows) -> None:
        pause, failed = 0.5, ""
        while True:
            try:
                with anyio.CancelScope(shield=True):  # a batch that is in hand at the stop is finished, once
                    self._mark = await anyio.to_thread.run_sync(
                        self._store.commit, spans, profiles, self._index.catalog, self._mark
                    )
                if failed:
                    logger.info("the store can be written again; nothing was lost")
                return
            except StoreDamaged:
                raise
            except StoreError as error:
                self._store_failures += 1
                if str(error) != failed:
                    logger.error("%s; what is found waits, and it is tried again", error)
                failed = str(error)
                await self._pause(pause)
                pause = min(pause * 2, LONGEST_STORE_PAUSE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        """Wait before the store is tried again, coming round as often as without it."""
        until = anyio.current_time() + seconds
        while (left := until - anyio.current_time()) > 0:
            self.turns += 1
            await anyio.sleep(min(left, UPKEEP_SECONDS))

    def _new_places(self, taken: Taken) -> list[int]:
        """Return which files of a batch hold a span that is not stored yet, each span once."""
        seen: set[tuple[int, str]] = set()
        places: list[int] = []
        for place, item in enumerate(taken.items):
            if place in taken.decoded.batch.failures:
                continue
            self._book.settled(item)
            names, name = item.place.names, item.ref.key.span
            if name not in names and (id(names), name) not in seen:
                seen.add((id(names), name))
                places.append(place)
        return places

    def _span_rows(self, taken: Taken, places: Sequence[int]) -> SpanRows:
        catalog = self._index.catalog
        items = [taken.items[place] for place in places]
        series = {key: catalog.series_number(key) for key in {item.place.series for item in items}}
        first = self._index.next_number
        return SpanRows(
            number=np.arange(first, first + len(items), dtype=np.int32),
            series=np.asarray([series[item.place.series] for item in items], dtype=np.int32),
            folder=np.asarray(
                [catalog.folder_number(item.ref.path.rsplit("/", 2)[0]) for item in items], dtype=np.int32
            ),
            name=[item.ref.key.span for item in items],
            size_bytes=np.asarray([taken.decoded.sizes[place] for place in places], dtype=np.int64),
            columns=columns_of([item.ref.span for item in items]),
        )

    def _note_stored(self, taken: Taken, places: Sequence[int], spans: SpanRows) -> None:
        self._stored += len(places)
        self._empty += len(set(taken.decoded.batch.empty).intersection(places))
        self._bytes += sum(taken.decoded.sizes[place] for place in places)
        self._batches += 1
        self._lag_seconds = max(0.0, self._wall_clock() - float(spans.columns.end_us[-1]) / 1e6)
        self._on_stored(spans)

    def _note_failure(self, item: Item, failure: Failure, version: Version) -> None:
        self._failures[failure.kind] += 1
        verdict = self._book.failed(
            item,
            reason=failure.reason,
            kind=failure.kind,
            version=version,
            now=anyio.current_time(),
            final=failure.kind in FINAL_KINDS,
        )
        if verdict == "set_aside":
            log_once(
                logger,
                f"aside:{item.ref.path}:{version}",
                "set aside %s: %s",
                item.ref.path,
                failure.reason,
                level=logging.WARNING,
            )
        self._retries_changed.set()

    def _items(self, source: int, refs: Iterable[FileRef]) -> Iterator[Item]:
        """Make items of the spans that are not stored. Neighbours mostly share their place, so it is kept."""
        place, whose = None, ("", "", "")
        for ref in refs:
            if place is None or ref.key[:3] != whose:
                whose = ref.key[:3]
                place = self._place(source, ref.key)
            if ref.key.span not in place.names:
                yield Item(place, ref)

    def _place(self, source: int, key: SpanKey) -> Place:
        job = self._sources[source].job
        series = SeriesKey(job=job, framework=key.framework, profiler=key.profiler, node=key.node)
        return Place(source=source, series=series, names=self._index.names_of(series))
