"""Decoding many files at once. Runs in decoder processes: standard library only, see `raw`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monitor.errors import CorruptFile
from monitor.profiles.builder import BatchBuilder
from monitor.profiles.cprofile import add_cprofile, check_cprofile
from monitor.profiles.pyinstrument import add_pyinstrument
from monitor.profiles.raw import RawBatch

DECODERS: dict[str, Callable[[BatchBuilder, bytes], None]] = {
    "cprofile": add_cprofile,
    "pyinstrument": add_pyinstrument,
}

CHECKS: dict[str, Callable[[bytes], None]] = {"cprofile": check_cprofile}
"""Where a whole batch turns out to hold a value out of range, these find the file; pyinstrument's decoder checks
itself."""

MOST_ROWS = 1_000_000
"""A batch with more rows is closed; the files that are left are postponed to the next one."""


class PostponedFile(CorruptFile):
    """Not a fault: the batch is full."""

    kind = "postponed"

    def __init__(self) -> None:
        super().__init__("is left for the next batch")


def decode_batch(
    files: Sequence[tuple[str, Callable[[], bytes]]],
    begin: Callable[[int], None] = lambda place: None,
    *,
    careful: bool = False,
) -> RawBatch:
    """Decode files, given as (profiler, what gives the bytes); one that fails is named and harms no other.

    Args:
        begin: told each file's place before it is touched.
        careful: check each value of each file, not shapes and types only. Costs the time of decoding once more.
    """
    checks = CHECKS if careful else {}
    builder = BatchBuilder()
    for place, (profiler, get) in enumerate(files):
        begin(place)
        try:
            if builder.rows > MOST_ROWS:
                raise PostponedFile
            data = get()
            if profiler in checks:
                checks[profiler](data)
            DECODERS[profiler](builder, data)
            builder.end_file()
        except CorruptFile as error:
            builder.fail_file(error)
        except (MemoryError, RecursionError):
            builder.fail_file(CorruptFile("needs more memory than a decoder may use"))
    begin(len(files))  # whatever goes wrong from here on is no single file's fault
    return builder.build()
