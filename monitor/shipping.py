"""Uploading finished span files to a bucket in the same layout, so that a daemon elsewhere can follow them.

Idempotent and resumable without a state of its own: what the bucket holds with the same bytes is passed over. A file is
finished when it has not changed for a while, and what changes while it is read is read again later. Nothing is deleted
before the store has said that it holds the same bytes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from monitor.errors import LayoutError, ReadError, RequestFailed
from monitor.layout import locate
from monitor.logs import log_once
from monitor.reading import LocalFile, read_file
from monitor.s3_url import S3Url, parse_s3_url
from monitor.settings import Settings
from monitor.sources.base import FileRef, Source
from monitor.sources.pacing import Pacer
from monitor.sources.s3_client import Bucket, S3Client

logger = logging.getLogger("phasewatch.ship")

ATTEMPTS = 5
AT_ONCE = 8
SETTLE_SECONDS = 2.0
MOST_BYTES = 2**30


class Found(NamedTuple):
    """A file that may be uploaded; `modified_ns` and `size_bytes` as of the scan."""

    path: str
    key: str
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipStatistics:
    """Files uploaded, passed over because the bucket held them, and deleted here; bytes uploaded."""

    uploaded: int
    held: int
    deleted: int
    bytes: int


class Shipper:
    """Uploads what is below a folder.

    Args:
        delete: remove files here once the bucket holds them.
        bytes_a_second: upload at most so fast on the average; None for no limit.
        settle_seconds: a file that has not changed for so long is finished.
        may_delete: asked before a file is deleted here, and again at each look until it says so.
    """

    def __init__(
        self,
        root: Path,
        bucket: Bucket,
        url: S3Url,
        *,
        delete: bool = False,
        bytes_a_second: float | None = None,
        settle_seconds: float = SETTLE_SECONDS,
        may_delete: Callable[[str], bool] = lambda path: True,
    ) -> None:
        self._root = root
        self._real_root = os.path.realpath(root)
        self._bucket = bucket
        self._url = url
        self._delete = delete
        self._bytes_a_second = bytes_a_second
        self._settle = settle_seconds
        self._pacer = Pacer(most=AT_ONCE)
        self._held: dict[str, str] | None = None
        self._done: dict[str, tuple[int, int]] = {}
        self._may_delete = may_delete
        self._to_delete: dict[str, Found] = {}
        self._not_before = float("-inf")
        self._uploaded = self._passed = self._deleted = self._bytes = 0

    async def run(self, *, interval_seconds: float = 1.0) -> None:
        """Upload what is finished until cancelled. A store that cannot be reached is tried again."""
        while True:
            try:
                await self.ship()
            except* RequestFailed as group:
                log_once(logger, f"ship:{group}", "%s; trying again", group.exceptions[0], level=logging.WARNING)
            await anyio.sleep(interval_seconds)

    async def ship_all(self) -> None:
        """Upload everything, and return when there is nothing left.

        Raises:
            RequestFailed: inside a group: the store refuses something for good.
        """
        unfinished = True
        while unfinished:
            unfinished = await self.ship() > 0
            await anyio.sleep(self._settle / 4 if unfinished else 0)

    async def ship(self) -> int:
        """Upload what is finished now; returns how many files are not finished yet."""
        if self._held is None:
            self._held = await self._list()
        found = await anyio.to_thread.run_sync(self._scan)
        now_ns = time.time_ns()
        ready = [file for file in found if now_ns - file.modified_ns >= self._settle * 1e9]
        rest = iter(ready)
        changed = 0

        async def some() -> None:
            nonlocal changed
            for file in rest:
                done = await self._ship_one(file)
                changed += not done

        async with anyio.create_task_group() as group:
            for _ in range(min(AT_ONCE, len(ready))):
                group.start_soon(some)
        await self._delete_held()
        return len(found) - len(ready) + changed

    def statistics(self) -> ShipStatistics:
        """Say what happened."""
        return ShipStatistics(uploaded=self._uploaded, held=self._passed, deleted=self._deleted, bytes=self._bytes)

    async def _list(self) -> dict[str, str]:
        """Return the ETags of all that the bucket holds below the prefix."""
        held: dict[str, str] = {}
        token = ""
        while True:
            ask = partial(self._bucket.list_page, self._url.prefix, token=token)
            page = await self._pacer.ask("list", ask, attempts=ATTEMPTS, patient=True)
            held.update((found.key, found.etag) for found in page.objects)
            token = page.token
            if not token:
                return held

    def _scan(self) -> list[Found]:
        """Return the files of spans that are new or have changed. Blocks."""
        found: list[Found] = []
        for folder, _, names in os.walk(self._root):
            for name in names:
                path = os.path.join(folder, name)  # noqa: PTH118 - for each file at each scan
                try:
                    locate(path)
                    state = os.lstat(path)
                except (LayoutError, OSError):
                    continue
                if os.path.islink(path) or state.st_size > MOST_BYTES:  # noqa: PTH114
                    continue
                if self._done.get(path) != (state.st_size, state.st_mtime_ns):
                    key = self._url.prefix + Path(path).relative_to(self._root).as_posix()
                    found.append(Found(path, key, state.st_size, state.st_mtime_ns))
        return found

    async def _ship_one(self, file: Found) -> bool:
        """Bring one file into the bucket; False where it changed meanwhile."""
        data = await anyio.to_thread.run_sync(read_unchanged, file, self._real_root)
        if data is None:
            return False
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if self._held is not None and self._held.get(file.key) == digest:
            self._passed += 1
        else:
            await self._wait_for_bandwidth(len(data))
            put = partial(self._bucket.put, file.key, data)
            await self._pacer.ask("put", put, attempts=ATTEMPTS, patient=True)
            self._uploaded += 1
            self._bytes += len(data)
        self._done[file.path] = (file.size_bytes, file.modified_ns)
        if self._delete:
            self._to_delete[file.path] = file
        return True

    async def _delete_held(self) -> None:
        """Delete what the bucket holds, if nobody here needs it any more; what has changed is shipped anew."""
        for file in [file for file in self._to_delete.values() if self._may_delete(file.path)]:
            del self._to_delete[file.path]
            if await anyio.to_thread.run_sync(delete_unchanged, file, self._real_root):
                self._deleted += 1
                del self._done[file.path]

    async def _wait_for_bandwidth(self, size: int) -> None:
        if self._bytes_a_second is not None:
            begin = max(self._not_before, anyio.current_time())
            self._not_before = begin + size / self._bytes_a_second
            await anyio.sleep_until(begin)


def state_of(path: str) -> tuple[int, int] | None:
    """Return (size, modification time in ns), or None for a file that is gone."""
    try:
        state = os.lstat(path)
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


def read_unchanged(file: Found, root: str) -> bytes | None:
    """Return a file's bytes, or None where it is not as it was found, or not below the root any more."""
    try:
        data = read_file(LocalFile(file.path, root), MOST_BYTES).data
    except ReadError:
        return None
    return data if state_of(file.path) == (file.size_bytes, file.modified_ns) == (len(data), file.modified_ns) else None


