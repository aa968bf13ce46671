"""Collects decoded profiles into one batch, on one table of names. Pure; a file that fails leaves nothing behind.

Runs in decoder processes: standard library only, see `raw`.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import Any

from monitor.errors import CorruptFile, IncompleteFile
from monitor.profiles.names import drop_addresses, safe_text
from monitor.profiles.raw import Failure, FunctionName, RawBatch

NOT_COUNTED = -1
"""pyinstrument's pstats export writes this for calls that it does not count; stored as 0."""
LARGEST_COUNT = 2**40
"""More calls than a span can hold; sums over millions of spans still fit into 64 bits."""
LARGEST_SECONDS = 1e9


class BatchBuilder:
    """Grows one batch file by file.

    Attributes:
        numbers: function key as it stands in a file -> its number; kept over the files of the batch, so that a name is
            cleaned and numbered once.
    """

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self._functions: dict[FunctionName, int] = {}
        self._paths: dict[tuple[int, int], int] = {}
        self._function, self._caller = array("i"), array("i")
        self._calls, self._primitive = array("q"), array("q")
        self._own, self._total = array("d"), array("d")
        self._sample_path, self._sample_seconds = array("i"), array("d")
        self._row_ends, self._sample_ends = array("q"), array("q")
        self._failures: dict[int, Failure] = {}
        self._empty: list[int] = []
        self._shared_names = False

    # -- for decoders ----------------------------------------------------------------------------------------------

    def number_all(self, keys: Collection[Any]) -> list[int]:
        """Number functions by their raw keys (file, line, name).

        Raises:
            CorruptFile, TypeError: a key is not that.
        """
        found = list(map(self.numbers.get, keys))
        if None in found:
            return [self.number(key) for key in keys]
        return found  # type: ignore[return-value]

    def number(self, key: Any) -> int:
        """Number one function by its raw key; raises CorruptFile where the key is not one."""
        number = self.numbers.get(key)
        return self._learn(key) if number is None else number

    def _learn(self, key: Any) -> int:
        if type(key) is not tuple or [type(part) for part in key] != [str, int, str]:
            raise CorruptFile("a key is not (file, line, name)")
        file, line, name = key
        if not -(2**31) <= line < 2**31:
            raise CorruptFile(f"a line number of {line.bit_length()} bits is out of range")
        clean = (safe_text(file), line, safe_text(drop_addresses(name)))
        known = len(self._functions)
        number = self.numbers[key] = self._functions.setdefault(clean, known)
        self._shared_names |= number < known
        return number

    def path(self, parent: int, function: int) -> int:
        """Number a call path by its parent path (NO_PARENT for a root) and the function at its end."""
        return self._paths.setdefault((parent, function), len(self._paths))

    def add_rows(
        self,
        function: Sequence[int],
        caller: Sequence[int],
        calls: Sequence[int],
        primitive: Sequence[int],
        own: Sequence[float],
        total: Sequence[float],
    ) -> None:
        """Add entry rows of the file in hand; raises TypeError or OverflowError where a value has the wrong type.

        Args:
            caller: NO_CALLER for the function's own row.
        """
        self._function += array("i", function)
        self._caller += array("i", caller)
        self._calls += array("q", calls)
        self._primitive += array("q", primitive)
        self._own += array("d", own)
        self._total += array("d", total)

    def add_samples(self, path: Sequence[int], seconds: Sequence[float]) -> None:
        """Add path rows of the file in hand; a path occurs once."""
        self._sample_path.extend(path)
        self._sample_seconds.extend(seconds)

    @property
    def rows(self) -> int:
        """How many rows all files have so far."""
        return len(self._function) + len(self._sample_path)

    def note_empty(self) -> None:
        """Say that the file in hand is known to hold nothing."""
        self._empty.append(len(self._row_ends))

    # -- for the batch ---------------------------------------------------------------------------------------------

    def end_file(self) -> None:
        """Keep the rows of the file in hand."""
        self._row_ends.append(len(self._function))
        self._sample_ends.append(len(self._sample_path))

    def fail_file(self, error: CorruptFile) -> None:
        """Take back the rows of the file in hand and note why it failed."""
        kind = getattr(error, "kind", "incomplete" if isinstance(error, IncompleteFile) else "corrupt")
        self._failures[len(self._row_ends)] = Failure(safe_text(error.reason), kind)
        rows = self._row_ends[-1] if self._row_ends else 0
        for column in (self._function, self._caller, self._calls, self._primitive, self._own, self._total):
            del column[rows:]
        samples = self._sample_ends[-1] if self._sample_ends else 0
        for column in (self._sample_path, self._sample_seconds):
            del column[samples:]
        self.end_file()

    def build(self) -> RawBatch:
        """Return the batch, its numbers unchecked."""
        columns = {
            "calls": self._calls,
            "primitive_calls": self._primitive,
            "self_seconds": self._own,
            "cumulative_seconds": self._total,
            "row_ends": self._row_ends,
            "sample_self_seconds": self._sample_seconds,
            "sample_ends": self._sample_ends,
            "function": self._function,
            "caller": self._caller,
            "path_parent": array("i", [parent for parent, _ in self._paths]),
            "path_function": array("i", [function for _, function in self._paths]),
            "sample_path": self._sample_path,
        }
        return RawBatch(
            functions=list(self._functions),
            columns=columns,
            failures=self._failures,
            empty=self._empty,
            shared_names=self._shared_names,
        )
