"""The daemon's own state: as JSON for `status`, and as numbers for the metrics page. Reads; changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import monitor
from monitor.api.connections import DROP_REASONS
from monitor.api.server import Server
from monitor.decoding import DecodePool
from monitor.index import Index
from monitor.ingest import Ingest, Item
from monitor.metrics import Reading
from monitor.retry import Trouble
from monitor.sources.base import Source, SourceStatistics
from monitor.state import State
from monitor.store import Store
from monitor.watchers import Watchers

if TYPE_CHECKING:
    from monitor.shipping import Shipper  # brings the client of S3, which takes half a second

MOST_TROUBLES_SHOWN = 100
FAILURE_KINDS = ("incomplete", "corrupt", "missing", "unreadable", "too_large", "refused", "crashed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the state is read from.

    Attributes:
        first_polls: which sources have finished their first poll.
        started: when the daemon started, by the clock that never goes back.
    """

    index: Index
    state: State
    store: Store
    watchers: Watchers
    server: Server
    sources: Sequence[Source]
    pool: DecodePool
    ingest: Ingest
    first_polls: Sequence[bool]
    started: float
    shipper: Shipper | None = None


def catching_up(parts: Parts) -> bool:
    """Tell whether files from before are still being taken in."""
    return not all(parts.first_polls) or parts.ingest.statistics().waiting > 1_000


def status_of(parts: Parts, now: float) -> Mapping[str, object]:
    """Return the state, ready for JSON; `now` is by the clock of `Parts.started`."""
    waiting, aside = parts.ingest.troubles()
    server = parts.server.statistics()
    return {
        "version": monitor.__version__,
        "pid": os.getpid(),
        "uptime_seconds": round(now - parts.started, 3),
        "catching_up": catching_up(parts),
        "profiles": sum(group.spans for group in parts.index.groups),
        "profiles_with_rows": len(parts.index.spans),
        "functions": len(parts.index.catalog.functions),
        "sources": [
            {"path": source.name, "job": source.job, **asdict(source.statistics())} for source in parts.sources
        ],
        "ingest": asdict(parts.ingest.statistics()),
        "decode": asdict(parts.pool.statistics()),
        "store": {
            **asdict(parts.store.statistics()),
            "rebuilding": parts.state.rebuilding,
            "damaged_stores": parts.state.damaged_stores,
            "lost_profiles": parts.state.lost,
        },
        "queries": {
            "running": server.running,
            "requests": sum(server.requests.values()),
            "connections": dict(server.connections),
            "refused": dict(server.refused),
        },
        "watchers": asdict(parts.watchers.statistics()),
        "set_aside": [shown(trouble) for trouble in aside[:MOST_TROUBLES_SHOWN]],
        "retrying": [shown(trouble) for trouble in waiting[:MOST_TROUBLES_SHOWN]],
        "captures": captures_of(parts),
        "ship": None if parts.shipper is None else asdict(parts.shipper.statistics()),
        "address": parts.server.address,
        "socket": str(parts.server.socket),
    }


def shown(trouble: Trouble[Item]) -> dict[str, object]:
    """Show one file in trouble."""
    return {
        "job": trouble.ref.place.series.job,
        "path": trouble.ref.ref.path,
        "reason": trouble.reason,
        "kind": trouble.kind,
        "attempts": trouble.attempts,
    }


def captures_of(parts: Parts) -> list[Mapping[str, object]]:
    """Return what nodes say about how they were profiled, where they say it."""
    series = parts.index.catalog.series
    sidecars = parts.ingest.sidecars
    return [
        {**{word: getattr(series[number], word) for word in ("job", "framework", "node")}, **facts}
        for number, facts in sorted(sidecars.facts().items() if sidecars is not None else ())
    ]


def readings_of(parts: Parts) -> Iterator[Reading]:
    """Return the daemon's numbers."""
    yield from ingest_readings(parts)
    for source in parts.sources:
        yield from source_readings(source)
    if parts.shipper is not None:
        shipped = parts.shipper.statistics()
        yield counter("phasewatch_ship_files", "Files uploaded.", shipped.uploaded)
        yield counter("phasewatch_ship_bytes", "Bytes uploaded.", shipped.bytes)
        yield counter("phasewatch_ship_deleted_files", "Files deleted here once the bucket held them.", shipped.deleted)
    decode = parts.pool.statistics()
    yield counter("phasewatch_decode_files", "Files given to decoder processes.", decode.files)
    yield counter("phasewatch_decode_failures", "Files that no profile was found in.", decode.failures)
    yield counter("phasewatch_decode_crashes", "Decoder processes that died.", decode.crashes)
    yield counter("phasewatch_decode_timeouts", "Files that took longer than the deadline.", decode.timeouts)
    yield counter("phasewatch_decode_restarts", "Decoder processes that were replaced.", decode.restarts)
    yield counter("phasewatch_decode_busy_seconds", "Time in which decoders were at work.", decode.busy_seconds)
    store = parts.store.statistics()
    yield counter("phasewatch_store_commits", "Transactions.", store.commits)
    yield counter("phasewatch_store_commit_seconds", "Time spent in transactions.", store.commit_seconds)
    yield gauge("phasewatch_store_size_bytes", "Size of the store's files.", store.size_bytes)
    yield gauge("phasewatch_store_profiles", "Profiles whose rows are kept.", len(parts.index.spans))
    yield gauge(
        "phasewatch_store_rebuilding", "1 while profiles that were lost are read again.", parts.state.rebuilding
    )
    yield gauge("phasewatch_store_damaged_stores", "Damaged stores that were set aside.", parts.state.damaged_stores)
    yield counter("phasewatch_store_lost_profiles", "Profiles lost with a store and their files.", parts.state.lost)
    yield from query_readings(parts)


