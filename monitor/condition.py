"""How well a daemon is: its sources and what waits there, its budget of series, memory, what is wrong. Only reads."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monitor.answers import Health
from monitor.budgets import Budgets
from monitor.index import Index
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
    """Show how many series the phases have, the fullest ones by name."""
    phases: list[dict[str, Any]] = []
    for number, group in enumerate(index.groups):
        shown = budgets.of(number).shown.values()
        growing = sum(state.active for state in shown)
        key = group.key
        modes = PythonProfileModes(key.start_mode).word, PythonProfileModes(key.end_mode).word
        words = asdict(key) | {"start_mode": modes[0], "end_mode": modes[1]}
        phases.append({**words, "series": growing, "frozen": len(shown) - growing})
    fullest = sorted(phases, key=lambda phase: -phase["series"])
    return {
        "limit": budgets.limit,
        "series": sum(phase["series"] for phase in phases),
        "full_phases": sum(phase["series"] >= budgets.limit for phase in phases),
        "phases": fullest[:MOST_PHASES_SHOWN],
    }


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
