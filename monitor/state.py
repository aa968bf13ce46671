"""The state folder: who has it, how many profiles its store has held, and stores that were damaged. Never deletes one.

The note of how many profiles were stored lies beside the store and is not made durable: after `kill -9` it never tells
more than the store holds, so a store that comes back with fewer has lost its end, or is a new one.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from monitor.errors import ConfigError, StoreError

logger = logging.getLogger("phasewatch.state")

STORE_FILE = "phasewatch.duckdb"
LOCK_FILE = "phasewatch.lock"
NOTE_FILE = "phasewatch.count"
DAMAGED = ".damaged-"


class State:
    """A state folder that is ours. Made by `open_state`.

    Attributes:
        expected: how many profiles the store held at the last note. lost: how many were never found again, in all.
        rebuilding: profiles that the store held are read again; what it holds now is less than was shown before.
        damaged_stores: how many stores were set aside here and still lie here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.expected, self.lost = read_note(folder / NOTE_FILE)
        self._noted = (self.expected, self.lost)
        self.rebuilding = False
        self.damaged_stores = self._count_damaged()

    @property
    def store_path(self) -> Path:
        """The file of the store."""
        return self._folder / STORE_FILE

    def set_aside(self, damage: StoreError) -> None:
        """Move a damaged store out of the way, so that a new one can be made.

        Raises:
            StoreError: it cannot be moved.
        """
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        aside = self._free_name(f"{STORE_FILE}{DAMAGED}{stamp}")
        try:
            # The log first: one that is left beside a new store would not be its own.
            for end in (".wal", ""):
                path = self.store_path.with_name(f"{STORE_FILE}{end}")
                if path.exists():
                    path.rename(aside.with_name(f"{aside.name}{end}"))
        except OSError as error:
            raise StoreError(f"{damage}; it cannot be moved to {aside}: {error.strerror}") from error
        self.damaged_stores = self._count_damaged()
        logger.error("%s; it is kept as %s, and a new one is made from the profiles that still exist", damage, aside)

    def opened(self, profiles: int) -> None:
        """Compare what an opened store holds with what it held."""
        self.rebuilding = profiles < self.expected
        if self.rebuilding:
            logger.warning(
                "the store holds %d profiles and held %d: the others are read again where their files still exist, "
                "and until then /metrics leaves the functions out",
                profiles,
                self.expected,
            )

    def rebuilt(self, profiles: int) -> None:
        """Note that all that the sources hold is stored again."""
        missing = max(0, self.expected - profiles)
        self.lost += missing
        self.rebuilding = False
        self.note(profiles)
        level = logging.WARNING if missing else logging.INFO
        logger.log(level, "the store is whole again: %d profiles, %d have no file any more", profiles, missing)

    def note(self, profiles: int) -> None:
        """Write down how many profiles the store holds; not while it is rebuilt. Blocks for a moment."""
        if self.rebuilding or (profiles, self.lost) == self._noted:
            return
        self.expected = profiles
        path = self._folder / NOTE_FILE
        unready = path.with_name(f"{path.name}.part")
        try:
            unready.write_text(json.dumps({"profiles": profiles, "lost": self.lost}), encoding="ascii")
            unready.replace(path)
        except OSError:
            return  # it is written with the next one; the store itself complains of a disk that is full
        self._noted = (profiles, self.lost)

    def _free_name(self, name: str) -> Path:
        names = [name, *(f"{name}-{number}" for number in range(2, 1000))]
        taken = {path.name.removesuffix(".wal") for path in self._folder.iterdir()}
        return self._folder / next(each for each in names if each not in taken)

    def _count_damaged(self) -> int:
        names = (path.name.removesuffix(".wal") for path in self._folder.iterdir())
        return len({name for name in names if name.startswith(f"{STORE_FILE}{DAMAGED}")})


@contextmanager
def open_state(folder: Path, socket: Path) -> Iterator[State]:
    """Take the state folder, which belongs to its user alone, for this process; makes it where needed.

    Args:
        socket: where others may come for it; what leads to it is not closed to them.

    Raises:
        ConfigError: it cannot be made. StoreError: another daemon has it, or it cannot be written.
    """
    before = os.umask(0o077)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        close_to_others(folder, socket)
    except OSError as error:
        os.umask(before)
        raise ConfigError(
            f"cannot make the state folder {folder}: {error.strerror}; choose one with --state-dir"
        ) from error
    try:
        with locked(folder):
            yield State(folder)
    finally:
        os.umask(before)


def close_to_others(folder: Path, socket: Path) -> None:
    """Take others' rights to a state folder from before, where nothing else needs them; else say that they have some.

    What is stored there is its owner's alone in any case, but who may write to the folder may put another in its place.
    """
    found = folder.stat()
    rights = stat.S_IMODE(found.st_mode)
    if not rights & 0o077:
        return
    if found.st_uid == os.geteuid() and not rights & stat.S_ISVTX and socket.parent != folder:
        folder.chmod(0o700)
        logger.warning("the state folder %s had rights %04o; they are 0700 now", folder, rights)
    else:
        logger.warning("the state folder %s has rights %04o: others than its owner reach into it", folder, rights)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which tells who has it."""
    path = folder / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"cannot write into the state folder {folder}: {error.strerror}; make it writable, or choose another "
            "with --state-dir"
        ) from error
    try:
        take_lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, folder: Path) -> None:
    """Lock, and write this process down; on a full disk the lock does without that."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreError(
            f"another phasewatch (pid {holder(descriptor)}) uses the state folder {folder}: stop that one, or choose "
            "another with --state-dir"
        ) from error
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def holder(descriptor: int) -> str:
    """Return the process that wrote itself into a lock."""
    return os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"


def read_note(path: Path) -> tuple[int, int]:
    """Return how many profiles were stored, and how many were lost; a note that cannot be read tells of none."""
    try:
        note = json.loads(path.read_text(encoding="ascii"))
        return int(note["profiles"]), int(note["lost"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0
