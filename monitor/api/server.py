"""The HTTP server: a unix socket that only one daemon owns, and TCP where it is configured.

The one place besides ingest where any exception of one request is caught: it is logged, counted and answered with 500.
"""

from __future__ import annotations

import logging
import socket as unix_sockets
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import anyio
import msgspec
from aiohttp import web

from monitor.answers import Engine
from monitor.api.captures import CAPTURE_PATH, ask_captures
from monitor.api.openapi import openapi_document
from monitor.api.parameters import Values, scope_of, shortened
from monitor.api.probes import PROBES, probe
from monitor.api.retries import RETRY_PATH, ask_retry
from monitor.api.routes import ROUTES, WATCH_PARAMETERS, Reply, Route, check_names
from monitor.api.schema import ErrorAnswer, ErrorBody
from monitor.api.scrape import METRICS_PATH, SD_PATH, Scraping
from monitor.api.sockets import query_listener
from monitor.api.watch import stream_events
from monitor.errors import ConfigError, QueryError, SourceUnavailable, StoreError

logger = logging.getLogger("phasewatch.server")
http_logger = logging.getLogger("phasewatch.http")
http_logger.setLevel(logging.CRITICAL)  # aiohttp would log each malformed request with a traceback

WITH_API = web.AppKey("with_api", bool)
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

SHUTDOWN_SECONDS = 0.5
SHUTDOWN_ENDS_SECONDS = 3 * SHUTDOWN_SECONDS
"""aiohttp waits for handlers twice its timeout before it cancels them; left alone before that, they would go on."""
LONGEST_WAIT_SECONDS = 5.0
"""A query waits so long for its turn before it is refused as one too many."""
LARGEST_URL_BYTES = 64 * 1024
LARGEST_LINE_BYTES = 2**20
"""What aiohttp itself refuses gets no error of ours, so it lets through more than is answered."""

LANDING = """<!doctype html><title>phasewatch</title><h1>phasewatch</h1>
<ul><li><a href="/metrics">/metrics</a></li><li><a href="/sd">/sd</a></li>{api}</ul>
"""
API_LINKS = '<li><a href="/v1/status">/v1/status</a></li><li><a href="/v1/openapi.json">/v1/openapi.json</a></li>'


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """Counts since the start.

    Attributes:
        requests: by (route, HTTP status). seconds: time spent answering, by route.
        running: queries under way.
    """

    requests: Mapping[tuple[str, int], int]
    seconds: Mapping[str, float]
    running: int


