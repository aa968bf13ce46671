"""From store to index and back: the totals are rebuilt at start from their last checkpoint and the rows after it.

The rows are added in the order in which they were first added, by the same code, so the totals come back bit by bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from monitor.index import Group, Index
from monitor.profiles.columns import Ids
from monitor.store import Store
from monitor.store_columns import Columns, measures_of, row_columns
from monitor.tables import Measures

ScalarT = TypeVar("ScalarT", bound=np.generic)

CHUNK_SPANS = 2_000


def load_index(store: Store, progress: Callable[[int, int], None] = lambda done, total: None) -> Index:
    """Rebuild the index from a store.

    Args:
        progress: told after each chunk how many of how many spans are added.
    """
    index = Index(store.load_catalog())
    spans, dropped = store.load_spans()
    groups = index.add_spans(spans, kept=~dropped)
    restore_totals(store, index.groups)
    first = int(np.searchsorted(spans.number, int(store.get_meta("totals_until") or 0)))
    for start in range(first, len(spans.number), CHUNK_SPANS):
        chunk = slice(start, start + CHUNK_SPANS)
        numbers = spans.number[chunk]
        index.add_rows(numbers, groups[chunk], store.read_rows(int(numbers[0]), int(numbers[-1])))
        progress(start + len(numbers), len(spans.number))
    return index


def save_totals(store: Store, index: Index) -> None:
    """Write the totals as they are now. Call it inside a transaction."""
    entries = [(number, *group.entries.all()) for number, group in enumerate(index.groups)]
    labels = [(number, *group.labels.all()) for number, group in enumerate(index.groups)]
    paths = [(number, np.flatnonzero(group.path_seconds)) for number, group in enumerate(index.groups)]
    store.replace_table("totals", stacked("entry", entries))
    store.replace_table("label_totals", stacked("label", labels))
    store.replace_table(
        "path_totals",
        {
            "grp": repeated((number, len(path)) for number, path in paths),
            "path": joined([path.astype(np.int32) for _, path in paths], np.int32),
            "self_seconds": joined([index.groups[number].path_seconds[path] for number, path in paths], np.float64),
        },
    )
    store.set_meta("negative_values", json.dumps([group.negative for group in index.groups]))
    store.set_meta("totals_until", str(index.next_number))


def restore_totals(store: Store, groups: list[Group]) -> None:
    """Put the totals of the last checkpoint into fresh groups."""
    for group, negative in zip(groups, json.loads(store.get_meta("negative_values") or "[]"), strict=False):
        group.negative = negative
    for number, rows in by_group(store.read_table("SELECT * FROM totals")):
        groups[number].entries.add(rows["entry"], measures_of(rows))
    for number, rows in by_group(store.read_table("SELECT * FROM label_totals")):
        groups[number].labels.add(rows["label"], measures_of(rows))
    for number, rows in by_group(store.read_table("SELECT * FROM path_totals")):
        groups[number].add_paths(rows["path"], rows["self_seconds"])


def by_group(table: Columns) -> Iterable[tuple[int, Columns]]:
    """Split a table of totals by group; each group's rows stand together."""
    group = table["grp"]
    if not len(group):
        return
    bounds = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
    for start, end in pairwise(bounds):
        yield int(group[start]), {name: column[start:end] for name, column in table.items()}


def stacked(key: str, parts: list[tuple[int, Ids, Measures]]) -> Columns:
    """Lay the sums of all groups out as one table."""
    columns = [row_columns(np.empty(0, dtype=np.int32), ids, sums) for _, ids, sums in parts]
    table: Columns = {"grp": repeated((number, len(ids)) for number, ids, _ in parts)}
    table[key] = joined([ids for _, ids, _ in parts], np.int32)
    for name, kind in (
        ("calls", np.int64),
        ("primitive_calls", np.int64),
        ("self_seconds", np.float64),
        ("cumulative_seconds", np.float64),
    ):
        table[name] = joined([column[name] for column in columns], kind)
    return table


def repeated(counts: Iterable[tuple[int, int]]) -> Ids:
    """Make a column that holds each number as often as told."""
    return joined([np.full(count, number, dtype=np.int32) for number, count in counts], np.int32)


def joined(parts: list[npt.NDArray[ScalarT]], kind: type[ScalarT]) -> npt.NDArray[ScalarT]:
    """Concatenate columns, of which there may be none."""
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)
