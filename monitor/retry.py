"""When a file that could not be used is tried again, and when it is set aside. Pure: the time is passed in.

A half-written file is the normal case. It is looked at again after a short, growing pause, and read again only when it
has changed. When it has not changed for `broken_after_seconds` it is read one last time and set aside with its reason;
a file that was set aside is looked at every `recheck_seconds` and gets a new start when it has changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeAlias, TypeVar

Version: TypeAlias = tuple[int, ...] | None
Verdict: TypeAlias = Literal["wait", "set_aside"]

FIRST_PAUSE_SECONDS = 0.03
LONGEST_PAUSE_SECONDS = 5.0
PATIENCE_SECONDS = 10.0
"""A file that changed within this time is looked at every 0.1 s at the latest: it is probably being written."""

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
    """All files in trouble. Changed by one task only."""

    def __init__(self, *, broken_after_seconds: float, recheck_seconds: float) -> None:
        self._broken_after = broken_after_seconds
        self._recheck = recheck_seconds
        self._troubles: dict[RefT, Trouble[RefT]] = {}

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
        pause = self._recheck if give_up else pause_seconds(now - changed, self._broken_after)
        self._troubles[ref] = Trouble(
            ref=ref,
            reason=reason,
            kind=kind,
            version=version,
            changed=changed,
            due=now + pause,
            attempts=attempts,
            aside=give_up,
        )
        newly = give_up and not (before is not None and before.aside and not fresh)
        return "set_aside" if newly else "wait"

    def settled(self, ref: RefT) -> None:
        """Forget a file: it is stored, or gone with its folder."""
        self._troubles.pop(ref, None)

    def due(self, now: float, limit: int) -> list[Trouble[RefT]]:
        """Return files to look at now, those due longest first."""
        ready = sorted((trouble for trouble in self._troubles.values() if trouble.due <= now), key=lambda t: t.due)
        return ready[:limit]

    def looked(self, trouble: Trouble[RefT], version: Version, now: float) -> bool:
        """Note a look at a file that is due.

        Returns:
            True where it should be read again: it has changed, or its last chance has come.
        """
        if version != trouble.version:
            self._troubles[trouble.ref] = replace(trouble, due=now + LONGEST_PAUSE_SECONDS, aside=False)
            return True
        if trouble.aside:
            self._troubles[trouble.ref] = replace(trouble, due=now + self._recheck)
            return False
        quiet = now - trouble.changed
        if quiet >= self._broken_after:
            self._troubles[trouble.ref] = replace(trouble, due=now + LONGEST_PAUSE_SECONDS)
            return True
        self._troubles[trouble.ref] = replace(trouble, due=now + pause_seconds(quiet, self._broken_after))
        return False

    def hurry(self, now: float) -> None:
        """Make every waiting file due now: somebody asks for the newest state."""
        self._troubles = {
            ref: trouble if trouble.aside else replace(trouble, due=now) for ref, trouble in self._troubles.items()
        }

    def next_due(self) -> float | None:
        """Return when the next file is due, or None where there is none."""
        return min((trouble.due for trouble in self._troubles.values()), default=None)

    def waiting(self) -> list[Trouble[RefT]]:
        """Return the files that are still waited for."""
        return [trouble for trouble in self._troubles.values() if not trouble.aside]

    def set_aside(self) -> list[Trouble[RefT]]:
        """Return the files that were given up."""
        return [trouble for trouble in self._troubles.values() if trouble.aside]

    def __len__(self) -> int:
        return len(self._troubles)

    def __contains__(self, ref: object) -> bool:
        return ref in self._troubles


def pause_seconds(quiet_seconds: float, broken_after_seconds: float) -> float:
    """Return how long to wait before the next look at a file that has not changed for `quiet_seconds`."""
    longest = 0.1 if quiet_seconds < PATIENCE_SECONDS else LONGEST_PAUSE_SECONDS
    pause = min(max(FIRST_PAUSE_SECONDS, quiet_seconds / 4), longest)
    return min(pause, max(broken_after_seconds - quiet_seconds, FIRST_PAUSE_SECONDS))


def count_by_kind(troubles: Iterable[Trouble[RefT]]) -> dict[str, int]:
    """Count files by the class of their reason."""
    counts: dict[str, int] = {}
    for trouble in troubles:
        counts[trouble.kind] = counts.get(trouble.kind, 0) + 1
    return counts
