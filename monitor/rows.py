"""Spans and their profiles as rows with numbers: the form that the store keeps and the index adds up. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from monitor.catalog import Catalog
from monitor.profiles.columns import DecodedBatch, Floats, Ids, Ints
from monitor.selection import NO_END_STEP, SpanColumns
from monitor.spans import Span
from monitor.tables import Measures

Positions: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRows:
    """Spans as columns of equal length.

    Attributes:
        number: rising numbers in order of storing, the key of everything else.
        series, folder: numbers of the catalogue.
        name: span folder names as they stand on disk.
        size_bytes: of the data file.
        columns: what the names say.
    """

    number: Ids
    series: Ids
    folder: Ids
    name: list[str]
    size_bytes: Ints
    columns: SpanColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRows:
    """What the spans hold: entry rows and, for sampled ones, path rows; ordered by span."""

    span: Ids
    entry: Ids
    measures: Measures
    sample_span: Ids
    sample_path: Ids
    sample_self_seconds: Floats


def columns_of(spans: Sequence[Span]) -> SpanColumns:
    """Lay out what span names say as columns."""
    return SpanColumns(
        start_mode=np.asarray([span.start.mode for span in spans], dtype=np.int8),
        end_mode=np.asarray([span.end.mode for span in spans], dtype=np.int8),
        start_phase=np.asarray([span.start.phase.order for span in spans], dtype=np.int8),
        end_phase=np.asarray([span.end.phase.order for span in spans], dtype=np.int8),
        start_step=np.asarray([-1 if span.start.step is None else span.start.step for span in spans], dtype=np.int64),
        end_step=np.asarray(
            [NO_END_STEP if span.end.step is None else span.end.step for span in spans], dtype=np.int64
        ),
        start_us=np.asarray([span.start.time_us for span in spans], dtype=np.float64),
        end_us=np.asarray([span.end.time_us for span in spans], dtype=np.float64),
    )


def take_columns(said: SpanColumns, picked: Positions) -> SpanColumns:
    """Pick spans by position."""
    return SpanColumns(**{field.name: getattr(said, field.name)[picked] for field in fields(said)})


def take_spans(rows: SpanRows, picked: Positions) -> SpanRows:
    """Pick spans by position."""
    return SpanRows(
        number=rows.number[picked],
        series=rows.series[picked],
        folder=rows.folder[picked],
        name=[rows.name[row] for row in picked.tolist()],
        size_bytes=rows.size_bytes[picked],
        columns=take_columns(rows.columns, picked),
    )


def profile_rows(catalog: Catalog, batch: DecodedBatch, files: Sequence[int], numbers: Ids) -> ProfileRows:
    """Number the rows of some files of a batch.

    Args:
        catalog: takes up the names that are new.
        files: which files of the batch, rising.
        numbers: the span number of each of them.
    """
    names = catalog.intern(batch)
    span_of_file = np.full(batch.files, -1, dtype=np.int32)
    span_of_file[np.asarray(files, dtype=np.int64)] = numbers
    span, sample_span = span_of_file[batch.row_file], span_of_file[batch.sample_file]
    measures = Measures(
        calls=batch.calls,
        primitive_calls=batch.primitive_calls,
        self_seconds=batch.self_seconds,
        cumulative_seconds=batch.cumulative_seconds,
    )
    row_entry = batch.row_entry
    if len(files) < batch.files:
        rows = np.flatnonzero(span >= 0)
        span, row_entry, measures = span[rows], row_entry[rows], measures.take(rows)
    samples = np.flatnonzero(sample_span >= 0)
    return ProfileRows(
        span=span,
        entry=names.entry[row_entry],
        measures=measures,
        sample_span=sample_span[samples],
        sample_path=names.path[batch.sample_path[samples]],
        sample_self_seconds=batch.sample_self_seconds[samples],
    )
