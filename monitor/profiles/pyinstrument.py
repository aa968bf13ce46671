"""pyinstrument's JSON (versions 3 to 5) to columns. Pure.

A frame's `time` includes its children's; its self time is the rest, and since times are printed with six decimals a
rest below zero is rounding and counts as 0. Children under 1 % are cut by pyinstrument, so what they took is their
parent's self time here. Frames are walked without recursion: real trees are hundreds of levels deep.
"""

from __future__ import annotations

import math
from typing import Any

from monitor.errors import CorruptFile, IncompleteFile
from monitor.profiles.builder import LARGEST_SECONDS, BatchBuilder
from monitor.profiles.raw import NO_CALLER, NO_PARENT

SELF_FRAME = "[self]"
"""A synthetic child that holds a part of its parent's own time."""


def add_pyinstrument(builder: BatchBuilder, data: bytes) -> None:
    """Decode one session into a batch.

    A session that pyinstrument could not record, `{"root_frame": null}`, is known and empty.

    Raises:
        IncompleteFile: the text ends too early.
        CorruptFile: it is no session; the reason says where.
    """
    session = load(data)
    if type(session) is not dict or "root_frame" not in session:
        raise CorruptFile('holds no pyinstrument session: there is no "root_frame"')
    root = session["root_frame"]
    if root is None:
        builder.note_empty()
        return
    tree = Tree(builder)
    tree.walk(root)
    tree.finish()


def load(data: bytes) -> Any:
    """Parse JSON, in UTF-8 or, as old writers did, in the machine's own encoding."""
    import msgspec  # it takes as long as all else that a decoder needs to start, and most meet no session

    text = data.strip()
    if not text:
        raise IncompleteFile("the file is empty")
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise CorruptFile("frames are nested too deeply to be read") from None
    except msgspec.DecodeError as error:
        if not is_utf8(text):
            return load(text.decode("latin-1").encode("utf-8"))
        if "truncated" in str(error) or not text.endswith(b"}"):
            raise IncompleteFile(f"the JSON text ends too early: {error}") from error
        raise CorruptFile(f"not JSON: {error}") from error


def is_utf8(text: bytes) -> bool:
    """Tell whether a text is UTF-8."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class Tree:
    """Adds up one session's frames by function, by caller and by path."""

    def __init__(self, builder: BatchBuilder) -> None:
        self._builder = builder
        self._own: dict[tuple[int, int], float] = {}
        self._total: dict[tuple[int, int], float] = {}
        self._path_seconds: dict[int, float] = {}

    def walk(self, root: Any) -> None:
        """Visit all frames; `open_functions` counts what is on the way from the root, so that recursion counts once."""
        open_functions: dict[int, int] = {}
        stack: list[tuple[Any, int, int]] = [(root, NO_CALLER, NO_PARENT)]
        while stack:
            frame, caller, parent = stack.pop()
            if frame is None:
                open_functions[caller] -= 1
                continue
            function, seconds, children = self._read(frame)
            path = self._builder.path(parent, function)
            rest = seconds
            stack.append((None, function, NO_PARENT))
            for child in children:
                if type(child) is dict and child.get("function") == SELF_FRAME:
                    continue
                stack.append((child, function, path))
                rest -= child["time"] if type(child) is dict and type(child.get("time")) in (int, float) else 0.0
            self._add(function, caller, path, max(rest, 0.0), seconds, outermost=not open_functions.get(function))
            open_functions[function] = open_functions.get(function, 0) + 1

    def finish(self) -> None:
        """Hand the sums to the batch."""
        functions, callers = zip(*self._own, strict=True)
        zeros = [0] * len(functions)
        own, total = list(self._own.values()), list(self._total.values())
        self._builder.add_rows(functions, callers, zeros, zeros, own, total)
        self._builder.add_samples(list(self._path_seconds), list(self._path_seconds.values()))

    def _add(self, function: int, caller: int, path: int, own: float, seconds: float, *, outermost: bool) -> None:
        for entry, total in (
            ((function, NO_CALLER), seconds if outermost else 0.0),
            ((function, caller), seconds),
        ):
            self._own[entry] = self._own.get(entry, 0.0) + own
            self._total[entry] = self._total.get(entry, 0.0) + total
            if caller == NO_CALLER:
                break
        self._path_seconds[path] = self._path_seconds.get(path, 0.0) + own

    def _read(self, frame: Any) -> tuple[int, float, list[Any]]:
        if type(frame) is not dict:
            raise CorruptFile(f"a frame is a {type(frame).__name__}, not an object")
        name, line, seconds = frame.get("function"), frame.get("line_no", 0), frame.get("time")
        file, children = frame.get("file_path") or frame.get("file_path_short") or "", frame.get("children") or []
        if type(name) is not str or type(file) is not str or type(children) is not list:
            raise CorruptFile("a frame lacks its function, file or children")
        line = 0 if line is None else line
        if type(line) is not int:
            raise CorruptFile(f"the line of frame {name[:80]!r} is no whole number")
        if not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or abs(seconds) > LARGEST_SECONDS:
            raise CorruptFile(f"the time of frame {name[:80]!r} is no number of seconds in range")
        key = (file, line, name)
        return self._builder.number(key), float(seconds), children
