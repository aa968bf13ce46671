"""What a stopped profiler recorded: as plain values that another process can be sent, and as the files that these
become. Taking a profile apart happens beside the training and takes turns with it at the interpreter, so it is done in
few long calls of C; the files may be made anywhere."""

from __future__ import annotations

import cProfile
import gc
import marshal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice, repeat, starmap
from operator import call, delitem, itemgetter, length_hint
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from monitor.layout import HTML_FILE, data_file

if TYPE_CHECKING:
    from pyinstrument.session import Session

Files: TypeAlias = Mapping[str, bytes]
ProfilerName: TypeAlias = Literal["cprofile", "pyinstrument"]
Packed: TypeAlias = tuple[ProfilerName, Any, dict[str, bytes]]
"""The profiler, what it recorded in types that marshal knows, and files that are whole already."""

Pack: TypeAlias = Callable[[], Packed]
Label: TypeAlias = tuple[str, int, str]
Numbers: TypeAlias = tuple[int, int, float, float]
Statistics: TypeAlias = dict[Label, tuple[int, int, float, float, dict[Label, Numbers]]]
Columns: TypeAlias = tuple[Any, ...]
Calls: TypeAlias = tuple[Callable[[], object], ...]

MARSHAL_VERSION = 4
"""The newest one that every Python from 3.4 can read, and the one the original writes."""

UNRECORDED_JSON = b'{"root_frame": null}'
UNRECORDED_HTML = b"An error occurred during profiling!"


def pack_cprofile(profile: cProfile.Profile) -> Packed:
    """Take a profile apart that is off; safe on any thread."""
    return "cprofile", columns_of(profile), {}


def pack_pyinstrument(session: Session) -> Packed:
    """Take a session apart."""
    return "pyinstrument", session.to_json(), {}


def files_of(packed: Packed) -> Files:
    """Make the files of a span folder as the original does."""
    kind, values, ready = packed
    made = cprofile_files(values) if kind == "cprofile" else pyinstrument_files(values)
    return {**made, **ready}


def columns_of(profile: cProfile.Profile) -> Columns:
    """Turn a profile into columns: of its functions, and of their calls to one another.

    Returns:
        Of each function its file, line and name, calls, recursive ones, cumulative and self seconds, and how many
        others it called; of each of these the place in the first columns, and the same numbers.
    """
    functions, lengths, edges = taken_apart(profile)
    codes, *numbers = functions or [()] * 5
    callees, *edge_numbers = edges or [()] * 5
    # By identity, for hashing a code object takes longer than all else here; within one profile each is one object.
    places = dict(zip(map(id, codes), range(len(codes)), strict=True))
    return (
        # A function that is written in C has no code object but a text.
        list(map(getattr, codes, repeat("co_filename"), repeat("~"))),
        list(map(getattr, codes, repeat("co_firstlineno"), repeat(0))),
        list(map(getattr, codes, repeat("co_name"), codes)),
        *numbers,
        lengths,
        list(map(places.get, map(id, callees))),
        *edge_numbers,
    )


def taken_apart(profile: cProfile.Profile) -> tuple[list[Any], list[int], list[Any]]:
    """Return a profile's functions as columns, how many others each called, and these calls as columns.

    getstats() makes hundreds of objects that the garbage collector counts; they are gone at once, but each time it
    would look at what the training holds: measured, a third of what capture costs. So it is off meanwhile, and since
    it is the training's, nothing else may run before it is on again: all that follows is one call of C, which keeps
    the interpreter to itself.
    """
    was_on: list[bool] = []
    entries: list[Any] = []
    functions: list[Any] = []
    lengths: list[int] = []
    edges: list[Any] = []
    edge_columns: list[Any] = []
    tidy: Calls = (partial(delitem, functions, slice(-1, None)), edges.clear, entries.clear)
    afterwards: Calls = (gc.isenabled, gc.enable)  # where it was off, a question that changes nothing
    steps = chain(
        map(was_on.append, map(call, (gc.isenabled,))),
        map(call, (gc.disable,)),
        map(entries.extend, map(call, (profile.getstats,))),
        map(functions.extend, starmap(zip, (entries,))),
        map(lengths.extend, map(partial(map, length_hint), last_of(functions))),
        map(edges.extend, map(chain.from_iterable, map(partial(filter, None), last_of(functions)))),
        map(edge_columns.extend, starmap(zip, (edges,))),
        map(call, tidy),
        map(call, map(afterwards.__getitem__, was_on)),
    )
    try:
        deque(steps, maxlen=0)
    except BaseException:
        if was_on == [True]:
            gc.enable()
        raise
    return functions, lengths, edge_columns


def last_of(columns: list[Any]) -> Iterator[Any]:
    """Give the last column, if there will be one when it is asked for."""
    return chain.from_iterable(map(itemgetter(slice(-1, None)), (columns,)))


def cprofile_files(columns: Columns) -> Files:
    """Render the columns of a profile: a marshalled pstats dictionary."""
    return {data_file("cprofile"): marshal.dumps(pstats_dictionary(columns), MARSHAL_VERSION)}


def pstats_dictionary(columns: Columns) -> Statistics:
    """Build what Profile.create_stats builds.

    Code objects with one label (two lambdas on a line) are summed, where create_stats keeps only the last one.
    """
    files, lines, names, counts, recursions, totals, own, lengths, *edges = columns
    labels: list[Label] = list(zip(files, lines, names, strict=True))
    stats: Statistics = {}
    for label, count, recursive, total, inline in zip(labels, counts, recursions, totals, own, strict=True):
        numbers = (count - recursive, count, inline, total)
        known = stats.get(label)
        stats[label] = (*numbers, {}) if known is None else (*added(known[:4], numbers), known[4])
    rest: Iterable[tuple[int | None, int, int, float, float]] = zip(*edges, strict=True)
    for label, length in zip(labels, lengths, strict=True):
        for place, count, recursive, total, inline in islice(rest, length):
            if place is not None:
                callers = stats[labels[place]][4]
                # In a caller's tuple all calls come before the primitive ones: Python writes it so.
                numbers = (count, count - recursive, inline, total)
                callers[label] = added(callers[label], numbers) if label in callers else numbers
    return stats


def added(one: Numbers, other: Numbers) -> Numbers:
    """Add two counts and two times."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def pyinstrument_files(document: Any) -> Files:
    """Render a session that was taken apart: the data, and its picture."""
    from pyinstrument.renderers import HTMLRenderer, JSONRenderer
    from pyinstrument.session import Session

    try:
        session = Session.from_json(document)
        data, page = JSONRenderer().render(session).encode(), HTMLRenderer().render(session).encode()
    except Exception:  # noqa: BLE001  # as the original: a session that cannot be rendered is written down as such
        data, page = UNRECORDED_JSON, UNRECORDED_HTML
    return {data_file("pyinstrument"): data, HTML_FILE: page}
