"""Where new spans of one node will be listed, so that a look costs what is new and not what is there. Pure.

Names sort by mode, then by step without leading zeros (`train-10-`, `train-100-`, `train-11-`), so a new span lands in
the middle of the history and no single key tells new from old. But spans of one node follow each other: each starts
about where an earlier one ended. So for each mode the newest spans are remembered (by the time in their names), and
listing begins at the lowest step among them and ends once it has passed the highest one, with room for steps that were
skipped. Between two steps of n digits lie few others: a tenth as many shorter ones. Steps with one digit more have a
place of their own, which is listed when they are near. A run that begins again at a lower step is a second range,
found where its first span says that it will be.

What is older than the remembered spans is left to the full pass over all keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from monitor.spans import Span

LATE_US = 300e6
"""Spans may become visible so much later than newer ones of their node, and are still found at once."""
LEAST_KEPT = 50
MOST_KEPT = 2_000
STEPS_AHEAD = 50
MOST_RANGES = 4
SPANS_A_STEP = 3
MOST_FOREIGN_KEYS = 1_500
"""Where more keys of longer steps than this lie among a range's own, its steps are listed one by one."""
NO_STEP = -1
LAST = "\U0010ffff"
"""Sorts behind all names."""


class Scan(NamedTuple):
    """Keys to list: those that begin with `prefix` and come after `after`, until the listing passes `until`."""

    prefix: str
    after: str
    until: str


class StepRange(NamedTuple):
    """Steps among which spans come: the lowest and highest that are known, and how far ahead the next may be."""

    low: int
    high: int
    ahead: int


