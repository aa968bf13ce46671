"""Measures the notebook classes against the original, each in a process of its own, on the same folders of one run.

    .cache/test/bin/python -m tests.benchmarks.notebook [SPANS …]

Without numbers it takes 1,000 and 10,000 spans of one node, about three minutes. "Cold" is from the constructor to the
first answer that needs every file, decoder processes included; "later" the calls after it, while nothing is new. A
result is added up when it is looked at, so "used" also takes the functions out of each result (`ps.stats`).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import HERE, oracle, say

COLD_LEAST, LATER_LEAST = 4.0, 100.0
PROCESSES = 3


def ask(which: str, folder: Path, repeats: int) -> dict[str, Any]:
    """Run one process."""
    python = oracle() if which == "original" else sys.executable
    command = [python, str(HERE / "ask_calls.py"), which, str(folder), str(repeats)]
    environment = {**os.environ, "PYTHONPATH": "" if which == "original" else str(HERE.parents[1])}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def compare(folder: Path, spans: int) -> None:
    """Print the ratios for one folder."""
    rounds = [(ask("original", folder, 2), ask("ours", folder, 15)) for _ in range(PROCESSES)]
    theirs, ours = ([pair[side]["cold"] for pair in rounds] for side in (0, 1))
    ratio = statistics.median(theirs) / statistics.median(ours)
    say(f"notebook: {spans:,} spans of one node")
    say(
        f"  cold: {statistics.median(ours) * 1e3:,.0f} ms, the original {statistics.median(theirs) * 1e3:,.0f} ms: "
        f"{ratio:.1f} times as long (at least {COLD_LEAST:g}): {'reached' if ratio >= COLD_LEAST else 'MISSED'}"
    )
    for kind in ("later", "used"):
        for call in rounds[0][0][kind]:
            theirs, ours = ([value for pair in rounds for value in pair[side][kind][call]] for side in (0, 1))
            ratio = statistics.median(theirs) / statistics.median(ours)
            verdict = "reached" if ratio >= LATER_LEAST else "below 100"
            say(
                f"  {kind:5} {call:24} {statistics.median(ours) * 1e3:9.3f} ms, the original "
                f"{statistics.median(theirs) * 1e3:9.2f} ms: {ratio:8.0f} times as long: {verdict}"
            )


def main(sizes: Sequence[int]) -> None:
    """Write each corpus with the original's writer, and compare."""
    for spans in sizes:
        with tempfile.TemporaryDirectory(prefix="pw-bench-") as base:
            say(f"writing {spans:,} profiles with the original writer …")
            command = [oracle(), str(HERE / "write_corpus.py"), base, "0-algo-0", str(spans)]
            subprocess.run(command, check=True, capture_output=True)
            compare(Path(base, "framework", "pytorch", "cprofile"), spans)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [1_000, 10_000])
