"""What nodes say about how they were profiled: the sidecar files of our own capture, the newest one of each node. Read
as untrusted data, kept in the store, shown by `status`. A node's spans are profiled alike, so a node's file is
read at most once a minute: in a bucket each read is a request that is paid, whether there is such a file or not."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio
import numpy as np

from monitor.errors import ReadError
from monitor.layout import SIDECAR_FILE
from monitor.reading import FileData, LocalFile, read_file
from monitor.sources.base import FileRef, Readable, Source
from monitor.store import Store

LARGEST_SIDECAR_BYTES = 16 * 1024
LONGEST_TEXT = 200
ASK_AGAIN_SECONDS = 60.0
FACTS: Mapping[str, type | tuple[type, ...]] = {
    "phasewatch": str,
    "profiler": str,
    "timer": (str, type(None)),
    "interval_seconds": (int, float, type(None)),
    "thread": str,
    "python": str,
    "implementation": str,
    "rank": (int, type(None)),
    "world_size": (int, type(None)),
    "pid": int,
    "host": str,
    "overhead_ratio": (int, float, type(None)),
}
"""What is kept, and its type; the rest of a file is passed over."""

Facts = dict[str, object]


class Sidecars:
    """The facts of each node, by its series number.

    Args:
        store: keeps them.
        monotonic: seconds that only rise; tests give their own.

    Attributes:
        refused: files that are there and cannot be used.
    """

    def __init__(self, store: Store, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self.refused = 0
        self._asked: dict[int, float] = {}
        table = store.read_table("SELECT series, facts FROM captures")
        rows = zip(table["series"].tolist(), table["facts"].tolist(), strict=True)
        self._facts: dict[int, Facts] = {series: cast(Facts, json.loads(facts)) for series, facts in rows}

    def facts(self) -> Mapping[int, Facts]:
        """Return what is known."""
        return self._facts

    async def keep(self, source: Source, refs: Mapping[int, FileRef]) -> None:
        """Read the sidecar files beside some spans and keep what is new; only ingest's storing task may call it.

        Raises:
            StoreError: nothing was kept.
        """
        now = self._monotonic()
        due = [series for series in refs if now >= self._asked.get(series, -math.inf) + ASK_AGAIN_SECONDS]
        if not due:
            return
        self._asked.update(dict.fromkeys(due, now))
        beside = [refs[each]._replace(path=f"{refs[each].path.rpartition('/')[0]}/{SIDECAR_FILE}") for each in due]
        readables = await source.read(beside, max_bytes=LARGEST_SIDECAR_BYTES)
        fresh = await anyio.to_thread.run_sync(self._fresh, dict(zip(due, readables, strict=True)))
        self._facts.update(fresh)

    def _fresh(self, readables: Mapping[int, Readable]) -> dict[int, Facts]:
        """Read and store what differs from what is known. Blocks."""
        found = {series: facts_in(readable) for series, readable in readables.items()}
        self.refused += sum(facts == {} for facts in found.values())
        fresh = {series: facts for series, facts in found.items() if facts and facts != self._facts.get(series)}
        if fresh:
            columns = {
                "series": np.asarray(list(fresh), dtype=np.int32),
                "facts": np.asarray([json.dumps(facts) for facts in fresh.values()], dtype=object),
            }
            with self._store.transaction():
                self._store.replace_series("captures", list(fresh), columns)
        return fresh


def facts_in(readable: Readable) -> Facts | None:
    """Read one file and check each fact; None where there is no file, nothing in it where it cannot be used."""
    try:
        if isinstance(readable, LocalFile):
            readable = read_file(readable, LARGEST_SIDECAR_BYTES)
        if not isinstance(readable, FileData):
            return None
        document: Any = json.loads(readable.data)
    except ReadError as error:
        return None if error.kind == "missing" else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    facts: Facts = {
        name: document[name] for name, kind in FACTS.items() if name in document and fits(document[name], kind)
    }
    libraries = document.get("libraries")
    if isinstance(libraries, dict):
        facts["libraries"] = {
            str(name)[:LONGEST_TEXT]: version for name, version in libraries.items() if fits(version, str)
        }
    return facts


def fits(value: object, kind: type | tuple[type, ...]) -> bool:
    """Tell whether a value is of its kind and of a size to be shown."""
    return isinstance(value, kind) and not isinstance(value, bool) and len(str(value)) <= LONGEST_TEXT