class ModeWindow:
    """The newest spans that start in one mode on one node.

    Args:
        prefix: of their keys, up to and with the dash behind the mode.

    Attributes:
        since: spans that started before this time (in µs) are no news here.
        news: when something new was found last, on the clock that `note` is given.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.since = -math.inf
        self.news = -math.inf
        self._folder = prefix[: prefix.rindex("/") + 1]
        self._recent: dict[str, tuple[int, float]] = {}
        self._before: list[StepRange] = []
        self._stepless = False
        self._highest = NO_STEP

    def is_news(self, span: Span) -> bool:
        """Tell whether a span that was listed was never seen, as far as this window knows."""
        return span.name not in self._recent and span.start.time_us >= self.since

    def note(self, span: Span, now: float) -> None:
        """Remember a span."""
        step = NO_STEP if span.start.step is None else span.start.step
        self._highest = max(self._highest, step)
        if span.start.time_us < self.since:
            return
        self.news = now
        self._recent[span.name] = (step, span.start.time_us)
        self._stepless |= step == NO_STEP
        if len(self._recent) >= 2 * MOST_KEPT:
            self._forget_old()

    def plan(self, expected: int | None = None) -> list[Scan]:
        """Say what to list.

        Args:
            expected: a step at which the next span will start, where that is known.
        """
        scans = [Scan(f"{self.prefix}*", f"{self.prefix}*", f"{self.prefix}*{LAST}")] if self._stepless else []
        ranges = self.ranges()
        if expected is not None and expected >= 0 and not any(one.low <= expected <= one.high for one in ranges):
            ranges.append(StepRange(expected, expected, STEPS_AHEAD))
        for one in ranges:
            crowded = foreign_steps(one, self._highest) * SPANS_A_STEP > MOST_FOREIGN_KEYS
            scans.extend(step_scans(self.prefix, one) if crowded else scans_of(self.prefix, one))
        return scans

    @property
    def first_page_keys(self) -> int:
        """How many keys to ask for at first: about what a look at the known spans and some new ones takes."""
        return 2 * min(len(self._recent), MOST_KEPT) + 150

    def knows(self, name: str) -> bool:
        """Tell whether a span is among the remembered ones."""
        return name in self._recent

    def forget(self, name: str) -> None:
        """Take a span for one that was never seen."""
        self._recent.pop(name, None)

    def confirm(self, covered: Iterable[tuple[str, str]], listed: Set[str]) -> None:
        """Forget spans that should have been listed and were not: they are gone, and new if they come back."""
        parts = list(covered)
        gone = [
            name
            for name in self._recent
            if name not in listed and any(start < f"{self._folder}{name}/" <= end for start, end in parts)
        ]
        for name in gone:
            del self._recent[name]

    def ranges(self) -> list[StepRange]:
        """Return the ranges of steps among the newest spans, one for each run through the steps."""
        self._forget_old()
        by_time = sorted((time, step) for step, time in self._recent.values() if step != NO_STEP)
        if not by_time:
            return list(self._before)
        runs: list[StepRange] = []
        for _, step in by_time:
            last = runs[-1] if runs else None
            if last is None or step < last.high:
                runs.append(StepRange(step, step, STEPS_AHEAD))
            else:
                runs[-1] = StepRange(last.low, step, max(last.ahead, STEPS_AHEAD + 2 * (step - last.high)))
        return merged(runs[-MOST_RANGES:])

    def dump(self) -> list[object]:
        """Return what is needed to go on after a restart."""
        since = self.since if math.isfinite(self.since) else None
        return [since, self._stepless, self._highest, self.ranges()]

    def load(self, saved: Sequence[object]) -> None:
        """Take what `dump` returned; what the ranges hold is news once more, and known to whoever it is given to."""
        since, stepless, highest, ranges = saved
        self._highest = int(str(highest))
        self.since = since if isinstance(since, (int, float)) else -math.inf
        self._before = [StepRange(*map(int, one)) for one in ranges]  # type: ignore[attr-defined]
        self._stepless = bool(stepless)

    def _forget_old(self) -> None:
        """Keep the newest spans by their time, all that came late enough among them."""
        if len(self._recent) <= LEAST_KEPT:
            return
        newest_first = sorted(self._recent.items(), key=lambda one: -one[1][1])
        floor = newest_first[0][1][1] - LATE_US
        kept = sum(1 for _, (_, time) in newest_first if time >= floor)
        kept = min(max(kept, LEAST_KEPT), MOST_KEPT)
        if kept < len(newest_first):
            self._recent = dict(newest_first[:kept])
            self.since = newest_first[kept - 1][1][1]


class OlderWindow(ModeWindow):
    """The newest spans of a folder of the older layout, whose names begin with the time and so sort by it.

    Args:
        prefix: the folder, with its slash.
    """

    def plan(self, expected: int | None = None) -> list[Scan]:
        """Say what to list: all that is not older than what is remembered."""
        after = f"{self.prefix}{int(self.since)}" if math.isfinite(self.since) else self.prefix
        return [Scan(self.prefix, after, f"{self.prefix}{LAST}")]


OLDER = "older"
"""Stands for a mode where the layout is the older one."""


def mode_of(span: Span) -> str:
    """Return the mode among whose names a span's name stands."""
    return OLDER if span.name[:1].isdigit() else span.start.mode.word


