"""From settings to sources, and the clients that they share, which are opened before them and closed after them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from monitor.s3_url import parse_s3_url
from monitor.settings import S3Settings, Settings, SourceSettings
from monitor.sources.base import Cursors, Source
from monitor.sources.local import LocalSource

if TYPE_CHECKING:
    from monitor.sources.s3_client import S3Client

Clients: TypeAlias = "Mapping[S3Settings, S3Client]"


@asynccontextmanager
async def open_clients(settings: Settings) -> AsyncIterator[Clients]:
    """Open one client for each way in which the sources reach S3; none where no source is in S3.

    Raises:
        ConfigError: a profile or an endpoint cannot be used.
    """
    ways = dict.fromkeys(source.s3 for source in settings.source if source.type == "s3")
    async with AsyncExitStack() as stack:
        if not ways:
            yield {}
            return
        from monitor.sources.s3_client import open_s3_client  # costs half a second: only who watches a bucket pays

        yield {way: await stack.enter_async_context(open_s3_client(way)) for way in ways}


def build_source(source: SourceSettings, clients: Clients, *, cursors: Cursors | None = None) -> Source:
    """Make a source that does not run yet."""
    if source.type == "s3":
        from monitor.sources.s3 import S3Source

        return S3Source(
            clients[source.s3],
            parse_s3_url(source.path),
            job=source.job,
            poll_interval_seconds=source.poll_interval_seconds,
            full_scan_seconds=source.full_scan_seconds,
            requester_pays=source.requester_pays,
            cursors=cursors,
        )
    return LocalSource(
        Path(source.path),
        job=source.job,
        poll_interval_seconds=source.poll_interval_seconds,
        events=source.events,
        full_scan_seconds=source.full_scan_seconds,
    )
