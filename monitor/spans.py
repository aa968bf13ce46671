"""Modes, phases and spans: the names of span folders on disk, read and written. Standard library only, no I/O."""

from __future__ import annotations

import math
import re
from enum import Enum, IntEnum
from typing import Literal, NamedTuple, TypeAlias

from monitor.errors import LayoutError

JobPhaseName: TypeAlias = Literal["initialization", "training_loop", "finalization"]
JOB_PHASES: tuple[JobPhaseName, ...] = ("initialization", "training_loop", "finalization")

LARGEST_STEP = 2**63 - 2
"""Steps are stored as 64-bit numbers; the largest one stands for `*` at the end of a span."""

LARGEST_TIME_US = 2.0**62


class PythonProfileModes(IntEnum):
    """What the training script was doing, numbered as in the original library."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4
    PRE_STEP_ZERO = 5
    POST_HOOK_CLOSE = 6

    @property
    def word(self) -> str:
        """The mode's form on disk."""
        return MODE_WORDS[self]

    @classmethod
    def from_word(cls, word: str) -> PythonProfileModes:
        """Read the form on disk; raises LayoutError for anything else."""
        try:
            return MODES_BY_WORD[word]
        except KeyError:
            raise LayoutError(f"mode {quoted(word)} is none of {', '.join(MODES_BY_WORD)}") from None


MODE_WORDS: dict[PythonProfileModes, str] = {
    PythonProfileModes.TRAIN: "train",
    PythonProfileModes.EVAL: "eval",
    PythonProfileModes.PREDICT: "predict",
    PythonProfileModes.GLOBAL: "global",
    PythonProfileModes.PRE_STEP_ZERO: "prestepzero",
    PythonProfileModes.POST_HOOK_CLOSE: "posthookclose",
}
MODES_BY_WORD = {word: mode for mode, word in MODE_WORDS.items()}


class StepPhase(Enum):
    """A moment of a step, in the order in which they pass; the value is the form on disk."""

    START = "start"
    STEP_START = "stepstart"
    FORWARD_PASS_END = "forwardpassend"
    STEP_END = "stepend"
    END = "end"

    order: int
    """Its place among the phases, from 0."""

    def __init__(self, word: str) -> None:
        self.order = len(type(self).__members__)

    def __lt__(self, other: StepPhase) -> bool:
        return self.order < other.order

    def __le__(self, other: StepPhase) -> bool:
        return self.order <= other.order

    def __gt__(self, other: StepPhase) -> bool:
        return self.order > other.order

    def __ge__(self, other: StepPhase) -> bool:
        return self.order >= other.order


PHASES_BY_WORD = {phase.value: phase for phase in StepPhase}


class Moment(NamedTuple):
    """One end of a span.

    Attributes:
        step: None is `*`, no step.
        time_us: microseconds since the epoch.
    """

    mode: PythonProfileModes
    step: int | None
    phase: StepPhase
    time_us: float


class Span(NamedTuple):
    """One profiled interval. A tuple, as is Moment: a million of them are made in one go.

    Attributes:
        name: the folder's name, exactly as it stands on disk.
        start, end: its ends; a clock that jumps may put the end before the start.
    """

    name: str
    start: Moment
    end: Moment

    @property
    def start_step(self) -> int:
        """The step at the start; -1 for `*`, as in the original library."""
        return -1 if self.start.step is None else self.start.step

    @property
    def end_step(self) -> int | float:
        """The step at the end; infinity for `*`, as in the original library."""
        return math.inf if self.end.step is None else self.end.step

    @property
    def training_phase(self) -> tuple[PythonProfileModes, PythonProfileModes]:
        """The pair (start mode, end mode)."""
        return self.start.mode, self.end.mode

    @property
    def job_phase(self) -> JobPhaseName:
        """The part of the job it belongs to, by phase and not by mode: on disk the span after closing starts in mode
        `prestepzero`."""
        if self.start.phase is StepPhase.START:
            return "initialization"
        return "finalization" if self.end.phase is StepPhase.END else "training_loop"


MOMENT = r"([a-z]+)-(\*|[0-9]+)-([a-z]+)-([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
SPAN_NAME = re.compile(f"{MOMENT}_{MOMENT}", re.ASCII)
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
LEGACY_NAME = re.compile(
    r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)_([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)_(.+)_(-1|[0-9]+)",
    re.ASCII | re.DOTALL,
)


