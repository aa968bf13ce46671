"""One fuzzing process: `python -m tests.fuzz.child TARGET COUNTER [options of libFuzzer]`. It may die.

Counts what it ran in the file COUNTER, which outlives it; libFuzzer ends a process without a chance to say more.
"""

from __future__ import annotations

import mmap
import resource
import shlex
import signal
import struct
import sys
from pathlib import Path

import atheris

INSTRUMENTED = ["monitor.profiles", "monitor.spans", "monitor.layout", "monitor.api.parameters"]
MEMORY_BYTES = 2**30
COUNT = struct.Struct("<q")

with atheris.instrument_imports(include=INSTRUMENTED):
    from tests.fuzz.targets import TARGETS


class Counted:
    """Runs a target and counts."""

    def __init__(self, name: str, counter: Path) -> None:
        self._target = TARGETS[name]
        with counter.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), COUNT.size)
        (self._count,) = COUNT.unpack(self._memory[:])

    def __call__(self, data: bytes) -> None:
        self._count += self._target(data)
        self._memory[:] = COUNT.pack(self._count)


def main(arguments: list[str]) -> None:
    """Fuzz until libFuzzer has had enough; it ends the process itself."""
    name, counter, *options = arguments
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    again = shlex.join([sys.executable, "-m", "tests.fuzz.child", name, counter])  # what -merge=1 runs
    atheris.Setup([again, *options], Counted(name, Path(counter)))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
