"""Call trees as folded stacks (`root;child;leaf COUNT`), counts in microseconds: what flame graph tools read. Pure."""

from __future__ import annotations

import numpy as np

from monitor.answers import FrameTable
from monitor.profiles.columns import NO_PARENT
from monitor.profiles.names import function_label

BREAKS = str.maketrans({";": ",", "\n": " ", "\r": " "})


def to_folded(tree: FrameTable) -> str:
    """Write one line a path whose self time rounds to a microsecond or more."""
    counts = np.rint(tree.self_seconds * 1e6).astype(np.int64)
    parents, functions = tree.path_parent.tolist(), tree.path_function.tolist()
    lines: list[str] = []
    for path in np.flatnonzero(counts > 0).tolist():
        stack: list[str] = []
        at = path
        while at != NO_PARENT:
            stack.append(function_label(*tree.names[functions[at]]).translate(BREAKS))
            at = parents[at]
        lines.append(f"{';'.join(reversed(stack))} {counts[path]}\n")
    return "".join(lines)
