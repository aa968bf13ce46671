"""What the layout cannot say about a span, as one small JSON file beside its data: profiler and clock, versions, rank,
thread. Built where spans are written, never on the training thread."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache

import monitor
from monitor.capture.nodes import rank_and_world
from monitor.capture.snapshots import Pack, Packed, ProfilerName
from monitor.layout import SIDECAR_FILE

FORMAT_VERSION = 1
LIBRARIES = (
    "accelerate",
    "deepspeed",
    "horovod",
    "jax",
    "keras",
    "lightning",
    "numpy",
    "pyinstrument",
    "pytorch_lightning",
    "tensorflow",
    "torch",
    "transformers",
)
"""Whose versions are told, where they are loaded; none is imported for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanFacts:
    """What is known of one span when it begins.

    Attributes:
        timer: cProfile's clock, None for pyinstrument.
        interval_seconds: pyinstrument's, None for cProfile.
        trigger: the id of the request that this span answers.
        overhead_ratio: of the time so far, what capture itself took on the training thread; the profiler not counted.
    """

    profiler: ProfilerName
    timer: str | None
    interval_seconds: float | None
    thread: str
    thread_id: int
    trigger: str | None = None
    overhead_ratio: float | None = None


def with_sidecar(pack: Pack, facts: SpanFacts) -> Packed:
    """Take a span apart and add the sidecar file."""
    kind, values, ready = pack()
    # What else the text depends on: a fork has its own cache entries, ranks and libraries may come late.
    text = sidecar(facts, os.getpid(), rank_and_world(), len(sys.modules))
    return kind, values, {**ready, SIDECAR_FILE: text}


@lru_cache(maxsize=16)
def sidecar(facts: SpanFacts, pid: int, ranks: tuple[int | None, int | None], _modules: int) -> bytes:
    """Write the file's text."""
    rank, world_size = ranks
    document = {
        "format": FORMAT_VERSION,
        "phasewatch": monitor.__version__,
        **asdict(facts),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "libraries": library_versions(),
        "rank": rank,
        "world_size": world_size,
        "pid": pid,
        "host": socket.gethostname(),
    }
    return json.dumps(document).encode()


def library_versions() -> dict[str, str]:
    """Tell the versions of the libraries that are loaded and say one."""
    versions: dict[str, str] = {}
    for name in LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return versions
