"""Query strings to typed questions. One table of parameters serves the parser and the OpenAPI document. Pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar, get_args

from monitor.answers import Scope
from monitor.errors import LayoutError, QueryError
from monitor.selection import (
    BetweenModes,
    ByStep,
    ByStepDocumented,
    ByTime,
    PostHookClose,
    PreStepZero,
    Question,
)
from monitor.spans import JOB_PHASES, LARGEST_STEP, MODES_BY_WORD, PHASES_BY_WORD, PythonProfileModes, StepPhase
from monitor.tables import SORT_KEYS, SortKey

Format: TypeAlias = Literal["json", "csv", "pstats", "profiles", "tree", "folded", "speedscope", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)
TREE_FORMATS: tuple[Format, ...] = ("tree", "folded", "speedscope", "html")
"""These show call trees, which only a sampler records."""
PHASE_FORMATS: tuple[Format, ...] = ("json", "csv", "pstats", "tree")
LARGEST_PAGE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of the API.

    Attributes:
        read: text -> value; raises ValueError saying what is allowed.
        schema: its JSON schema.
        repeated: may be given several times. required: must be given.
    """

    name: str
    read: Callable[[str], object]
    schema: Mapping[str, object]
    help: str
    repeated: bool = False
    required: bool = False


def step(text: str) -> int:
    """Read a step."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > LARGEST_STEP:
        raise ValueError(f"must be a step: digits, at most {LARGEST_STEP}")
    return int(text)


def seconds(text: str) -> float:
    """Read a time."""
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("must be a time in seconds since the epoch")
    return value


def mode(text: str) -> PythonProfileModes:
    """Read a mode."""
    try:
        return PythonProfileModes.from_word(text)
    except LayoutError:
        raise ValueError(f"must be one of {', '.join(MODES_BY_WORD)}") from None


def phase(text: str) -> StepPhase:
    """Read a step phase."""
    if text not in PHASES_BY_WORD:
        raise ValueError(f"must be one of {', '.join(PHASES_BY_WORD)}")
    return PHASES_BY_WORD[text]


def one_of(*words: str) -> Callable[[str], str]:
    """Read one of some words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text

    return read


def output_format(text: str) -> str:
    """Read a format."""
    return one_of(*FORMATS)(text)


def table_format(text: str) -> str:
    """Read a format that can hold phases."""
    if text in FORMATS and text not in PHASE_FORMATS:
        raise ValueError(f"holds no phases: use {', '.join(PHASE_FORMATS)}, or stats/modes and the other questions")
    return one_of(*PHASE_FORMATS)(text)


def switch(text: str) -> bool:
    """Read true or false."""
    if text not in ("true", "false", "1", "0"):
        raise ValueError("must be true or false")
    return text in ("true", "1")


