"""What is fuzzed, and what must hold in each execution: an answer that passes all checks, or a refusal with a reason.

Any other exception is a finding. Each target takes a fuzzer's bytes and returns how many times it ran the code under
test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import atheris
import numpy as np

from monitor.api import parameters as p
from monitor.errors import LayoutError, QueryError
from monitor.layout import format_path, locate
from monitor.profiles.batch import decode_batch
from monitor.profiles.columns import DecodedBatch
from monitor.profiles.finish import finish, in_range, read_parts
from monitor.profiles.names import CONTROL, LONGEST_LABEL, LONGEST_NAME, drop_addresses, function_label, safe_text
from monitor.profiles.raw import COLUMN_CODES, RawBatch, batch_parts, lengths_of, parts_of
from monitor.spans import LARGEST_STEP, LARGEST_TIME_US, Span, format_span_name, parse_any_name, parse_span_name
from tests.fuzz.hostile import Provider, name_text, path_text, query_pairs, session_bytes, stats_bytes, text

FILES_A_BATCH = 6
LONGEST_REASON = 1_000
KINDS = {"corrupt", "incomplete", "postponed"}


def check(holds: bool, what: str) -> None:
    """Report a finding unless something holds."""
    if not holds:
        raise AssertionError(what)


def check_files(files: Sequence[tuple[str, bytes]]) -> int:
    """Decode files as one batch, and read it as the daemon does, which believes nothing."""
    batch = across(files, careful=False)
    if not in_range(batch):
        batch = across(files, careful=True)
    check(in_range(batch), "a value out of range that no check of its file found")
    for place, failure in batch.failures.items():
        check(0 <= place < len(files) and failure.kind in KINDS, f"a failure of kind {failure.kind}")
        check(0 < len(failure.reason) <= LONGEST_REASON, "a failure without a reason, or with an endless one")
    check_batch(finish(batch))
    return len(files)


def across(files: Sequence[tuple[str, bytes]], *, careful: bool) -> RawBatch:
    """Decode files and send them over, as between decoder and daemon."""
    batch = decode_batch([(profiler, partial(bytes, data)) for profiler, data in files], careful=careful)
    parts = batch_parts(batch)
    believed = read_parts(parts_of(lengths_of(parts) + b"".join(parts)), len(files))
    check(believed.functions == batch.functions, "names changed on the way")
    for column in COLUMN_CODES:
        check(believed.columns[column].tobytes() == batch.columns[column].tobytes(), f"{column} changed on the way")
    return believed


def check_batch(batch: DecodedBatch) -> None:
    """Check what nobody checks after the decoders."""
    check(len(set(batch.functions)) == len(batch.functions), "a name twice")
    for file, line, name in batch.functions:
        check(len(file) <= LONGEST_NAME and len(name) <= LONGEST_NAME, "a name that is too long")
        check_label(file, line, name)
    pairs = set(zip(batch.row_file.tolist(), batch.row_entry.tolist(), strict=True))
    check(len(pairs) == len(batch.row_file), "an entry twice in one file")
    for column in ("self_seconds", "cumulative_seconds", "sample_self_seconds"):
        check(bool(np.isfinite(getattr(batch, column)).all()), "a time that is not finite")
    check(bool((batch.calls >= 0).all() and (batch.primitive_calls >= 0).all()), "a count below zero")
    with_data = {*batch.row_file.tolist(), *batch.sample_file.tolist(), *batch.empty}
    check(not set(batch.failures) & with_data, "a failed file left something behind")


def check_label(file: str, line: int, name: str) -> None:
    """Check what a function is called in metrics."""
    label = function_label(file, line, name)
    label.encode()
    check(len(label) <= LONGEST_LABEL and CONTROL.search(label) is None, "a label that does not fit")


def cprofile(data: bytes) -> int:
    """Decode a batch of hostile files as cProfile leaves them."""
    provider = atheris.FuzzedDataProvider(data)
    return check_files([("cprofile", stats_bytes(provider)) for _ in range(how_many(provider))])


def pyinstrument(data: bytes) -> int:
    """Decode a batch of hostile sessions of pyinstrument, some between files of cProfile."""
    provider = atheris.FuzzedDataProvider(data)
    files = [("pyinstrument", session_bytes(provider)) for _ in range(how_many(provider))]
    return check_files([*files, ("cprofile", stats_bytes(provider))] if provider.ConsumeBool() else files)


def how_many(provider: Provider) -> int:
    """Choose how many files a batch has."""
    return provider.ConsumeIntInRange(1, FILES_A_BATCH)


def marshalled(data: bytes) -> int:
    """Decode bytes as they are. `marshal` may end the process: only in one that may be lost."""
    return check_files([("cprofile", data)])


def session(data: bytes) -> int:
    """Decode bytes as they are, as JSON."""
    return check_files([("pyinstrument", data)])


def names(data: bytes) -> int:
    """Read the names of folders and files, and clean the names of functions."""
    provider = atheris.FuzzedDataProvider(data)
    name = name_text(provider) if provider.ConsumeBool() else provider.ConsumeUnicode(200)
    refused = (LayoutError,)
    try:
        check_span(parse_any_name(name), name)
    except refused as error:
        check_reason(error)
    path = path_text(provider)
    try:
        found = locate(path)
    except refused as error:
        check_reason(error)
    else:
        check("/" not in found.key.node and found.key.node.isprintable(), "a node that is no name")
        if not found.key.span[:1].isdigit():  # the older layout has the node inside the span's name
            check(locate(format_path("base", found.key)).key == found.key, "a path that does not come back")
    file, function = safe_text(text(provider)), safe_text(drop_addresses(text(provider)))
    check(len(file) <= LONGEST_NAME and len(function) <= LONGEST_NAME, "a name that is too long")
    check_label(file, provider.ConsumeInt(4), function)
    return 1


def check_span(span: Span, name: str) -> None:
    """Check a span that was read from a name."""
    check(span.name == name, "another name")
    for moment in (span.start, span.end):
        check(moment.step is None or 0 <= moment.step <= LARGEST_STEP, "a step out of range")
        check(math.isfinite(moment.time_us) and 0 <= moment.time_us <= LARGEST_TIME_US, "a time out of range")
    again = parse_span_name(format_span_name(span.start, span.end))
    check((again.start, again.end) == (span.start, span.end), "a span that does not come back")


def check_reason(error: LayoutError) -> None:
    """Check that a refusal of a name can be read and logged."""
    check(0 < len(error.reason) <= LONGEST_REASON and error.reason.isprintable(), "a reason that cannot be shown")


SPANS_ASKED: tuple[tuple[Callable[[p.Values], object], tuple[p.Parameter, ...]], ...] = (
    (p.step_question, p.STEP_RANGE),
    (p.time_question, p.TIME_RANGE),
    (p.modes_question, p.BOTH_MODES),
    (p.pre_step_zero_question, ()),
    (lambda values: values.get("job_phase"), (p.JOB_PHASE,)),
    (lambda values: (values.get("limit", 1000), values.get("after", 0)), p.PAGE),
    (lambda values: values.text("span"), p.ONE_SPAN),
)


def parameters(data: bytes) -> int:
    """Read the parameters of requests."""
    provider = atheris.FuzzedDataProvider(data)
    read, own = SPANS_ASKED[provider.ConsumeIntInRange(0, len(SPANS_ASKED) - 1)]
    shared = () if own in (p.PAGE, p.ONE_SPAN) else (*p.SCOPE, *p.TABLE)
    allowed = (*own, *shared)
    pairs = query_pairs(provider, tuple(parameter.name for parameter in allowed))
    try:
        values = p.Values(pairs, allowed)
        read(values)
        p.rendering_of(values, p.scope_of(values, "cprofile"))
    except QueryError as error:
        check(error.status == 400 and error.parameter is not None, "a refusal that names no parameter")
        check(0 < len(error.message) <= LONGEST_REASON, "a refusal that says nothing, or too much")
    return 1


TARGETS: Mapping[str, Callable[[bytes], int]] = {
    "cprofile": cprofile,
    "pyinstrument": pyinstrument,
    "marshal": marshalled,
    "session": session,
    "names": names,
    "parameters": parameters,
}
DECODERS = ("cprofile", "pyinstrument", "marshal", "session")
