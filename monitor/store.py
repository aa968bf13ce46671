"""The durable store: one DuckDB file, one writer. The only importer of duckdb; knows tables, not questions.

Every method blocks: call it in a worker thread. One thread may write while others read; each reading call uses a cursor
of its own and sees the last commit. Names are numbered by the catalogue, so rows here hold numbers only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import duckdb
import numpy as np

from monitor.catalog import Catalog, CatalogMark, SeriesKey
from monitor.errors import StoreError
from monitor.migration import prepare_schema
from monitor.profiles.columns import Floats, Ids
from monitor.rows import ProfileRows, SpanRows
from monitor.selection import SpanColumns
from monitor.store_columns import (
    MEASURES,
    Columns,
    catalog_columns,
    measures_of,
    plain,
    row_columns,
    rows_of,
    span_columns,
)
from monitor.tables import Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """What the store did since it was opened; times in seconds."""

    commits: int
    commit_seconds: float
    size_bytes: int


class Store:
    """An open store. Made by `open_store`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: Path | None) -> None:
        self._connection = connection
        self._path = path
        self._reading = threading.local()
        self._commits = 0
        self._commit_seconds = 0.0
        self._size_bytes = self._measure()

    # -- writing ---------------------------------------------------------------------------------------------------

    def commit(self, spans: SpanRows, profiles: ProfileRows, catalog: Catalog, since: CatalogMark) -> CatalogMark:
        """Make a batch durable, whole or not at all.

        Args:
            since: what of the catalogue is durable already; what came after it is written with the batch.

        Returns:
            The mark to pass next time.

        Raises:
            StoreError: nothing of the batch was written (disk full, file system gone); it may be tried again.
        """
        started = monotonic()
        until = catalog.mark()
        with self.transaction():
            self._write_catalog(catalog, since, until)
            self._insert("spans", span_columns(spans))
            self._insert("rows", row_columns(profiles.span, profiles.entry, profiles.measures))
            samples = {
                "span": profiles.sample_span,
                "path": profiles.sample_path,
                "self_seconds": profiles.sample_self_seconds,
            }
            self._insert("samples", samples)
        self._commits += 1
        self._commit_seconds += monotonic() - started
        self._size_bytes = self._measure()
        return until

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Group writes; roll back and raise StoreError when one fails."""
        with translated("write to"):
            self._connection.begin()
        try:
            with translated("write to"):
                yield
                self._connection.commit()
        except BaseException:
            self._roll_back()
            raise

    def replace_table(self, table: str, columns: Columns) -> None:
        """Put these rows in the place of all that a table holds. Call it inside a transaction."""
        self._connection.execute(f"DELETE FROM {table}")
        self._insert(table, columns)

    def replace_groups(self, table: str, groups: Sequence[int], columns: Columns) -> None:
        """Put these rows in the place of all that a table holds of some groups. Call it inside a transaction."""
        numbers = {"grp": np.asarray(groups, dtype=np.int32)}  # noqa: F841 - duckdb finds it by name
        self._connection.execute(f"DELETE FROM {table} WHERE grp IN (SELECT grp FROM numbers)")
        self._insert(table, columns)

    def replace_series(self, table: str, series: Sequence[int], columns: Columns) -> None:
        """Put these rows in the place of all that a table holds of some series. Call it inside a transaction."""
        numbers = {"series": np.asarray(series, dtype=np.int32)}  # noqa: F841 - duckdb finds it by name
        self._connection.execute(f"DELETE FROM {table} WHERE series IN (SELECT series FROM numbers)")
        self._insert(table, columns)

    def drop_rows(self, spans: Ids) -> None:
        """Forget the rows of spans, whose names stay known. Call it inside a transaction."""
        numbers = {"span": spans}  # noqa: F841 - duckdb finds it by name
        for table in ("rows", "samples"):
            self._connection.execute(f"DELETE FROM {table} WHERE span IN (SELECT span FROM numbers)")
        self._connection.execute("UPDATE spans SET dropped = true WHERE number IN (SELECT span FROM numbers)")

    def set_meta(self, key: str, value: str) -> None:
        """Keep one fact. Call it inside a transaction."""
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [key, value])

    # -- reading ---------------------------------------------------------------------------------------------------

    def get_meta(self, key: str) -> str | None:
        """Return one fact, or None where it was never kept."""
        found = self.read_table("SELECT value FROM meta WHERE key = ?", [key])["value"].tolist()
        return found[0] if found else None

    def load_catalog(self) -> Catalog:
        """Read the whole catalogue."""
        catalog = Catalog()
        functions = self.read_table("SELECT file, line, name, label FROM functions ORDER BY number")
        series = self.read_table("SELECT job, framework, profiler, node FROM series ORDER BY number")
        entries = self.read_table("SELECT function, caller FROM entries ORDER BY number")
        paths = self.read_table("SELECT parent, function FROM paths ORDER BY number")
        catalog.load(
            series=[SeriesKey(**{word: str(value) for word, value in row.items()}) for row in rows_of(series)],
            folders=self.read_table("SELECT path FROM folders ORDER BY number")["path"].tolist(),
            labels=self.read_table("SELECT text FROM labels ORDER BY number")["text"].tolist(),
            functions=list(
                zip(functions["file"].tolist(), functions["line"].tolist(), functions["name"].tolist(), strict=True)
            ),
            function_label=functions["label"],
            entries=(entries["function"], entries["caller"]),
            paths=(paths["parent"], paths["function"]),
        )
        return catalog

    def load_spans(self) -> tuple[SpanRows, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Read all spans in the order of their numbers, and which of them retention has emptied."""
        table = self.read_table("SELECT * FROM spans ORDER BY number")
        names = ("start_mode", "end_mode", "start_phase", "end_phase", "start_step", "end_step", "start_us", "end_us")
        rows = SpanRows(
            number=table["number"],
            series=table["series"],
            folder=table["folder"],
            name=table["name"].tolist(),
            size_bytes=table["size_bytes"],
            columns=SpanColumns(**{name: table[name] for name in names}),
        )
        return rows, table["dropped"]

    def read_rows(self, first: int, last: int) -> ProfileRows:
        """Read the rows of spans with numbers in [first, last], in the order in which they were written."""
        rows = self.read_table("SELECT * FROM rows WHERE span BETWEEN ? AND ?", [first, last])
        samples = self.read_table("SELECT * FROM samples WHERE span BETWEEN ? AND ?", [first, last])
        return ProfileRows(
            span=rows["span"],
            entry=rows["entry"],
            measures=measures_of(rows),
            sample_span=samples["span"],
            sample_path=samples["path"],
            sample_self_seconds=samples["self_seconds"],
        )

    def sum_entries(self, spans: Ids) -> tuple[Ids, Measures]:
        """Add up the entry rows of some spans, given by their numbers."""
        if not len(spans):
            return np.empty(0, dtype=np.int32), measures_of(dict.fromkeys(MEASURES, np.empty(0)))
        sums = ", ".join(f"sum({name})::{kind} AS {name}" for name, kind in MEASURES.items())
        table = self._sum("rows", sums, "entry", spans)
        return table["entry"], measures_of(table)

    def sum_paths(self, spans: Ids) -> tuple[Ids, Floats]:
        """Add up the sampled seconds of some spans by path."""
        if not len(spans):
            return np.empty(0, dtype=np.int32), np.empty(0)
        table = self._sum("samples", "sum(self_seconds) AS self_seconds", "path", spans)
        return table["path"], table["self_seconds"]

    def read_table(self, sql: str, parameters: Sequence[object] = ()) -> Columns:
        """Run one reading statement and return its columns."""
        with translated("read"):
            return plain(self._cursor().execute(sql, list(parameters)).fetchnumpy())

    def statistics(self) -> StoreStatistics:
        """Say what the store did."""
        return StoreStatistics(commits=self._commits, commit_seconds=self._commit_seconds, size_bytes=self._size_bytes)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _measure(self) -> int:
        if self._path is None:
            return 0
        files = (self._path, self._path.with_name(f"{self._path.name}.wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        cursor: duckdb.DuckDBPyConnection | None = getattr(self._reading, "cursor", None)
        if cursor is None:
            cursor = self._reading.cursor = self._connection.cursor()
        return cursor

    def _sum(self, table: str, sums: str, key: str, spans: Ids) -> Columns:
        """Add up the rows of some spans.

        Rows lie in the order of span numbers, and duckdb passes over what is outside a range. The spans of several
        nodes may lie far apart, so there is a range for each cluster of them.
        """
        chosen = {"span": spans}  # noqa: F841 - duckdb finds it by name
        parts: list[str] = []
        for first, last, dense in clusters(spans):
            inside = "" if dense else " AND span IN (SELECT span FROM chosen)"
            parts.append(f"SELECT * FROM {table} WHERE span BETWEEN {first} AND {last}{inside}")
        sql = f"SELECT {key}, {sums} FROM ({' UNION ALL '.join(parts)}) GROUP BY {key}"
        with translated("read"):
            return plain(self._cursor().execute(sql).fetchnumpy())

    def _insert(self, table: str, columns: Columns) -> None:
        if len(next(iter(columns.values()))):
            batch = columns  # noqa: F841 - duckdb finds it by name
            self._connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM batch")

    def _write_catalog(self, catalog: Catalog, since: CatalogMark, until: CatalogMark) -> None:
        for table, columns in catalog_columns(catalog, since, until).items():
            self._insert(table, columns)

    def _roll_back(self) -> None:
        try:
            self._connection.rollback()
        except duckdb.Error:
            return  # a failed commit has ended the transaction already


@contextmanager
def open_store(path: Path | None, *, memory_bytes: int = 96 * 2**20, threads: int = 1) -> Iterator[Store]:
    """Open the store, making or migrating it where needed.

    Args:
        path: the file; None keeps everything in memory.
        memory_bytes: how much duckdb may use for its buffers.

    Raises:
        StoreError: another process has it open, it is damaged, or a newer version wrote it.
    """
    limits: dict[str, Any] = {"memory_limit": f"{memory_bytes}B", "threads": threads}
    try:
        connection = duckdb.connect(":memory:" if path is None else str(path), config=limits)
    except duckdb.Error as error:
        raise StoreError(f"cannot open the store {path}: {opening_advice(str(error))}") from error
    try:
        connection.execute("SET preserve_insertion_order = true")
        # Folding the log into the file less often costs a restart a fraction of a second and saves a third of writing.
        connection.execute("SET wal_autocheckpoint = '64MB'")
        with translated("prepare"):
            prepare_schema(connection, path=path)
        yield Store(connection, path)
    finally:
        connection.close()


WIDE_GAP_SPANS = 1_000
MOST_CLUSTERS = 64


def clusters(spans: Ids) -> Iterator[tuple[int, int, bool]]:
    """Split span numbers where the gap is wide; gives each part's first and last, and whether nothing is missing in it.

    Where there would be very many parts, all is one: a statement should stay short.
    """
    ordered = np.sort(spans)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(ordered) > WIDE_GAP_SPANS) + 1])
    if len(starts) > MOST_CLUSTERS:
        starts = np.zeros(1, dtype=np.int64)
    for part in np.split(ordered, starts[1:]):
        first, last = int(part[0]), int(part[-1])
        yield first, last, last - first + 1 == len(part)


@contextmanager
def translated(verb: str) -> Iterator[None]:
    """Turn duckdb's errors into StoreError."""
    try:
        yield
    except duckdb.Error as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StoreError(f"cannot {verb} the store: {first_line}") from error


def opening_advice(message: str) -> str:
    """Say what to do about a store that does not open."""
    first_line = message.splitlines()[0]
    if "lock" in message.lower():
        return f"another process uses it ({first_line}); stop that one or choose another --state-dir"
    return f"{first_line}; move the file aside to start anew from the profiles that still exist"
