"""The layout of profile folders: which file of which span a path or S3 key is. Standard library only, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from monitor.errors import LayoutError
from monitor.spans import Span, parse_any_name, parse_legacy_name, parse_span_name, quoted

HTML_FILE = "python_stats.html"
DATA_FILES = {"python_stats": "cprofile", "python_stats.json": "pyinstrument"}
"""Name of a data file -> the profiler that wrote it. The file's name decides, not the folder's."""
SIDECAR_FILE = "phasewatch.json"
"""What a span folder of ours tells besides the profile; other readers pass it over."""
REQUEST_FILE = "phasewatch-trigger.json"
"""In the base folder: asks the captures that write there to profile their next steps."""
ANSWER_FILE = "phasewatch-answer-{node}.json"
"""In the base folder: what a node made of the newest request."""
PROFILER_FOLDERS = {"cprofile": "cprofile", "cProfile": "cprofile", "pyinstrument": "pyinstrument"}


class FileKind(Enum):
    """What a file in a span folder is."""

    STATS = "python_stats"
    JSON = "python_stats.json"
    HTML = "python_stats.html"


class SpanKey(NamedTuple):
    """The identity of a profile within its job.

    Attributes:
        profiler: "cprofile" or "pyinstrument".
        span: the folder's name, exactly as it stands on disk.
    """

    framework: str
    profiler: str
    node: str
    span: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsFile:
    """One file of one span."""

    key: SpanKey
    span: Span
    kind: FileKind
    path: str


def locate(path: str) -> StatsFile:
    """Tell what a file is, by the last five components of its path, as the original reader does.

    In the older layout FRAMEWORK/cProfile/START_END_NODE_STEP/file the node stands in the folder's name.

    Raises:
        LayoutError: says which component is wrong.
    """
    parts = path.split("/")
    name = parts[-1]
    try:
        kind = FileKind(name)
    except ValueError:
        raise LayoutError(f"file name {quoted(name)} is none of {', '.join(kind.value for kind in FileKind)}") from None
    folder = parts[-2] if len(parts) > 1 else ""
    if folder[:1].isdigit():
        span, node = parse_legacy_name(folder)
        above = parts[-4:-2]
    else:
        span = parse_span_name(folder)
        above, node = parts[-5:-3], parts[-3] if len(parts) > 2 else ""
    if len(above) != 2:
        raise LayoutError(f"path {quoted(path)} is too short: …/FRAMEWORK/PROFILER/NODE/SPAN/FILE is needed")
    for what, part in (("framework", above[0]), ("profiler", above[1]), ("node", node)):
        if part in ("", ".", "..") or not part.isprintable():
            raise LayoutError(f"the {what} in path {quoted(path)} is {quoted(part)}, which is no name")
    profiler = DATA_FILES.get(name, "pyinstrument")
    key = SpanKey(framework=above[0], profiler=profiler, node=node, span=folder)
    return StatsFile(key=key, span=span, kind=kind, path=path)


def format_path(base: str, key: SpanKey) -> str:
    """Return where the data file of a span lies below a base folder or prefix."""
    return "/".join((base, "framework", key.framework, key.profiler, key.node, key.span, data_file(key.profiler)))


def data_file(profiler: str) -> str:
    """Name the file that holds a profiler's data."""
    return FileKind.STATS.value if profiler == "cprofile" else FileKind.JSON.value


def is_span_folder(name: str) -> bool:
    """Tell whether a folder's name is a span's, in either layout."""
    try:
        parse_any_name(name)
    except LayoutError:
        return False
    return True
