"""Connections of one listener: how many there may be, how long each may take, and who is at its other end.

aiohttp reads requests and writes answers. What it leaves open is decided here: a bound on connections, on the time to
the whole head of a request, on doing nothing, and on not reading an answer. Nothing waits for a client without an end.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket as unix_sockets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from anyio.abc import TaskGroup

from monitor.api.access import Access, Peer, peer_of
from monitor.api.schema import ErrorAnswer, ErrorBody
from monitor.logs import log_once

logger = logging.getLogger("phasewatch.connections")

DROP_REASONS = ("too_many", "slow_request", "idle", "stalled", "handshake", "no_descriptor")
LARGEST_URL_BYTES = 64 * 1024
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_SECONDS = 0.2
"""Before a connection is accepted again that there was no descriptor for."""
LOOKS_A_LIMIT = 4
RESERVED_DESCRIPTORS = 256
"""For the store, sources, decoders and everything else that is no connection."""
SHOWN_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and how many.

    Attributes:
        connections: open at the same time on one listener.
        head_seconds: from the first byte of a request, or from connecting, to the end of its headers; also for a body.
        idle_seconds: between an answer and the next request.
        stalled_seconds: without a byte of an answer being taken.
        look_seconds: between two looks at them.
    """

    connections: int = 256
    head_seconds: float = 10.0
    idle_seconds: float = 120.0
    stalled_seconds: float = 30.0
    look_seconds: float = 1.0


@dataclass(slots=True, kw_only=True)
class Listener:
    """Accepts connections on sockets of one kind.

    Attributes:
        name: for metrics.
        dropped: connections that were refused or ended here, by why.
        malformed: requests that were none.
    """

    name: str
    sockets: Sequence[unix_sockets.socket]
    limits: Limits
    access: Access
    open: set[Connection] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    malformed: int = 0
    _taken: int = 0

    async def run(self, server: web.Server, options: Mapping[str, Any]) -> None:
        """Accept until cancelled; connections are ended by the server's own shutdown."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._look_after)
            for socket in self.sockets:
                group.start_soon(self._accept, socket, group, server, options)

    async def _accept(
        self, socket: unix_sockets.socket, group: TaskGroup, server: web.Server, options: Mapping[str, Any]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(socket)
            except OSError as error:
                if error.errno in NO_DESCRIPTORS:
                    self.dropped["no_descriptor"] += 1
                    log_once(logger, "descriptors", "no connection can be accepted: %s", error, level=logging.ERROR)
                    await anyio.sleep(PAUSE_SECONDS)
                continue
            if self._taken >= self.limits.connections:
                self._refuse(client)
                continue
            self._taken += 1
            group.start_soon(self._open, client, Connection(server, self, peer_of(client), options))

    def _refuse(self, client: unix_sockets.socket) -> None:
        self.dropped["too_many"] += 1
        log_once(
            logger,
            f"too many {self.name}",
            "%d connections are open (%s), so more are refused; see query.max_connections",
            self._taken,
            self.name,
            level=logging.WARNING,
        )
        with client, suppress(OSError):
            if self.access.tls is None:
                client.send(plain_answer(503, "busy", f"{self._taken} connections are open already; try again"))

    async def _open(self, client: unix_sockets.socket, connection: Connection) -> None:
        tls = self.access.tls
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                client,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else self.limits.head_seconds,
                ssl_shutdown_timeout=None if tls is None else self.limits.head_seconds,
            )
        except OSError as error:  # ssl's errors and timeouts are such too
            logger.debug("a connection did not come about: %s", error)
            self.dropped["handshake"] += 1
            self._taken -= connection not in self.open

    async def _look_after(self) -> None:
        limits = self.limits
        shortest = min(limits.head_seconds, limits.idle_seconds, limits.stalled_seconds)
        while True:
            await anyio.sleep(min(limits.look_seconds, shortest / LOOKS_A_LIMIT))
            await self.access.refresh()
            now = asyncio.get_running_loop().time()
            for connection in list(self.open):
                reason = connection.overdue(now)
                if reason:
                    self.dropped[reason] += 1
                    connection.drop(reason)

    def forget(self, connection: Connection) -> None:
        """Give a connection's place back."""
        if connection in self.open:
            self.open.discard(connection)
            self._taken -= 1