def delete_unchanged(file: Found, root: str) -> bool:
    """Delete a file that is as it was found, and its folder when that is empty; one that may not be deleted stays.

    The folder is held open meanwhile: one that was swapped for a link leads nowhere.
    """
    path = Path(file.path)
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        real = os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115 - no path, but what the kernel knows of a folder
        state = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if not f"{real}/".startswith(f"{root}/") or (state.st_size, state.st_mtime_ns) != file[2:]:
            return False
        os.unlink(path.name, dir_fd=folder)
        with suppress(OSError):  # others are in it
            os.rmdir(real)  # noqa: PTH106
    except FileNotFoundError:
        return False
    except OSError as error:
        log_once(logger, f"delete:{error}", "cannot delete what the bucket holds: %s", error, level=logging.WARNING)
        return False
    finally:
        os.close(folder)
    return True


def shipper_beside(
    settings: Settings, client: S3Client, *, sources: Sequence[Source], is_stored: Callable[[int, FileRef], bool]
) -> Shipper:
    """Make what [ship] asks for. A file that a source of the daemon's own watches is deleted only when it is stored.

    Args:
        is_stored: tells whether a span of a source, given by its number, is stored.
    """
    watched = [(number, Path(source.name)) for number, source in enumerate(sources) if "://" not in source.name]

    def may_delete(path: str) -> bool:
        file, real = locate(path), Path(os.path.realpath(path))
        ref = FileRef(key=file.key, span=file.span, path=path)
        return all(is_stored(number, ref) for number, root in watched if real.is_relative_to(root.resolve()))

    url = parse_s3_url(settings.ship_to)
    return Shipper(
        Path(settings.ship_path).expanduser().absolute(),
        Bucket(client, url.bucket),
        url,
        delete=settings.ship_delete,
        bytes_a_second=settings.ship_bytes_per_second or None,
        may_delete=may_delete,
    )


async def ship_folder(shipper: Shipper, *, once: bool, signals: Sequence[int]) -> None:
    """Ship until everything is there, or until a signal comes."""
    async with anyio.create_task_group() as group:

        async def stop_on_signal() -> None:
            with anyio.open_signal_receiver(*signals) as received:  # type: ignore[arg-type]
                async for _ in received:
                    group.cancel_scope.cancel()

        group.start_soon(stop_on_signal)
        await (shipper.ship_all() if once else shipper.run())
        group.cancel_scope.cancel()
