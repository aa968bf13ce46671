"""Folded stacks: one line a path, microseconds at its end, and no name that breaks a line in two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from monitor.answers import FrameTable
from monitor.exports.folded import to_folded
from monitor.profiles.columns import FunctionName

NAMES = [("/app/train.py", 1, "main"), ("/app/model.py", 7, "forward"), ("~", 0, "<built-in method len>")]


def tree(
    parents: Sequence[int], functions: Sequence[int], seconds: Sequence[float], names: Sequence[FunctionName] = NAMES
) -> FrameTable:
    return FrameTable(
        names=names,
        path_parent=np.array(parents, np.int32),
        path_function=np.array(functions, np.int32),
        self_seconds=np.array(seconds, np.float64),
        spans=1,
        from_seconds=1.0,
        to_seconds=2.0,
    )


def test_a_path_is_a_line_from_its_root_to_its_leaf_in_microseconds() -> None:
    text = to_folded(tree([-1, 0, 1, 0], [0, 1, 2, 2], [0.5, 0.25, 0.000125, 1.0]))
    assert text == (
        "app/train.py:1(main) 500000\n"
        "app/train.py:1(main);app/model.py:7(forward) 250000\n"
        "app/train.py:1(main);app/model.py:7(forward);{built-in method len} 125\n"
        "app/train.py:1(main);{built-in method len} 1000000\n"
    )


def test_recursion_stays_a_stack() -> None:
    text = to_folded(tree([-1, 0, 1], [1, 1, 1], [0, 0, 2e-6]))
    assert text == "app/model.py:7(forward);app/model.py:7(forward);app/model.py:7(forward) 2\n"


@pytest.mark.parametrize(("seconds", "count"), [(0.0, None), (0.4e-6, None), (-1.0, None), (0.6e-6, 1), (1.4e-6, 1)])
def test_paths_without_a_microsecond_are_left_out(seconds: float, count: int | None) -> None:
    expected = "" if count is None else f"app/train.py:1(main) {count}\n"
    assert to_folded(tree([-1], [0], [seconds])) == expected


def test_nothing_sampled_is_an_empty_text() -> None:
    assert to_folded(tree([], [], [])) == ""


@pytest.mark.parametrize("name", ["a;b", "a\nb 7", "a\r\nb", "a\u2028b", "a\x1b[2Jb", " "])
def test_no_name_makes_another_line_or_another_frame(name: str) -> None:
    text = to_folded(tree([-1, 0], [0, 1], [0, 1e-6], [(name, 1, name), (name, 2, name)]))
    (line,) = text.splitlines()
    stack, _, count = line.rpartition(" ")
    assert count == "1"
    assert len(stack.split(";")) == 2
