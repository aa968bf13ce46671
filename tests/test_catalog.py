"""The catalogue: each name has one number, given in order of first sight, and none ever changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.catalog import Catalog, CatalogMark, Growing, SeriesKey
from monitor.profiles.builder import BatchBuilder
from monitor.profiles.columns import NO_CALLER, NO_PARENT, DecodedBatch, FunctionName
from monitor.profiles.finish import arrays, finish

STEP, FORWARD, LEN = ("/app/train.py", 12, "step"), ("/app/model.py", 7, "forward"), ("~", 0, "<built-in method len>")
Entry = tuple[FunctionName, FunctionName | None]
Path = tuple[FunctionName, ...]


def batch_of(entries: Sequence[Entry], paths: Sequence[Path] = ()) -> DecodedBatch:
    """Build a batch of one file that names these entries and paths."""
    builder = BatchBuilder()
    for function, caller in entries:
        above = NO_CALLER if caller is None else builder.number(caller)
        builder.add_rows([builder.number(function)], [above], [1], [1], [1.0], [1.0])
    for path in paths:
        number = NO_PARENT
        for function in path:
            number = builder.path(number, builder.number(function))
        builder.add_samples([number], [1.0])
    builder.end_file()
    return finish(arrays(builder.build()))


def named_entries(catalog: Catalog) -> list[Entry]:
    """Spell the entries of a catalogue out, in the order of their numbers."""
    pairs = zip(catalog.entry_function.tolist(), catalog.entry_caller.tolist(), strict=True)
    return [
        (catalog.functions[function], None if caller == NO_CALLER else catalog.functions[caller])
        for function, caller in pairs
    ]


def named_path(catalog: Catalog, number: int) -> Path:
    """Spell one path out."""
    parent, function = int(catalog.path_parent[number]), catalog.functions[catalog.path_function[number]]
    return (function,) if parent == NO_PARENT else (*named_path(catalog, parent), function)


def test_a_function_keeps_the_number_it_was_given_first() -> None:
    catalog = Catalog()
    assert [catalog.function(name) for name in (STEP, FORWARD, STEP, LEN, FORWARD)] == [0, 1, 0, 2, 1]
    assert catalog.functions == [STEP, FORWARD, LEN]


def test_functions_that_look_alike_share_a_label_and_nothing_else() -> None:
    catalog = Catalog()
    numbers = [catalog.function((f"/node-{node}/app/train.py", 12, "step")) for node in (0, 1)]
    other = catalog.function(("/node-0/app/train.py", 13, "step"))
    assert numbers == [0, 1]
    assert catalog.function_label.tolist() == [0, 0, 1]
    assert catalog.labels == ["app/train.py:12(step)", "app/train.py:13(step)"]
    assert catalog.mark().labels == 2
    assert other == 2


NAMES = st.tuples(st.sampled_from(["/a.py", "/b.py", "~"]), st.integers(0, 2), st.sampled_from(["f", "g", "é\n"]))
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(NAMES, st.none() | NAMES), max_size=12),
        st.lists(st.lists(NAMES, min_size=1, max_size=4).map(tuple), max_size=6),
    ),
    max_size=5,
)


@given(BATCHES)
def test_interned_numbers_mean_what_the_batch_means(batches: list[tuple[list[Entry], list[Path]]]) -> None:
    catalog = Catalog()
    for entries, paths in batches:
        before = named_entries(catalog)
        batch = batch_of(entries, paths)
        numbers = catalog.intern(batch)
        named = named_entries(catalog)
        assert named[: len(before)] == before
        assert [named[number] for number in numbers.entry[batch.row_entry].tolist()] == entries
        assert [named_path(catalog, number) for number in numbers.path[batch.sample_path].tolist()] == paths
        again = catalog.intern(batch)
        assert (again.entry.tolist(), again.path.tolist()) == (numbers.entry.tolist(), numbers.path.tolist())
    named = named_entries(catalog)
    assert len(set(named)) == len(named)
    assert len(set(catalog.functions)) == len(catalog.functions)
    assert (catalog.path_parent < np.arange(len(catalog.path_parent))).all()


@given(BATCHES)
def test_a_catalogue_that_was_kept_comes_back_and_goes_on_the_same(
    batches: list[tuple[list[Entry], list[Path]]],
) -> None:
    catalog, loaded = Catalog(), Catalog()
    for entries, paths in batches:
        catalog.intern(batch_of(entries, paths))
    catalog.series_number(SeriesKey(job="j", framework="f", profiler="cprofile", node="n"))
    catalog.folder_number("/base/n")
    loaded.load(
        series=catalog.series,
        folders=catalog.folders,
        labels=catalog.labels,
        functions=catalog.functions,
        function_label=catalog.function_label,
        entries=(catalog.entry_function, catalog.entry_caller),
        paths=(catalog.path_parent, catalog.path_function),
    )
    more = batch_of([(STEP, FORWARD), (("/b.py", 1, "g"), None)], [(STEP, FORWARD)])
    for each in (catalog, loaded):
        each.intern(more)
    assert loaded.mark() == catalog.mark()
    assert (loaded.functions, loaded.labels, loaded.series, loaded.folders) == (
        catalog.functions,
        catalog.labels,
        catalog.series,
        catalog.folders,
    )
    for name in ("function_label", "entry_function", "entry_caller", "path_parent", "path_function"):
        assert getattr(loaded, name).tolist() == getattr(catalog, name).tolist()


def test_a_batch_without_names_adds_none() -> None:
    catalog = Catalog()
    numbers = catalog.intern(batch_of([]))
    assert (len(numbers.entry), len(numbers.path)) == (0, 0)
    assert catalog.mark() == CatalogMark()


def test_a_mark_counts_what_is_there() -> None:
    catalog = Catalog()
    catalog.intern(batch_of([(STEP, None), (FORWARD, STEP)], [(STEP, FORWARD)]))
    catalog.folder_number("/base/0-a")
    assert catalog.mark() == CatalogMark(functions=2, entries=2, paths=2, labels=2, series=0, folders=1)


def test_a_series_is_found_only_once_it_has_spans() -> None:
    catalog = Catalog()
    one, other = (SeriesKey(job="j", framework="pytorch", profiler="cprofile", node=node) for node in "ab")
    assert catalog.find_series(one) is None
    assert [catalog.series_number(key) for key in (one, other, one)] == [0, 1, 0]
    assert (catalog.find_series(one), catalog.find_series(other)) == (0, 1)
    assert catalog.series == [one, other]


def test_a_folder_keeps_its_number() -> None:
    catalog = Catalog()
    assert [catalog.folder_number(path) for path in ("/a", "/b", "/a")] == [0, 1, 0]
    assert catalog.folders == ["/a", "/b"]


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 5000])
def test_a_growing_column_holds_what_was_put_in(length: int) -> None:
    column = Growing()
    for value in range(length):
        column.append(value)
    assert column.view.tolist() == list(range(length))


def test_a_view_that_was_taken_stays_valid_while_the_catalogue_grows() -> None:
    catalog = Catalog()
    catalog.function(STEP)
    view = catalog.function_label
    for line in range(3000):
        catalog.function(("/app/train.py", line, "f"))
    assert view.tolist() == [0]
    assert len(catalog.function_label) == 3001
