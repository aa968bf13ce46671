"""Walking merged call trees, which are columns with parents before children. Pure."""

from __future__ import annotations

import numpy as np

from monitor.answers import FrameTable
from monitor.profiles.columns import NO_PARENT, Floats


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
