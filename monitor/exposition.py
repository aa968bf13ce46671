"""The text of the families by function and package, written fast: a page may hold tens of thousands of series. Pure.

`prometheus_client` renders every other family; it takes 12 to 25 microseconds a series, which this many cannot afford.
What this writes is the same format (0.0.4): a test parses both and finds the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from monitor.budget import OTHER, Amount, Series
from monitor.index import GroupKey
from monitor.spans import PythonProfileModes


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFamily:
    """One family with a series for each function, or package, of each phase.

    Attributes:
        label: what tells the series of a phase apart.
        counted: only for profilers that count calls.
    """

    name: str
    help: str
    value: Callable[[Amount], float]
    counted: bool = False
    label: str = "function"


FUNCTION_FAMILIES = (
    FunctionFamily(
        name="phasewatch_function_self_seconds_total",
        help="Seconds spent in a function itself, by training phase. May be summed over functions, phases and nodes.",
        value=lambda amount: amount.self_seconds,
    ),
    FunctionFamily(
        name="phasewatch_function_cumulative_seconds_total",
        help="Seconds spent in a function and in all that it called. Never to be summed over functions.",
        value=lambda amount: amount.cumulative_seconds,
    ),
    FunctionFamily(
        name="phasewatch_function_calls_total",
        help="Calls of a function, recursive ones included (cProfile only: a sampler counts no calls). "
        "May be summed over functions, phases and nodes.",
        value=lambda amount: amount.calls,
        counted=True,
    ),
    FunctionFamily(
        name="phasewatch_function_primitive_calls_total",
        help="Calls of a function without recursive ones (cProfile only: a sampler counts no calls). "
        "May be summed over functions, phases and nodes.",
        value=lambda amount: amount.primitive_calls,
        counted=True,
    ),
)

PACKAGE_FAMILIES = (
    FunctionFamily(
        name="phasewatch_package_self_seconds_total",
        help="Seconds spent in the functions of a package themselves, by training phase, whatever has a series of its "
        "own. May be summed over packages, phases and nodes.",
        value=lambda amount: amount.self_seconds,
        label="package",
    ),
)

GROUP_LABELS = ("training_job", "node", "framework", "profiler", "job_phase", "start_mode", "end_mode")


def group_label_values(key: GroupKey) -> tuple[str, ...]:
    """Return the values of GROUP_LABELS."""
    start, end = PythonProfileModes(key.start_mode).word, PythonProfileModes(key.end_mode).word
    return (key.job, key.node, key.framework, key.profiler, key.job_phase, start, end)


def group_lines(
    key: GroupKey, series: Series, texts: Sequence[str], families: Sequence[FunctionFamily] = FUNCTION_FAMILIES
) -> list[str]:
    """Write one phase's sample lines, one text for each family.

    Args:
        texts: the name of each number.
    """
    pairs = zip(GROUP_LABELS, group_label_values(key), strict=True)
    head = ",".join(f'{name}="{escaped(value)}"' for name, value in pairs)
    rows = [(escaped(texts[label]), amount) for label, amount in sorted(series.shown.items())]
    rows.append((OTHER, series.other))
    return [
        ""
        if family.counted and key.profiler != "cprofile"
        else "".join(
            f'{family.name}{{{head},{family.label}="{name}"}} {float(family.value(amount))!r}\n'
            for name, amount in rows
        )
        for family in families
    ]


def function_page(groups: Iterable[Sequence[str]]) -> str:
    """Put the lines of all phases together, family by family."""
    listed = list(groups)
    return "".join(
        f"# HELP {family.name} {family.help}\n# TYPE {family.name} counter\n"
        + "".join(lines[place] for lines in listed)
        for place, family in enumerate(FUNCTION_FAMILIES + PACKAGE_FAMILIES)
    )


ESCAPES: Mapping[int, str] = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def escaped(value: str) -> str:
    """Escape a label's value."""
    return value.translate(ESCAPES)
