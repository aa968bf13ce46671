"""The composition root: builds every part from the settings, runs them in one task tree, stops them in order.

Outer group: server and signals. Inner group, one round of it: sources, ingest, metrics page, progress. At a stop the
inner group is cancelled first (ingest finishes the batch in hand), then the totals are saved, then the server stops and
the store closes. A reload ends the round and starts the next one with new settings; server, index and store live on.
"""

from __future__ import annotations

import logging
import signal
import socket as sockets
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

from monitor.answers import PageWish, SpanRow
from monitor.api.connections import Limits
from monitor.api.server import Server, open_server
from monitor.budgets import AllBudgets, load_budgets
from monitor.checkpoint import load_index
from monitor.config import is_local
from monitor.decoding import DecodePool, open_decode_pool
from monitor.endings import META_KEY, Endings, loaded
from monitor.errors import ConfigError, ReadError, StoreDamaged
from monitor.index import Index
from monitor.layout import SpanKey
from monitor.logs import configure_logging
from monitor.queries import Queries
from monitor.reading import FileData, LocalFile, read_file
from monitor.rounds import Lasting, Round, build_round
from monitor.rows import SpanRows
from monitor.service import Service, Surroundings
from monitor.settings import Settings, SourceSettings
from monitor.sources.base import FileRef, Source
from monitor.sources.opening import Clients, open_clients
from monitor.state import State, open_state
from monitor.status import Parts, readings_of, status_of
from monitor.store import Store, open_store
from monitor.watchers import Watchers

if TYPE_CHECKING:
    from monitor.sources.s3_jobs import Jobs

logger = logging.getLogger("phasewatch.daemon")

THREADS = 40
JOBS_POLLS = 3
"""New jobs of a pattern are looked for at every so many polls."""
REBUILT_LOOK_SECONDS = 0.2
REBUILDING_PATIENCE_SECONDS = 600.0
"""A source that is away is waited for so long before what it held counts as lost."""
STOP_SECONDS = 4.0
"""What is left of a stop after this long is cut off; people and systemd expect an answer within five."""
RESTART_ONLY = (
    "daemon_state_dir",
    "daemon_socket",
    "daemon_socket_mode",
    "daemon_socket_group",
    "daemon_socket_users",
    "daemon_listen",
    "daemon_listen_anywhere",
    "daemon_listen_api",
    "daemon_web_config_file",
    "daemon_nice",
    "daemon_ionice",
    "metrics_target",
    "store_memory_bytes",
    "query_max_connections",
    "query_max_concurrent",
    "query_timeout_seconds",
    "query_watch_events",
)