class Connection(web.RequestHandler):
    """One connection. `begin` and `end` tell it when a request is being answered.

    Attributes:
        peer: who is at the other end of a unix socket.
    """

    __slots__ = ("_begun", "_busy", "_ending", "_listener", "_moved", "_raw", "_since", "_unsent", "peer")

    def __init__(self, server: web.Server, listener: Listener, peer: Peer | None, options: Mapping[str, Any]) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self.peer = peer
        self._listener = listener
        self._raw: asyncio.Transport | None = None
        self._busy = self._ending = False
        self._begun = True  # a client that connects wants something
        self._since = self._moved = 0.0
        self._unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place among the open ones."""
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        self._since = self._loop.time()
        self._listener.open.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give it back."""
        super().connection_lost(exc)
        self._listener.forget(self)

    def data_received(self, data: bytes) -> None:
        """Note when a request begins."""
        if data and not self._busy and not self._begun:
            self._begun, self._since = True, self._loop.time()
        super().data_received(data)

    def resume_writing(self) -> None:
        """Note that the client reads."""
        self._moved = self._loop.time()
        super().resume_writing()

    def begin(self) -> None:
        """Note that a request's head is whole."""
        self._busy, self._moved = True, self._loop.time()

    def end(self) -> None:
        """Note that its answer is made, though not sent yet."""
        self._busy = self._begun = False
        self._since = self._loop.time()

    def certificate(self) -> Mapping[str, object]:
        """Return the client's verified certificate."""
        found = None if self._raw is None else self._raw.get_extra_info("peercert")
        return found or {}

    def overdue(self, now: float) -> str:
        """Say in a word why the connection must end, if it must."""
        if self._raw is None:
            return ""
        unsent = self._raw.get_write_buffer_size()
        if unsent < self._unsent or not unsent:
            self._moved = now
        self._unsent = unsent
        if self._ending:
            return "stalled"
        if unsent:
            self._since = now
            return "stalled" if now - self._moved > self._listener.limits.stalled_seconds else ""
        if self._busy:
            return ""
        if self._begun:
            return "slow_request" if now - self._since > self._listener.limits.head_seconds else ""
        return "idle" if now - self._since > self._listener.limits.idle_seconds else ""

    def drop(self, reason: str) -> None:
        """End the connection, with a word to a client that may still listen."""
        if self._raw is None:
            return
        if reason == "stalled":
            self._raw.abort()
            return
        if reason == "slow_request":
            self._raw.write(plain_answer(408, "slow_request", "the request took too long to arrive"))
        self._ending = True
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no request in the one shape, and count it."""
        if status >= 500:
            logger.error("a request failed outside its handler", exc_info=exc)
            code, text = "internal", "an error of phasewatch itself; its log says more"
        elif isinstance(exc, LineTooLong):
            status, code, text = 431, "too_large", "a header is too long"
            if exc.args[1] == self.max_line_size:
                status, text = 413, f"the URL has more than {LARGEST_URL_BYTES} bytes; ask for less at once"
        else:
            first = (message or "").strip().partition("\n")[0][:SHOWN_BYTES]
            code, text = "malformed", f"this is no proper request: {first}".rstrip(": ")
        self._listener.malformed += status < 500
        response = web.Response(status=status, body=error_body(code, text), content_type="application/json")
        response.force_close()
        return response


def error_body(code: str, message: str, parameter: str | None = None) -> bytes:
    """Write the one error shape."""
    return msgspec.json.encode(ErrorAnswer(ErrorBody(code=code, message=message, parameter=parameter)))


def plain_answer(status: int, code: str, message: str) -> bytes:
    """Write an error where there is no request to answer."""
    body = error_body(code, message)
    head = f"HTTP/1.1 {status} {web.Response(status=status).reason}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def affordable(connections: int, listeners: int) -> int:
    """Return how many connections a listener may have, so that descriptors are left for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    most = max(1, (soft - RESERVED_DESCRIPTORS) // listeners)
    if most < connections:
        logger.warning(
            "query.max_connections is %d, and with at most %d open files only %d are possible", connections, soft, most
        )
    return min(most, connections)
