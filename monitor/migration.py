"""Brings a store up to the present schema: in one transaction, with a copy of the file kept beside it before.

Knows the statements of `schema` and nothing of what the tables mean. Every method blocks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import monitor
from monitor.errors import StoreError
from monitor.schema import MIGRATIONS, SCHEMA_VERSION, TABLES

logger = logging.getLogger("phasewatch.store")


class Connection(Protocol):
    """What is needed of a connection to the database."""

    def execute(self, query: str, parameters: object = None) -> Any:
        """Run one statement."""


def prepare_schema(
    connection: Connection,
    *,
    path: Path | None,
    version: int = SCHEMA_VERSION,
    migrations: Mapping[int, Sequence[str]] = MIGRATIONS,
) -> None:
    """Create the tables in an empty store, or bring an older one up to `version`.

    Args:
        path: the file; None for a store in memory.

    Raises:
        StoreError: a newer version wrote it, or there is no room for the copy; the store is as it was.
    """
    connection.execute("CREATE TABLE IF NOT EXISTS meta (key VARCHAR PRIMARY KEY, value VARCHAR)")
    found = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    current = None if found is None else int(found[0])
    if current == version:
        return
    if current is not None and current > version:
        raise StoreError(newer_text(connection, path, current, version))
    if current is None:
        statements = list(TABLES)
    else:
        statements = [statement for step in range(current, version) for statement in migrations[step]]
        if path is not None:
            keep_copy(connection, copy_path(path, current))
    connection.execute("BEGIN TRANSACTION")
    try:
        for statement in statements:
            connection.execute(statement)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", [str(version)])
        connection.execute("INSERT INTO versions VALUES (?, ?, ?)", [version, monitor.__version__, time.time()])
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    if current is not None:
        logger.info("brought the store %s from schema version %d to %d", path, current, version)


def copy_path(path: Path, version: int) -> Path:
    """Name the copy of a store as it was at a version."""
    return path.with_name(f"{path.name}.schema-{version}")


def keep_copy(connection: Connection, copy: Path) -> None:
    """Write all that a store holds into a file beside it, whole or not at all.

    The database copies, not the file system: to open and close the file here would end the lock that it holds.
    """
    unready = copy.with_name(f"{copy.name}.part")
    logger.info("keeping a copy of the store as %s before it is changed", copy)
    try:
        unready.unlink(missing_ok=True)
        try:
            write_copy(connection, unready)
            unready.replace(copy)
        except BaseException:
            unready.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(f"cannot keep a copy of the store as {copy} before it is changed: {error.strerror}") from error


def write_copy(connection: Connection, target: Path) -> None:
    """Copy the connection's database into a new file."""
    (name,) = connection.execute("SELECT current_database()").fetchone()
    connection.execute(f"ATTACH {quoted(str(target), chr(39))} AS kept_copy")
    try:
        connection.execute(f"COPY FROM DATABASE {quoted(name, chr(34))} TO kept_copy")
        connection.execute("CHECKPOINT kept_copy")
    finally:
        connection.execute("DETACH kept_copy")


def newer_text(connection: Connection, path: Path | None, current: int, known: int) -> str:
    """Say what to do about a store that a newer version wrote."""
    writer = "a newer phasewatch"
    tables = connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'versions'")
    if tables.fetchone() is not None:
        row = connection.execute("SELECT phasewatch FROM versions WHERE schema_version = ?", [current]).fetchone()
        writer = writer if row is None else f"phasewatch {row[0]}"
    text = (
        f"{writer} wrote the store {path} (schema version {current}); this is phasewatch {monitor.__version__}, "
        f"which knows up to {known}: install the newer one again, or choose another --state-dir"
    )
    copies = [] if path is None else [copy for at in range(known, 0, -1) if (copy := copy_path(path, at)).exists()]
    return f"{text}, or put {copies[0]}, kept before it was changed, in its place" if copies else text


def quoted(text: str, mark: str) -> str:
    """Quote a text for a statement."""
    return f"{mark}{text.replace(mark, mark * 2)}{mark}"
