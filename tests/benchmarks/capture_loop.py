"""Trains under torch in one process, in rounds that take turns, and prints medians as JSON. Runs under the frameworks'
interpreter; see measure_capture.py.

    capture_loop.py FOLDER ORIGINAL_SITE_PACKAGES
"""

from __future__ import annotations

import cProfile
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from monitor.capture import Capture, PythonProfileModes

TRAIN = PythonProfileModes.TRAIN
STEPS, ROUNDS = 60, 9
OPTIONS: dict[str, Any] = {"overhead_share": 0, "handle_sigterm": False, "max_bytes": 0}
folder, original_packages = Path(sys.argv[1]), sys.argv[2]
made = 0


def new_base() -> str:
    global made
    made += 1
    return str(folder / str(made))


class Loop:
    """A small model with dropout, normalization and Adam: some 150 functions a step, as in training that is real."""

    def __init__(self, width: int, batch: int) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        layer = torch.nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(width, width),
            torch.nn.LayerNorm(width),
            torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(width, 1),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1000)
        self.inputs = torch.randn(batch, 8, width)

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(self.inputs), torch.zeros(len(self.inputs), 8, 1))
        loss.backward()
        self.optimizer.step()
        self.schedule.step()


def plain(loop: Loop) -> float:
    started = time.perf_counter()
    for _ in range(STEPS):
        loop.step()
    return time.perf_counter() - started


def bare(loop: Loop) -> float:
    """cProfile around each step, and nothing written."""
    started = time.perf_counter()
    for _ in range(STEPS):
        profile = cProfile.Profile()
        profile.enable()
        loop.step()
        profile.disable()
    return time.perf_counter() - started


def captured(loop: Loop, **options: Any) -> float:
    """Capture around each step; the queue is emptied before the clock starts and after it stops."""
    capture = Capture(new_base(), **{**OPTIONS, **options})
    capture.step_start(TRAIN, 0)
    capture.step_broken()
    started = time.perf_counter()
    for number in range(STEPS):
        capture.step_start(TRAIN, number)
        loop.step()
        capture.step_broken()  # ends the span and begins none, as disable() does
    taken = time.perf_counter() - started
    capture.finish()
    assert capture.statistics().lost == 0, capture.statistics()
    return taken


def attached(loop: Loop, **options: Any) -> float:
    """Capture as it is used: all of the time is in spans where the step is chosen."""
    capture = Capture(new_base(), **{**OPTIONS, **options})
    started = time.perf_counter()
    for number in range(STEPS):
        with capture.step(TRAIN, number):
            loop.step()
    taken = time.perf_counter() - started
    capture.finish()
    return taken


def transitions(turn: Callable[[int], object], loop: Loop) -> float:
    """Median seconds of a transition."""
    seconds = []
    for number in range(STEPS):
        before = time.perf_counter()
        turn(number)
        seconds.append(time.perf_counter() - before)
        loop.step()
    return statistics.median(seconds[5:])


def our_transition(loop: Loop) -> float:
    capture = Capture(new_base(), **OPTIONS)
    median = transitions(lambda number: capture.step_start(TRAIN, number), loop)
    capture.finish()
    return median


def original_transition(loop: Loop) -> float:
    from smdebug.core.utils import FRAMEWORK
    from smdebug.profiler.python_profile_utils import PythonProfileModes as Modes
    from smdebug.profiler.python_profile_utils import StepPhase, cProfileTimer
    from smdebug.profiler.python_profiler import cProfilePythonProfiler

    profiler = cProfilePythonProfiler(new_base(), FRAMEWORK.PYTORCH, cProfileTimer.TOTAL_TIME)
    profiler.cprofile_timer = time.perf_counter  # its own clock costs a system call an event; here it is the writing

    def turn(number: int) -> None:
        profiler.stop_profiling(StepPhase.STEP_START, Modes.TRAIN, number)
        profiler.start_profiling(StepPhase.STEP_START, Modes.TRAIN, number)

    median = transitions(turn, loop)
    profiler.stop_profiling(StepPhase.END)
    return median


def functions_in_a_span(loop: Loop) -> int:
    profile = cProfile.Profile()
    profile.runcall(loop.step)
    return len(profile.getstats())


def seconds_for_nothing(**options: Any) -> float:
    """What one step with three transitions costs when no step is chosen."""
    capture = Capture(new_base(), every=0, **OPTIONS, **options)
    count = 20_000
    started = time.perf_counter()
    for number in range(count):
        capture.step_start(TRAIN, number)
        capture.forward_end()
        capture.step_end()
    taken = (time.perf_counter() - started) / count
    capture.finish()
    return taken


def seconds_of_a_stat() -> float:
    missing, count = str(folder / "no-such-file"), 20_000
    started = time.perf_counter()
    for _ in range(count):
        try:
            os.stat(missing)  # noqa: PTH116 - what the control file costs
        except OSError:
            pass
    return (time.perf_counter() - started) / count


def slow_enough(seconds: float) -> Loop:
    """A loop whose steps take about so long."""
    batch = 8
    while plain(loop := Loop(64, batch)) / STEPS < seconds:
        batch *= 2
    return loop


def ratio(above: Callable[[], float], below: Callable[[], float], rounds: int = ROUNDS) -> float:
    """The quickest of runs that take turns against the quickest of the others: what else the machine does only adds."""
    pairs = [(above(), below()) for _ in range(rounds)]
    return min(one for one, _ in pairs) / min(other for _, other in pairs)


def main() -> None:
    sys.path.append(original_packages)
    logging.disable(logging.CRITICAL)
    small, slow = Loop(16, 4), slow_enough(0.018)
    plain(small)
    report = {
        "functions": functions_in_a_span(small),
        "step_ms": plain(small) / STEPS * 1e3,
        "slow_step_ms": plain(slow) / STEPS * 1e3,
        "our_transition_us": our_transition(small) * 1e6,
        "original_transition_us": original_transition(small) * 1e6,
        "transition_ratio": ratio(lambda: our_transition(small), lambda: original_transition(small)),
        "bare_ratio": ratio(lambda: captured(small), lambda: bare(small)),
        "every_step_ratio": ratio(lambda: attached(small), lambda: plain(small)),
        "tenth_ratio": ratio(lambda: attached(small, every=10), lambda: plain(small), 2 * ROUNDS),
        "slow_tenth_ratio": ratio(lambda: attached(slow, every=10), lambda: plain(slow), 6),
        "pyinstrument_ratio": ratio(lambda: attached(slow, profiler="pyinstrument"), lambda: plain(slow), 5),
        "nothing_us": statistics.median(seconds_for_nothing(triggers=False) for _ in range(5)) * 1e6 / 3,
        "nothing_with_stat_us": statistics.median(seconds_for_nothing() for _ in range(5)) * 1e6,
        "stat_us": statistics.median(seconds_of_a_stat() for _ in range(5)) * 1e6,
    }
    sys.stdout.write(json.dumps(report))


main()