@dataclass(slots=True)
class Server:
    """A running server.

    Attributes:
        socket: the unix socket's path. address: the TCP address really bound, "" for none.
    """

    socket: Path
    address: str = ""
    _requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    _seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _limiter: anyio.CapacityLimiter | None = None

    def statistics(self) -> ServerStatistics:
        """Say what was asked."""
        running = 0 if self._limiter is None else self._limiter.borrowed_tokens
        return ServerStatistics(requests=dict(self._requests), seconds=dict(self._seconds), running=running)

    def note(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests[route, status] += 1
        self._seconds[route] += seconds


@dataclass(slots=True, kw_only=True)
class Application:
    """The handlers of one listener's routes."""

    engine: Engine
    server: Server
    limiter: anyio.CapacityLimiter
    timeout_seconds: float
    scraping: Scraping

    def build(self, *, with_api: bool, with_capture: bool = False) -> web.Application:
        """Make the aiohttp application."""
        app = web.Application(middlewares=[self.guard], client_max_size=64 * 1024)
        app[WITH_API] = with_api
        app.router.add_get(METRICS_PATH, self.scraping.metrics)
        app.router.add_get(SD_PATH, self.scraping.targets)
        app.router.add_get("/", self.landing)
        for path in PROBES:
            app.router.add_get(path, self.probe)
        if with_api:
            for route in ROUTES:
                app.router.add_get(route.path, self.handler(route))
            app.router.add_get("/v1/watch", self.watch, allow_head=False)  # a stream has no end to wait for
            app.router.add_get("/v1/openapi.json", self.openapi)
        if with_capture:
            app.router.add_post(CAPTURE_PATH, self.capture)
            app.router.add_post(RETRY_PATH, self.retry)
        return app

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn every error into the one shape, and count every request."""
        started = perf_counter()
        resource = request.match_info.route.resource
        route = "other" if resource is None else resource.canonical
        try:
            if len(request.raw_path) > LARGEST_URL_BYTES:
                raise QueryError(
                    f"the URL has more than {LARGEST_URL_BYTES} bytes; ask for less at once",
                    status=413,
                    code="too_large",
                )
            response: web.StreamResponse = await handler(request)
        except QueryError as error:
            response = error_response(error.status, error.code, error.message, error.parameter)
        except web.HTTPNotFound:
            paths = [known.path for known in ROUTES] + ["/v1/watch", "/v1/openapi.json"]
            known = ", ".join([*(paths if request.app[WITH_API] else []), METRICS_PATH, SD_PATH, *PROBES])
            response = error_response(404, "no_such_route", f"no route {shortened(request.path)}; there are: {known}")
        except web.HTTPException as error:
            response = error_response(error.status, "http_error", error.reason)
            response.headers.extend({"Allow": error.headers["Allow"]} if "Allow" in error.headers else {})
        except (StoreError, SourceUnavailable) as error:
            response = error_response(503, "unavailable", str(error))
        except Exception:
            logger.exception("a request failed: %s", shortened(request.path_qs))
            response = error_response(500, "internal", "an error of phasewatch itself; its log says more")
        self.server.note(route, response.status, perf_counter() - started)
        return response

    def handler(self, route: Route) -> Handler:
        """Make the handler of one route."""

        async def answer(request: web.Request) -> web.StreamResponse:
            values = Values(query_pairs(request), route.parameters)
            async with self.turn():
                reply = await route.handler(self.engine, values)
            return response_of(reply)

        return answer

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a place among the queries that run, and bound the time of this one."""
        try:
            with anyio.fail_after(min(LONGEST_WAIT_SECONDS, self.timeout_seconds)):
                await self.limiter.acquire()
        except TimeoutError:
            message = f"{int(self.limiter.total_tokens)} queries run already; try again"
            raise QueryError(message, status=503, code="busy") from None
        try:
            with anyio.fail_after(self.timeout_seconds):
                yield
        except TimeoutError:
            message = (
                f"the query took longer than {self.timeout_seconds:g} s; ask for less, or raise query.timeout_seconds"
            )
            raise QueryError(message, status=503, code="timeout") from None
        finally:
            self.limiter.release()

    async def capture(self, request: web.Request) -> web.Response:
        """Ask jobs to profile their next steps."""
        body = await request.read()
        async with self.turn():
            answer = await ask_captures(self.engine, body)
        return web.Response(body=msgspec.json.encode(answer), headers={"Content-Type": "application/json"})

    async def retry(self, request: web.Request) -> web.Response:
        """Have files read again that were set aside."""
        answer = ask_retry(self.engine, await request.read())
        return web.Response(body=msgspec.json.encode(answer), headers={"Content-Type": "application/json"})

    async def probe(self, request: web.Request) -> web.Response:
        """Say whether the daemon is alive, or ready."""
        return web.Response(body=probe(self.engine, request.path), headers={"Content-Type": "application/json"})

    async def landing(self, request: web.Request) -> web.Response:
        """Serve links for people."""
        text = LANDING.format(api=API_LINKS if request.app[WITH_API] else "")
        return web.Response(text=text, content_type="text/html")

    async def openapi(self, request: web.Request) -> web.Response:
        """Serve the OpenAPI document."""
        return web.json_response(openapi_document())

    async def watch(self, request: web.Request) -> web.StreamResponse:
        """Stream new spans until the client leaves or the server stops."""
        values = Values(query_pairs(request), WATCH_PARAMETERS)
        scope = scope_of(values, None)
        if scope.nodes == ("any",):
            raise QueryError("node=any means nothing here: name a node or leave it out", parameter="node")
        check_names(self.engine, scope)
        return await stream_events(request, self.engine, scope)


@asynccontextmanager
async def open_server(
    engine: Engine,
    *,
    socket: Path,
    socket_mode: int,
    listen: str,
    listen_api: bool,
    max_concurrent: int,
    timeout_seconds: float,
    target: str = "",
    inherited: unix_sockets.socket | None = None,
) -> AsyncIterator[Server]:
    """Serve until the block is left.

    Args:
        socket_mode: access rights of the unix socket.
        listen: HOST:PORT for TCP, port 0 for any; "" for none.
        listen_api: serve /v1 over TCP too.
        target: HOST:PORT that /sd gives out; "" for where it was asked.
        inherited: a listening unix socket, used in place of making one; closed at the end.

    Raises:
        ConfigError: the socket or the address is taken or cannot be used.
    """
    limiter = anyio.CapacityLimiter(max_concurrent)
    with query_listener(socket, socket_mode, inherited) as (listener, path):
        server = Server(socket=path, _limiter=limiter)
        application = Application(
            engine=engine,
            server=server,
            limiter=limiter,
            timeout_seconds=timeout_seconds,
            scraping=Scraping(engine=engine, target=target, address=lambda: server.address),
        )
        local = await start_runner(application.build(with_api=True, with_capture=True))
        try:
            await web.SockSite(local, listener).start()
            async with tcp_site(application.build(with_api=listen_api), listen, server):
                yield server
        finally:
            with anyio.move_on_after(SHUTDOWN_ENDS_SECONDS, shield=True):
                await local.cleanup()


@asynccontextmanager
async def tcp_site(app: web.Application, listen: str, server: Server) -> AsyncIterator[None]:
    """Serve over TCP while the block lasts, where an address is given."""
    if not listen:
        yield
        return
    host, _, port = listen.rpartition(":")
    runner = await start_runner(app)
    try:
        site = web.TCPSite(runner, host.strip("[]"), int(port))
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {listen}: {error.strerror or error}; choose another with --listen HOST:PORT"
            ) from error
        bound = runner.addresses[0]
        server.address = f"{host}:{bound[1]}"
        yield
    finally:
        with anyio.move_on_after(SHUTDOWN_ENDS_SECONDS, shield=True):
            await runner.cleanup()


async def start_runner(app: web.Application) -> web.AppRunner:
    """Prepare an application for its sites."""
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=http_logger,
        handle_signals=False,
        shutdown_timeout=SHUTDOWN_SECONDS,
        max_line_size=LARGEST_LINE_BYTES,
        max_field_size=16 * 1024,
        handler_cancellation=True,
    )
    await runner.setup()
    return runner


def response_of(reply: Reply) -> web.Response:
    """Turn a reply into a response."""
    headers = {"Content-Type": reply.content_type}
    if reply.file_name is not None:
        headers["Content-Disposition"] = f'attachment; filename="{reply.file_name}"'
    return web.Response(body=reply.body, headers=headers)


def error_response(status: int, code: str, message: str, parameter: str | None = None) -> web.Response:
    """Build the one error shape."""
    body = msgspec.json.encode(ErrorAnswer(ErrorBody(code=code, message=message, parameter=parameter)))
    return web.Response(status=status, body=body, headers={"Content-Type": "application/json"})


def query_pairs(request: web.Request) -> list[tuple[str, str]]:
    """Return the query's parameters in order."""
    return list(request.query.items())