def ingest_readings(parts: Parts) -> Iterator[Reading]:
    """Return what ingest did."""
    numbers = parts.ingest.statistics()
    negative = sum(group.negative for group in parts.index.groups)
    yield counter("phasewatch_ingest_profiles", "Profiles stored since the start.", numbers.stored)
    yield counter("phasewatch_ingest_empty_profiles", "Stored profiles known to hold nothing.", numbers.empty)
    yield counter("phasewatch_ingest_bytes", "Bytes of profiles stored since the start.", numbers.bytes)
    yield counter("phasewatch_ingest_batches", "Batches stored since the start.", numbers.batches)
    yield counter(
        "phasewatch_ingest_store_failures", "Transactions that failed and were repeated.", numbers.store_failures
    )
    yield counter("phasewatch_ingest_negative_values", "Times below zero, kept out of counters.", negative)
    for kind in FAILURE_KINDS:
        failed = numbers.failures.get(kind, 0)
        aside = numbers.set_aside.get(kind, 0)
        yield counter("phasewatch_ingest_failures", "Attempts at a file that failed.", failed, kind=kind)
        yield gauge("phasewatch_ingest_set_aside_files", "Files set aside until they change.", aside, kind=kind)
    yield gauge("phasewatch_ingest_waiting_files", "Files found and not stored yet.", numbers.waiting)
    yield gauge("phasewatch_ingest_retrying_files", "Files that will be tried again.", numbers.retrying)
    yield gauge(
        "phasewatch_ingest_lag_seconds", "Age of the last stored profile when it was stored.", numbers.lag_seconds
    )
    yield gauge("phasewatch_ingest_catching_up", "1 while files from before are taken in.", catching_up(parts))


def source_readings(source: Source) -> Iterator[Reading]:
    """Return what one source did."""
    numbers, label = source.statistics(), source.name
    yield counter("phasewatch_source_polls", "Polls.", numbers.polls, source=label)
    yield gauge("phasewatch_source_poll_seconds", "Length of the last poll.", numbers.last_poll_seconds, source=label)
    yield gauge("phasewatch_source_available", "1 where the source could be read.", numbers.available, source=label)
    yield gauge("phasewatch_source_folders", "Folders above the spans.", numbers.folders, source=label)
    yield counter("phasewatch_source_spans_seen", "Span folders named.", numbers.spans_seen, source=label)
    yield counter("phasewatch_source_ignored_names", "Entries of no meaning.", numbers.ignored_names, source=label)
    yield counter("phasewatch_source_refused_links", "Links that lead outside.", numbers.refused_links, source=label)
    yield counter("phasewatch_source_unreadable_folders", "Failed listings.", numbers.unreadable_folders, source=label)
    yield counter("phasewatch_source_events", "File-system events.", numbers.events, source=label)
    yield gauge("phasewatch_source_events_active", "1 where events come in.", numbers.events_active, source=label)
    yield counter("phasewatch_source_listings", "Folders listed.", numbers.listings, source=label)
    yield counter("phasewatch_source_listing_seconds", "Time spent listing.", numbers.listing_seconds, source=label)
    yield from request_readings(numbers, label)


def request_readings(numbers: SourceStatistics, label: str) -> Iterator[Reading]:
    """Return what a source that is reached over the network did; nothing for one that is not."""
    for operation, results in numbers.requests.items():
        for result, count in results.items():
            yield counter(
                "phasewatch_source_requests",
                "Requests sent to S3 or SQS.",
                count,
                source=label,
                operation=operation,
                result=result,
            )
    if numbers.requests:
        yield gauge("phasewatch_source_requests_at_once", "Most now.", numbers.requests_at_once, source=label)
        yield counter("phasewatch_source_bytes", "Bytes of data objects read.", numbers.bytes_read, source=label)
        yield counter("phasewatch_source_keys_seen", "Keys that listings told.", numbers.keys_seen, source=label)
        yield gauge("phasewatch_source_lag_seconds", "Age of the newest when found.", numbers.lag_seconds, source=label)


def query_readings(parts: Parts) -> Iterator[Reading]:
    """Return what was asked."""
    server = parts.server.statistics()
    requests = server.requests or {("/metrics", 200): 0}
    for (route, status), count in requests.items():
        yield counter("phasewatch_query_requests", "Requests answered.", count, route=route, status=str(status))
    for route, seconds in (server.seconds or {"/metrics": 0.0}).items():
        yield counter("phasewatch_query_seconds", "Time spent answering.", seconds, route=route)
    yield gauge("phasewatch_query_running", "Queries under way.", server.running)
    for reason, count in server.refused.items():
        yield counter("phasewatch_query_refused_requests", "Requests not let in, or none at all.", count, reason=reason)
    for listener, count in server.connections.items():
        yield gauge("phasewatch_query_connections", "Connections open now.", count, listener=listener)
        for reason in DROP_REASONS:
            dropped = server.dropped.get((listener, reason), 0)
            yield counter(
                "phasewatch_query_dropped_connections",
                "Connections refused or ended by the daemon.",
                dropped,
                listener=listener,
                reason=reason,
            )
    watchers = parts.watchers.statistics()
    yield gauge("phasewatch_query_watchers", "Readers of /v1/watch.", watchers.readers)
    yield counter("phasewatch_query_dropped_events", "Events that slow readers lost.", watchers.dropped)


def counter(name: str, text: str, value: float, **labels: str) -> Reading:
    """Make a counter's reading."""
    return Reading(name=name, kind="counter", help=text, value=float(value), labels=labels)


def gauge(name: str, text: str, value: float, **labels: str) -> Reading:
    """Make a gauge's reading."""
    return Reading(name=name, kind="gauge", help=text, value=float(value), labels=labels)