def parse_span_name(name: str) -> Span:
    """Read a span folder's name.

    Raises:
        LayoutError: says which part of the name is wrong.
    """
    found = SPAN_NAME.fullmatch(name)
    if found is None:
        raise LayoutError(explain(name))
    parts = found.groups()
    try:
        return Span(name, moment_of(*parts[:4]), moment_of(*parts[4:]))
    except (KeyError, ValueError):
        raise LayoutError(explain(name)) from None


def format_span_name(start: Moment, end: Moment) -> str:
    """Write a span folder's name as the original library does."""
    return f"{format_moment(start)}_{format_moment(end)}"


def parse_legacy_name(name: str) -> tuple[Span, str]:
    """Read a folder name of the older layout, START_END_NODE_STEP; returns the span and the node.

    Raises:
        LayoutError: says which part of the name is wrong.
    """
    found = LEGACY_NAME.fullmatch(name)
    if found is None:
        raise LayoutError(f"folder name {quoted(name)} is not START_END_NODE_STEP of the older layout")
    start_text, end_text, node, step_text = found.groups()
    try:
        start_us, end_us, step = time_of(start_text), time_of(end_text), int(step_text)
        if step > LARGEST_STEP:
            raise ValueError
    except ValueError:
        raise LayoutError(f"a time or the step in {quoted(name)} of the older layout is out of range") from None
    train = PythonProfileModes.TRAIN
    if step == -1:
        start = Moment(mode=PythonProfileModes.PRE_STEP_ZERO, step=None, phase=StepPhase.START, time_us=start_us)
        end = Moment(mode=train, step=0, phase=StepPhase.STEP_START, time_us=end_us)
    else:
        start = Moment(mode=train, step=step, phase=StepPhase.STEP_START, time_us=start_us)
        end = Moment(mode=train, step=step, phase=StepPhase.STEP_END, time_us=end_us)
    return Span(name=name, start=start, end=end), node


def parse_any_name(name: str) -> Span:
    """Read a folder name of either layout."""
    return parse_legacy_name(name)[0] if name[:1].isdigit() else parse_span_name(name)


def moment_of(mode: str, step: str, phase: str, time: str) -> Moment:
    """Build one end from its four texts; raises KeyError or ValueError."""
    number = None if step == "*" else int(step)
    if number is not None and number > LARGEST_STEP:
        raise ValueError(step)
    return Moment(MODES_BY_WORD[mode], number, PHASES_BY_WORD[phase], time_of(time))


def time_of(text: str) -> float:
    """Read microseconds since the epoch; raises ValueError where they are out of range."""
    value = float(text)
    if not value <= LARGEST_TIME_US:
        raise ValueError(text)
    return value


def format_moment(moment: Moment) -> str:
    """Write one end."""
    step = "*" if moment.step is None else str(moment.step)
    return f"{moment.mode.word}-{step}-{moment.phase.value}-{moment.time_us!r}"


def explain(name: str) -> str:
    """Say which part of a refused name is wrong."""
    halves = name.split("_")
    if len(halves) != 2:
        return f"span name {quoted(name)} does not have the form START_END"
    for which, half in zip(("start", "end"), halves, strict=True):
        parts = half.split("-", 3)
        if len(parts) != 4:
            return f"the {which} of span {quoted(name)} does not have the form MODE-STEP-PHASE-TIME"
        mode, step, phase, time = parts
        where = f"in the {which} of span {quoted(name)}"
        if mode not in MODES_BY_WORD:
            return f"mode {quoted(mode)} {where} is none of {', '.join(MODES_BY_WORD)}"
        if step != "*" and not (step.isascii() and step.isdigit()):
            return f"step {quoted(step)} {where} is neither digits nor *"
        if step != "*" and (len(step) > 20 or int(step) > LARGEST_STEP):
            return f"step {quoted(step)} {where} is larger than {LARGEST_STEP}"
        if phase not in PHASES_BY_WORD:
            return f"phase {quoted(phase)} {where} is none of {', '.join(PHASES_BY_WORD)}"
        if not NUMBER.fullmatch(time) or float(time) > LARGEST_TIME_US:
            return f"time {quoted(time)} {where} is not a number of microseconds since the epoch"
    return f"span name {quoted(name)} is not one"


def quoted(text: str) -> str:
    """Quote a piece of a name, shortened where it is long, so that a message stays readable."""
    return repr(text if len(text) <= 120 else f"{text[:80]}…{text[-30:]}")
