"""What the tests of capture share: work with known call counts, and reading span folders back."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from monitor.capture import Capture, PythonProfileModes
from monitor.spans import Span, parse_span_name

ROOT = Path(__file__).parents[2]
TRAIN, EVAL = PythonProfileModes.TRAIN, PythonProfileModes.EVAL
NODE = Path("framework/pytorch/cprofile/0-test")

Open = Callable[..., Capture]


def work(times: int) -> None:
    for number in range(times):
        unit(number)


def unit(number: int) -> int:
    return number + 1


def spans(folder: Path) -> list[Span]:
    """The spans on disk, in order of time."""
    found = [parse_span_name(path.name) for path in folder.iterdir() if not path.name.startswith(".")]
    return sorted(found, key=lambda span: span.start.time_us)


def shape(span: Span) -> str:
    """A span's name without its times."""
    ends = [
        f"{end.mode.word}-{'*' if end.step is None else end.step}-{end.phase.value}" for end in (span.start, span.end)
    ]
    return "_".join(ends)


def calls(folder: Path, span: Span, function: str) -> int:
    """How often a function was called in a span, from its file."""
    stats = marshal.loads((folder / span.name / "python_stats").read_bytes())
    return sum(numbers[1] for (_, _, name), numbers in stats.items() if name == function)


def run_script(script: str, *arguments: Path | str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def seconds_in(frame: dict[str, object], function: str) -> float:
    """Seconds below the topmost frames of a function."""
    if frame["function"] == function:
        return float(str(frame["time"]))
    children = frame["children"]
    assert isinstance(children, list)
    return sum(seconds_in(child, function) for child in children)


def wait_until(condition: Callable[[], bool], timeout_seconds: float = 10.0) -> None:
    """Yield to the writer until a condition holds."""
    end = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()
