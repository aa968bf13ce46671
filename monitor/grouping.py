"""Where functions come from (module, package, file) and tables grouped or filtered by that. Pure text and columns.

The paths are those of the machine that trained, so the interpreter that reads them cannot be asked what is installed:
what lies below site-packages belongs to the package named there, what lies below lib/pythonX.Y is the standard library.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import numpy as np

from monitor.profiles.columns import Floats, FunctionName, Ids, Ints
from monitor.profiles.names import INSTALLED, STANDARD_LIBRARY, shorten_path
from monitor.tables import StatsTable

GroupBy: TypeAlias = Literal["module", "package", "file"]
GROUPINGS: tuple[GroupBy, ...] = get_args(GroupBy)

APPLICATION = "application code"
STANDARD = "standard library"
BUILT_IN = "built-in"
NO_FILE = ("~", "", "<built-in>")
"""What cProfile and pyinstrument say of native code."""
PSEUDO_FILE = re.compile(r"<.*>")
NATIVE = re.compile(r"<(?:built-in )?(?:method|function) (?:'[^']*' of '(\w+)\.[\w.]+' objects|(\w+)\.[\w.]+)")
PYTHON_MODULES = frozenset(name.lstrip("_") for name in sys.stdlib_module_names)


@lru_cache(maxsize=65_536)
def package_of(name: FunctionName) -> str:
    """Name the package of a function: `torch`, or one of "application code", "standard library", "built-in".

    Native code has no file; its name tells its module (`<built-in method torch._C._nn.linear>`) or the class that it is
    a method of (`<method 'add' of 'torch._C.TensorBase' objects>`).
    """
    file = name[0]
    if file in NO_FILE:
        return native_package(name[2])
    if file.startswith("<frozen "):
        return STANDARD
    if file.startswith("<__array_function__"):
        return "numpy"
    installed = INSTALLED.match(file)
    if installed is not None:
        return re.split(r"[/\\]", file[installed.end() :])[0].removesuffix(".py") or APPLICATION
    return STANDARD if STANDARD_LIBRARY.match(file) else APPLICATION


def native_package(name: str) -> str:
    """Name the package of a function without a file; what comes with Python itself is built in."""
    found = NATIVE.match(name)
    package = found[1] or found[2] if found is not None else ""
    return BUILT_IN if not package or package.lstrip("_") in PYTHON_MODULES else package


@lru_cache(maxsize=65_536)
def module_of(name: FunctionName) -> str:
    """Name the module of a function with dots, as far as its path tells: `torch.nn.modules.module`."""
    file = name[0]
    if file in NO_FILE and native_package(name[2]) != BUILT_IN:
        return native_package(name[2])
    if file in NO_FILE:
        return BUILT_IN
    if file.startswith("<frozen "):
        return file[len("<frozen ") : -1]
    if PSEUDO_FILE.fullmatch(file):
        return file
    short = shorten_path(file).removesuffix(".py").removesuffix("/__init__")
    return short.lstrip("/").replace("/", ".")


def file_of(name: FunctionName) -> str:
    """Name the file of a function, the same way on every node."""
    file = name[0]
    return BUILT_IN if file in NO_FILE else shorten_path(file)


NAMERS: dict[GroupBy, Callable[[FunctionName], str]] = {"module": module_of, "package": package_of, "file": file_of}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable:
    """Functions added up by where they come from, columns of equal length, largest self time first.

    Attributes:
        functions: how many functions each group has.
        cumulative_seconds: time from entering the group to leaving it. Time in a group that is entered anew from
            another one inside itself counts once for each entry. NaN where callers are not known.
    """

    names: list[str]
    functions: Ints
    calls: Ints
    primitive_calls: Ints
    self_seconds: Floats
    cumulative_seconds: Floats


def group_table(table: StatsTable, by: GroupBy) -> GroupTable:
    """Add up a table's functions by module, package or file."""
    namer = NAMERS[by]
    numbers: dict[str, int] = {}
    group_of = np.full(len(table.names), -1, dtype=np.int32)
    used = set(table.function.tolist())
    if table.callers is not None:
        used.update(table.callers.caller.tolist())
    for function in used:
        group_of[function] = numbers.setdefault(namer(table.names[function]), len(numbers))
    group = group_of[table.function]
    count = len(numbers)

    def total(values: Ints | Floats) -> Floats:
        return np.bincount(group, weights=values, minlength=count).astype(np.float64, copy=False)

    functions = np.bincount(group, minlength=count)
    order = [number for number in np.argsort(-total(table.measures.self_seconds), kind="stable") if functions[number]]
    names = list(numbers)
    return GroupTable(
        names=[names[number] for number in order],
        functions=functions[order].astype(np.int64),
        calls=total(table.measures.calls)[order].astype(np.int64),
        primitive_calls=total(table.measures.primitive_calls)[order].astype(np.int64),
        self_seconds=total(table.measures.self_seconds)[order],
        cumulative_seconds=entered_seconds(table, group_of, count)[order],
    )


def entered_seconds(table: StatsTable, group_of: Ids, count: int) -> Floats:
    """Add up cumulative time over calls that come from outside a group.

    A profile begins in the middle of a program, so a function may also have been called by nobody that was recorded:
    where it has more calls than its callers account for, the time that is left over from its calls through other
    functions is such a call's. (Recursion makes that an estimate: the format does not say whose time it was.)
    """
    if table.callers is None:
        return np.full(count, np.nan)
    edges = table.callers
    target, source = group_of[edges.function], group_of[edges.caller]
    outside = target != source
    entered = edges.measures.cumulative_seconds[outside]
    seconds = np.bincount(target[outside], weights=entered, minlength=count).astype(np.float64, copy=False)
    rows = len(table.names)
    others = edges.function != edges.caller
    told = np.bincount(edges.function, weights=edges.measures.calls, minlength=rows)[table.function]
    through = edges.measures.cumulative_seconds[others]
    accounted = np.bincount(edges.function[others], weights=through, minlength=rows)[table.function]
    unasked = table.measures.calls > told if table.counts_calls else accounted < table.measures.cumulative_seconds
    left = np.where(unasked, np.maximum(table.measures.cumulative_seconds - accounted, 0.0), 0.0)
    total: Floats = seconds + np.bincount(group_of[table.function], weights=left, minlength=count)
    return total


def keep_functions(table: StatsTable, keep: Callable[[FunctionName], bool]) -> StatsTable:
    """Leave out the functions that are not wanted; what they took stays in the cumulative time of their callers."""
    names = table.names
    rows = np.asarray([keep(names[function]) for function in table.function.tolist()], dtype=np.bool_)
    kept = np.flatnonzero(rows)
    callers = table.callers
    if callers is not None:
        edges = np.flatnonzero(np.isin(callers.function, table.function[kept]))
        callers = replace(
            callers,
            function=callers.function[edges],
            caller=callers.caller[edges],
            measures=callers.measures.take(edges),
        )
    return replace(table, function=table.function[kept], measures=table.measures.take(kept), callers=callers)
