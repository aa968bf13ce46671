"""The full pass over all keys, page by page, spread over its interval and resumable at each page. Pure.

It finds what windows cannot: spans that come very late, names nobody expects, what a store's listing once left out. The
first one runs at full speed, since it is how history is taken in.
"""

from __future__ import annotations

from collections.abc import Sequence


class FullPass:
    """Where the pass stands.

    Args:
        every_seconds: between the beginnings of two passes.

    Attributes:
        completed: one pass at least has come to its end.
        pages: how many pages the pass has had so far; last_pages: how many the one before had.
    """

    def __init__(self, *, every_seconds: float) -> None:
        self._every = every_seconds
        self.completed = False
        self.pages = self.last_pages = 0
        self._begun = 0.0
        self._done: list[str] = []
        self._top = ""
        self._after = ""
        self._under_way = False

    def begin_if_due(self, now: float) -> None:
        """Begin a pass when it is time. `now` is in seconds since the epoch, so that restarts do not matter."""
        if not self._under_way and (not self.completed or not 0 <= now - self._begun < self._every):
            self._under_way = True
            self._begun = now
            self.pages = 0
            self._done, self._top, self._after = [], "", ""

    def due(self, now: float) -> bool:
        """Tell whether a page should be listed now, so that the pass ends within its interval."""
        if not self._under_way:
            return False
        if not self.completed:
            return True
        share = min(max(now - self._begun, 0.0) / (0.9 * self._every), 1.0)
        return self.pages < share * max(self.last_pages, 1) or share >= 1.0

    def next(self, tops: Sequence[str]) -> tuple[str, str] | None:
        """Return what to list: a prefix, and the key to go on after; None when the pass has come to its end."""
        if not self._top or self._top not in tops:
            left = [top for top in tops if top not in self._done]
            if not left:
                self._end()
                return None
            self._top, self._after = left[0], ""
        return self._top, self._after

    def listed(self, last_key: str, *, more: bool) -> None:
        """Note a page."""
        self.pages += 1
        self._after = last_key
        if not more:
            self._done.append(self._top)
            self._top = self._after = ""

    def _end(self) -> None:
        self.completed = True
        self._under_way = False
        self.last_pages = self.pages

    def dump(self) -> list[object]:
        """Return what is needed to go on after a restart."""
        return [
            self.completed,
            self.pages,
            self.last_pages,
            self._begun,
            self._under_way,
            self._done,
            self._top,
            self._after,
        ]

    def load(self, saved: Sequence[object]) -> None:
        """Take what `dump` returned."""
        completed, pages, last_pages, begun, under_way, done, top, after = saved
        self.completed, self._under_way = bool(completed), bool(under_way)
        self.pages, self.last_pages, self._begun = int(str(pages)), int(str(last_pages)), float(str(begun))
        self._done = [str(one) for one in done]  # type: ignore[attr-defined]
        self._top, self._after = str(top), str(after)
