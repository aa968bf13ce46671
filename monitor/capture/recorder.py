"""Cuts a training run into spans: each transition ends the span in progress and starts the next one. Owns the state of
the run; never raises for a profiler or a disk, only for settings that cannot work, and those in the constructor."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from monitor.capture.profilers import SHARED_STACK, ProfilerName, SpanProfiler, span_profiler
from monitor.capture.writer import FLUSH_SECONDS, QUEUE_SPANS, PendingSpan, SpanWriter
from monitor.errors import ConfigError
from monitor.layout import SpanKey, format_path
from monitor.spans import Moment, PythonProfileModes, StepPhase

logger = logging.getLogger("phasewatch.capture")

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
"""Set by torchrun, Slurm and Open MPI before the script starts, so before any framework can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatistics:
    """What became of the spans so far.

    Attributes:
        written: on disk.
        waiting: recorded and not yet written.
        dropped: recorded, and thrown away because the queue was full.
        failed: recorded, and lost because it could not be rendered or written.
        refused: not recorded, because another profiler was active or the profiler failed to start.
        interrupted: lost, because another profiler cut in or the profiler failed to stop.
    """

    written: int
    written_bytes: int
    waiting: int
    dropped: int
    failed: int
    refused: int
    interrupted: int
    last_failure: str | None

    @property
    def lost(self) -> int:
        """Spans that will never be on disk."""
        return self.dropped + self.failed + self.refused + self.interrupted


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

    All transitions belong to one thread, the one that trains. A forked child is not captured.

    Args:
        base: the folder that gets `framework/…`; made when the first span is written.
        framework: names a folder, such as pytorch or tensorflow.
        profiler: cprofile counts and times every call; pyinstrument samples, and must be installed.
        node: who writes; by default the rank, or else the process id, and the host.
        clock: seconds since the epoch.
        every: profile only steps that it divides. The spans before the first step and after close() are always written.
        queue_spans: how many recorded spans may wait for the disk.

    Raises:
        ConfigError: a setting that cannot work.
    """

    def __init__(
        self,
        base: str | Path,
        *,
        framework: str = "pytorch",
        profiler: ProfilerName = "cprofile",
        node: str | None = None,
        clock: Callable[[], float] = time.time,
        every: int = 1,
        queue_spans: int = QUEUE_SPANS,
    ) -> None:
        self.node = default_node() if node is None else node
        check_folder_name("framework", framework)
        check_folder_name("node", self.node)
        if every < 1 or queue_spans < 1:
            raise ConfigError(f"every ({every}) and queue_spans ({queue_spans}) must be at least 1")
        self._new_profiler = span_profiler(profiler)
        key = SpanKey(framework=framework, profiler=profiler, node=self.node, span="*")
        self.node_folder = Path(format_path(str(base), key)).absolute().parents[1]
        # Where threads share one profiled stack a thread of ours would falsify the very spans that it writes.
        threaded = not (profiler == "cprofile" and SHARED_STACK)
        self._writer = SpanWriter(Path(base).absolute(), self.node_folder, threaded=threaded, queue_spans=queue_spans)
        self._clock = clock
        self._every = every
        self._mode: PythonProfileModes | None = None
        self._step = 0
        self._profiler: SpanProfiler | None = None
        self._start: Moment | None = None
        self._begun = self._closed = self._finished = False
        self._refused = self._interrupted = 0
        atexit.register(self.finish)
        forget_in_forked_children(self)

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
        self._turn(StepPhase.STEP_START, mode, step)

    def forward_end(self) -> None:
        """Mark the end of the forward pass; nothing happens before the first step."""
        if self._mode is not None:
            self._turn(StepPhase.FORWARD_PASS_END, self._mode, self._step)

    def step_end(self) -> None:
        """Mark the end of a step; what follows until the next one is a span too. Nothing happens before the first
        step."""
        if self._mode is not None:
            self._turn(StepPhase.STEP_END, self._mode, self._step)

    def step_broken(self) -> None:
        """Mark a step that an exception ended: write what was recorded of it and leave the profiler off."""
        if self._mode is not None and not self._closed:
            self._end(StepPhase.STEP_END, self._mode, self._step)

    def close(self) -> None:
        """End training: write what is in progress, wait up to 4 s for the disk, begin the last span, which ends with
        finish() or the program. Later transitions do nothing."""
        if self._closed:
            return
        self._begun = self._closed = True
        self._end(StepPhase.END, PythonProfileModes.POST_HOOK_CLOSE, None)
        self._writer.flush(FLUSH_SECONDS)
        # Its start mode on disk is the original's default one, not POST_HOOK_CLOSE.
        self._begin(StepPhase.END, PythonProfileModes.PRE_STEP_ZERO, None)

    def finish(self) -> None:
        """End the span in progress and write all; runs by itself when the program exits."""
        if self._finished:
            return
        self._begun = self._closed = self._finished = True
        atexit.unregister(self.finish)
        self._end(StepPhase.END, PythonProfileModes.POST_HOOK_CLOSE, None)
        self._writer.close(FLUSH_SECONDS)

    def statistics(self) -> CaptureStatistics:
        """Count what was written and what was lost."""
        writer = self._writer.statistics()
        return CaptureStatistics(
            written=writer.written,
            written_bytes=writer.written_bytes,
            waiting=writer.waiting,
            dropped=writer.dropped,
            failed=writer.failed,
            refused=self._refused,
            interrupted=self._interrupted,
            last_failure=writer.last_failure,
        )

    def forget(self) -> None:
        """In a forked child: switch the inherited profiler off and do nothing more; the writer's thread, and with it
        any lock that it held, stayed in the parent."""
        self._begun = self._closed = self._finished = True
        atexit.unregister(self.finish)
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()

    def _turn(self, phase: StepPhase, mode: PythonProfileModes, step: int) -> None:
        if self._closed:
            return
        self._end(phase, mode, step)
        self._begun = True
        self._mode, self._step = mode, step
        if step % self._every == 0:
            self._begin(phase, mode, step)

    def _begin(self, phase: StepPhase, mode: PythonProfileModes, step: int | None) -> None:
        # The profiler is noted before it starts, so that a KeyboardInterrupt in between leaves none on unseen.
        self._profiler = profiler = self._new_profiler()
        self._start = Moment(mode=mode, step=step, phase=phase, time_us=self._clock() * 1e6)
        reason = "another profiler is active"
        try:
            if profiler.start():
                return
        except Exception as error:  # noqa: BLE001  # a profiler that fails must not end the training
            reason = f"{type(error).__name__}: {error}"
        self._profiler = None
        self._refused += 1
        if self._refused == 1:
            logger.warning("a span cannot be profiled: %s. Later ones that cannot will be counted only", reason)

    def _end(self, phase: StepPhase, mode: PythonProfileModes, step: int | None) -> None:
        profiler, start = self._profiler, self._start
        if profiler is None or start is None:
            return
        reason = "another profiler was started inside it"
        try:
            render = profiler.stop()
        except Exception as error:  # noqa: BLE001  # as above
            render, reason = None, f"{type(error).__name__}: {error}"
        # Forgotten only now, so that after a KeyboardInterrupt the next transition stops it; and only if it is still
        # the one, for a signal handler may have closed the capture meanwhile.
        if self._profiler is profiler:
            self._profiler = None
        end = Moment(mode=mode, step=step, phase=phase, time_us=self._clock() * 1e6)
        if render is not None:
            self._writer.submit(PendingSpan(start=start, end=end, render=render))
            return
        self._interrupted += 1
        if self._interrupted == 1:
            logger.warning("a span is lost: %s. Later ones that are lost so will be counted only", reason)


def default_node() -> str:
    """Name this process as the original does: rank, or else process id, and host; `_` becomes `-`."""
    rank = next((os.environ[name] for name in RANK_VARIABLES if os.environ.get(name)), os.getpid())
    return f"{rank}-{socket.gethostname()}".replace("_", "-")


def check_folder_name(what: str, name: str) -> None:
    """Refuse what cannot be one component of a path."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"the {what} {name!r} cannot name a folder: use letters, digits and -")


def forget_in_forked_children(capture: Capture) -> None:
    """Arrange for forget() after a fork; a fork hook cannot be withdrawn, so it holds the capture weakly."""
    reference = weakref.ref(capture)

    def forget() -> None:
        inherited = reference()
        if inherited is not None:
            inherited.forget()

    os.register_at_fork(after_in_child=forget)
