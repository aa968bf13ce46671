"""Reading one file safely: plain files below a root and nothing else, of bounded size. Blocks; standard library only.

Runs in decoder processes, so that a file system that hangs stops a decoder and not the daemon.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple, TypeAlias

from monitor.errors import ReadError

Version: TypeAlias = tuple[int, ...]
"""Changes when a file changes: (modification time in ns, size in bytes, inode). Empty for a file that is not there."""


class LocalFile(NamedTuple):
    """A file that a decoder may open itself: it must lie below `root`, which is absolute and without links."""

    path: str
    root: str


class FileData(NamedTuple):
    """What was read from one file."""

    data: bytes
    version: Version


def read_file(file: LocalFile, max_bytes: int) -> FileData:
    """Read one plain file that lies below its root, and no other.

    Raises:
        ReadError: says why it was not read.
    """
    try:
        descriptor = open_inside(file)
    except OSError as error:
        raise read_error(error) from error
    try:
        found = os.fstat(descriptor)
        version = version_of(found)
        if not stat.S_ISREG(found.st_mode):
            raise ReadError("is not a plain file", kind="refused", version=version)
        if found.st_size > max_bytes:
            reason = f"has {found.st_size} bytes, more than the {max_bytes} allowed"
            raise ReadError(reason, kind="too_large", version=version)
        return FileData(read_all(descriptor, found.st_size), version)
    except OSError as error:
        raise read_error(error) from error
    finally:
        os.close(descriptor)


def look_at(path: str) -> Version | None:
    """Return a file's version without reading it: () where only its folder is there, None where not even that."""
    try:
        return version_of(os.lstat(path))
    except OSError:
        return () if os.path.isdir(os.path.dirname(path)) else None  # noqa: PTH112, PTH120 - hot, and Path is slow


def version_of(found: os.stat_result) -> Version:
    """Return what changes when a file does."""
    return found.st_mtime_ns, found.st_size, found.st_ino


def open_inside(file: LocalFile) -> int:
    """Open a file without following links, or where there are links only if they stay below the root."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    folder_path, _, name = file.path.rpartition("/")
    try:
        folder = os.open(folder_path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            real = os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115 - hot, and Path is slow
            if not f"{real}/".startswith(f"{file.root.rstrip('/')}/"):
                raise OSError(errno.ELOOP, f"its folder is a link that leads out of {file.root}")
            return os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
    real = os.path.realpath(file.path)
    if not real.startswith(f"{file.root}/"):
        raise OSError(errno.ELOOP, f"it is a link that leads out of {file.root}")
    return os.open(real, flags)


def read_all(descriptor: int, size: int) -> bytes:
    """Read so many bytes, or fewer where the file has become shorter."""
    data = os.read(descriptor, size)
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data


def read_error(error: OSError) -> ReadError:
    """Tell why a file could not be opened or read."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ReadError("its folder holds no data file", kind="missing")
    kind = "refused" if error.errno in (errno.ELOOP, errno.ENXIO) else "unreadable"
    return ReadError(f"cannot be read: {error.strerror}", kind=kind)
