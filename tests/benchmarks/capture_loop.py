"""Trains under torch in one process, in rounds that take turns, and prints ratios as JSON. Runs under the frameworks'
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from monitor.capture import Capture, PythonProfileModes

TRAIN = PythonProfileModes.TRAIN
STEPS, ROUNDS = 60, 7
RUN_SECONDS = 1.0
"""Of a run without profiling: many times as long as spans wait before they are written, so that the price of writing
falls into the run."""

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


def steps_of(loop: Loop) -> int:
    """How many steps a run has; a multiple of ten."""
    started = time.perf_counter()
    plain(loop, 50)
    return max(20, round(5 * RUN_SECONDS / (time.perf_counter() - started)) * 10)


def plain(loop: Loop, steps: int) -> None:
    for _ in range(steps):
        loop.step()


def bare(loop: Loop, steps: int) -> None:
    """cProfile around each step, and nothing written."""
    for _ in range(steps):
        profile = cProfile.Profile()
        profile.enable()
        loop.step()
        profile.disable()


def bare_every_tenth(loop: Loop, steps: int) -> None:
    """cProfile around every 10th step, and around what follows until the next one, as capture has it."""
    between = None
    for number in range(steps):
        if between is not None:
            between.disable()
            between = None
        if number % 10:
            loop.step()
            continue
        profile = cProfile.Profile()
        profile.enable()
        loop.step()
        profile.disable()
        between = cProfile.Profile()
        between.enable()
    if between is not None:
        between.disable()


def bare_pyinstrument(loop: Loop, steps: int) -> None:
    """pyinstrument around each step and what follows, and nothing written."""
    from pyinstrument import Profiler

    for _ in range(steps):
        profiler = Profiler(interval=0.001, async_mode="disabled")
        profiler.start(target_description="bare")
        loop.step()
        profiler.stop()
        profiler = Profiler(interval=0.001, async_mode="disabled")
        profiler.start(target_description="bare")
        profiler.stop()


def captured(capture: Capture, loop: Loop, steps: int) -> None:
    """Capture around each step."""
    for number in range(steps):
        capture.step_start(TRAIN, number)
        loop.step()
        capture.step_broken()  # ends the span and begins none, as disable() does


def attached(capture: Capture, loop: Loop, steps: int) -> None:
    """Capture as it is used: all of the time is in spans where the step is chosen."""
    for number in range(steps):
        with capture.step(TRAIN, number):
            loop.step()
    capture.step_broken()


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
    while timed(plain, loop := Loop(64, batch), STEPS) / STEPS < seconds:
        batch *= 2
    return loop


def timed(run: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - started


def timed_apart(run: Callable[..., object], *arguments: object) -> tuple[float, float]:
    """Seconds by the clock, and those of them in which this thread did not wait for a processor: it ran, or waited for
    its turn at the interpreter. Who else the machine works for does not count in the second."""
    waited = seconds_without_processor()
    seconds = timed(run, *arguments)
    return seconds, seconds - (seconds_without_processor() - waited)


def seconds_without_processor() -> float:
    """How long this thread could have run and did not so far, by Linux."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def compared(loop: Loop, run: Callable[..., object], others: list[Callable[..., object]], **options: Any) -> list[Any]:
    """Compare runs under one capture with others, which take turns with it in rounds.

    Returns:
        Of each other the ratios, by the clock and without waiting for a processor: each of the quickest runs, for what
        else the machine does only adds, and the median of the rounds'.
    """
    steps = steps_of(loop)
    capture = Capture(new_base(), **{**OPTIONS, **options})
    run(capture, loop, steps)  # by its end the process that writes has started
    capture._flush(30)
    ours: list[tuple[float, float]] = []
    theirs: list[list[tuple[float, float]]] = [[] for _ in others]
    for _ in range(ROUNDS):
        ours.append(timed_apart(run, capture, loop, steps))
        capture._flush(30)  # what others take is not for our spans
        for seconds, other in zip(theirs, others, strict=True):
            seconds.append(timed_apart(other, loop, steps))
    capture.finish()
    statistics_of = capture.statistics()
    assert statistics_of.failed + statistics_of.refused + statistics_of.interrupted == 0, statistics_of
    lost = statistics_of.dropped / (statistics_of.dropped + statistics_of.written)
    return [[*ratios(ours, seconds), lost] for seconds in theirs]


def ratios(ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> Iterator[float]:
    for place in (0, 1):
        yield min(each[place] for each in ours) / min(each[place] for each in theirs)
        yield statistics.median(one[place] / two[place] for one, two in zip(ours, theirs, strict=True))


def quickest(run: Callable[[], float], other: Callable[[], float]) -> float:
    """The ratio of the quickest of runs that take turns."""
    pairs = [(run(), other()) for _ in range(ROUNDS)]
    return min(one for one, _ in pairs) / min(two for _, two in pairs)


def main() -> None:
    sys.path.append(original_packages)
    logging.disable(logging.CRITICAL)
    small, slow = Loop(16, 4), slow_enough(0.018)
    plain(small, STEPS)
    report = {
        "functions": functions_in_a_span(small),
        "step_ms": timed(plain, small, STEPS) / STEPS * 1e3,
        "slow_step_ms": timed(plain, slow, STEPS) / STEPS * 1e3,
        "our_transition_us": our_transition(small) * 1e6,
        "original_transition_us": original_transition(small) * 1e6,
        "transition_ratio": quickest(lambda: our_transition(small), lambda: original_transition(small)),
        "every_step": compared(small, captured, [bare]),
        "attached": compared(small, attached, [plain]),
        "tenth": compared(small, attached, [bare_every_tenth, plain], every=10),
        "slow_tenth": compared(slow, attached, [bare_every_tenth, plain], every=10),
        "pyinstrument": compared(slow, attached, [bare_pyinstrument, plain], profiler="pyinstrument"),
        "nothing_us": statistics.median(seconds_for_nothing(triggers=False) for _ in range(5)) * 1e6 / 3,
        "nothing_with_stat_us": statistics.median(seconds_for_nothing() for _ in range(5)) * 1e6,
        "stat_us": statistics.median(seconds_of_a_stat() for _ in range(5)) * 1e6,
    }
    sys.stdout.write(json.dumps(report))


main()
