"""Walking merged call trees, which are columns with parents before children. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from monitor.answers import FrameTable
from monitor.profiles.columns import NO_PARENT, Floats, FunctionName


def inclusive_seconds(tree: FrameTable) -> Floats:
    """Return each path's seconds with what it calls, shape (paths,)."""
    times = tree.self_seconds.copy()
    parents = tree.path_parent.tolist()
    for path in range(len(parents) - 1, -1, -1):
        if parents[path] != NO_PARENT:
            times[parents[path]] += times[path]
    return times


def present_paths(tree: FrameTable) -> list[int]:
    """Return the paths that hold time themselves or below them, parents first: the others are of other spans."""
    present = tree.self_seconds != 0
    parents = tree.path_parent.tolist()
    for path in np.flatnonzero(present).tolist():
        at = parents[path]
        while at != NO_PARENT and not present[at]:
            present[at] = True
            at = parents[at]
    return [int(path) for path in np.flatnonzero(present)]


def keep_frames(tree: FrameTable, keep: Callable[[FunctionName], bool]) -> FrameTable:
    """Leave out the frames that are not wanted; what they call hangs on the nearest frame above that is, and their own
    time is left out with them."""
    parents, functions = tree.path_parent.tolist(), tree.path_function.tolist()
    wanted = {function: keep(tree.names[function]) for function in set(functions)}
    numbers: dict[tuple[int, int], int] = {}
    place = [NO_PARENT] * len(parents)
    seconds: list[float] = []
    for path, (parent, function) in enumerate(zip(parents, functions, strict=True)):
        above = NO_PARENT if parent == NO_PARENT else place[parent]
        if not wanted[function]:
            place[path] = above
            continue
        place[path] = numbers.setdefault((above, function), len(numbers))
        if place[path] == len(seconds):
            seconds.append(0.0)
        seconds[place[path]] += float(tree.self_seconds[path])
    return replace(
        tree,
        path_parent=np.asarray([parent for parent, _ in numbers], dtype=np.int32),
        path_function=np.asarray([function for _, function in numbers], dtype=np.int32),
        self_seconds=np.asarray(seconds, dtype=np.float64),
    )
