"""When a file that could not be used is tried again, and when it is set aside. Pure: the time is passed in.

A half-written file is the normal case. It is looked at again after a short, growing pause, and read again only when it
has changed. When it has not changed for `broken_after_seconds` it is read one last time and set aside with its reason;
a file that was set aside is looked at every `recheck_seconds` and gets a new start when it has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import Generic, Literal, TypeAlias, TypeVar

Version: TypeAlias = tuple[int, ...] | None
Verdict: TypeAlias = Literal["wait", "set_aside"]

FIRST_PAUSE_SECONDS = 0.03
LONGEST_PAUSE_SECONDS = 5.0
PATIENCE_SECONDS = 10.0
"""A file that changed within this time is looked at every 0.1 s at the latest: it is probably being written."""

LOOKS_A_SECOND = 1_000

RefT = TypeVar("RefT", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble(Generic[RefT]):
    """One file that could not be used yet.

    Attributes:
        ref: which file.
        reason: what was wrong at the last attempt; kind: its class, one word for counting.
        version: what was read then; None for a file that is not there.
        changed: when the version last changed; due: when to look again; attempts: how often it was read.
        aside: given up on, unless it changes.
    """

    ref: RefT
    reason: str
    kind: str
    version: Version
    changed: float
    due: float
    attempts: int
    aside: bool = False


class RetryBook(Generic[RefT]):
    """All files in trouble. Changed by one task only.

    However many there are, only about `LOOKS_A_SECOND` are looked at each second: a run that leaves folders without
    data files must not cost a core.
    """

    def __init__(self, *, broken_after_seconds: float, recheck_seconds: float) -> None:
        self._broken_after = broken_after_seconds
        self._recheck = recheck_seconds
        self._troubles: dict[RefT, Trouble[RefT]] = {}
        self._queue: list[tuple[float, int, RefT]] = []
        self._ticket = count()
        self._aside: Counter[str] = Counter()

    def failed(
        self, ref: RefT, *, reason: str, kind: str, version: Version, now: float, final: bool = False
    ) -> Verdict:
        """Note that a file could not be used.

        Args:
            final: trying again is pointless unless the file changes (too large, not a regular file).

        Returns:
            "set_aside" at the moment a file is given up, else "wait".
        """
        before = self._troubles.get(ref)
        fresh = before is None or before.version != version
        changed = now if before is None or fresh else before.changed
        attempts = 1 if before is None else before.attempts + 1
        give_up = final or (not fresh and now - changed >= self._broken_after)
        self._put(
            Trouble(
                ref=ref,
                reason=reason,
                kind=kind,
                version=version,
                changed=changed,
                due=now + (self._recheck_pause() if give_up else self._pause(now - changed)),
                attempts=attempts,
                aside=give_up,
            )
        )
        newly = give_up and not (before is not None and before.aside and not fresh)
        return "set_aside" if newly else "wait"

    def settled(self, ref: RefT) -> None:
        """Forget a file: it is stored, or gone with its folder."""
        trouble = self._troubles.pop(ref, None)
        if trouble is not None and trouble.aside:
            self._aside[trouble.kind] -= 1

    def due(self, now: float, limit: int) -> list[Trouble[RefT]]:
        """Take files to look at now, those due longest first.

        Each must be passed to `looked`, `put_off`, `failed` or `settled` afterwards.
        """
        ready: list[Trouble[RefT]] = []
        while len(ready) < limit and self._drop_stale() and self._queue[0][0] <= now:
            _, _, ref = heappop(self._queue)
            ready.append(self._troubles[ref])
        return ready

    def looked(self, trouble: Trouble[RefT], version: Version, now: float) -> bool:
        """Note a look at a file that is due.

        Returns:
            True where it should be read again: it has changed, or its last chance has come.
        """
        quiet = now - trouble.changed
        changed = version != trouble.version
        if changed or (not trouble.aside and quiet >= self._broken_after):
            self._put(replace(trouble, due=now + LONGEST_PAUSE_SECONDS, aside=trouble.aside and not changed))
            return True
        self._put(replace(trouble, due=now + (self._recheck_pause() if trouble.aside else self._pause(quiet))))
        return False

    def put_off(self, trouble: Trouble[RefT], now: float) -> None:
        """Look at a file a little later: its last attempt is not finished yet."""
        if self._troubles.get(trouble.ref) is trouble:
            self._put(replace(trouble, due=now + self._pause(now - trouble.changed)))

    def next_due(self) -> float | None:
        """Return when the next file is due, or None where there is none."""
        return self._queue[0][0] if self._drop_stale() else None

    def waiting(self) -> list[Trouble[RefT]]:
        """Return the files that are still waited for."""
        return [trouble for trouble in self._troubles.values() if not trouble.aside]

    def set_aside(self) -> list[Trouble[RefT]]:
        """Return the files that were given up."""
        return [trouble for trouble in self._troubles.values() if trouble.aside]

    def count_waiting(self) -> int:
        """Count the files that are still waited for."""
        return len(self._troubles) - self._aside.total()

    def count_aside(self) -> dict[str, int]:
        """Count the files that were given up, by the class of their reason."""
        return {kind: number for kind, number in self._aside.items() if number}

    def __len__(self) -> int:
        return len(self._troubles)

    def __contains__(self, ref: object) -> bool:
        return ref in self._troubles

    def _put(self, trouble: Trouble[RefT]) -> None:
        self.settled(trouble.ref)
        self._troubles[trouble.ref] = trouble
        if trouble.aside:
            self._aside[trouble.kind] += 1
        heappush(self._queue, (trouble.due, next(self._ticket), trouble.ref))

    def _drop_stale(self) -> bool:
        """Drop entries of the queue that are out of date; tells whether any is left."""
        while self._queue:
            due, _, ref = self._queue[0]
            trouble = self._troubles.get(ref)
            if trouble is not None and trouble.due == due:
                return True
            heappop(self._queue)
        return False

    def _pause(self, quiet_seconds: float) -> float:
        return max(pause_seconds(quiet_seconds, self._broken_after), self.count_waiting() / LOOKS_A_SECOND)

    def _recheck_pause(self) -> float:
        return max(self._recheck, self._aside.total() / LOOKS_A_SECOND)


def pause_seconds(quiet_seconds: float, broken_after_seconds: float) -> float:
    """Return how long to wait before the next look at a file that has not changed for `quiet_seconds`."""
    longest = 0.1 if quiet_seconds < PATIENCE_SECONDS else LONGEST_PAUSE_SECONDS
    pause = min(max(FIRST_PAUSE_SECONDS, quiet_seconds / 4), longest)
    return min(pause, max(broken_after_seconds - quiet_seconds, FIRST_PAUSE_SECONDS))
