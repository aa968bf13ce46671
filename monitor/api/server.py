"""The HTTP server: a unix socket that only one daemon owns, and TCP where it is configured.

The one place besides ingest where any exception of one request is caught: it is logged, counted and answered with 500.
"""

from __future__ import annotations

import logging
import socket as unix_sockets
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import msgspec
from aiohttp import web

from monitor.answers import Engine
from monitor.api.access import Access, SocketAccess, WebAccess, allowed_users, group_number
from monitor.api.captures import CAPTURE_PATH, ask_captures
from monitor.api.connections import LARGEST_URL_BYTES, Connection, Limits, Listener, affordable, error_body
from monitor.api.openapi import openapi_document
from monitor.api.parameters import Values, scope_of, shortened
from monitor.api.routes import ROUTES, WATCH_PARAMETERS, Reply, Route, check_names
from monitor.api.scrape import METRICS_PATH, SD_PATH, Scraping
from monitor.api.sockets import query_listener, tcp_listeners
from monitor.api.watch import stream_events
from monitor.errors import AccessRefused, QueryError, SourceUnavailable, StoreError

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
LARGEST_BODY_BYTES = 64 * 1024
HTTP_OPTIONS: dict[str, Any] = {
    "access_log": None,
    "logger": http_logger,
    "max_line_size": LARGEST_URL_BYTES + 1024,
    "max_field_size": 8 * 1024,
    "max_headers": 64,
}
"""The most that is kept of a request before it is answered: about 0.6 MB, and 0.1 MB of those behind it."""

