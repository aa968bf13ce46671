"""What a capture can be told, checked. Owns names, defaults and types of all settings, whether they come from code,
from text in the environment or from a TOML file; reads none of these itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, get_args

from monitor.capture.schedule import Schedule
from monitor.capture.snapshots import ProfilerName
from monitor.capture.timers import TIMER_NAMES, TimerName
from monitor.errors import ConfigError
from monitor.spans import PythonProfileModes

QUEUE_SPANS = 256
"""A cProfile span of 106 functions holds 15 kB until it is written (measured), so a full queue is some 4 MB."""

STEP_MODES = {mode.word: mode for mode in PythonProfileModes if mode <= PythonProfileModes.GLOBAL}
PROFILER_NAMES: tuple[ProfilerName, ...] = get_args(ProfilerName)


class CaptureOptions(TypedDict, total=False):
    """The settings that code may give by name; see CaptureSettings."""

    framework: str
    profiler: ProfilerName
    timer: TimerName | str
    interval_seconds: float
    node: str | None
    every: int
    steps: Iterable[tuple[int, int | None]] | str
    first: int | None
    start_time: float | None
    duration_seconds: float | None
    modes: Iterable[PythonProfileModes | str] | str | None
    enabled: bool
    triggers: bool
    handle_sigterm: bool
    queue_spans: int
    overhead_share: float
    overhead_window_seconds: float
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """All settings of a capture.

    Attributes:
        base: the folder that gets `framework/…`; made when the first span is written.
        framework: names a folder, such as pytorch or tensorflow.
        profiler: cprofile counts and times every call; pyinstrument samples, and must be installed.
        timer: cProfile's clock. "default" is SageMaker's: three steps, one with each clock of the original.
        interval_seconds: between two samples of pyinstrument.
        node: who writes; None is the rank, or else the process id, and the host.
        every, steps, first, start_time, duration_seconds, modes: which steps are profiled; see Schedule. The spans
            before the first step and after close() are always written.
        enabled: False does nothing at all.
        triggers: look for a control file in the base folder at each step.
        handle_sigterm: write the last spans on SIGTERM, then end as SIGTERM does; only where nobody else handles it.
        queue_spans: how many recorded spans may wait for the disk.
        overhead_share: capture stops itself when its own work on the training thread takes more than this share of
            the time; 0 is no limit.
        overhead_window_seconds: over which time that is measured.
        max_bytes: capture stops itself when its node folder holds more; 0 is no limit.
    """

    base: str
    framework: str = "pytorch"
    profiler: ProfilerName = "cprofile"
    timer: str = "wall"
    interval_seconds: float = 0.001
    node: str | None = None
    every: int = 1
    steps: tuple[tuple[int, int | None], ...] = ()
    first: int | None = None
    start_time: float | None = None
    duration_seconds: float | None = None
    modes: frozenset[PythonProfileModes] | None = None
    enabled: bool = True
    triggers: bool = True
    handle_sigterm: bool = True
    queue_spans: int = QUEUE_SPANS
    overhead_share: float = 0.05
    overhead_window_seconds: float = 10.0
    max_bytes: int = 4 * 2**30

    def __post_init__(self) -> None:
        """Check everything that can be checked before training begins.

        Raises:
            ConfigError: says which setting, and what is allowed.
        """
        check_folder_name("framework", self.framework)
        if self.node is not None:
            check_folder_name("node", self.node)
        for what, value, known in (
            ("profiler", self.profiler, PROFILER_NAMES),
            ("timer", self.timer, (*TIMER_NAMES, "default")),
        ):
            if value not in known:
                raise ConfigError(f"{what} {value!r} is none of {', '.join(known)}")
        if self.queue_spans < 1:
            raise ConfigError(f"queue_spans is {self.queue_spans}: it must be at least 1")
        for name in ("interval_seconds", "overhead_window_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be greater than 0")
        for name in ("overhead_share", "max_bytes"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must not be negative; 0 is no limit")
        self.schedule()

    def schedule(self) -> Schedule:
        """Return the part that chooses steps."""
        return Schedule(**{field.name: getattr(self, field.name) for field in fields(Schedule)})

    def for_node(self, node: str) -> CaptureSettings:
        """Return the same settings for another node."""
        return replace(self, node=node)


def settings_from(values: Mapping[str, object], *, where: str) -> CaptureSettings:
    """Read settings from values of their own types or from text.

    Raises:
        ConfigError: a setting is unknown, missing or wrong; says where.
    """
    read: dict[str, Any] = {}
    for name, value in values.items():
        reader = READERS.get(name)
        if reader is None:
            raise ConfigError(f"{where}: there is no setting {name!r}; there are: {', '.join(READERS)}")
        try:
            read[name] = reader(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {name} = {value!r} cannot be used: {error}") from error
    if not read.get("base"):
        raise ConfigError(f"{where}: no base folder is given: set base, or PHASEWATCH_CAPTURE_BASE")
    return CaptureSettings(**read)


def read_text(value: object) -> str:
    """Take text or a path."""
    if isinstance(value, bool | int | float | list | dict):
        raise TypeError("text is needed")
    return str(value)


def read_int(value: object) -> int:
    """Take a whole number or its digits."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError("a whole number is needed")
    return int(value)


