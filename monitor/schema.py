"""The store's tables, and how older stores become current ones. Text only: runs nothing."""

from __future__ import annotations

SCHEMA_VERSION = 4

CAPTURES = "CREATE TABLE captures (series INTEGER, facts VARCHAR)"
"""What the newest sidecar file of a node says: a JSON object."""

VERSIONS = "CREATE TABLE versions (schema_version INTEGER, phasewatch VARCHAR, since_seconds DOUBLE)"
"""Which phasewatch made the store have a schema, and when; older ones name it when they refuse the store."""

BUDGET = """CREATE TABLE {table} (
    grp INTEGER, name VARCHAR, active BOOLEAN, base_calls BIGINT, base_primitive_calls BIGINT,
    base_self_seconds DOUBLE, base_cumulative_seconds DOUBLE, before_calls BIGINT, before_primitive_calls BIGINT,
    before_self_seconds DOUBLE, before_cumulative_seconds DOUBLE)"""
"""Which functions, or packages, are series in Prometheus; `(other)` is the floor of the rest."""

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
    BUDGET.format(table="budget"),
    BUDGET.format(table="package_budget"),
    CAPTURES,
    VERSIONS,
]

NAMED_BUDGET = [
    "ALTER TABLE budget RENAME TO numbered_budget",
    BUDGET.format(table="budget"),
    """INSERT INTO budget BY NAME
        SELECT numbered_budget.* EXCLUDE (label), coalesce(text, '(other)') AS name
        FROM numbered_budget LEFT JOIN labels ON label = labels.number""",
    "DROP TABLE numbered_budget",
    BUDGET.format(table="package_budget"),
]

MIGRATIONS: dict[int, list[str]] = {1: [CAPTURES], 2: NAMED_BUDGET, 3: [VERSIONS]}
"""Version n -> the statements that lead from n to n + 1. Before one is added, `python -m tests.store_samples` keeps a
store of version n for the tests."""
