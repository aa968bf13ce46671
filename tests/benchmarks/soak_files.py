"""What a soak writes: profiles whole, in halves, broken, mended and deleted, and a record of what became of each."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from monitor.layout import data_file
from tests.integration.corpora import node_folder, write_span

DATA = Path(__file__).parents[1] / "data" / "formats"
SAMPLES = {
    "cprofile": [(DATA / f"cpython-3.{minor}" / "python_stats").read_bytes() for minor in (9, 10, 11, 12)],
    "pyinstrument": [(DATA / f"pyinstrument-{one}" / "python_stats.json").read_bytes() for one in ("4.7.3", "5.1.3")],
}
NODES = 4
FILES_A_SECOND = 30
MODES = ("train-{0}-stepstart", "train-{0}-forwardpassend", "eval-{0}-stepstart", "train-{0}-stepend")
FATES = {"whole": 70, "halves": 10, "broken": 4, "mended": 4, "half and deleted": 4, "deleted": 4, "deleted later": 4}
"""In how many of a hundred files. "deleted" is at once, so that nobody knows whether it was read; "deleted later" once
it is known to be stored."""


@dataclass(slots=True, kw_only=True)
class Written:
    """One span that was written.

    Attributes:
        fate: one of FATES. at_seconds: the start of the span, which no other has.
    """

    profiler: str
    node: str
    name: str
    sample: int
    fate: str
    at_seconds: float
    folder: Path

    @property
    def data(self) -> bytes:
        """The whole content."""
        return SAMPLES[self.profiler][self.sample]


@dataclass(slots=True)
class Writer:
    """Writes until told to stop; then finishes what is half done.

    Args:
        is_stored: asks the daemon, patiently, whether it has a span; None where it does not answer.
    """

    base: Path
    chance: random.Random
    is_stored: Callable[[Written], bool | None]
    all: list[Written] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _later: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """End soon."""
        self._stop.set()

    def run(self) -> None:
        """Write at a steady rate."""
        start, place = time.monotonic(), 0
        while not self._stop.is_set():
            self._stop.wait(max(0.0, start + place / FILES_A_SECOND - time.monotonic()))
            self.write(place)
            place += 1
            self.finish_due(time.monotonic())
        self.finish_due(float("inf"))

    def finish_due(self, now: float) -> None:
        """Do what was put off until now; what must be put off again is."""
        due = [action for at, action in self._later if at <= now]
        self._later = [(at, action) for at, action in self._later if at > now]
        for action in due:
            action()

    def write(self, place: int) -> None:
        """Write one span, with the fate that chance gives it."""
        profiler = "pyinstrument" if place % 5 == 4 else "cprofile"
        node = f"{place % NODES}-host-{place % NODES}"
        at_us = 1_700_000_000_000_000.0 + place * 1000
        start = MODES[place % len(MODES)].format(place // 8)
        end = MODES[(place // 3) % len(MODES)].format(place // 8 + place % 2)
        name = f"{start}-{at_us}_{end}-{at_us + 500.5}"
        (fate,) = self.chance.choices(list(FATES), weights=list(FATES.values()))
        folder = node_folder(self.base, node, profiler)
        sample = self.chance.randrange(len(SAMPLES[profiler]))
        span = Written(
            profiler=profiler,
            node=node,
            name=name,
            sample=sample,
            fate=fate,
            at_seconds=at_us / 1e6,
            folder=folder / name,
        )
        self.all.append(span)
        self.counts[fate] += 1
        self._begin(span)

    def _begin(self, span: Written) -> None:
        data, half = span.data, self.chance.randrange(len(span.data) - 1)
        content = {
            "halves": data[:half],
            "half and deleted": data[:half],
            "broken": self.chance.randbytes(200) if self.chance.random() < 0.5 else data[:half],
            "mended": b"[" + self.chance.randbytes(100),
        }.get(span.fate, data)
        path = write_span(span.folder.parent, span.name, content, data_file(span.profiler))
        soon, late = time.monotonic() + self.chance.uniform(0, 2), time.monotonic() + self.chance.uniform(4, 20)
        match span.fate:
            case "halves":
                self._later.append((soon, lambda: append(path, data[half:])))
            case "mended":
                self._later.append((late, lambda: replace_by(path, data)))
            case "half and deleted":
                self._later.append((soon, lambda: shutil.rmtree(span.folder)))
            case "deleted":
                shutil.rmtree(span.folder)
            case "deleted later":
                self._later.append((late, lambda: self._delete_stored(span)))

    def _delete_stored(self, span: Written) -> None:
        if self.is_stored(span):
            shutil.rmtree(span.folder)
        else:  # the daemon is down, or behind: it stays
            span.fate = "whole"
            self.counts["kept, not stored in time"] += 1


def append(path: Path, data: bytes) -> None:
    """Write the rest of a file."""
    with path.open("ab") as file:
        file.write(data)


def replace_by(path: Path, data: bytes) -> None:
    """Put a whole file in the place of another."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(data)
    fresh.rename(path)
