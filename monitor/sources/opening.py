"""From settings to sources, and the clients that they share, which are opened before them and closed after them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.s3_url import parse_s3_url
from monitor.settings import S3Settings, Settings, SourceSettings
from monitor.sources.base import Cursors, Source
from monitor.sources.local import LocalSource

if TYPE_CHECKING:
    from monitor.sources.s3_client import S3Client


class Clients:
    """The clients that sources use, one for each way in which S3 is reached. Made by `open_clients`."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._open: dict[tuple[S3Settings, str], S3Client] = {}

    async def prepare(self, settings: Settings) -> None:
        """Open what is missing for the sources of some settings; nothing where nothing is in S3.

        Raises:
            ConfigError: a profile or an endpoint cannot be used.
        """
        ways = dict.fromkeys((source.s3, "s3") for source in settings.source if source.type == "s3")
        ways |= dict.fromkeys((source.s3, "sqs") for source in settings.source if source.sqs)
        ways |= {(settings.ship_s3, "s3"): None} if settings.ship_path else {}
        if ways.keys() - self._open.keys():
            from monitor.sources.s3_client import open_s3_client  # half a second: only who watches a bucket pays

            for way in ways.keys() - self._open.keys():
                self._open[way] = await self._stack.enter_async_context(open_s3_client(*way))

    def of(self, way: S3Settings, service: str = "s3") -> S3Client:
        """Return the client for a way that was prepared."""
        return self._open[way, service]


@asynccontextmanager
async def open_clients(settings: Settings) -> AsyncIterator[Clients]:
    """Keep clients open until the block ends; those for some settings from the start.

    Raises:
        ConfigError: a profile or an endpoint cannot be used.
    """
    async with AsyncExitStack() as stack:
        clients = Clients(stack)
        await clients.prepare(settings)
        yield clients


def build_source(source: SourceSettings, clients: Clients, *, cursors: Cursors | None = None) -> Source:
    """Make a source that does not run yet."""
    if source.type == "s3":
        from monitor.sources.s3 import S3Source
        from monitor.sources.s3_client import Queue

        return S3Source(
            clients.of(source.s3),
            parse_s3_url(source.path),
            job=source.job,
            poll_interval_seconds=source.poll_interval_seconds,
            full_scan_seconds=source.full_scan_seconds,
            requester_pays=source.requester_pays,
            cursors=cursors,
            queue=Queue(clients.of(source.s3, "sqs"), source.sqs) if source.sqs else None,
        )
    return LocalSource(
        Path(source.path),
        job=source.job,
        poll_interval_seconds=source.poll_interval_seconds,
        events=source.events,
        full_scan_seconds=source.full_scan_seconds,
    )
