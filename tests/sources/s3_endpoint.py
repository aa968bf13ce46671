"""A small S3 endpoint in the test's own loop: fast, counts requests, and misbehaves where it is told to.

It knows what the project asks for: listings (version 2), GET, HEAD, PUT and DELETE of objects, path style. No
signatures are checked.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from urllib.parse import quote
from xml.sax.saxutils import escape

import anyio
from aiohttp import web

from monitor.settings import S3Settings

LAST = "\U0010ffff"
XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How one answer is spoilt.

    Attributes:
        code: an S3 error with this code is answered, with this status.
        keep: only so many bytes of the body are sent; then the connection breaks, or with `stall` nothing comes.
        wrong_etag: the ETag is that of other bytes. reset: the connection breaks before any answer.
    """

    code: str = ""
    status: int = 503
    keep: int | None = None
    stall: bool = False
    wrong_etag: bool = False
    reset: bool = False


SLOW_DOWN = Fault(code="SlowDown")
Judge = Callable[[str, str], Fault | None]
"""Is asked (operation, key) for each request; gives a fault, or None for a right answer."""


class Endpoint:
    """The endpoint's objects and what it has done. One bucket for any name.

    Attributes:
        requests: by operation: list, get, head, put, delete.
        judge: decides which requests go wrong.
        hidden: keys that exist and are not listed yet.
        headers: of each request, with its operation.
        at_once: the most requests that were under way at the same time.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.keys: list[str] = []
        self.requests: Counter[str] = Counter()
        self.judge: Judge = lambda operation, key: None
        self.hidden: set[str] = set()
        self.headers: list[tuple[str, Mapping[str, str]]] = []
        self.url = ""
        self.at_once = self._under_way = 0
        self.stopping = anyio.Event()

    @property
    def settings(self) -> S3Settings:
        """How a client reaches it."""
        return S3Settings(region="us-east-1", endpoint=self.url, path_style=True)

    def put(self, key: str, data: bytes) -> None:
        """Put an object."""
        if key not in self.objects:
            insort(self.keys, key)
        self.objects[key] = data

    def put_many(self, objects: dict[str, bytes]) -> None:
        """Put very many objects."""
        self.objects.update(objects)
        self.keys = sorted(self.objects)

    def remove(self, key: str) -> None:
        """Remove an object, if it is there."""
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        _, _, key = request.path.lstrip("/").partition("/")
        operation = {"GET": "get" if key else "list"}.get(request.method, request.method.lower())
        self.requests[operation] += 1
        self.headers.append((operation, request.headers))
        self._under_way += 1
        self.at_once = max(self.at_once, self._under_way)
        try:
            fault = self.judge(operation, key or request.query.get("prefix", "")) or Fault()
            if fault.reset and request.transport is not None:
                request.transport.abort()
                raise ConnectionResetError("as told by a test")
            if fault.code:
                return error(fault.code, fault.status)
            if operation == "list":
                return self._list(request)
            if operation == "put":
                if request.headers.get("Expect") and request.transport is not None:
                    request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                data = await request.read()
                self.put(key, data)
                return web.Response(headers={"ETag": etag(data)})
            if operation == "delete":
                self.remove(key)
                return web.Response(status=204)
            return await self._get(request, key, fault)
        finally:
            self._under_way -= 1

    async def _get(self, request: web.BaseRequest, key: str, fault: Fault) -> web.StreamResponse:
        data = self.objects.get(key)
        if data is None:
            return error("NoSuchKey", 404)
        headers = {
            "ETag": etag(b"other" if fault.wrong_etag else data),
            "Last-Modified": formatdate(1_700_000_000, usegmt=True),
            "Content-Length": str(len(data)),
        }
        response = web.StreamResponse(headers=headers)
        response.content_type = "binary/octet-stream"
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        await response.write(data if fault.keep is None else data[: fault.keep])
        if fault.stall:
            await self.stopping.wait()
        if fault.keep is not None and request.transport is not None:
            request.transport.abort()
        return response

    def _list(self, request: web.BaseRequest) -> web.Response:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        most = int(query.get("max-keys", "1000"))
        found, folders, more = self._find(prefix, delimiter, after, most)
        token = f"<NextContinuationToken>{quote(more)}</NextContinuationToken>" if more else ""
        contents = "".join(
            f"<Contents><Key>{quote(key)}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified>"
            f"<ETag>{escape(etag(self.objects[key]))}</ETag><Size>{len(self.objects[key])}</Size></Contents>"
            for key in found
        )
        shown = "".join(f"<CommonPrefixes><Prefix>{quote(folder)}</Prefix></CommonPrefixes>" for folder in folders)
        text = (
            f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="{XMLNS}"><EncodingType>url</EncodingType>'
            f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{token}{contents}{shown}</ListBucketResult>"
        )
        return web.Response(text=text, content_type="application/xml")

    def _find(self, prefix: str, delimiter: str, after: str, most: int) -> tuple[list[str], list[str], str]:
        """Return keys, folders, and where to go on, or "" at the end."""
        found: list[str] = []
        folders: list[str] = []
        place = max(bisect_left(self.keys, prefix), bisect_right(self.keys, after) if after else 0)
        last = after
        while place < len(self.keys) and self.keys[place].startswith(prefix):
            if len(found) + len(folders) >= most:
                return found, folders, last
            key = self.keys[place]
            head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if key in self.hidden:
                place += 1
            elif cut:
                folders.append(f"{prefix}{head}{cut}")
                last = f"{prefix}{head}{cut}{LAST}"
                place = bisect_right(self.keys, last)
            else:
                found.append(key)
                last = key
                place += 1
        return found, folders, ""


def etag(data: bytes) -> str:
    """Return the ETag of an object that was put in one piece."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def error(code: str, status: int) -> web.Response:
    """Answer with an error as S3 writes it."""
    text = f"<?xml version='1.0'?><Error><Code>{escape(code)}</Code><Message>as told by a test</Message></Error>"
    return web.Response(text=text, status=status, content_type="application/xml")


@asynccontextmanager
async def open_endpoint() -> AsyncIterator[Endpoint]:
    """Serve on a free port of 127.0.0.1 until the block ends."""
    endpoint = Endpoint()
    runner = web.ServerRunner(web.Server(endpoint.handle, access_log=None), shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        endpoint.url = f"http://{host}:{port}"
        yield endpoint
    finally:
        endpoint.stopping.set()
        await runner.cleanup()