def read_float(value: object) -> float:
    """Take a number or its text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("a number is needed")
    return float(value)


def read_bool(value: object) -> bool:
    """Take true, false, or one of their words."""
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if not isinstance(value, str) or value.strip().lower() not in words:
        raise ValueError("true or false is needed")
    return words[value.strip().lower()]


def read_ranges(value: object) -> tuple[tuple[int, int | None], ...]:
    """Take ranges such as `100-120,200,300-`, or a list of them, or of [first, last] pairs."""
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    if not isinstance(value, Iterable):
        raise TypeError("ranges such as 100-120,200 are needed")
    return tuple(read_range(part) for part in value)


def read_range(value: object) -> tuple[int, int | None]:
    """Take one range of steps."""
    if isinstance(value, str):
        start, dash, end = value.strip().partition("-")
        return int(start), (int(end) if end.strip() else None) if dash else int(start)
    if isinstance(value, int):
        return value, value
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("a range is FIRST-LAST or a pair of steps")
    start, end = value
    return read_int(start), None if end is None else read_int(end)


def read_modes(value: object) -> frozenset[PythonProfileModes] | None:
    """Take modes or their words, in a list or separated by commas."""
    if value is None:
        return None
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, Iterable):
        raise TypeError("modes such as train,eval are needed")
    modes = set()
    for mode in value:
        word = mode.word if isinstance(mode, PythonProfileModes) else mode
        if word not in STEP_MODES:
            raise ValueError(f"{word!r} is none of {', '.join(STEP_MODES)}")
        modes.add(STEP_MODES[word])
    return frozenset(modes) or None


def optional(read: Callable[[object], object]) -> Callable[[object], object]:
    """Let None pass."""
    return lambda value: None if value is None else read(value)


READERS: dict[str, Callable[[object], object]] = {
    "base": read_text,
    "framework": read_text,
    "profiler": read_text,
    "timer": read_text,
    "interval_seconds": read_float,
    "node": optional(read_text),
    "every": read_int,
    "steps": read_ranges,
    "first": optional(read_int),
    "start_time": optional(read_float),
    "duration_seconds": optional(read_float),
    "modes": read_modes,
    "enabled": read_bool,
    "triggers": read_bool,
    "handle_sigterm": read_bool,
    "queue_spans": read_int,
    "overhead_share": read_float,
    "overhead_window_seconds": read_float,
    "max_bytes": read_int,
}


def check_folder_name(what: str, name: str) -> None:
    """Refuse what cannot be one component of a path."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"the {what} {name!r} cannot name a folder: use letters, digits and -")