class Daemon:
    """A daemon on an open store. Made and run by `run_daemon`.

    Attributes:
        queries: answers questions, also for the demo's table.
    """

    def __init__(
        self,
        settings: Settings,
        state: State,
        store: Store,
        index: Index,
        budgets: AllBudgets,
        endings: Endings,
        service: Service,
        listener: sockets.socket | None,
    ) -> None:
        self.settings = settings
        self.service = service
        self._listener = listener
        self.started = time.monotonic()
        self.state = state
        self.store = store
        self.index = index
        self.budgets = budgets
        self.endings = endings
        self.watchers = Watchers(most_waiting=settings.query_watch_events)
        self.server: Server | None = None
        self.round: Round | None = None
        self._round_changed = anyio.Event()
        self._mark = index.catalog.mark()
        self._stop = anyio.Event()
        self._round_over = anyio.Event()
        self._settings_due = False
        self._jobs: Jobs | None = None
        self._watched: tuple[SourceSettings, ...] = ()
        self.queries = Queries(
            index=index,
            store=store,
            watchers=self.watchers,
            refresh=self.refresh,
            read=self.read_profile,
            status=lambda: status_of(self.parts(), time.monotonic()),
            page=self.metrics_page,
            jobs=self.metrics_jobs,
        )

    def parts(self) -> Parts:
        """Return what the state is read from; only once the daemon answers."""
        if self.round is None or self.server is None:
            raise RuntimeError("the daemon does not run")
        return Parts(
            index=self.index,
            state=self.state,
            store=self.store,
            watchers=self.watchers,
            server=self.server,
            sources=self.round.sources,
            pool=self.round.pool,
            ingest=self.round.ingest,
            first_polls=self.round.first_poll_done,
            started=self.started,
            shipper=self.round.shipper,
        )

    def stop(self) -> None:
        """End the daemon in order."""
        self._stop.set()
        self._round_over.set()

    def reload(self) -> None:
        """Read the settings again and begin a new round with them."""
        self._settings_due = True
        self._round_over.set()

    async def stopped(self) -> None:
        """Wait until the daemon is told to stop."""
        await self._stop.wait()

    async def refresh(self) -> None:
        """Poll all sources and wait until what they found is stored or known not to be ready."""
        done = False
        while not done:
            current, changed = self.round, self._round_changed
            async with anyio.create_task_group() as group:
                group.start_soon(cancel_after, changed, group.cancel_scope)
                if current is None:
                    await anyio.sleep_forever()
                else:
                    await current.ingest.refresh()
                    done = True
                group.cancel_scope.cancel()

    async def metrics_page(self, wish: PageWish) -> bytes | None:
        """Return a metrics page; None while there is none yet."""
        return None if self.round is None else await self.round.page.page(wish)

    def metrics_jobs(self) -> dict[str, bool]:
        """Tell of each job, also one that is watched and has written nothing, whether its series have not ended."""
        sheet = None if self.round is None else self.round.page.sheet
        ended = frozenset() if sheet is None or self.state.rebuilding else sheet.ended
        known = {source.job for source in self._watched} | self.index.spans_by_job().keys()
        return {job: job not in ended for job in sorted(known)}

    async def read_profile(self, row: SpanRow) -> bytes:
        """Read the data file of a span from a source of its job.

        Raises:
            ReadError: it is gone, or must not be read.
        """
        current = self.round
        key = SpanKey(framework=row.framework, profiler=row.profiler, node=row.node, span=row.name)
        failure = ReadError(f"its job {row.job!r} is no longer watched", kind="missing")
        for source in [] if current is None else current.sources:
            if source.job != row.job:
                continue
            ref = FileRef(key=key, span=row.span, path=row.path)
            (found,) = await source.read([ref], max_bytes=self.settings.ingest_max_file_bytes)
            if isinstance(found, FileData):
                return found.data
            try:
                if isinstance(found, LocalFile):
                    read = partial(read_file, found, self.settings.ingest_max_file_bytes)
                    return (await anyio.to_thread.run_sync(read, abandon_on_cancel=True)).data
                failure = found
            except ReadError as error:
                failure = error
        raise failure

    async def run(
        self, reload_settings: Callable[[], Settings], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until stopped; `started()` once questions are answered."""
        settings = self.settings
        async with anyio.create_task_group() as outer:
            outer.start_soon(self._follow_signals)
            # Clients before the server, which must find a round when it opens; after it at the end.
            async with open_clients(settings) as clients:
                await self._find_jobs(clients)
                async with open_server(
                    self.queries,
                    socket=settings.daemon_socket,
                    socket_mode=int(settings.daemon_socket_mode, 8),
                    listen=settings.daemon_listen,
                    listen_api=settings.daemon_listen_api,
                    target=settings.metrics_target,
                    max_concurrent=settings.query_max_concurrent,
                    timeout_seconds=settings.query_timeout_seconds,
                    inherited=self._listener,
                    socket_group=settings.daemon_socket_group,
                    socket_users=settings.daemon_socket_users,
                    web_config_file=settings.daemon_web_config_file,
                    must_protect=not (settings.daemon_listen_anywhere or is_local(settings.daemon_listen)),
                    limits=Limits(connections=settings.query_max_connections),
                ) as self.server:
                    while not self._stop.is_set():
                        self._round_over = anyio.Event()
                        await self._run_round(task_status, clients)
                        task_status = anyio.TASK_STATUS_IGNORED
                        while self._settings_due and not self._stop.is_set():
                            self._settings_due = False
                            await self._take_settings(reload_settings, clients)
            outer.cancel_scope.cancel()

    async def _run_round(self, task_status: TaskStatus[None], clients: Clients) -> None:
        settings = self.settings
        # Each source's events hold a thread for as long as they are waited for.
        threads = anyio.to_thread.current_default_thread_limiter()
        threads.total_tokens = THREADS + 2 * len(self._watched)
        async with open_decode_pool(
            workers=settings.ingest_workers,
            memory_bytes=settings.ingest_worker_memory_bytes,
            deadline_seconds=settings.ingest_file_deadline_seconds,
            max_file_bytes=settings.ingest_max_file_bytes,
        ) as pool:
            current = self._build_round(pool, clients)
            self._show_round(current)  # before anything is awaited: requests may come in as soon as the server is open
            await pool.warm_up()
            async with anyio.create_task_group() as inner:
                await inner.start(current.page.run)
                await inner.start(current.ingest.run)
                for number, source in enumerate(current.sources):
                    inner.start_soon(self._run_source, inner, current, number, source)
                inner.start_soon(self._report_progress, current)
                inner.start_soon(self._follow_rebuilding, current)
                inner.start_soon(self._follow_jobs, clients)
                inner.start_soon(self.service.run, self.parts)
                if current.shipper is not None:
                    inner.start_soon(current.shipper.run)
                logger.info("watching %s", ", ".join(source.name for source in current.sources) or "no job yet")
                task_status.started()
                await self._round_over.wait()
                if self._stop.is_set():
                    self.service.stopping()
                elif self._settings_due:
                    self.service.reloading()
                inner.cancel_scope.cancel()
            self._mark = current.ingest.stored_mark
            with anyio.move_on_after(STOP_SECONDS, shield=True):
                await current.upkeep.finish()

    async def _run_source(self, group: TaskGroup, current: Round, number: int, source: Source) -> None:
        await group.start(source.run, partial(current.ingest.accept, number))
        current.first_poll_done[number] = True

    def _build_round(self, pool: DecodePool, clients: Clients) -> Round:
        return build_round(
            self.settings,
            self._watched,
            Lasting(
                state=self.state,
                store=self.store,
                index=self.index,
                budgets=self.budgets,
                endings=self.endings,
                mark=self._mark,
            ),
            pool=pool,
            clients=clients,
            publish=self._publish,
            readings=lambda: readings_of(self.parts()),
            sheet=None if self.round is None else self.round.page.sheet,
        )

    async def _find_jobs(self, clients: Clients) -> bool:
        """Put jobs in the place of patterns; tells whether others are to be watched than before."""
        watched, sources = self._watched, self.settings.source
        if any(source.jobs for source in sources):
            if self._jobs is None:
                from monitor.sources.s3_jobs import Jobs  # brings the client of S3, which takes half a second

                self._jobs = Jobs()
            sources = await self._jobs.expanded(sources, clients)
        self._watched = sources
        return watched != sources

    async def _follow_jobs(self, clients: Clients) -> None:
        """End the round when there are new jobs, so that the next one watches them."""
        polls = [source.poll_interval_seconds for source in self.settings.source if source.jobs]
        while polls:
            await anyio.sleep(JOBS_POLLS * min(polls))
            if await self._find_jobs(clients):
                self._round_over.set()
                return

    def _show_round(self, current: Round) -> None:
        self.round = current
        self._round_changed.set()
        self._round_changed = anyio.Event()

    def _publish(self, spans: SpanRows) -> None:
        if self.watchers:
            first = len(self.index.spans) - len(spans.name)
            self.watchers.publish([self.queries.span_row(first + place) for place in range(len(spans.name))])

    async def _take_settings(self, reload_settings: Callable[[], Settings], clients: Clients) -> None:
        try:
            settings = reload_settings()
            await clients.prepare(settings)
        except ConfigError as error:
            logger.error("the settings stay as they were: %s", error)
            return
        if not settings.source:
            logger.error("the settings stay as they were: there is no [[source]] in them, so nothing would be watched")
            return
        kept = {name: getattr(self.settings, name) for name in RESTART_ONLY}
        changed = [name for name in RESTART_ONLY if getattr(settings, name) != kept[name]]
        if changed:
            logger.warning(
                "these settings need a restart: %s", ", ".join(name.replace("_", ".", 1) for name in changed)
            )
        self.settings = replace(settings, **kept)
        await self._find_jobs(clients)
        configure_logging(settings.log_level, settings.log_format)  # type: ignore[arg-type]
        logger.info("settings reloaded")

    async def _follow_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGHUP:
                    logger.info("reloading settings")
                    self.reload()
                else:
                    logger.info("stopping on %s", signal.Signals(number).name)
                    self.stop()

    async def _follow_rebuilding(self, current: Round) -> None:
        """See when all that the sources still hold is stored again."""
        patient_until = anyio.current_time() + REBUILDING_PATIENCE_SECONDS
        while self.state.rebuilding:
            there = all(source.statistics().available for source in current.sources)
            looked = all(current.first_poll_done) and current.ingest.statistics().waiting == 0
            if looked and (there or anyio.current_time() >= patient_until):
                self.state.rebuilt(self.index.next_number)
            await anyio.sleep(REBUILT_LOOK_SECONDS)

    async def _report_progress(self, current: Round) -> None:
        """Log one line an interval while there is progress."""
        before = current.ingest.statistics()
        while True:
            await anyio.sleep(current.settings.log_interval_seconds)
            now = current.ingest.statistics()
            if now.stored != before.stored or now.failures != before.failures:
                logger.info(
                    "stored %d profiles (%d in all), %d waiting, %d tried again, %d set aside",
                    now.stored - before.stored,
                    len(self.index.spans),
                    now.waiting,
                    now.retrying,
                    sum(now.set_aside.values()),
                )
            before = now


Beside: TypeAlias = Callable[["Daemon"], Coroutine[Any, Any, None]]


async def run_daemon(
    settings: Settings,
    *,
    reload_settings: Callable[[], Settings] | None = None,
    beside: Beside | None = None,
    beside_forever: Beside | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    surroundings: Surroundings | None = None,
) -> None:
    """Open the store, load the index and run a daemon until it is stopped.

    A store that turns out to be damaged is set aside, and the daemon begins anew with an empty one.

    Args:
        reload_settings: called at SIGHUP.
        beside: runs beside the daemon once it answers, again after a damaged store; the daemon stops when it returns.
        beside_forever: the same, but is cancelled when the daemon stops.
        progress: told how many of how many spans are loaded; called in a worker thread.
        surroundings: of a service.

    Raises:
        ConfigError: a setting cannot be used; StoreError: the store cannot.
    """
    given = surroundings or Surroundings()
    with open_state(settings.daemon_state_dir, settings.daemon_socket) as state:
        again = True
        while again:
            again = False
            try:
                with open_store(state.store_path, memory_bytes=settings.store_memory_bytes) as store:
                    daemon = await load_daemon(settings, state, store, given, progress)
                    async with anyio.create_task_group() as group:
                        await group.start(daemon.run, reload_settings or (lambda: settings))
                        if beside is not None:
                            await beside(daemon)
                            daemon.stop()
                        if beside_forever is not None:
                            group.start_soon(run_until, beside_forever, daemon)
            except* StoreDamaged as damages:
                state.set_aside(first_of(damages))
                again = True


async def load_daemon(
    settings: Settings, state: State, store: Store, given: Surroundings, progress: Callable[[int, int], None]
) -> Daemon:
    """Make a daemon that knows what the store holds."""
    service = Service(given.notifier)

    def show_loading(done: int, total: int) -> None:
        progress(done, total)
        service.loading(done, total)

    index = await anyio.to_thread.run_sync(load_index, store, show_loading)
    load = partial(load_budgets, store, index.catalog, limit=settings.metrics_functions_per_phase)
    budgets = await anyio.to_thread.run_sync(load)
    endings = Endings(arrivals=loaded(await anyio.to_thread.run_sync(store.get_meta, META_KEY)))
    if len(index.spans):
        logger.info("loaded %d profiles from %s", len(index.spans), settings.daemon_state_dir)
    state.opened(index.next_number)
    listener = None if given.listener is None else given.listener.dup()  # the server closes what it is given
    return Daemon(settings, state, store, index, budgets, endings, service, listener)


def first_of(group: BaseExceptionGroup[StoreDamaged]) -> StoreDamaged:
    """Return one of the errors in a group."""
    error = group.exceptions[0]
    return first_of(error) if isinstance(error, BaseExceptionGroup) else error


async def cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    """Cancel a scope when something happens."""
    await event.wait()
    scope.cancel()


async def run_until(beside: Beside, daemon: Daemon) -> None:
    """Run something beside a daemon until the daemon stops."""
    async with anyio.create_task_group() as group:
        group.start_soon(beside, daemon)
        await daemon.stopped()
        group.cancel_scope.cancel()
