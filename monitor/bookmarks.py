"""How far sources have come, kept in the store: written once all that came before is stored, by the storing task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio.to_thread

from monitor.sources.base import FileRef
from monitor.store import Store

PREFIX = "cursor:"


class Bookmarks:
    """What sources want to be kept, until the storing task writes it. `attach` says what becomes of their spans."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settled: Callable[[], Awaitable[None]] | None = None
        self._is_stored: Callable[[int, FileRef], bool] | None = None
        self._waiting: dict[str, str] = {}

    def attach(self, *, settled: Callable[[], Awaitable[None]], is_stored: Callable[[int, FileRef], bool]) -> None:
        """Say who stores.

        Args:
            settled: waits until all that was accepted before the call is stored, or known not to be ready.
            is_stored: tells whether a span of a source, given by its number, is stored.
        """
        self._settled, self._is_stored = settled, is_stored

    def of(self, source: int, name: str) -> Bookmark:
        """Return the bookmark of one source."""
        return Bookmark(self, source, PREFIX + name)

    def is_stored(self, source: int, ref: FileRef) -> bool:
        """Tell whether a span of a source is stored."""
        return self._is_stored is not None and self._is_stored(source, ref)

    async def settled(self) -> None:
        """Wait until all that was accepted before the call is stored, or known not to be ready."""
        if self._settled is None:
            raise RuntimeError("nobody stores what the sources find")
        await self._settled()

    async def load(self, key: str) -> str | None:
        """Return what was kept last."""
        return await anyio.to_thread.run_sync(self._store.get_meta, key)

    async def keep(self, key: str, text: str) -> None:
        """Have a text written once all that was accepted before is stored."""
        await self.settled()
        self._waiting[key] = text

    async def write(self) -> None:
        """Write what waits. Only for the storing task. Raises StoreError; nothing is lost then."""
        if self._waiting:
            writing = dict(self._waiting)
            await anyio.to_thread.run_sync(self._write, writing)
            for key, text in writing.items():
                if self._waiting.get(key) == text:
                    del self._waiting[key]

    def _write(self, texts: dict[str, str]) -> None:
        with self._store.transaction():
            for key, text in texts.items():
                self._store.set_meta(key, text)


class Bookmark:
    """Where one source keeps how far it has come."""

    def __init__(self, bookmarks: Bookmarks, source: int, key: str) -> None:
        self._bookmarks = bookmarks
        self._source = source
        self._key = key

    async def load(self) -> str | None:
        """Return what was kept last."""
        return await self._bookmarks.load(self._key)

    async def keep(self, text: str) -> None:
        """Keep this, once all that was handed over before is stored."""
        await self._bookmarks.keep(self._key, text)

    async def settled(self) -> None:
        """Wait until all that was handed over before is stored, or known not to be ready."""
        await self._bookmarks.settled()

    def is_stored(self, ref: FileRef) -> bool:
        """Tell whether a span is stored."""
        return self._bookmarks.is_stored(self._source, ref)
