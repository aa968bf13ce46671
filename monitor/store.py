"""The durable store: one DuckDB file, one writer. The only importer of duckdb; knows tables, not questions.

Every method blocks: call it in a worker thread. One thread may write while others read; each reading call uses a cursor
of its own and sees the last commit. Names are numbered by the catalogue, so rows here hold numbers only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import duckdb
import numpy as np

from monitor.catalog import Catalog, CatalogMark, SeriesKey
from monitor.errors import StoreDamaged, StoreError
from monitor.profiles.columns import Floats, Ids
from monitor.rows import ProfileRows, SpanRows
from monitor.schema import MIGRATIONS, SCHEMA_VERSION, TABLES
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
    """An open store. Made by `open_store`.

    Attributes:
        damage: what could not be read of the file, since it holds something else; None while all could.
    """

    def __init__(self, connect: Callable[[], duckdb.DuckDBPyConnection], path: Path | None) -> None:
        self._connect = connect
        self._connection = connect()
        self._path = path
        self._reading = threading.local()
        self._cursors: list[duckdb.DuckDBPyConnection] = []
        self._invalid = False
        self.damage: StoreDamaged | None = None
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
        if self.revive() and self._holds(spans):
            return until  # it was durable after all: what failed came after that
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
        self.revive()
        with self._watched("write to"):
            self._connection.begin()
        try:
            with self._watched("write to"):
                yield
                self._connection.commit()
        except BaseException:
            self._roll_back()
            raise

    def revive(self) -> bool:
        """Open the file again where duckdb has given up its instance, as it does when it cannot fold the log into the
        file on a full disk. Only for the thread that writes.

        Returns:
            True where it was opened again.

        Raises:
            StoreError: it cannot be opened now.
        """
        if not self._invalid:
            return False
        self.close()
        self._connection = self._connect()
        self._reading = threading.local()
        self._invalid = False
        return True

    def close(self) -> None:
        """Close the file. What cannot be folded into it now stays in its log."""
        cursors, self._cursors = self._cursors, []
        for connection in (*cursors, self._connection):
            with suppress(duckdb.Error):
                connection.close()

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
        with self._watched("read"):
            return plain(self._cursor().execute(sql, list(parameters)).fetchnumpy())

    def statistics(self) -> StoreStatistics:
        """Say what the store did."""
        return StoreStatistics(commits=self._commits, commit_seconds=self._commit_seconds, size_bytes=self._size_bytes)

    # -- inside ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _watched(self, verb: str) -> Iterator[None]:
        """Turn duckdb's errors into StoreError, and note what they mean for this instance."""
        try:
            with translated(verb):
                yield
        except StoreDamaged as error:
            self.damage = error
            raise
        except StoreError as error:
            self._invalid |= isinstance(error.__cause__, (duckdb.FatalException, duckdb.InternalException))
            raise

    def _holds(self, spans: SpanRows) -> bool:
        """Tell whether a batch is stored already."""
        highest = self.read_table("SELECT coalesce(max(number), -1) AS number FROM spans")["number"]
        return bool(len(spans.number)) and int(highest[0]) >= int(spans.number[0])

    def _measure(self) -> int:
        if self._path is None:
            return 0
        files = (self._path, self._path.with_name(f"{self._path.name}.wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        cursor: duckdb.DuckDBPyConnection | None = getattr(self._reading, "cursor", None)
        if cursor is None:
            cursor = self._reading.cursor = self._connection.cursor()
            self._cursors.append(cursor)
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
        with self._watched("read"):
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
        StoreError: another process has it open, a newer version wrote it, or it cannot be read or written.
        StoreDamaged: it holds what cannot be read.
    """
    store = Store(partial(connect, path, memory_bytes, threads), path)
    try:
        yield store
    finally:
        store.close()


def connect(path: Path | None, memory_bytes: int, threads: int) -> duckdb.DuckDBPyConnection:
    """Open the file, with the tables of this version in it."""
    limits: dict[str, Any] = {"memory_limit": f"{memory_bytes}B", "threads": threads}
    try:
        connection = duckdb.connect(":memory:" if path is None else str(path), config=limits)
    except duckdb.Error as error:
        raise opening_error(path, error) from error
    try:
        connection.execute("SET preserve_insertion_order = true")
        # Folding the log into the file less often costs a restart a fraction of a second and saves a third of writing.
        connection.execute(f"SET wal_autocheckpoint = '{LOG_BYTES}B'")
        with translated("prepare"):
            prepare_schema(connection, where=str(path or "memory"))
    except BaseException:
        connection.close()
        raise
    return connection


def prepare_schema(
    connection: duckdb.DuckDBPyConnection,
    *,
    where: str,
    version: int = SCHEMA_VERSION,
    migrations: Mapping[int, Sequence[str]] = MIGRATIONS,
) -> None:
    """Create the tables in an empty store, or bring an older one up to `version`, in one transaction."""
    connection.execute("CREATE TABLE IF NOT EXISTS meta (key VARCHAR PRIMARY KEY, value VARCHAR)")
    found = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    current = None if found is None else int(found[0])
    if current == version:
        return
    if current is not None and current > version:
        raise StoreError(
            f"the store {where} has schema version {current}, this phasewatch knows up to {version}: "
            "install the newer phasewatch again, or choose another --state-dir"
        )
    connection.begin()
    try:
        statements = TABLES if current is None else [s for v in range(current, version) for s in migrations[v]]
        for statement in statements:
            connection.execute(statement)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", [str(version)])
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


DAMAGE_SIGNS = (
    "Corrupt",
    "Could not read enough bytes",
    "is not a valid DuckDB database file",
    "Failure while replaying WAL",
)
"""In messages of duckdb: it has no class for them."""
LOG_BYTES = 64 * 2**20
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
        text = first_line(error)
        kind = StoreDamaged if tells_damage(text) else StoreError
        raise kind(f"cannot {verb} the store: {text}") from error


def opening_error(path: Path | None, error: duckdb.Error) -> StoreError:
    """Say why a store does not open, and what to do where that is somebody's to decide."""
    text = first_line(error)
    if tells_damage(text) or isinstance(error, (duckdb.InternalException, duckdb.SerializationException)):
        return StoreDamaged(f"the store {path} is damaged ({text})")
    if "set lock" in text:
        advice = "another process uses it; stop that one or choose another --state-dir"
    elif "storage version" in text:
        advice = "install the newer phasewatch again, or choose another --state-dir"
    else:
        advice = "make it readable and writable, or choose another --state-dir"
    return StoreError(f"cannot open the store {path} ({text}): {advice}")


def tells_damage(message: str) -> bool:
    """Tell whether duckdb says that a file holds something else than was written."""
    return any(sign in message for sign in DAMAGE_SIGNS)


def first_line(error: duckdb.Error) -> str:
    """Return the part of duckdb's message that is for people."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
