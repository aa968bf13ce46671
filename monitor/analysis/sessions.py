"""Results of pyinstrument: single sessions as the original gives them, and their call trees merged into one."""

from __future__ import annotations

import html
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from monitor.analysis.display import spans_title
from monitor.analysis.tabular import FunctionResult, GroupedStats, StatsDiff, Tabular, diff
from monitor.answers import FrameTable
from monitor.errors import CorruptFile, IncompleteFile, ReadError
from monitor.grouping import GroupBy, keep_functions
from monitor.profiles.columns import NO_PARENT, FunctionName
from monitor.profiles.pyinstrument import load
from monitor.tables import StatsTable
from monitor.trees import inclusive_seconds, keep_frames, present_paths

Frame = dict[str, Any]


class PyinstrumentStepStats:
    """One session.

    Attributes:
        html_file_path: its picture. json_stats: what pyinstrument wrote, a dictionary with `root_frame`.
    """

    def __init__(self, html_file_path: str, json_stats: dict[str, Any]) -> None:
        self.html_file_path = html_file_path
        self.json_stats = json_stats

    @classmethod
    def of_file(cls, page: Callable[[], str], read: Callable[[], bytes]) -> PyinstrumentStepStats:
        """Make one whose files are fetched when they are first looked at."""
        made = cls.__new__(cls)
        made._page = page  # type: ignore[attr-defined]
        made._read = read  # type: ignore[attr-defined]
        return made

    def __repr__(self) -> str:
        return "<PyinstrumentStepStats: html_file_path, json_stats>"

    def __reduce__(self) -> tuple[Callable[[str, bytes], PyinstrumentStepStats], tuple[str, bytes]]:
        # As text: pickle and copy go into nested values one call a level, and frames are nested deeply.
        return session_of_text, (self.html_file_path, msgspec.json.encode(self.json_stats))

    @cached_property
    def html_file_path(self) -> str:
        """Where its picture lies on this machine."""
        return self._page()  # type: ignore[attr-defined,no-any-return]

    @cached_property
    def json_stats(self) -> dict[str, Any]:
        """What pyinstrument wrote.

        Raises:
            ReadError: the file has gone since, or holds something else now.
        """
        try:
            stats = load(self._read())  # type: ignore[attr-defined]
        except (CorruptFile, IncompleteFile) as error:
            raise ReadError(f"the session's file has changed since it was read: {error}", kind="unreadable") from error
        if not isinstance(stats, dict):
            raise ReadError(
                f"the session's file has changed since it was read: it holds a {type(stats).__name__}",
                kind="unreadable",
            )
        return stats


def session_of_text(html_file_path: str, text: bytes) -> PyinstrumentStepStats:
    """Make a session again from what `__reduce__` gave."""
    return PyinstrumentStepStats(html_file_path, msgspec.json.decode(text))


class PyinstrumentTree(FunctionResult["PyinstrumentTree"]):
    """The call trees of some sessions merged into one.

    Frames that have the same function, file and line on every frame from the root down are one, and their times add.
    `[self]` frames are their parent's own time, groups of hidden frames have no part in it. pyinstrument cuts what is
    below 1 % of a session when it writes it, so that stays own time of the parent.
    """

    def __init__(self, make: Callable[[], StatsTable], tree: Callable[[], FrameTable]) -> None:
        super().__init__(make)
        self._tree: Callable[[], FrameTable] | None = tree

    @cached_property
    def tree(self) -> FrameTable:
        """The merged tree, as columns."""
        if self._tree is None:
            raise RuntimeError("the tree was made already")
        tree = self._tree()
        self._tree = None  # it may keep a whole analysis alive
        return tree

    @cached_property
    def json_stats(self) -> dict[str, Any]:
        """The merged tree in the form of a session: `root_frame` with `function`, `file_path`, `line_no`, `time` in
        seconds with what it calls, and `children`; also `start_time`, `duration` in seconds and `session_count`."""
        roots = frames_of(self.tree)
        total = float(self.tree.self_seconds.sum())
        root = roots[0] if len(roots) == 1 else new_frame(("", 0, "[root]"), total, roots) if roots else None
        return {
            "start_time": self.tree.from_seconds,
            "duration": total,
            "session_count": self.tree.spans,
            "root_frame": root,
        }

    def paths_to_dataframe(self) -> pd.DataFrame:
        """Return one row for each path of frames: path (names from the root, joined by ";"), file and line of the last
        frame, self_seconds and seconds with what it calls; largest first."""
        times, paths = inclusive_seconds(self.tree), present_paths(self.tree)
        functions = self.tree.path_function
        names: dict[int, str] = {NO_PARENT: ""}
        rows: list[tuple[str, str, int, float, float]] = []
        for path in paths:
            file, line, name = self.tree.names[int(functions[path])]
            above = names[int(self.tree.path_parent[path])]
            names[path] = f"{above};{name}" if above else name
            rows.append((names[path], file, line, float(self.tree.self_seconds[path]), float(times[path])))
        frame = pd.DataFrame(rows, columns=["path", "file", "line", "self_seconds", "seconds"])
        return frame.sort_values("seconds", ascending=False, kind="stable", ignore_index=True)

    def to_html(self) -> str:
        """Return an interactive page of the whole tree, in one file: pyinstrument's own."""
        from monitor.exports.flame import to_html  # its renderers are loaded when somebody wants to see something

        return to_html(self.tree, self._title())

    def show(self, file: str | Path | None = None) -> Any:
        """Show the tree as an interactive page: in a notebook below the cell, elsewhere in a browser.

        Args:
            file: write the page there and show nothing.

        Returns:
            In a notebook what displays it, else the path of the page.
        """
        page = self.to_html()
        if file is None and in_notebook():
            return framed(page)
        if file is None:
            with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="phasewatch-", delete=False) as written:
                written.write(page)
            webbrowser.open(Path(written.name).as_uri())
            return written.name
        Path(file).write_text(page, encoding="utf-8")
        return str(file)

    def _filtered(self, keep: Callable[[FunctionName], bool]) -> PyinstrumentTree:
        table, tree = keep_functions(self.table, keep), keep_frames(self.tree, keep)
        return PyinstrumentTree(lambda: table, lambda: tree)

    def __getstate__(self) -> dict[str, Any]:
        """Keep the tables and forget what they were made of."""
        return {"table": self.table, "tree": self.tree, "_make": None, "_tree": None}

    def _title(self) -> str:
        return spans_title("Call tree", self.spans, self.from_seconds, self.to_seconds)

    def __repr__(self) -> str:
        return f"<PyinstrumentTree: {self._title()}>"


