"""Merged call trees as pages and files that people explore: pyinstrument's own renderers do the drawing. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyinstrument.renderers import HTMLRenderer, SpeedscopeRenderer
from pyinstrument.session import Session

from monitor.answers import FrameTable
from monitor.profiles.columns import NO_PARENT

DEEPEST = 400
"""The renderers walk the tree by recursion; what lies deeper is shown as time of the frame at this depth."""
SEPARATORS = str.maketrans({"\x00": "?", "\x01": "?"})
NO_FRAME = "\x00\x000"
"""pyinstrument cuts off the frames that were open when a session began; there are none here."""


def to_html(tree: FrameTable, title: str) -> str:
    """Render an interactive page: pyinstrument's, with call stacks and timeline, in one file without outside parts."""
    return str(HTMLRenderer(resample_interval=0).render(session_of(tree, title)))


def to_speedscope(tree: FrameTable, title: str) -> str:
    """Render a file that speedscope.app and its editors' plug-ins open."""
    return str(SpeedscopeRenderer().render(session_of(tree, title)))


def session_of(tree: FrameTable, title: str) -> Session:
    """Build a pyinstrument session with one record for each path, as long as that path's self time."""
    paths = np.flatnonzero(tree.self_seconds > 0)
    seconds = tree.self_seconds[paths].tolist()
    records = [(stack_of(tree, path), own) for path, own in zip(paths.tolist(), seconds, strict=True)]
    total = float(sum(seconds))
    fields: dict[str, Any] = {
        "frame_records": records,
        "start_time": tree.from_seconds or 0.0,
        "duration": total,
        "min_interval": 0.001,
        "max_interval": 0.001,
        "sample_count": len(records),
        "start_call_stack": [NO_FRAME],
        "target_description": harmless(title),
        "cpu_time": total,
        "sys_path": [],
        "sys_prefixes": [],
    }
    return Session(**fields)


def stack_of(tree: FrameTable, path: int) -> list[str]:
    """Return a path's frames from the root on, in pyinstrument's form NAME NUL FILE NUL LINE."""
    stack: list[str] = []
    at = path
    while at != NO_PARENT:
        file, line, name = tree.names[int(tree.path_function[at])]
        stack.append(f"{harmless(name)}\x00{harmless(file)}\x00{line}")
        at = int(tree.path_parent[at])
    stack.reverse()
    return stack[:DEEPEST]


def harmless(text: str) -> str:
    """Keep a name of a hostile profile from ending the script that the page holds it in."""
    return text.translate(SEPARATORS).replace("</", "<\u2215").replace("<!", "<\u01c3")
