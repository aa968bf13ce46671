"""Folders of step profiles for tests: real files under made names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

FIRST_US = 1_700_000_000_000_000.0
STEP_US = 20_000.0
PROFILES_A_STEP = 3


def span_names(steps: int) -> Iterator[str]:
    """Name spans as a training run leaves them: before step zero, three a step with evaluations between, after."""
    at = FIRST_US
    yield f"prestepzero-*-start-{at - 5e6}_train-0-stepstart-{at}"
    for step in range(steps):
        middle, end, following = at + 8_000.5, at + 15_000.25, at + STEP_US
        mode = "eval" if step % 10 == 9 else "train"
        after = "eval" if step % 10 == 8 else "train"
        yield f"{mode}-{step}-stepstart-{at}_{mode}-{step}-forwardpassend-{middle}"
        yield f"{mode}-{step}-forwardpassend-{middle}_{mode}-{step}-stepend-{end}"
        yield f"{mode}-{step}-stepend-{end}_{after}-{step + 1}-stepstart-{following}"
        at = following
    yield f"train-{steps}-stepstart-{at}_posthookclose-*-end-{at + 1e6}"


def node_folder(base: Path, node: str, profiler: str = "cprofile") -> Path:
    """Return where a node's spans lie."""
    return base / "framework" / "pytorch" / profiler / node


def write_span(folder: Path, name: str, data: bytes, file: str = "python_stats") -> Path:
    """Leave one profile, as a writer without rename does."""
    span = folder / name
    span.mkdir(parents=True)
    (span / file).write_bytes(data)
    return span / file


def write_run(base: Path, formats: Path, *, nodes: int, steps: int) -> int:
    """Leave a whole run of several nodes; returns how many profiles it has."""
    samples = [(formats / f"cpython-3.{minor}" / "python_stats").read_bytes() for minor in (9, 10, 11)]
    count = 0
    for node in range(nodes):
        folder = node_folder(base, f"{node}-host-{node}")
        for place, name in enumerate(span_names(steps)):
            write_span(folder, name, samples[place % len(samples)])
            count += 1
    return count


def clear(base: Path) -> None:
    """Remove a run."""
    shutil.rmtree(base)
