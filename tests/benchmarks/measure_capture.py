"""Measures what capture costs a real torch loop, against no profiling, bare cProfile and the original's writer, all in
one run, and prints ratios.

    .cache/test/bin/python -m tests.benchmarks.measure_capture

Takes about two minutes on two cores. Machines are shared and noisy: read the ratios.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.measure import limit, oracle, say

HERE = Path(__file__).parent


def training() -> str:
    """Return the interpreter that holds the frameworks."""
    default = HERE.parents[1] / ".cache" / "training" / "bin" / "python"
    python = os.environ.get("PHASEWATCH_TRAINING_PYTHON", str(default))
    if not Path(python).exists():
        sys.exit("the frameworks are missing: run `bash tests/run` once, it makes .cache/training")
    return python


def site_packages(python: str) -> str:
    """Return where an interpreter's packages are."""
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def compare(name: str, ratios: Sequence[float], most: float | None = None) -> None:
    """Print one comparison: without the time that the training thread waited for a processor, since others work here
    too, beside its limit if there is one; then by the clock."""
    clock, clock_median, own, own_median, dropped = ratios
    if most is None:
        say(f"  {name}: {own:.3f}")
    else:
        limit(name, own, most, "")
    say(f"    median of rounds {own_median:.3f}; by the clock {clock:.3f}, median {clock_median:.3f}")
    if dropped:
        say(f"    {dropped:.1%} of the spans were dropped: the machine was too busy to write them")


def main() -> None:
    """Run the loop and hold its figures against the limits."""
    with tempfile.TemporaryDirectory(prefix="pw-bench-") as folder:
        command = [training(), str(HERE / "capture_loop.py"), folder, site_packages(oracle())]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    say(f"capture: torch loop, {found['functions']} functions a span, {found['step_ms']:.2f} ms a step")
    say(f"  a transition: ours {found['our_transition_us']:.0f} µs, original {found['original_transition_us']:.0f} µs")
    limit("a transition, times the original's", found["transition_ratio"], 0.25, "")
    compare("cProfile on every step, times bare cProfile", found["every_step"][0], 1.3)
    compare("cProfile on every step and between them, times no profiling", found["attached"][0])
    compare("cProfile on every 10th step, times bare cProfile on the same steps", found["tenth"][0])
    compare("cProfile on every 10th step, times no profiling", found["tenth"][1], 1.03)
    say(f"capture: torch loop with {found['slow_step_ms']:.1f} ms a step")
    compare("cProfile on every 10th step, times bare cProfile on the same steps", found["slow_tenth"][0])
    compare("cProfile on every 10th step, times no profiling", found["slow_tenth"][1], 1.03)
    compare("pyinstrument on every step, times bare pyinstrument", found["pyinstrument"][0])
    compare("pyinstrument on every step, times no profiling", found["pyinstrument"][1], 1.05)
    say("capture: no step chosen")
    limit("a transition, without looking for requests", found["nothing_us"], 1.0, "µs")
    limit("a step with three transitions, less one stat", found["nothing_with_stat_us"] - found["stat_us"], 3.0, "µs")


if __name__ == "__main__":
    main()
