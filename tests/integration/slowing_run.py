"""A training run that goes wrong, written while a test looks on: one node is slow from the start, and from some moment
on a function takes longer and data loading stalls. Lengths of spans are made up and do not depend on the machine."""

from __future__ import annotations

import marshal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.corpora import FIRST_US, node_folder, write_span

NODES = ("0-host", "1-host", "2-host")
SLOW_NODE = "2-host"
ENDED_NODE = "9-ended"
PACE_SECONDS = 0.1
EVALUATE_EVERY = 5
BEHIND_US = 60e6
"""Steps are longer than the pace at which they are written, and are not to lie in the future."""
FORWARD, SLOWING = "train.py:10(forward)", "train.py:20(augment)"


def stats(**seconds: float) -> bytes:
    """Make a file of cProfile's, from names such as `forward_10` and their own seconds."""
    entries: dict[tuple[str, int, str], tuple[int, int, float, float, dict[str, int]]] = {}
    for name, own in seconds.items():
        word, _, line = name.partition("_")
        entries["train.py", int(line), word] = (1, 1, own, own, {})
    return marshal.dumps(entries)


def write_step(base: Path, node: str, step: int, start_us: float, *, bad: bool) -> float:
    """Leave the three spans of one step of 100 ms, or of more; returns where the next step starts."""
    folder = node_folder(base, node)
    forward = 0.12 if node == SLOW_NODE else 0.04
    augment, load = (0.08, 0.10) if bad else (0.02, 0.01)
    small = {f"small_{line}": 0.0001 for line in range(100, 110)}
    spans = (
        ("stepstart", "forwardpassend", forward, stats(forward_10=forward)),
        ("forwardpassend", "stepend", augment + 0.03, stats(augment_20=augment, backward_25=0.029, **small)),
        ("stepend", "stepstart", load, stats(load_30=load)),
    )
    at = start_us
    for start, end, seconds, data in spans:
        ends = at + seconds * 1e6
        write_span(folder, f"train-{step}-{start}-{at}_train-{step + (end == 'stepstart')}-{end}-{ends}", data)
        at = ends
    if step % EVALUATE_EVERY == 0:
        ends = at + 0.005 * 1e6
        write_span(folder, f"eval-{step}-stepstart-{at}_eval-{step}-stepend-{ends}", stats(evaluate_40=0.005))
        at = ends
    return at


class SlowingRun:
    """Writes steps in a thread until the block ends; `bad` is set when it is to go wrong."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.bad = threading.Event()
        self.steps = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def end(self) -> None:
        """Write the step in hand to its end, and no more."""
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        """Write steps of all nodes, one after another."""
        at = dict.fromkeys(NODES, time.time() * 1e6 - BEHIND_US)
        while not self._over.wait(PACE_SECONDS):
            for node in NODES:
                at[node] = write_step(self.base, node, self.steps, at[node], bad=self.bad.is_set())
            self.steps += 1


@contextmanager
def slowing_run(base: Path) -> Iterator[SlowingRun]:
    """Write a run while the block lasts; another node of it has ended before."""
    ended = node_folder(base, ENDED_NODE)
    write_span(ended, f"prestepzero-*-start-{FIRST_US}_train-0-stepstart-{FIRST_US + 1e6}", stats(imports_1=1.0))
    write_span(ended, f"train-0-stepstart-{FIRST_US + 1e6}_posthookclose-*-end-{FIRST_US + 2e6}", stats(end_1=1.0))
    run = SlowingRun(base)
    run.start()
    try:
        yield run
    finally:
        run.end()