DEFAULT_LIMITS = Limits()

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
        connections: open now, by listener ("unix", "tcp").
        dropped: connections that were refused or ended by the server, by (listener, why).
        refused: requests that were not let in, or were none, by why.
    """

    requests: Mapping[tuple[str, int], int]
    seconds: Mapping[str, float]
    running: int
    connections: Mapping[str, int]
    dropped: Mapping[tuple[str, str], int]
    refused: Mapping[str, int]


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
    listeners: list[Listener] = field(default_factory=list)
    _limiter: anyio.CapacityLimiter | None = None
    _refused: Counter[str] = field(default_factory=Counter)

    def statistics(self) -> ServerStatistics:
        """Say what was asked."""
        return ServerStatistics(
            requests=dict(self._requests),
            seconds=dict(self._seconds),
            running=0 if self._limiter is None else self._limiter.borrowed_tokens,
            connections={each.name: len(each.open) for each in self.listeners},
            dropped={(each.name, why): count for each in self.listeners for why, count in each.dropped.items()},
            refused={**self._refused, "malformed": sum(each.malformed for each in self.listeners)},
        )

    def note(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests[route, status] += 1
        self._seconds[route] += seconds

    def note_refusal(self, reason: str) -> None:
        """Count one request that was not let in."""
        self._refused[reason] += 1


@dataclass(slots=True, kw_only=True)
class Application:
    """The handlers of one listener's routes."""

    engine: Engine
    server: Server
    limiter: anyio.CapacityLimiter
    timeout_seconds: float
    scraping: Scraping
    access: Access
    body_seconds: float

    def build(self, *, with_api: bool, with_capture: bool = False) -> web.Application:
        """Make the aiohttp application."""
        app = web.Application(middlewares=[self.guard], client_max_size=LARGEST_BODY_BYTES)
        app.on_response_prepare.append(self.add_headers)
        app[WITH_API] = with_api
        app.router.add_get(METRICS_PATH, self.scraping.metrics)
        app.router.add_get(SD_PATH, self.scraping.targets)
        app.router.add_get("/", self.landing)
        if with_api:
            for route in ROUTES:
                app.router.add_get(route.path, self.handler(route))
            app.router.add_get("/v1/watch", self.watch, allow_head=False)  # a stream has no end to wait for
            app.router.add_get("/v1/openapi.json", self.openapi)
        if with_capture:
            app.router.add_post(CAPTURE_PATH, self.capture)
        return app

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let in who may ask, turn every error into the one shape, and count every request."""
        started = perf_counter()
        resource = request.match_info.route.resource
        route = "other" if resource is None else resource.canonical
        connection = request.protocol
        assert isinstance(connection, Connection)  # `Listener` makes no other
        connection.begin()
        try:
            await self.access.admit(connection, request.headers.get("Authorization", ""))
            if len(request.raw_path) > LARGEST_URL_BYTES:
                raise QueryError(
                    f"the URL has more than {LARGEST_URL_BYTES} bytes; ask for less at once",
                    status=413,
                    code="too_large",
                )
            response: web.StreamResponse = await handler(request)
        except AccessRefused as error:
            self.server.note_refusal(error.reason)
            response = error_response(error.status, error.code, error.message)
            response.headers.extend({"WWW-Authenticate": error.challenge} if error.challenge else {})
        except QueryError as error:
            response = error_response(error.status, error.code, error.message, error.parameter)
        except web.HTTPNotFound:
            paths = [known.path for known in ROUTES] + ["/v1/watch", "/v1/openapi.json"]
            known = ", ".join([*(paths if request.app[WITH_API] else []), METRICS_PATH, SD_PATH])
            response = error_response(404, "no_such_route", f"no route {shortened(request.path)}; there are: {known}")
        except web.HTTPException as error:
            response = error_response(error.status, "http_error", error.reason)
            response.headers.extend({"Allow": error.headers["Allow"]} if "Allow" in error.headers else {})
        except (StoreError, SourceUnavailable) as error:
            response = error_response(503, "unavailable", str(error))
        except Exception:
            logger.exception("a request failed: %s", shortened(request.path_qs))
            response = error_response(500, "internal", "an error of phasewatch itself; its log says more")
        finally:
            connection.end()
        self.server.note(route, response.status, perf_counter() - started)
        return response

    async def add_headers(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Add what the web configuration file says."""
        response.headers.update(self.access.headers)

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
        try:
            with anyio.fail_after(self.body_seconds):
                body = await request.read()
        except TimeoutError:
            raise QueryError("the body took too long to arrive", status=408, code="slow_request") from None
        async with self.turn():
            answer = await ask_captures(self.engine, body)
        return web.Response(body=msgspec.json.encode(answer), headers={"Content-Type": "application/json"})

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
    socket_group: str = "",
    socket_users: Sequence[str] = (),
    web_config_file: Path | None = None,
    must_protect: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> AsyncIterator[Server]:
    """Serve until the block is left.

    Args:
        socket_mode: access rights of the unix socket. socket_group: its group; "" leaves it.
        socket_users: who may ask there, besides root and the daemon's own user; nobody for all whom its rights let in.
        listen: HOST:PORT for TCP, port 0 for any; "" for none.
        listen_api: serve /v1 over TCP too.
        target: HOST:PORT that /sd gives out; "" for where it was asked.
        inherited: a listening unix socket, used in place of making one; closed at the end.
        web_config_file: who may come in over TCP; None for all. must_protect: refuse one that lets all in.

    Raises:
        ConfigError: the socket, the address or the file is taken or cannot be used.
    """
    limiter = anyio.CapacityLimiter(max_concurrent)
    users = await anyio.to_thread.run_sync(allowed_users, socket_users)
    group = await anyio.to_thread.run_sync(group_number, socket_group)
    limits = replace(limits, connections=affordable(limits.connections, 2 if listen else 1))
    access = WebAccess(web_config_file, must_protect=must_protect)
    async with AsyncExitStack() as stack:
        listener, path = stack.enter_context(query_listener(socket, socket_mode, group, inherited))
        server = Server(socket=path, _limiter=limiter)
        server.listeners.append(
            Listener(name="unix", sockets=[listener], limits=limits, access=SocketAccess(users)),
        )
        if listen:
            await anyio.to_thread.run_sync(access.read)
            there = stack.enter_context(tcp_listeners(listen))
            server.address = f"{listen.rpartition(':')[0]}:{there[0].getsockname()[1]}"
            server.listeners.append(Listener(name="tcp", sockets=there, limits=limits, access=access))
        for each in server.listeners:
            application = Application(
                engine=engine,
                server=server,
                limiter=limiter,
                timeout_seconds=timeout_seconds,
                scraping=Scraping(engine=engine, target=target, address=lambda: server.address),
                access=each.access,
                body_seconds=limits.head_seconds,
            )
            local = each.name == "unix"
            app = application.build(with_api=local or listen_api, with_capture=local)
            await stack.enter_async_context(serving(app, each))
        yield server


@asynccontextmanager
async def serving(app: web.Application, listener: Listener) -> AsyncIterator[None]:
    """Answer what comes in by a listener while the block lasts."""
    runner = web.AppRunner(
        app, handle_signals=False, shutdown_timeout=SHUTDOWN_SECONDS, handler_cancellation=True, **HTTP_OPTIONS
    )
    await runner.setup()
    assert runner.server is not None
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(listener.run, runner.server, HTTP_OPTIONS)
            yield
            group.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(SHUTDOWN_ENDS_SECONDS, shield=True):
            await runner.cleanup()


def response_of(reply: Reply) -> web.Response:
    """Turn a reply into a response."""
    headers = {"Content-Type": reply.content_type}
    if reply.file_name is not None:
        headers["Content-Disposition"] = f'attachment; filename="{reply.file_name}"'
    return web.Response(body=reply.body, headers=headers)


def error_response(status: int, code: str, message: str, parameter: str | None = None) -> web.Response:
    """Build the one error shape."""
    body = error_body(code, message, parameter)
    return web.Response(status=status, body=body, headers={"Content-Type": "application/json"})


def query_pairs(request: web.Request) -> list[tuple[str, str]]:
    """Return the query's parameters in order."""
    return list(request.query.items())
