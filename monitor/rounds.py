"""Builds the parts that a reload makes anew, from the settings and from what lasts. Starts nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monitor.bookmarks import Bookmarks
from monitor.budgets import AllBudgets
from monitor.catalog import CatalogMark
from monitor.decoding import DecodePool
from monitor.endings import Endings
from monitor.index import Index
from monitor.ingest import Ingest
from monitor.metrics import MetricsPage, Reading
from monitor.naming import Rules
from monitor.page import Sheet
from monitor.rows import SpanRows
from monitor.settings import Settings, SourceSettings
from monitor.sidecars import Sidecars
from monitor.sources.base import Source
from monitor.sources.opening import Clients, build_source
from monitor.state import State
from monitor.store import Store
from monitor.upkeep import Retention, Upkeep

if TYPE_CHECKING:
    from monitor.shipping import Shipper  # brings the client of S3, which takes half a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """What lives on through reloads.

    Attributes:
        mark: how much of the index's catalogue the store has already.
    """

    state: State
    store: Store
    index: Index
    budgets: AllBudgets
    endings: Endings
    mark: CatalogMark


@dataclass(slots=True, kw_only=True)
class Round:
    """The parts that a reload builds anew."""

    settings: Settings
    sources: list[Source]
    pool: DecodePool
    ingest: Ingest
    upkeep: Upkeep
    page: MetricsPage
    first_poll_done: list[bool]
    shipper: Shipper | None


def build_round(
    settings: Settings,
    watched: Sequence[SourceSettings],
    lasting: Lasting,
    *,
    pool: DecodePool,
    clients: Clients,
    publish: Callable[[SpanRows], None],
    readings: Callable[[], Iterable[Reading]],
    sheet: Sheet | None,
) -> Round:
    """Build a round that does not run yet.

    Args:
        watched: the sources, with jobs in the place of patterns.
        publish: called with the spans of each stored batch. readings: gives the daemon's own numbers.
        sheet: what /metrics shows until it is drawn.
    """
    bookmarks = Bookmarks(lasting.store)
    sources = [
        build_source(source, clients, cursors=bookmarks.of(number, f"{source.job}:{source.path}"))
        for number, source in enumerate(watched)
    ]
    lasting.budgets.functions.limit = settings.metrics_functions_per_phase
    lasting.budgets.functions.rules = rules_of(settings)
    lasting.endings.keep_ended_seconds = settings.metrics_keep_ended_seconds
    lasting.endings.keep_silent_seconds = settings.metrics_keep_silent_seconds
    upkeep = build_upkeep(settings, lasting, bookmarks)
    sidecars = Sidecars(lasting.store)
    ingest = build_ingest(settings, lasting, sources, pool, publish, upkeep, sidecars)
    bookmarks.attach(settled=ingest.settled, is_stored=ingest.is_stored)
    return Round(
        settings=settings,
        sources=sources,
        pool=pool,
        ingest=ingest,
        upkeep=upkeep,
        page=MetricsPage(
            index=lasting.index,
            budgets=lasting.budgets,
            endings=lasting.endings,
            readings=readings,
            held=lambda: lasting.state.rebuilding,
            facts=sidecars.facts,
            refresh_seconds=settings.metrics_refresh_seconds,
            sheet=sheet,
        ),
        first_poll_done=[False] * len(sources),
        shipper=build_shipper(settings, clients, sources, ingest),
    )


def rules_of(settings: Settings) -> Rules:
    """Tell how functions are named on the metrics page."""
    return Rules(
        packages=settings.metrics_packages,
        include=settings.metrics_include,
        exclude=settings.metrics_exclude,
        rename=settings.metrics_rename,
        pinned=settings.metrics_pinned,
    )


def build_upkeep(settings: Settings, lasting: Lasting, bookmarks: Bookmarks) -> Upkeep:
    """Make what looks after the store between batches."""
    return Upkeep(
        store=lasting.store,
        index=lasting.index,
        budgets=lasting.budgets,
        state=lasting.state,
        retention=Retention(
            days=settings.store_retention_days,
            spans=settings.store_retention_spans,
            every_seconds=settings.store_retention_interval_seconds,
        ),
        wall_clock=time.time,
        choose_every_seconds=settings.metrics_refresh_seconds,
        bookmarks=bookmarks,
        endings=lasting.endings,
    )


def build_ingest(
    settings: Settings,
    lasting: Lasting,
    sources: Sequence[Source],
    pool: DecodePool,
    publish: Callable[[SpanRows], None],
    upkeep: Upkeep,
    sidecars: Sidecars,
) -> Ingest:
    """Make the way of files into store and index."""
    return Ingest(
        sources=sources,
        pool=pool,
        store=lasting.store,
        index=lasting.index,
        stored_mark=lasting.mark,
        on_stored=publish,
        upkeep=upkeep.run_due,
        wall_clock=time.time,
        batch_files=settings.ingest_batch_files,
        backlog_files=settings.ingest_backlog_files,
        linger_seconds=settings.ingest_linger_seconds,
        max_file_bytes=settings.ingest_max_file_bytes,
        broken_after_seconds=settings.ingest_broken_after_seconds,
        recheck_seconds=settings.ingest_recheck_seconds,
        workers=settings.ingest_workers,
        sidecars=sidecars,
    )


def build_shipper(settings: Settings, clients: Clients, sources: Sequence[Source], ingest: Ingest) -> Shipper | None:
    """Make what uploads, where [ship] asks for it."""
    if not settings.ship_path:
        return None
    from monitor.shipping import shipper_beside

    return shipper_beside(settings, clients.of(settings.ship_s3), sources=sources, is_stored=ingest.is_stored)
