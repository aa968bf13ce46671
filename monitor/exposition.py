"""The text of families: the lines above them, and their samples. Pure.

Sample lines are the same in both formats, Prometheus's own (0.0.4) and OpenMetrics 1.0; only what stands above a family
differs. So lines are written once. `prometheus_client` writes them together with what stands above, and takes 12 to 25
microseconds a series, which a page of tens of thousands cannot afford. A test parses both and finds the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What stands above a family.

    Attributes:
        name: as OpenMetrics has it: a counter's without `_total`.
        kind: "counter", "gauge" or "histogram".
    """

    name: str
    kind: str
    help: str

    @property
    def plain_name(self) -> str:
        """The name in Prometheus's own format."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def sample_names(self) -> Set[str]:
        """The names that its samples have."""
        if self.kind == "histogram":
            return {f"{self.name}{ending}" for ending in ("_bucket", "_count", "_sum")}
        return {self.plain_name}

    def text(self, *, openmetrics: bool) -> str:
        """Write it; only OpenMetrics escapes quotes in a help."""
        name = self.name if openmetrics else self.plain_name
        text = escaped(self.help) if openmetrics else self.help.replace("\\", "\\\\").replace("\n", "\\n")
        return f"# HELP {name} {text}\n# TYPE {name} {self.kind}\n"


FUNCTION_HEADS = tuple(
    Head(name=family.name.removesuffix("_total"), kind="counter", help=family.help)
    for family in FUNCTION_FAMILIES + PACKAGE_FAMILIES
)


def head_of(metric: Metric) -> Head:
    """Describe a family of the client library."""
    return Head(name=metric.name, kind=metric.type, help=metric.documentation)


def lines_by(label: str, metric: Metric) -> dict[str, str]:
    """Write a family's sample lines, apart for each value of a label; "" for samples without it."""
    lines: dict[str, list[str]] = {}
    for sample in metric.samples:
        pairs = ",".join(f'{name}="{escaped(value)}"' for name, value in sorted(sample.labels.items()))
        where = f"{{{pairs}}}" if pairs else ""
        value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
        line = f"{sample.name}{where} {value}\n"
        lines.setdefault(sample.labels.get(label, ""), []).append(line)
    return {value: "".join(each) for value, each in lines.items()}


def picked_lines(text: bytes, names: Set[str]) -> bytes:
    """Keep the lines of samples with these names."""
    starts = tuple(f"{name}{follows}".encode() for name in names for follows in "{ ")
    return b"".join(line + b"\n" for line in text.split(b"\n") if line.startswith(starts))


ESCAPES: Mapping[int, str] = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def escaped(value: str) -> str:
    """Escape a label's value."""
    return value.translate(ESCAPES)


def encoded(text: str) -> bytes:
    """Encode lines; a name that is no UTF-8 on disk has "?" for what cannot be said."""
    return text.encode("utf-8", "replace")