class PyinstrumentSessions(list[PyinstrumentStepStats]):
    """The sessions of some spans in order of time: a list, as the original gives it, that can also be merged.

    Attributes:
        merged: all of them as one tree.
    """

    def __init__(self, sessions: Iterable[PyinstrumentStepStats], merged: PyinstrumentTree) -> None:
        super().__init__(sessions)
        self.merged = merged

    def __reduce__(self) -> tuple[type[PyinstrumentSessions], tuple[list[PyinstrumentStepStats], PyinstrumentTree]]:
        return PyinstrumentSessions, (list(self), self.merged)

    def __repr__(self) -> str:
        return f"<{len(self)} sessions: {self.merged!r}>"

    @property
    def table(self) -> StatsTable:
        """The functions, added up."""
        return self.merged.table

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row for each function of the merged sessions, largest self time first."""
        return self.merged.to_dataframe()

    def group_by(self, by: GroupBy) -> GroupedStats:
        """Add the merged functions up by package, module or file."""
        return self.merged.group_by(by)

    def only(self, *, package: str | None = None, path: str | None = None) -> PyinstrumentTree:
        """Keep the merged functions of one package, or of files that match a regular expression."""
        return self.merged.only(package=package, path=path)

    def application_code(self) -> PyinstrumentTree:
        """Keep the merged functions that are neither installed nor the standard library."""
        return self.merged.application_code()

    def diff(self, after: Tabular, *, ignore_lines: bool = False) -> StatsDiff:
        """Compare the merged functions with those of a later result."""
        return diff(self, after, ignore_lines=ignore_lines)

    def show(self, file: str | Path | None = None) -> Any:
        """Show the merged tree; see `PyinstrumentTree.show`."""
        return self.merged.show(file)

    def _repr_html_(self) -> str:
        """Show the largest functions in a notebook."""
        return self.merged._repr_html_()


def frames_of(tree: FrameTable) -> list[Frame]:
    """Build the roots of a tree, each with its children, the largest first."""
    times = inclusive_seconds(tree)
    frames: dict[int, Frame] = {}
    roots: list[Frame] = []
    for path in present_paths(tree):
        name = tree.names[int(tree.path_function[path])]
        frame = frames[path] = new_frame(name, float(times[path]), [])
        parent = int(tree.path_parent[path])
        (roots if parent == NO_PARENT else frames[parent]["children"]).append(frame)
    for frame in frames.values():
        frame["children"].sort(key=lambda child: -child["time"])
    return sorted(roots, key=lambda root: -root["time"])


def new_frame(name: FunctionName, seconds: float, children: list[Frame]) -> Frame:
    """Make a frame in pyinstrument's form."""
    file, line, function = name
    return {"function": function, "file_path": file, "line_no": line, "time": seconds, "children": children}


def in_notebook() -> bool:
    """Tell whether a notebook kernel runs this; IPython is loaded then."""
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


def framed(page: str) -> Framed:
    """Wrap a page so that a notebook shows it apart from its own style and scripts."""
    return Framed(f'<iframe style="width:100%;height:600px;border:0" srcdoc="{html.escape(page)}"></iframe>')


class Framed:
    """A page in a frame of its own, as a notebook shows it."""

    def __init__(self, markup: str) -> None:
        self._markup = markup

    def _repr_html_(self) -> str:
        """Show the page below the cell."""
        return self._markup
