"""The store's tables, and how older stores become current ones. Text only: runs nothing."""

from __future__ import annotations

SCHEMA_VERSION = 3

CAPTURES = "CREATE TABLE captures (series INTEGER, facts VARCHAR)"
"""What the newest sidecar file of a node says: a JSON object."""

VERSIONS = "CREATE TABLE versions (schema_version INTEGER, phasewatch VARCHAR, since_seconds DOUBLE)"
"""Which phasewatch made the store have a schema, and when; older ones name it when they refuse the store."""

TABLES = [
    "CREATE TABLE series (number INTEGER, job VARCHAR, framework VARCHAR, profiler VARCHAR, node VARCHAR)",
    "CREATE TABLE folders (number INTEGER, path VARCHAR)",
    "CREATE TABLE labels (number INTEGER, text VARCHAR)",
    "CREATE TABLE functions (number INTEGER, file VARCHAR, line BIGINT, name VARCHAR, label INTEGER)",
    "CREATE TABLE entries (number INTEGER, function INTEGER, caller INTEGER)",
    "CREATE TABLE paths (number INTEGER, parent INTEGER, function INTEGER)",
    # Steps: -1 is `*` at the start, the largest BIGINT is `*` at the end. Phases are numbered in their order.
    """CREATE TABLE spans (
        number INTEGER, series INTEGER, folder INTEGER, name VARCHAR, size_bytes BIGINT,
        start_mode TINYINT, end_mode TINYINT, start_phase TINYINT, end_phase TINYINT,
        start_step BIGINT, end_step BIGINT, start_us DOUBLE, end_us DOUBLE, dropped BOOLEAN)""",
    """CREATE TABLE rows (
        span INTEGER, entry INTEGER, calls BIGINT, primitive_calls BIGINT,
        self_seconds DOUBLE, cumulative_seconds DOUBLE)""",
    "CREATE TABLE samples (span INTEGER, path INTEGER, self_seconds DOUBLE)",
    # The running totals as of span `meta.totals_until`; later spans are added from their rows at start.
    """CREATE TABLE totals (
        grp INTEGER, entry INTEGER, calls BIGINT, primitive_calls BIGINT,
        self_seconds DOUBLE, cumulative_seconds DOUBLE)""",
    "CREATE TABLE path_totals (grp INTEGER, path INTEGER, self_seconds DOUBLE)",
    """CREATE TABLE label_totals (
        grp INTEGER, label INTEGER, calls BIGINT, primitive_calls BIGINT,
        self_seconds DOUBLE, cumulative_seconds DOUBLE)""",
    # Which functions are series in Prometheus; label -1 is the floor of `(other)`.
    """CREATE TABLE budget (
        grp INTEGER, label INTEGER, active BOOLEAN, base_calls BIGINT, base_primitive_calls BIGINT,
        base_self_seconds DOUBLE, base_cumulative_seconds DOUBLE, before_calls BIGINT, before_primitive_calls BIGINT,
        before_self_seconds DOUBLE, before_cumulative_seconds DOUBLE)""",
    CAPTURES,
    VERSIONS,
]

MIGRATIONS: dict[int, list[str]] = {1: [CAPTURES], 2: [VERSIONS]}
"""Version n -> the statements that lead from n to n + 1. Before one is added, `python -m tests.store_samples` keeps a
store of version n for the tests."""
