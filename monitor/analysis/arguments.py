"""What callers of the notebook classes may pass, checked: each refusal names the argument and what is allowed. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from enum import Enum
from typing import Literal

import numpy as np

from monitor.answers import ANY_NODE
from monitor.errors import ArgumentError
from monitor.selection import NO_END_STEP
from monitor.spans import LARGEST_STEP, PHASES_BY_WORD, PythonProfileModes, StepPhase

ALL_NODES = "all"


def read_step(name: str, value: object) -> int:
    """Read a step: a whole number or its digits in a string; infinity is after every step.

    Steps below 0 are allowed, as in the original, where `*` at a span's start reads as -1.
    """
    allowed = "must be a step: a whole number, or its digits in a string"
    if isinstance(value, bool) or value is None:
        raise ArgumentError(name, value, allowed)
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit()):
            raise ArgumentError(name, value, allowed)
        number = int(value.lstrip("0")[:30] or "0")
    elif isinstance(value, float):
        if value == math.inf:
            return NO_END_STEP
        if not value.is_integer():
            raise ArgumentError(name, value, allowed)
        number = int(value)
    else:
        number = whole_number(name, value, allowed)
    return max(-LARGEST_STEP, min(number, LARGEST_STEP))


def whole_number(name: str, value: object, allowed: str) -> int:
    """Read a whole number of whatever type, such as numpy's."""
    if isinstance(value, (bool, np.bool_, bytes, bytearray)):
        raise ArgumentError(name, value, allowed)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(name, value, allowed) from None
    if not number.is_integer():
        raise ArgumentError(name, value, allowed)
    return int(number)


def read_seconds(name: str, value: object) -> float:
    """Read a time in seconds since the epoch; infinities are allowed."""
    allowed = "must be a number of seconds since the epoch"
    if isinstance(value, (bool, str)):
        raise ArgumentError(name, value, allowed)
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(name, value, allowed) from None
    if math.isnan(seconds):
        raise ArgumentError(name, value, allowed)
    return seconds


def check_order(start_name: str, start: float, end_name: str, end: float) -> None:
    """Refuse an interval that ends before it starts."""
    if start > end:
        raise ArgumentError(end_name, end, f"must not be before {start_name}={start!r}")


def read_mode(name: str, value: object) -> PythonProfileModes:
    """Read a mode: a member of PythonProfileModes, the original library's included, or its number."""
    if isinstance(value, int) and not isinstance(value, bool) and value in PythonProfileModes._value2member_map_:
        return PythonProfileModes(int(value))
    names = ", ".join(mode.name for mode in PythonProfileModes)
    raise ArgumentError(name, value, f"must be a member of PythonProfileModes: {names}")


def read_phase(name: str, value: object) -> StepPhase:
    """Read a step phase: a member of StepPhase, the original library's included."""
    if isinstance(value, StepPhase):
        return value
    if isinstance(value, Enum) and isinstance(value.value, str) and value.value in PHASES_BY_WORD:
        return PHASES_BY_WORD[value.value]
    names = ", ".join(phase.name for phase in StepPhase)
    raise ArgumentError(name, value, f"must be a member of StepPhase: {names}")


def read_nodes(value: str | Sequence[str]) -> tuple[str, ...]:
    """Read whose spans are meant: "any", "all", a node, or several nodes; empty means all."""
    nodes = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple, set)) else ()
    if not nodes or not all(isinstance(node, str) and node for node in nodes):
        raise ArgumentError("node_id", value, 'must be "any", "all", the name of a node or a list of such names')
    if nodes == (ALL_NODES,):
        return ()
    if len(nodes) > 1 and {*ANY_NODE, ALL_NODES} & set(nodes):
        raise ArgumentError("node_id", value, '"any" and "all" cannot be joined with other nodes')
    return nodes


def read_overlap(value: object) -> Literal["ends", "any"]:
    """Read which spans touch an interval of time."""
    if value == "ends":
        return "ends"
    if value == "any":
        return "any"
    raise ArgumentError("overlap", value, 'must be "ends" (the original\'s rule) or "any"')