def whole(least: int, most: int) -> Callable[[str], int]:
    """Read a whole number in a range."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 19 or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    return read


def name(text: str) -> str:
    """Read a name."""
    if not text:
        raise ValueError("must not be empty")
    return text


def words_schema(words: Sequence[str], default: str | None = None) -> dict[str, object]:
    """Describe a choice."""
    schema: dict[str, object] = {"type": "string", "enum": list(words)}
    return schema | ({"default": default} if default else {})


MODE = words_schema(tuple(MODES_BY_WORD))
PHASE = words_schema(tuple(PHASES_BY_WORD))
STEP = {"type": "integer", "minimum": 0, "maximum": LARGEST_STEP}
TEXT = {"type": "string", "minLength": 1}

JOB = Parameter(name="job", read=name, schema=TEXT, help="Only this job.", repeated=True)
NODE = Parameter(
    name="node",
    read=name,
    schema=TEXT,
    help='Only this node; "any" is the node of the earliest span. Left out: all nodes together.',
    repeated=True,
)
FRAMEWORK = Parameter(name="framework", read=name, schema=TEXT, help="Only this framework.", repeated=True)
PROFILER = Parameter(
    name="profiler",
    read=one_of("cprofile", "pyinstrument"),
    schema=words_schema(("cprofile", "pyinstrument")),
    help="Which profiler's spans. Default: cprofile for stats, both for lists and watch.",
)
FRESH = Parameter(
    name="fresh", read=switch, schema={"type": "boolean", "default": False}, help="Poll the sources before answering."
)
SCOPE = (JOB, NODE, FRAMEWORK, PROFILER, FRESH)

CALLERS = Parameter(
    name="callers", read=switch, schema={"type": "boolean", "default": False}, help="Add each function's callers."
)
SORT = Parameter(
    name="sort",
    read=one_of(*SORT_KEYS),
    schema=words_schema(SORT_KEYS, "self"),
    help="Order of the functions, largest first.",
)
LIMIT = Parameter(
    name="limit",
    read=whole(0, 2**31 - 1),
    schema={"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    help="At most so many functions. Left out: all.",
)
FORMAT = Parameter(
    name="format",
    read=output_format,
    schema=words_schema(FORMATS, "json"),
    help="pstats loads in pstats.Stats, snakeviz and gprof2dot; profiles lists the spans; tree, folded, speedscope and "
    "html (an interactive page) show merged call trees and are for profiler=pyinstrument.",
)
PHASE_FORMAT = replace(
    FORMAT,
    read=table_format,
    schema=words_schema(PHASE_FORMATS, "json"),
    help="pstats holds one phase: pick one; tree is for profiler=pyinstrument.",
)
TABLE = (CALLERS, SORT, LIMIT, FORMAT)
PHASE_TABLE = (CALLERS, SORT, LIMIT, PHASE_FORMAT)

STEP_RANGE = (
    Parameter(name="start", read=step, schema=STEP, help="First step.", required=True),
    Parameter(name="end", read=step, schema=STEP, help="Last step; left out: the same as start."),
    Parameter(name="mode", read=mode, schema=MODE | {"default": "train"}, help="Mode at both ends of the spans."),
    Parameter(name="start_phase", read=phase, schema=PHASE | {"default": "stepstart"}, help="Phase at the first step."),
    Parameter(name="end_phase", read=phase, schema=PHASE | {"default": "stepend"}, help="Phase at the last step."),
    Parameter(
        name="rule",
        read=one_of("original", "documented"),
        schema=words_schema(("original", "documented"), "original"),
        help="original: both ends belong to the interval, as in smdebug; documented: start <= step < end.",
    ),
)
TIME_RANGE = (
    Parameter(name="start", read=seconds, schema={"type": "number"}, help="Seconds since the epoch.", required=True),
    Parameter(name="end", read=seconds, schema={"type": "number"}, help="Seconds since the epoch.", required=True),
    Parameter(
        name="overlap",
        read=one_of("ends", "any"),
        schema=words_schema(("ends", "any"), "ends"),
        help="any: also spans that cover the whole interval.",
    ),
)
MODES = (
    Parameter(name="start_mode", read=mode, schema=MODE, help="Mode in which the spans start."),
    Parameter(name="end_mode", read=mode, schema=MODE, help="Mode in which the spans end."),
)
BOTH_MODES = tuple(replace(parameter, required=True) for parameter in MODES)
JOB_PHASE = Parameter(
    name="job_phase", read=one_of(*JOB_PHASES), schema=words_schema(JOB_PHASES), help="Only this job phase."
)
ONE_SPAN = (
    replace(JOB, repeated=False, required=True, help="Its job."),
    replace(FRAMEWORK, repeated=False, required=True, help="Its framework."),
    replace(PROFILER, required=True, help="Its profiler."),
    replace(NODE, repeated=False, required=True, help="Its node."),
    Parameter(name="span", read=name, schema=TEXT, help="The name of its folder.", required=True),
)
PAGE = (
    Parameter(
        name="limit",
        read=whole(1, LARGEST_PAGE),
        schema={"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": 1000},
        help="At most so many spans.",
    ),
    Parameter(
        name="after",
        read=whole(0, 2**31 - 1),
        schema={"type": "integer", "minimum": 0, "maximum": 2**31 - 1, "default": 0},
        help="Where the page before ended: its `next`.",
    ),
)


class Values:
    """The parameters of one request, checked."""

    def __init__(self, pairs: Sequence[tuple[str, str]], allowed: Sequence[Parameter]) -> None:
        known = {parameter.name: parameter for parameter in allowed}
        self._values: dict[str, list[object]] = {}
        for key, text in pairs:
            parameter = known.get(key)
            if parameter is None:
                raise QueryError(unknown_message(key, list(known)), parameter=key)
            if key in self._values and not parameter.repeated:
                raise QueryError(f"{key} may be given only once", parameter=key)
            try:
                self._values.setdefault(key, []).append(parameter.read(text))
            except ValueError as error:
                raise QueryError(f"{key}={shortened(text)}: {error}", parameter=key) from None

    def get(self, key: str, default: object = None) -> object:
        """Return a parameter, or the default where it was left out."""
        values = self._values.get(key)
        return default if values is None else values[0]

    def need(self, key: str, what: str) -> object:
        """Return a parameter that must be given."""
        if key not in self._values:
            raise QueryError(f"{key} is missing: {what}", parameter=key)
        return self._values[key][0]

    def text(self, key: str) -> str:
        """Return a text that must be given."""
        return str(self.need(key, "which one"))

    def all(self, key: str) -> tuple[str, ...]:
        """Return a repeated parameter."""
        return tuple(str(value) for value in self._values.get(key, ()))


PhaseT = TypeVar("PhaseT")


def picked(phases: Sequence[PhaseT], values: Values, *names: str) -> list[PhaseT]:
    """Leave out the phases that the parameters of these names do not mean."""
    wanted = {name: values.get(name) for name in names if values.get(name) is not None}
    return [phase for phase in phases if all(getattr(phase, name) == value for name, value in wanted.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """How a table is shown."""

    callers: bool
    sort: SortKey
    limit: int | None
    format: Format


def scope_of(values: Values, default_profiler: str | None) -> Scope:
    """Read whose spans are meant."""
    nodes = values.all("node")
    if "any" in nodes and len(nodes) > 1:
        raise QueryError("node=any stands for one node and cannot be joined with others", parameter="node")
    profiler = values.get("profiler", default_profiler)
    return Scope(
        profiler=None if profiler is None else str(profiler),
        jobs=values.all("job"),
        nodes=nodes,
        frameworks=values.all("framework"),
    )


def rendering_of(values: Values, scope: Scope) -> Rendering:
    """Read how the answer is shown."""
    chosen: Format = values.get("format", "json")  # type: ignore[assignment]
    if chosen in TREE_FORMATS and scope.profiler != "pyinstrument":
        raise QueryError(f"format={chosen} needs call trees: add profiler=pyinstrument", parameter="format")
    if chosen == "pstats" and scope.profiler != "cprofile":
        raise QueryError(
            "format=pstats needs call counts, which pyinstrument has not: use json or csv", parameter="format"
        )
    return Rendering(
        callers=bool(values.get("callers", False)) or chosen == "pstats",
        sort=values.get("sort", "self"),  # type: ignore[arg-type]
        limit=values.get("limit"),  # type: ignore[arg-type]
        format=chosen,
    )


def step_question(values: Values) -> Question:
    """Read a range of steps."""
    first: int = values.need("start", "the first step, for example start=100")  # type: ignore[assignment]
    last: int | None = values.get("end")  # type: ignore[assignment]
    if last is not None and last < first:
        raise QueryError(f"end={last} is before start={first}", parameter="end")
    chosen: PythonProfileModes = values.get("mode", PythonProfileModes.TRAIN)  # type: ignore[assignment]
    phases: dict[str, StepPhase] = {
        "start_phase": values.get("start_phase", StepPhase.STEP_START),  # type: ignore[dict-item]
        "end_phase": values.get("end_phase", StepPhase.STEP_END),  # type: ignore[dict-item]
    }
    if values.get("rule") == "documented":
        if last is None:
            raise QueryError("end is missing: rule=documented needs it, start <= step < end", parameter="end")
        return ByStepDocumented(start_step=first, end_step=last, mode=chosen, **phases)
    return ByStep(start_step=first, end_step=last, mode=chosen, **phases)


def time_question(values: Values) -> Question:
    """Read a range of time."""
    first: float = values.need("start", "seconds since the epoch")  # type: ignore[assignment]
    last: float = values.need("end", "seconds since the epoch")  # type: ignore[assignment]
    if last < first:
        raise QueryError(f"end={last} is before start={first}", parameter="end")
    return ByTime(start=first, end=last, overlap=values.get("overlap", "ends"))  # type: ignore[arg-type]


def modes_question(values: Values) -> Question:
    """Read a pair of modes."""
    start: PythonProfileModes = values.need("start_mode", "for example start_mode=train")  # type: ignore[assignment]
    end: PythonProfileModes = values.need("end_mode", "for example end_mode=eval")  # type: ignore[assignment]
    return BetweenModes(start_mode=start, end_mode=end)


def pre_step_zero_question(values: Values) -> Question:
    """Ask for what ran before step zero."""
    return PreStepZero()


def post_hook_close_question(values: Values) -> Question:
    """Ask for what ended with the job."""
    return PostHookClose()


def unknown_message(key: str, known: Sequence[str]) -> str:
    """Say which parameters there are."""
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    return f"unknown parameter {shortened(key)}{hint} Allowed: {', '.join(known) or 'none'}"


def shortened(text: str) -> str:
    """Quote what a client sent, shortened."""
    return repr(text if len(text) <= 80 else f"{text[:77]}…")