class NodeWindows:
    """The windows of all modes of one node.

    Args:
        prefix: the node's folder, with its slash.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.modes: dict[str, ModeWindow] = {}
        self.news = -math.inf
        self._newest_us = -math.inf
        self._next: tuple[str, int | None] | None = None

    def window(self, mode: str) -> ModeWindow:
        """Return the window of a mode, given by its word."""
        window = self.modes.get(mode)
        if window is None:
            window = OlderWindow(self.prefix) if mode == OLDER else ModeWindow(f"{self.prefix}{mode}-")
            self.modes[mode] = window
        return window

    def is_news(self, span: Span) -> bool:
        """Tell whether a span that was listed was never seen, as far as is known here."""
        window = self.modes.get(mode_of(span))
        return window is None or window.is_news(span)

    def knows(self, span: Span) -> bool:
        """Tell whether a span is among the remembered ones."""
        window = self.modes.get(mode_of(span))
        return window is not None and window.knows(span.name)

    def forget(self, span: Span) -> None:
        """Take a span for one that was never seen."""
        window = self.modes.get(mode_of(span))
        if window is not None:
            window.forget(span.name)

    def note(self, span: Span, now: float) -> None:
        """Remember a span, and where the next one will start."""
        self.news = now
        mode = mode_of(span)
        self.window(mode).note(span, now)
        if mode != OLDER and span.end.time_us > self._newest_us:
            self._newest_us = span.end.time_us
            self._next = (span.end.mode.word, span.end.step)

    def expected(self, mode: str) -> int | None:
        """Return the step at which the next span of a mode will start, if it is that mode's turn."""
        return self._next[1] if self._next is not None and self._next[0] == mode else None

    def is_next(self, mode: str) -> bool:
        """Tell whether the next span will start in this mode."""
        return self._next is not None and self._next[0] == mode

    @property
    def next_is_unknown(self) -> bool:
        """The next span will start in a mode of which none was seen."""
        return self._next is not None and self._next[0] not in self.modes

    def dump(self) -> list[object]:
        """Return what is needed to go on after a restart."""
        newest = self._newest_us if math.isfinite(self._newest_us) else None
        return [newest, self._next, {mode: window.dump() for mode, window in self.modes.items()}]

    def load(self, saved: Sequence[object]) -> None:
        """Take what `dump` returned."""
        newest, following, modes = saved
        self._newest_us = newest if isinstance(newest, (int, float)) else -math.inf
        if isinstance(following, list):
            self._next = (str(following[0]), following[1])
        for mode, window in modes.items():  # type: ignore[attr-defined]
            self.window(mode).load(window)


def scans_of(prefix: str, steps: StepRange) -> Iterator[Scan]:
    """Say what to list for a range of steps: steps of each number of digits lie in a place of their own."""
    furthest = steps.high + steps.ahead
    for digits in range(len(str(steps.low)), len(str(furthest)) + 1):
        first = max(steps.low, 10 ** (digits - 1) if digits > 1 else 0)
        last = min(furthest, 10**digits - 1)
        # A dash follows the step, then come longer steps: "." lies between the two.
        yield Scan(prefix, f"{prefix}{first}", f"{prefix}{last}.")


def step_scans(prefix: str, steps: StepRange) -> Iterator[Scan]:
    """Say what to list where the steps of a range lie far apart among those of a run before: the next ones alone."""
    stride = max(1, (steps.ahead - STEPS_AHEAD) // 2)
    for step in dict.fromkeys((steps.high, steps.high + 1, steps.high + stride, max(steps.high - 1, steps.low))):
        yield Scan(f"{prefix}{step}-", f"{prefix}{step}-", f"{prefix}{step}-{LAST}")


def foreign_steps(steps: StepRange, highest: int) -> int:
    """Return how many steps with more digits, up to the highest one, may lie among those of a range."""
    digits = len(str(steps.high))
    last = min(steps.high + steps.ahead, 10**digits - 1)
    count = 0
    for more in range(1, len(str(highest)) - digits + 1):
        count += max(0, min(highest, (last + 1) * 10**more - 1) - steps.low * 10**more + 1)
    return count


def merged(ranges: Sequence[StepRange]) -> list[StepRange]:
    """Join ranges that overlap."""
    joined: list[StepRange] = []
    for one in sorted(ranges):
        if joined and one.low <= joined[-1].high + joined[-1].ahead:
            last = joined[-1]
            joined[-1] = StepRange(last.low, max(last.high, one.high), max(last.ahead, one.ahead))
        else:
            joined.append(one)
    return joined


class Covered:
    """Which stretches of keys a look has listed."""

    def __init__(self) -> None:
        self.stretches: list[tuple[str, str]] = []

    def rest(self, scan: Scan) -> str | None:
        """Return the key after which a scan must go on, or None where it is done."""
        after = scan.after
        for start, end in sorted(self.stretches):
            if start <= after < end:
                after = end
        return None if after >= scan.until else after

    def add(self, start: str, end: str) -> None:
        """Note that all keys in (start, end] were listed."""
        self.stretches.append((start, end))
