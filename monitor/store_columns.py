"""How rows are laid out in the store's tables: columns to and from the records of the project. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from monitor.catalog import Catalog, CatalogMark
from monitor.profiles.columns import Ids
from monitor.rows import SpanRows
from monitor.tables import Measures

Columns: TypeAlias = dict[str, Any]
"""Column name -> numpy array: the form that duckdb reads without copying."""

MEASURES = {"calls": "BIGINT", "primitive_calls": "BIGINT", "self_seconds": "DOUBLE", "cumulative_seconds": "DOUBLE"}


def span_columns(spans: SpanRows) -> Columns:
    """Lay spans out as the table has them."""
    said = spans.columns
    return {
        "number": spans.number,
        "series": spans.series,
        "folder": spans.folder,
        "name": np.asarray(spans.name, dtype=object),
        "size_bytes": spans.size_bytes,
        "start_mode": said.start_mode,
        "end_mode": said.end_mode,
        "start_phase": said.start_phase,
        "end_phase": said.end_phase,
        "start_step": said.start_step,
        "end_step": said.end_step,
        "start_us": said.start_us,
        "end_us": said.end_us,
        "dropped": np.zeros(len(spans.name), dtype=np.bool_),
    }


def row_columns(span: Ids, entry: Ids, measures: Measures) -> Columns:
    """Lay entry rows out as the table has them."""
    return {"span": span, "entry": entry} | {name: getattr(measures, name) for name in MEASURES}


def measures_of(table: Columns) -> Measures:
    """Take the four measure columns out of a table."""
    return Measures(
        calls=table["calls"].astype(np.int64, copy=False),
        primitive_calls=table["primitive_calls"].astype(np.int64, copy=False),
        self_seconds=table["self_seconds"],
        cumulative_seconds=table["cumulative_seconds"],
    )


def catalog_columns(catalog: Catalog, since: CatalogMark, until: CatalogMark) -> dict[str, Columns]:
    """Lay out what the catalogue gained between two marks, by table."""

    def numbers(first: int, last: int) -> Ids:
        return np.arange(first, last, dtype=np.int32)

    functions = slice(since.functions, until.functions)
    entries, paths = slice(since.entries, until.entries), slice(since.paths, until.paths)
    series = catalog.series[since.series : until.series]
    names = catalog.functions[functions]
    return {
        "labels": {
            "number": numbers(since.labels, until.labels),
            "text": text(catalog.labels[since.labels : until.labels]),
        },
        "functions": {
            "number": numbers(since.functions, until.functions),
            "file": text([name[0] for name in names]),
            "line": np.asarray([name[1] for name in names], dtype=np.int64),
            "name": text([name[2] for name in names]),
            "label": catalog.function_label[functions],
        },
        "entries": {
            "number": numbers(since.entries, until.entries),
            "function": catalog.entry_function[entries],
            "caller": catalog.entry_caller[entries],
        },
        "paths": {
            "number": numbers(since.paths, until.paths),
            "parent": catalog.path_parent[paths],
            "function": catalog.path_function[paths],
        },
        "series": {"number": numbers(since.series, until.series)}
        | {word: text([getattr(key, word) for key in series]) for word in ("job", "framework", "profiler", "node")},
        "folders": {
            "number": numbers(since.folders, until.folders),
            "path": text(catalog.folders[since.folders : until.folders]),
        },
    }


def text(values: Sequence[str]) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Make a column of strings."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def plain(table: Mapping[str, Any]) -> Columns:
    """Turn masked columns, which duckdb gives where a null would fit, into plain ones."""
    return {name: np.ma.getdata(column) for name, column in table.items()}


def rows_of(columns: Columns) -> Iterator[dict[str, Any]]:
    """Walk a table row by row."""
    lists = {name: column.tolist() for name, column in columns.items()}
    for values in zip(*lists.values(), strict=True):
        yield dict(zip(lists, values, strict=True))
