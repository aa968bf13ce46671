"""Clients of the query socket: a blocking one that needs no event loop, and an asynchronous one."""

from __future__ import annotations

import http.client
import json
import socket as sockets
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from monitor.api.schema import (
    DroppedEvent,
    ErrorAnswer,
    JobPhasesAnswer,
    JobsAnswer,
    NodesAnswer,
    ProfileAnswer,
    ProfilesAnswer,
    StatsAnswer,
    TrainingPhasesAnswer,
)
from monitor.errors import QueryError, SourceUnavailable

Word: TypeAlias = str | int | float | bool | Iterable[str] | None
StructT = TypeVar("StructT", bound=msgspec.Struct)

FOREIGN_ERRORS = (aiohttp.ClientError, TimeoutError)
"""What aiohttp raises when nobody answers, when the answer takes too long, or when it breaks off."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_seconds: float | None) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Client:
    """Asks a daemon and waits for the answer. Keyword arguments are the words of the URL's parameters.

    Every call raises QueryError for what the daemon refuses and SourceUnavailable when nobody listens.
    """

    def __init__(self, socket: str | Path, *, timeout_seconds: float = 60.0) -> None:
        self._socket = Path(socket)
        self._timeout_seconds = timeout_seconds

    def raw(self, path: str, **words: Word) -> tuple[str, bytes]:
        """Ask for a path such as "/v1/stats/step"; returns content type and body."""
        connection = UnixConnection(self._socket, self._timeout_seconds)
        try:
            connection.request("GET", url_of(path, words))
            response = connection.getresponse()
            return checked(response.status, response.headers.get("Content-Type", ""), response.read())
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self._socket, error) from error
        finally:
            connection.close()

    def step(self, start: int, end: int | None = None, **words: Word) -> StatsAnswer:
        """Ask for a range of steps."""
        return self._ask(StatsAnswer, "/v1/stats/step", start=start, end=end, **words)

    def time(self, start: float, end: float, **words: Word) -> StatsAnswer:
        """Ask for a range of time, in seconds since the epoch."""
        return self._ask(StatsAnswer, "/v1/stats/time", start=start, end=end, **words)

    def modes(self, start_mode: str, end_mode: str, **words: Word) -> StatsAnswer:
        """Ask for what ran between two modes."""
        return self._ask(StatsAnswer, "/v1/stats/modes", start_mode=start_mode, end_mode=end_mode, **words)

    def pre_step_zero(self, **words: Word) -> StatsAnswer:
        """Ask for what ran before step zero."""
        return self._ask(StatsAnswer, "/v1/stats/pre-step-zero", **words)

    def post_hook_close(self, **words: Word) -> StatsAnswer:
        """Ask for what ran after the hook closed."""
        return self._ask(StatsAnswer, "/v1/stats/post-hook-close", **words)

    def training_phases(self, **words: Word) -> TrainingPhasesAnswer:
        """Ask for all training phases."""
        return self._ask(TrainingPhasesAnswer, "/v1/stats/training-phases", **words)

    def job_phases(self, **words: Word) -> JobPhasesAnswer:
        """Ask for the job phases."""
        return self._ask(JobPhasesAnswer, "/v1/stats/job-phases", **words)

    def profiles(self, **words: Word) -> ProfilesAnswer:
        """Ask for a page of spans."""
        return self._ask(ProfilesAnswer, "/v1/profiles", **words)

    def nodes(self, **words: Word) -> NodesAnswer:
        """Ask who wrote spans."""
        return self._ask(NodesAnswer, "/v1/nodes", **words)

    def jobs(self, **words: Word) -> JobsAnswer:
        """Ask for the jobs."""
        return self._ask(JobsAnswer, "/v1/jobs", **words)

    def status(self) -> dict[str, Any]:
        """Ask how the daemon does."""
        answer: dict[str, Any] = json.loads(self.raw("/v1/status")[1])
        return answer

    def capture(self, steps: int, **fields: object) -> dict[str, Any]:
        """Ask jobs to profile their next steps; fields are nodes, modes, profiler and job."""
        return self._post("/v1/capture", {"steps": steps, **fields})

    def retry(self, *, jobs: Iterable[str] = (), nodes: Iterable[str] = ()) -> int:
        """Have files read again that were set aside, of these jobs and nodes or of all; returns how many."""
        return int(self._post("/v1/retry", {"jobs": list(jobs), "nodes": list(nodes)})["retried"])

    def _post(self, path: str, fields: Mapping[str, object]) -> dict[str, Any]:
        connection = UnixConnection(self._socket, self._timeout_seconds)
        try:
            connection.request("POST", path, json.dumps(fields))
            response = connection.getresponse()
            _, body = checked(response.status, response.headers.get("Content-Type", ""), response.read())
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self._socket, error) from error
        finally:
            connection.close()
        answer: dict[str, Any] = json.loads(body)
        return answer

    def watch(self, **words: Word) -> Generator[ProfileAnswer | DroppedEvent, None, None]:
        """Wait for new spans, for as long as the daemon runs."""
        connection = UnixConnection(self._socket, None)
        try:
            connection.request("GET", url_of("/v1/watch", words))
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                checked(response.status, "", response.read())
            yield from parse_events(response)
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self._socket, error) from error
        finally:
            connection.close()

    def _ask(self, kind: type[StructT], path: str, **words: Word) -> StructT:
        return msgspec.json.decode(self.raw(path, **words)[1], type=kind)


class AsyncClient:
    """The same without blocking; made by `open_client`."""

    def __init__(self, session: aiohttp.ClientSession, socket: Path) -> None:
        self._session = session
        self._socket = socket

    async def raw(self, path: str, **words: Word) -> tuple[str, bytes]:
        """Ask for a path such as "/v1/stats/step"; returns content type and body."""
        try:
            async with self._session.get(f"http://localhost{url_of(path, words)}") as response:
                return checked(response.status, response.headers.get("Content-Type", ""), await response.read())
        except FOREIGN_ERRORS as error:
            raise unreachable(self._socket, error) from error

    async def step(self, start: int, end: int | None = None, **words: Word) -> StatsAnswer:
        """Ask for a range of steps."""
        return await self._ask(StatsAnswer, "/v1/stats/step", start=start, end=end, **words)

    async def time(self, start: float, end: float, **words: Word) -> StatsAnswer:
        """Ask for a range of time, in seconds since the epoch."""
        return await self._ask(StatsAnswer, "/v1/stats/time", start=start, end=end, **words)

    async def modes(self, start_mode: str, end_mode: str, **words: Word) -> StatsAnswer:
        """Ask for what ran between two modes."""
        return await self._ask(StatsAnswer, "/v1/stats/modes", start_mode=start_mode, end_mode=end_mode, **words)

    async def pre_step_zero(self, **words: Word) -> StatsAnswer:
        """Ask for what ran before step zero."""
        return await self._ask(StatsAnswer, "/v1/stats/pre-step-zero", **words)

    async def post_hook_close(self, **words: Word) -> StatsAnswer:
        """Ask for what ran after the hook closed."""
        return await self._ask(StatsAnswer, "/v1/stats/post-hook-close", **words)

    async def training_phases(self, **words: Word) -> TrainingPhasesAnswer:
        """Ask for all training phases."""
        return await self._ask(TrainingPhasesAnswer, "/v1/stats/training-phases", **words)

    async def job_phases(self, **words: Word) -> JobPhasesAnswer:
        """Ask for the job phases."""
        return await self._ask(JobPhasesAnswer, "/v1/stats/job-phases", **words)

    async def profiles(self, **words: Word) -> ProfilesAnswer:
        """Ask for a page of spans."""
        return await self._ask(ProfilesAnswer, "/v1/profiles", **words)

    async def nodes(self, **words: Word) -> NodesAnswer:
        """Ask who wrote spans."""
        return await self._ask(NodesAnswer, "/v1/nodes", **words)

    async def jobs(self, **words: Word) -> JobsAnswer:
        """Ask for the jobs."""
        return await self._ask(JobsAnswer, "/v1/jobs", **words)

    async def status(self) -> dict[str, Any]:
        """Ask how the daemon does."""
        answer: dict[str, Any] = json.loads((await self.raw("/v1/status"))[1])
        return answer

    async def watch(self, **words: Word) -> AsyncGenerator[ProfileAnswer | DroppedEvent, None]:
        """Wait for new spans, for as long as the daemon runs."""
        url = f"http://localhost{url_of('/v1/watch', words)}"
        try:
            response = await self._session.get(url, timeout=aiohttp.ClientTimeout(total=None))
        except FOREIGN_ERRORS as error:
            raise unreachable(self._socket, error) from error
        kind = b""
        async with response:
            while line := await self._read_line(response):
                if line.startswith(b"event: "):
                    kind = line
                for event in parse_events([kind, line] if line.startswith(b"data: ") else []):
                    yield event

    async def _read_line(self, response: aiohttp.ClientResponse) -> bytes:
        """Read one line of a stream, nothing at its end; or raise what the daemon said instead."""
        try:
            if response.status != http.HTTPStatus.OK:
                checked(response.status, "", await response.read())
            return await response.content.readline()
        except FOREIGN_ERRORS as error:
            raise unreachable(self._socket, error) from error

    async def _ask(self, kind: type[StructT], path: str, **words: Word) -> StructT:
        return msgspec.json.decode((await self.raw(path, **words))[1], type=kind)


@asynccontextmanager
async def open_client(socket: str | Path, *, timeout_seconds: float = 60.0) -> AsyncIterator[AsyncClient]:
    """Open an asynchronous client; its connections close with the block."""
    connector = aiohttp.UnixConnector(path=str(socket))
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield AsyncClient(session, Path(socket))


def url_of(path: str, words: Mapping[str, Word]) -> str:
    """Build a path with its query; None is left out, lists are repeated."""
    pairs: list[tuple[str, str]] = []
    for key, value in words.items():
        if value is None:
            continue
        if isinstance(value, bool):
            pairs.append((key, "true" if value else "false"))
        elif isinstance(value, (str, int, float)):
            pairs.append((key, repr(value) if isinstance(value, float) else str(value)))
        else:
            pairs.extend((key, part) for part in value)
    return f"{path}?{urlencode(pairs)}" if pairs else path


def checked(status: int, content_type: str, body: bytes) -> tuple[str, bytes]:
    """Return an answer, or raise what the daemon said is wrong."""
    if status < http.HTTPStatus.BAD_REQUEST:
        return content_type, body
    try:
        error = msgspec.json.decode(body, type=ErrorAnswer).error
    except msgspec.DecodeError:
        raise QueryError(f"the daemon answered {status} without saying why", status=status, code="unknown") from None
    raise QueryError(error.message, parameter=error.parameter, status=status, code=error.code)


def parse_events(lines: Iterable[bytes]) -> Iterator[ProfileAnswer | DroppedEvent]:
    """Read server-sent events."""
    kind = ""
    for line in lines:
        if line.startswith(b"event: "):
            kind = line[len(b"event: ") :].strip().decode()
        elif line.startswith(b"data: "):
            content = line[len(b"data: ") :]
            yield msgspec.json.decode(content, type=ProfileAnswer if kind == "span" else DroppedEvent)


def unreachable(socket: Path, error: Exception) -> SourceUnavailable:
    """Say that nobody answers, and what to do."""
    reason = getattr(error, "strerror", None) or error
    return SourceUnavailable(
        f"no daemon answers on {socket} ({reason}): start one with `phasewatch run PATH`, or name its --socket"
    )
