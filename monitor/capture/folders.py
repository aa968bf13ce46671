"""Puts span folders into a node folder, whole or not at all. Owns the files of one node; used by the thread that writes
and by the process that does."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import TypeAlias

from monitor.capture.snapshots import Files
from monitor.spans import parse_span_name

logger = logging.getLogger("phasewatch.capture")

Place: TypeAlias = tuple[str, str, str, bool]


class NodeFolder:
    """Gets the span folders of one node.

    A span is written into a hidden folder inside the node folder and moved out of it whole. The hidden one holds span
    folders, not data files: the original's reader, which takes any folder with a data file for a span, passes it over,
    and the node folder's time stamp changes only when a span is there to be read.

    Args:
        base: made for the first span; not made again if it goes away, for it may be a mount.
        path: the node folder, below it.
        staging: the hidden folder.
        base_made: whether there was a span already.
    """

    def __init__(self, base: str, path: str, staging: str, base_made: bool = False) -> None:
        self.path = path
        self.base_made = base_made
        self._base = base
        self._staging = staging

    @property
    def place(self) -> Place:
        """What makes the same object in another process."""
        return self._base, self.path, self._staging, self.base_made

    def store(self, name: str, files: Files) -> int:
        """Write a span; returns its bytes.

        Raises:
            LayoutError: nobody could read such a name: a step of -1, or a clock that says NaN.
            OSError: nothing of it is left.
        """
        parse_span_name(name)
        staged = f"{self._staging}/{name}"
        self._make(staged)
        try:
            for file, data in files.items():
                write_file(f"{staged}/{file}", data)
            os.rename(staged, f"{self.path}/{name}")  # noqa: PTH104 - hot, and Path is slow
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        return sum(map(len, files.values()))

    def size_of(self, name: str) -> int | None:
        """Return the bytes of a span that is there, None where it is not."""
        span = f"{self.path}/{name}"
        return size_of_span(span) if os.path.isdir(span) else None  # noqa: PTH112

    def clean(self) -> None:
        """Throw away what a process left half done that was killed."""
        shutil.rmtree(self._staging, ignore_errors=True)

    def close(self) -> None:
        """Remove the hidden folder."""
        try:
            os.rmdir(self._staging)  # noqa: PTH106
        except OSError:
            logger.debug("%s stays", self._staging)

    def _make(self, staged: str) -> None:
        try:
            os.mkdir(staged)  # noqa: PTH102 - hot, and Path is slow
        except FileNotFoundError:
            if not self.base_made:
                Path(self._base).mkdir(parents=True, exist_ok=True)
            elif not Path(self._base).is_dir():
                raise FileNotFoundError(errno.ENOENT, "The base folder is gone", self._base) from None
            Path(self._staging).mkdir(parents=True, exist_ok=True)
            os.mkdir(staged)  # noqa: PTH102
        self.base_made = True


def write_file(path: str, data: bytes) -> None:
    """Write a whole file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def size_of_folder(folder: Path) -> int:
    """Add up the files of all span folders in bytes; what vanishes meanwhile or cannot be read counts nothing."""
    size_bytes = 0
    try:
        for span in os.scandir(folder):
            if span.is_dir(follow_symlinks=False):
                size_bytes += size_of_span(span.path)
    except OSError as error:
        logger.debug("the size of %s is not known fully: %s", folder, error)
    return size_bytes


def size_of_span(span: str) -> int:
    """Add up the files of one span folder in bytes."""
    with os.scandir(span) as files:
        return sum(file.stat(follow_symlinks=False).st_size for file in files)
