"""How well a daemon is: its sources and what waits there, its budget of series, memory, what is wrong. Only reads."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from heapq import nlargest
from pathlib import Path

from monitor.answers import Health
from monitor.budget import GroupBudget
from monitor.budgets import Budgets
from monitor.index import GroupKey, Index
from monitor.ingest import Ingest
from monitor.sources.base import Source
from monitor.spans import PythonProfileModes

MOST_PHASES_SHOWN = 100


def sources_shown(sources: Sequence[Source], ingest: Ingest, index: Index, now: float) -> list[dict[str, object]]:
    """Show each source with its lag, in seconds, and its files on the way.

    `newest_age_seconds` is since the end of the newest span of the source's job, by the clock of its node.
    """
    newest: dict[str, float] = {}
    for number, end_us in index.last_end_us.items():
        job = index.catalog.series[number].job
        newest[job] = max(newest.get(job, end_us), end_us)
    shown: list[dict[str, object]] = []
    for source, files in zip(sources, ingest.files_by_source(), strict=True):
        numbers = source.statistics()
        good, last_us = numbers.last_good_poll_timestamp, newest.get(source.job)
        shown.append(
            {
                "path": source.name,
                "job": source.job,
                **asdict(numbers),
                **asdict(files),
                "last_good_poll_age_seconds": round(now - good, 3) if good else None,
                "newest_age_seconds": None if last_us is None else round(now - last_us / 1e6, 3),
            }
        )
    return shown


def budget_shown(budgets: Budgets, index: Index) -> dict[str, object]:
    """Show how many functions are series, and of the fullest phases how many of them grow."""
    numbers = range(len(index.groups))
    series = [len(budgets.of(number).shown) for number in numbers]
    fullest = nlargest(MOST_PHASES_SHOWN, numbers, key=series.__getitem__)
    return {
        "limit": budgets.limit,
        "series": sum(series),
        "full_phases": sum(count >= budgets.limit for count in series),
        "phases": [phase_shown(budgets.of(number), index.groups[number].key) for number in fullest],
    }


def phase_shown(budget: GroupBudget, key: GroupKey) -> dict[str, object]:
    """Show how many functions of one phase are series that grow, and how many are frozen."""
    growing = sum(state.active for state in budget.shown.values())
    modes = {name: PythonProfileModes(getattr(key, name)).word for name in ("start_mode", "end_mode")}
    return {**asdict(key), **modes, "series": growing, "frozen": len(budget.shown) - growing}


def memory_shown() -> dict[str, int]:
    """Show the memory of this process, without its decoders, now and at most; bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"resident_bytes": pages * os.sysconf("SC_PAGE_SIZE"), "peak_resident_bytes": peak}


def problems(sources: Sequence[Source], ingest: Ingest, health: Health) -> Iterator[str]:
    """Say what is not well now, a sentence each; nothing where all is."""
    if health.waits:
        yield health.waits
    for source in sources:
        polls = source.statistics()
        if polls.last_error_timestamp > polls.last_good_poll_timestamp:
            yield f"a source cannot be read: {polls.last_error}"
    numbers = ingest.statistics()
    if numbers.store_error:
        yield f"{numbers.store_error}; what is found waits"
    if aside := sum(numbers.set_aside.values()):
        yield f"files set aside: {aside}"
