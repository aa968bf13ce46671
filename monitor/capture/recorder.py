"""Cuts a training run into spans: each transition ends the span in progress and starts the next one. Owns the state of
the run; never raises for a profiler or a disk, only for settings that cannot work, and those in the constructor."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Unpack

from monitor.capture.control import ControlFile, Request, write_answer
from monitor.capture.counts import CaptureStatistics
from monitor.capture.loading import load_settings
from monitor.capture.nodes import default_node
from monitor.capture.overhead import OverheadBudget
from monitor.capture.profilers import (
    SHARED_STACK,
    SpanProfiler,
    check_profiler,
    new_profiler,
)
from monitor.capture.schedule import chooser
from monitor.capture.settings import CaptureOptions, CaptureSettings, check_folder_name, settings_from
from monitor.capture.sidecar import SpanFacts, with_sidecar
from monitor.capture.signals import finish_on_term, forget_term
from monitor.capture.snapshots import Pack, ProfilerName
from monitor.capture.timers import TimerName
from monitor.capture.writer import FLUSH_SECONDS, PendingSpan, SpanWriter
from monitor.capture.writing_process import writing_process
from monitor.layout import SpanKey, format_path
from monitor.spans import Moment, PythonProfileModes, StepPhase

logger = logging.getLogger("phasewatch.capture")

SAGEMAKER_TIMERS: tuple[TimerName, ...] = ("total_time", "cpu_time", "off_cpu_time")
"""The clocks of three consecutive steps where the timer is "default"."""


class Step:
    """One step of training as a context manager; see Capture.step."""

    __slots__ = ("_capture", "_mode", "_step")

    def __init__(self, capture: Capture, mode: PythonProfileModes, step: int) -> None:
        self._capture = capture
        self._mode = mode
        self._step = step

    def __enter__(self) -> None:
        self._capture.step_start(self._mode, self._step)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._capture.step_end()
        else:
            self._capture.step_broken()


class Capture:
    """Profiles a training run step by step, one span folder for each interval between two transitions.

    All transitions belong to one thread, the one that trains. A forked child is not captured; see sibling().

    Args:
        base: the folder that gets `framework/…`. Without it, all settings that are not given here come from the
            environment, from the TOML file that PHASEWATCH_CAPTURE_FILE names, or from SageMaker's profilerconfig.json.
        settings: all settings at once, as another capture has them; then no others are given.
        clock: seconds since the epoch.
        options: see CaptureSettings.

    Raises:
        ConfigError: a setting that cannot work.
    """

    def __init__(
        self,
        base: str | os.PathLike[str] | None = None,
        *,
        settings: CaptureSettings | None = None,
        clock: Callable[[], float] = time.time,
        **options: Unpack[CaptureOptions],
    ) -> None:
        if settings is None:
            settings = (
                load_settings(options) if base is None else settings_from({"base": base, **options}, where="capture")
            )
        check_profiler(settings.profiler)
        self.settings = settings
        self._base = Path(settings.base).absolute()
        self._clock = clock
        self._node = settings.node
        self._writers: dict[ProfilerName, SpanWriter] = {}
        self._choose = chooser(settings.schedule(), clock)
        self._control = ControlFile(self._base) if settings.triggers and settings.enabled else None
        self._request: Request | None = None
        self._overhead = OverheadBudget(settings.overhead_share, settings.overhead_window_seconds)
        self._profiler_seconds = self._carried_seconds = 0.0
        self._mode: PythonProfileModes | None = None
        self._step = 0
        self._wanted = False
        self._profiler: SpanProfiler | None = None
        self._start: Moment | None = None
        self._facts: SpanFacts | None = None
        self._begun = self._closed = self._finished = not settings.enabled
        self._refused = self._interrupted = 0
        self._stopped: str | None = None
        if settings.enabled:
            atexit.register(self.finish)
            forget_in_forked_children(self)
            if settings.handle_sigterm:
                finish_on_term(self.finish)

    # -- who and where ---------------------------------------------------------------------------------------------

    @property
    def node(self) -> str:
        """Who writes; settled when the first span ends, for ranks may be known only some time after the start."""
        return default_node() if self._node is None else self._node

    @property
    def node_folder(self) -> Path:
        """The folder that gets the span folders."""
        return self._node_folder(self.settings.profiler)

    def sibling(self, suffix: str) -> Capture:
        """Make a capture with the same settings for another thread or process, with a node of its own, `NODE-SUFFIX`.

        Call it there: in a forked child, in a thread. A spawned child gets `capture.settings`, which can be pickled.
        """
        check_folder_name("suffix", suffix)
        return Capture(settings=self.settings.for_node(f"{self.node}-{suffix}"), clock=self._clock)

    # -- transitions -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the span before the first step; call it as early in the program as can be."""
        if not self._begun:
            self._begun = True
            self._begin(StepPhase.START, PythonProfileModes.PRE_STEP_ZERO, None)

    def step(self, mode: PythonProfileModes, step: int) -> Step:
        """Return a context manager around one step. After an exception inside, the profiler stays off until the next
        step starts."""
        return Step(self, mode, step)

    def step_start(self, mode: PythonProfileModes, step: int) -> None:
        """Mark the start of a step; mode is one of TRAIN, EVAL, PREDICT, GLOBAL, and each mode counts its own steps."""
        if self._closed:
            return
        if self._control is not None and self._control.changed():
            self._read_request(self._control)
        wanted = self._choose(mode, step)
        if self._request is not None:
            wanted = self._follow(self._request, mode, step) or wanted
        if wanted or self._wanted or self._profiler is not None:
            self._wanted = wanted
            self._turn(StepPhase.STEP_START, mode, step)
        else:
            self._begun = True
            self._mode, self._step = mode, step

    def forward_end(self) -> None:
        """Mark the end of the forward pass; nothing happens before the first step."""
        if (self._wanted or self._profiler is not None) and self._mode is not None and not self._closed:
            self._turn(StepPhase.FORWARD_PASS_END, self._mode, self._step)

    def step_end(self) -> None:
        """Mark the end of a step; what follows until the next one is a span too. Nothing happens before the first
        step."""
        if (self._wanted or self._profiler is not None) and self._mode is not None and not self._closed:
            self._turn(StepPhase.STEP_END, self._mode, self._step)

    def step_broken(self) -> None:
        """Mark a step that an exception ended: write what was recorded of it and leave the profiler off."""
        self._wanted = False
        if self._mode is not None and not self._closed:
            self._end(StepPhase.STEP_END, self._mode, self._step)

    def close(self) -> None:
        """End training: write what is in progress, wait up to 4 s for the disk, begin the last span, which ends with
        finish() or the program. Later transitions do nothing."""
        if self._closed:
            return
        self._begun = self._closed = True
        self._end(StepPhase.END, PythonProfileModes.POST_HOOK_CLOSE, None)
        self._flush(FLUSH_SECONDS)
        # Its start mode on disk is the original's default one, not POST_HOOK_CLOSE.
        self._begin(StepPhase.END, PythonProfileModes.PRE_STEP_ZERO, None)

    def finish(self) -> None:
        """End the span in progress and write all; runs by itself when the program exits."""
        if self._finished:
            return
        self._begun = self._closed = self._finished = True
        self._let_go()
        self._end(StepPhase.END, PythonProfileModes.POST_HOOK_CLOSE, None)
        deadline = time.monotonic() + FLUSH_SECONDS
        for writer in self._writers.values():
            writer.close(max(0.0, deadline - time.monotonic()))
        writing_process.close()

    def statistics(self) -> CaptureStatistics:
        """Count what was written and what was lost."""
        writers = [writer.statistics() for writer in self._writers.values()]
        return CaptureStatistics(
            written=sum(writer.written for writer in writers),
            written_bytes=sum(writer.written_bytes for writer in writers),
            waiting=sum(writer.waiting for writer in writers),
            dropped=sum(writer.dropped for writer in writers),
            failed=sum(writer.failed for writer in writers),
            refused=self._refused,
            interrupted=self._interrupted,
            own_seconds=self._overhead.total_seconds,
            last_failure=next((writer.last_failure for writer in writers if writer.last_failure), None),
            stopped=self._stopped,
        )

    def forget(self) -> None:
        """In a forked child: switch the inherited profiler off and do nothing more; the writer's thread, and with it
        any lock that it held, stayed in the parent."""
        self._begun = self._closed = self._finished = True
        self._let_go()
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()

    # -- requests --------------------------------------------------------------------------------------------------

    def _read_request(self, control: ControlFile) -> None:
        """Take a new request up, or say why not."""
        try:
            request = control.read(self.node)
            if request is None:
                return
            if request.profiler is not None:
                check_profiler(request.profiler)
        except Exception as error:  # noqa: BLE001  # whatever somebody put there, training goes on
            logger.warning("a request to profile is not followed: %s", error)
            self._answer({"id": getattr(error, "id", None), "state": "refused", "reason": str(error)})
            return
        self._request = request
        self._answer({"id": request.id, "state": "taken", "steps": request.steps})

    def _follow(self, request: Request, mode: PythonProfileModes, step: int) -> bool:
        """Tell whether a request wants this step; ends a request that has all its steps."""
        if request.take(mode):
            return True
        if request.steps <= 0:
            self._request = None
            self._answer({"id": request.id, "state": "done", "mode": mode.word, "before_step": step})
        return False

    def _answer(self, answer: dict[str, object]) -> None:
        write = partial(write_answer, self._base, self.node, answer)
        self._writer(self.settings.profiler).run_soon(write)

    # -- spans -----------------------------------------------------------------------------------------------------

    def _turn(self, phase: StepPhase, mode: PythonProfileModes, step: int) -> None:
        """End the span in progress, begin the next one if it is wanted, and add up what that cost."""
        before, self._profiler_seconds = perf_counter(), 0.0
        self._end(phase, mode, step)
        self._begun = True
        self._mode, self._step = mode, step
        between = perf_counter()
        own_seconds = self._carried_seconds + between - before - self._profiler_seconds
        verdict = self._too_large() or self._overhead.note(own_seconds, between)
        if verdict is not None:
            self._stop(verdict)
        elif self._wanted:
            self._profiler_seconds = 0.0
            self._begin(phase, mode, step)
            self._carried_seconds = perf_counter() - between - self._profiler_seconds

    def _too_large(self) -> str | None:
        most = self.settings.max_bytes
        for writer in self._writers.values():
            if most and writer.folder_bytes > most:
                return (
                    f"its folder {writer.node_folder} holds {writer.folder_bytes} bytes, more than max_bytes = {most}; "
                    "remove old spans, profile fewer steps (every=), or allow more"
                )
        return None

    def _stop(self, verdict: str) -> None:
        """Give up for the rest of the run; the profiler is off already."""
        self._stopped = verdict
        self._wanted = False
        self._closed = True
        logger.warning("capture stops itself: %s", verdict)

    def _begin(self, phase: StepPhase, mode: PythonProfileModes, step: int | None) -> None:
        request = self._request
        name = self.settings.profiler if request is None or request.profiler is None else request.profiler
        timer = self._timer(step)
        self._facts = self._facts_of(name, timer)
        if SHARED_STACK and name == "cprofile":
            self._quiet_writers()
        before = perf_counter()
        reason = "another profiler is active"
        profiler: SpanProfiler | None = None
        try:
            # The profiler is noted before it starts, so that a KeyboardInterrupt in between leaves none on unseen.
            self._profiler = profiler = new_profiler(name, timer, self.settings.interval_seconds)
            self._start = Moment(mode=mode, step=step, phase=phase, time_us=self._clock() * 1e6)
            if profiler.start():
                return
        except Exception as error:  # noqa: BLE001  # a profiler that fails must not end the training
            reason = f"{type(error).__name__}: {error}"
        finally:
            self._profiler_seconds += perf_counter() - before
        self._profiler = None
        self._refused += 1
        if self._refused == 1:
            logger.warning("a span cannot be profiled: %s. Later ones that cannot will be counted only", reason)

    def _end(self, phase: StepPhase, mode: PythonProfileModes, step: int | None) -> None:
        profiler, start, facts = self._profiler, self._start, self._facts
        if profiler is None or start is None or facts is None:
            return
        reason = "another profiler was started inside it"
        before = perf_counter()
        pack: Pack | None = None
        try:
            pack = profiler.stop()
        except Exception as error:  # noqa: BLE001  # as above
            reason = f"{type(error).__name__}: {error}"
        # Forgotten only now, so that after a KeyboardInterrupt the next transition stops it; and only if it is still
        # the one, for a signal handler may have closed the capture meanwhile.
        if self._profiler is profiler:
            self._profiler = None
        end = Moment(mode=mode, step=step, phase=phase, time_us=self._clock() * 1e6)
        self._profiler_seconds += perf_counter() - before
        if pack is not None:
            span = PendingSpan(start=start, end=end, pack=partial(with_sidecar, pack, facts))
            self._writer(facts.profiler).submit(span)
            return
        self._interrupted += 1
        if self._interrupted == 1:
            logger.warning("a span is lost: %s. Later ones that are lost so will be counted only", reason)

    def _facts_of(self, name: ProfilerName, timer: TimerName) -> SpanFacts:
        thread = threading.current_thread()
        counted = name == "cprofile"
        return SpanFacts(
            profiler=name,
            timer=timer if counted else None,
            interval_seconds=None if counted else self.settings.interval_seconds,
            thread=thread.name,
            thread_id=thread.native_id or 0,
            trigger=None if self._request is None else self._request.id,
            overhead_ratio=self._overhead.ratio,
        )

    def _timer(self, step: int | None) -> TimerName:
        """Return the clock of a span; SageMaker's "default" takes another one at each of three steps."""
        timer = self.settings.timer
        if timer != "default":
            return timer  # type: ignore[return-value]  # checked by CaptureSettings
        first = self.settings.steps[0][0] if self.settings.steps else 0
        place = 0 if step is None else step - first
        return SAGEMAKER_TIMERS[place] if 0 <= place < len(SAGEMAKER_TIMERS) else "total_time"

    # -- writing ---------------------------------------------------------------------------------------------------

    def _writer(self, profiler: ProfilerName) -> SpanWriter:
        writer = self._writers.get(profiler)
        if writer is None:
            self._node = self.node  # settled now, with all ranks known that will ever be
            # Where threads share one profiled stack a thread of ours would falsify the very spans that it writes.
            threaded = not (profiler == "cprofile" and SHARED_STACK)
            writer = self._writers[profiler] = SpanWriter(
                self._base,
                self._node_folder(profiler),
                threaded=threaded,
                queue_spans=self.settings.queue_spans,
                process=writing_process if threaded else None,
                heavy=profiler == "pyinstrument",
            )
        return writer

    def _node_folder(self, profiler: ProfilerName) -> Path:
        key = SpanKey(framework=self.settings.framework, profiler=profiler, node=self.node, span="*")
        return Path(format_path(str(self._base), key)).parents[1]

    def _flush(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for writer in self._writers.values():
            writer.flush(max(0.0, deadline - time.monotonic()))

    def _quiet_writers(self) -> None:
        """Let threads that write finish before cProfile sees what they do."""
        if len(self._writers) > 1:
            self._flush(FLUSH_SECONDS)

    def _let_go(self) -> None:
        atexit.unregister(self.finish)
        forget_term(self.finish)


def forget_in_forked_children(capture: Capture) -> None:
    """Arrange for forget() after a fork; a fork hook cannot be withdrawn, so it holds the capture weakly."""
    reference = weakref.ref(capture)

    def forget() -> None:
        inherited = reference()
        if inherited is not None:
            inherited.forget()

    os.register_at_fork(after_in_child=forget)
