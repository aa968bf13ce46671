"""How far sources have come, kept in the store: written once all that came before is stored, by the storing task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio.to_thread

from monitor.store import Store

PREFIX = "cursor:"


class Bookmarks:
    """What sources want to be kept, until the storing task writes it.

    Args:
        settled: waits until all that was accepted before the call is stored, or known not to be ready.
    """

    def __init__(self, store: Store, settled: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._settled = settled
        self._waiting: dict[str, str] = {}

    def of(self, name: str) -> Bookmark:
        """Return the bookmark of one source."""
        return Bookmark(self, PREFIX + name)

    async def load(self, key: str) -> str | None:
        """Return what was kept last."""
        return await anyio.to_thread.run_sync(self._store.get_meta, key)

    async def keep(self, key: str, text: str) -> None:
        """Have a text written once all that was accepted before is stored."""
        await self._settled()
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

    def __init__(self, bookmarks: Bookmarks, key: str) -> None:
        self._bookmarks = bookmarks
        self._key = key

    async def load(self) -> str | None:
        """Return what was kept last."""
        return await self._bookmarks.load(self._key)

    async def keep(self, text: str) -> None:
        """Keep this, once all that was handed over before is stored."""
        await self._bookmarks.keep(self._key, text)
