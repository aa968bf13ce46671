"""What a source of profiles is: the records it gives and the protocol that ingest leans on. No I/O of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from anyio.abc import TaskStatus

from monitor.errors import ReadError
from monitor.layout import SpanKey
from monitor.reading import FileData, LocalFile, Version
from monitor.spans import Span

Readable: TypeAlias = LocalFile | FileData | ReadError
"""A file that the decoder may open, one that the source has read, or why it has not."""


class FileRef(NamedTuple):
    """A data file that is there or will be: its span folder has been seen.

    Attributes:
        path: of the data file, as the source names it.
    """

    key: SpanKey
    span: Span
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics:
    """Counts since the start; times in seconds.

    Attributes:
        available: the source could be read at the last poll.
        spans_seen: span folders named so far, the known ones included.
        ignored_names: entries that are no part of the layout; refused_links: links that lead outside.
        events_active: file-system events come in besides polling.
        listings, listing_seconds: folders listed, and the time that took.
        requests: sent over the network, by operation and then by result ("ok" or the class of the failure).
        requests_at_once: how many may be under way now. trouble: class of the failures since the last success, or "".
        bytes_read: of data files. keys_seen: keys that listings told. lag_seconds: age of the newest file when found.
        messages_set_aside: of a queue, that meant nothing or came back too often.
        cursors_kept: how often it was kept how far the source came.
        full_pass_pages: listed by the full pass so far, and by the whole one before.
        failed_polls: that could not read all there is. event_failures: of attempts to get file-system events.
        last_good_poll_timestamp, last_error_timestamp: seconds since the epoch, 0 for never.
        last_error: what the last failed poll could not read, however long ago.
    """

    polls: int
    last_poll_seconds: float
    available: bool
    folders: int
    spans_seen: int
    ignored_names: int
    refused_links: int
    unreadable_folders: int
    events: int
    events_active: bool
    listings: int
    listing_seconds: float
    requests: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    requests_at_once: int = 0
    trouble: str = ""
    bytes_read: int = 0
    keys_seen: int = 0
    lag_seconds: float = 0.0
    messages_set_aside: int = 0
    cursors_kept: int = 0
    full_pass_pages: tuple[int, int] = (0, 0)
    failed_polls: int = 0
    event_failures: int = 0
    last_good_poll_timestamp: float = 0.0
    last_error: str = ""
    last_error_timestamp: float = 0.0


Accept: TypeAlias = Callable[[Sequence[FileRef]], Awaitable[None]]
"""Takes references; waits while the one behind it has enough to do."""


class Cursors(Protocol):
    """Where a source keeps how far it has come, and learns what has become of what it found."""

    async def load(self) -> str | None:
        """Return what was kept last."""

    async def keep(self, text: str) -> None:
        """Keep this, once all that was handed over before is stored."""

    async def settled(self) -> None:
        """Wait until all that was handed over before is stored, or known not to be ready."""

    def is_stored(self, ref: FileRef) -> bool:
        """Tell whether a span is stored."""


class Source(Protocol):
    """A place where profiles appear."""

    @property
    def job(self) -> str:
        """The job whose profiles these are."""

    @property
    def name(self) -> str:
        """The place, for people and labels."""

    async def run(self, accept: Accept, *, task_status: TaskStatus[None]) -> None:
        """Find spans until cancelled; `started()` once the first complete poll is handed over."""

    async def poll(self) -> None:
        """Look at everything that changed, now; returns when all that was found is handed over."""

    async def read(self, refs: Sequence[FileRef], *, max_bytes: int) -> list[Readable]:
        """Give what decoders need of data files, in the order given."""

    async def versions(self, refs: Sequence[FileRef]) -> list[Version | None]:
        """Look at data files without reading them; None where the span's folder is gone."""

    def statistics(self) -> SourceStatistics:
        """Say what happened since the start."""
