"""How profiles come in while a notebook is open: a source that is polled when somebody asks, decoder processes, and the
daemon's own ingest with rows in memory. All of it lives on one event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from monitor.answers import SpanRow
from monitor.decoding import DecodePool, open_decode_pool
from monitor.errors import MonitorError
from monitor.index import Index
from monitor.ingest import Ingest
from monitor.memory_store import MemoryStore
from monitor.reading import LocalFile, Version
from monitor.sources.base import Source

WORKERS = 2
WORKER_MEMORY_BYTES = 2**30
FILE_DEADLINE_SECONDS = 10.0
MOST_FILE_BYTES = 256 * 2**20
BATCH_FILES = 125
BROKEN_AFTER_SECONDS = 30.0
REST_SECONDS = 60.0
"""Decoders that had nothing to do for so long are ended; the next new file starts them again."""
NEVER_SECONDS = 1e9


class NotebookSource(Source, Protocol):
    """A source that polls only when it is asked to."""

    @property
    def ended(self) -> bool:
        """It runs no longer, so polls find nothing."""

    def unchanged(self) -> bool:
        """Tell cheaply, on any thread while no poll is under way, that a poll would find nothing."""

    def unreadable(self) -> Mapping[str, str]:
        """Return the folders that cannot be read now, and why."""

    async def fetch_picture(self, row: SpanRow) -> str:
        """Return where the picture of a session lies on this machine, having brought it there."""

    def place(self, path: str) -> str:
        """Return where a data file lies for whoever wants to open it."""

    def picture(self, path: str) -> str | None:
        """Return where the picture beside a data file lies; None where there is none."""

    def near(self, row: SpanRow) -> LocalFile | None:
        """Return the data file where it lies on this machine and may be read without asking the source."""


OpenSource: TypeAlias = Callable[[], AbstractAsyncContextManager[NotebookSource]]


class IntakeEnded(MonitorError):
    """The reading ended while somebody waited for it; the task that reads tells why."""


class Skipped(NamedTuple):
    """A file that could not be used, and which version of it."""

    path: str
    reason: str
    version: Version | None


class Intake:
    """The parts that live on the loop: source, decoders and ingest. Made by `Intake.run`."""

    def __init__(
        self,
        index: Index,
        store: MemoryStore,
        source: NotebookSource,
        pool: DecodePool,
        guard: AbstractContextManager[object],
    ) -> None:
        self.source = source
        self.pool = pool
        self.first_poll = anyio.Event()
        self.ingest = Ingest(
            sources=[source],
            pool=pool,
            store=store,
            index=index,
            stored_mark=index.catalog.mark(),
            on_stored=lambda spans: None,
            upkeep=anyio.lowlevel.checkpoint,
            wall_clock=time.time,
            batch_files=BATCH_FILES,
            linger_seconds=0.0,
            max_file_bytes=MOST_FILE_BYTES,
            broken_after_seconds=BROKEN_AFTER_SECONDS,
            workers=WORKERS,
            guard=guard,
        )

    async def refresh(self) -> None:
        """Take in what is new."""
        await self.first_poll.wait()
        await self.ingest.refresh()
        if self.source.ended:  # it lets go whoever waits for a poll, which is no answer then
            raise IntakeEnded("the source has ended")

    async def troubles(self) -> list[Skipped]:
        """Return the files and folders that are missing from the answers. A span's folder without its file is the
        normal case while training runs, and counts when it stays like that."""
        waiting, aside = self.ingest.troubles()
        folders = [Skipped(path, reason, None) for path, reason in self.source.unreadable().items()]
        return folders + [
            Skipped(trouble.ref.ref.path, trouble.reason, trouble.version)
            for trouble in [*waiting, *aside]
            if trouble.aside or trouble.kind != "missing"
        ]

    async def serve(self) -> None:
        """Work until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.pool.warm_up)  # first: a process takes longest to be there
            await group.start(self.ingest.run)
            await group.start(self.source.run, partial(self.ingest.accept, 0))
            self.first_poll.set()
            await self._rest()

    async def _rest(self) -> None:
        decoded = -1
        while True:
            await anyio.sleep(REST_SECONDS)
            before, decoded = decoded, self.pool.statistics().files
            if decoded == before:
                await self.pool.aclose()


async def run_intake(
    index: Index,
    store: MemoryStore,
    open_source: OpenSource,
    guard: AbstractContextManager[object],
    *,
    task_status: TaskStatus[Intake] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Open everything that reads profiles, tell of it, and work until cancelled."""
    async with (
        open_source() as source,
        open_decode_pool(
            workers=WORKERS,
            memory_bytes=WORKER_MEMORY_BYTES,
            deadline_seconds=FILE_DEADLINE_SECONDS,
            max_file_bytes=MOST_FILE_BYTES,
        ) as pool,
    ):
        intake = Intake(index, store, source, pool, guard)
        task_status.started(intake)
        await intake.serve()
