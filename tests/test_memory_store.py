"""Rows in memory: the same sums as the database gives, whatever spans are asked for."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from monitor.catalog import Catalog
from monitor.memory_store import FEW_RUNS, LARGEST_EXACT, MemoryStore, whole_sums
from monitor.profiles.columns import Ids
from monitor.rows import ProfileRows, SpanRows, columns_of
from monitor.spans import parse_span_name
from monitor.store import Store, open_store
from monitor.tables import Measures

SPANS = 300
ENTRIES = 12


def span_rows(first: int, count: int) -> SpanRows:
    names = [f"train-{n}-stepstart-{n}.0_train-{n}-stepend-{n}.5" for n in range(first, first + count)]
    return SpanRows(
        number=np.arange(first, first + count, dtype=np.int32),
        series=np.zeros(count, dtype=np.int32),
        folder=np.zeros(count, dtype=np.int32),
        name=names,
        size_bytes=np.zeros(count, dtype=np.int64),
        columns=columns_of([parse_span_name(name) for name in names]),
    )


def profile_rows(first: int, count: int, chance: Random) -> ProfileRows:
    """Rows of some spans; some spans have none, at the beginning, in between and at the end."""
    spans = sorted(chance.choices(range(first, first + count), k=count * 3))
    samples = sorted(chance.choices(range(first, first + count), k=count))
    seconds = np.asarray([chance.uniform(-1, 5) for _ in spans])
    return ProfileRows(
        span=np.asarray(spans, dtype=np.int32),
        entry=np.asarray([chance.randrange(ENTRIES) for _ in spans], dtype=np.int32),
        measures=Measures(
            calls=np.asarray([chance.randrange(100) for _ in spans], dtype=np.int64),
            primitive_calls=np.asarray([chance.randrange(50) for _ in spans], dtype=np.int64),
            self_seconds=seconds,
            cumulative_seconds=seconds * 2,
        ),
        sample_span=np.asarray(samples, dtype=np.int32),
        sample_path=np.asarray([chance.randrange(5) for _ in samples], dtype=np.int32),
        sample_self_seconds=np.asarray([chance.random() for _ in samples]),
    )


def fill(*stores: MemoryStore | Store) -> None:
    """Commit the same batches, of all sizes, to each."""
    chance, catalog, first = Random(7), Catalog(), 0
    while first < SPANS:
        count = min(chance.choice([1, 2, 30, 100]), SPANS - first)
        spans, profiles = span_rows(first, count), profile_rows(first, count, chance)
        for store in stores:
            store.commit(spans, profiles, catalog, catalog.mark())
        first += count


def questions() -> list[list[int]]:
    chance = Random(8)
    scattered = sorted(chance.sample(range(SPANS), 180))
    assert (np.diff(scattered) > 1).sum() > FEW_RUNS
    return [[0], [SPANS - 1], [5, 6, 7], list(range(SPANS)), [0, 2, 4, 200, 299], scattered, []]


def in_order(keys: Ids, *columns: Any) -> list[tuple[Any, ...]]:
    return sorted(zip(keys.tolist(), *(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("asked", questions(), ids=lambda asked: f"{len(asked)} spans")
def test_sums_are_those_of_the_database(asked: list[int]) -> None:
    memory = MemoryStore()
    with open_store(None) as database:
        fill(memory, database)
        spans = np.asarray(asked, dtype=np.int32)
        for mine, theirs in zip(
            (memory.sum_entries(spans), memory.sum_paths(spans)),
            (database.sum_entries(spans), database.sum_paths(spans)),
            strict=True,
        ):
            flat = [
                in_order(keys, *([values] if isinstance(values, np.ndarray) else [getattr(values, n) for n in COLUMNS]))
                for keys, values in (mine, theirs)
            ]
            assert len(flat[0]) == len(flat[1])
            for one, other in zip(*flat, strict=True):
                assert one == pytest.approx(other, rel=1e-12)


COLUMNS = ("calls", "primitive_calls", "self_seconds", "cumulative_seconds")


def test_its_size_is_that_of_the_rows() -> None:
    store = MemoryStore()
    assert store.size_bytes == 0
    fill(store)
    assert store.size_bytes == SPANS * 3 * (4 + 4 * 8) + SPANS * (4 + 8)


def test_counts_beyond_what_a_float_holds_are_added_exactly() -> None:
    numbers = np.asarray([0, 0, 1], dtype=np.int32)
    values = np.asarray([LARGEST_EXACT, 1, 5], dtype=np.int64)
    assert whole_sums(numbers, values).tolist() == [LARGEST_EXACT + 1, 5]
