"""A prefix of a bucket as the source of a notebook: what is downloaded is kept in a local folder, not fetched again.

The local copy mirrors the keys, so buckets and prefixes do not meet in it; nothing there is ever deleted.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread

from monitor.analysis.intake import NEVER_SECONDS, NotebookSource, OpenSource
from monitor.answers import SpanRow
from monitor.errors import ReadError, SourceUnavailable
from monitor.layout import HTML_FILE
from monitor.reading import FileData, LocalFile
from monitor.s3_url import S3Url
from monitor.settings import S3Settings
from monitor.sources.base import FileRef, Readable
from monitor.sources.s3 import S3Source
from monitor.sources.s3_client import Bucket, S3Client, open_s3_client
from monitor.sources.s3_listing import ListedObject, Sorter

MIRROR_FOLDER = "python_stats"
EACH_TIME_SECONDS = 1e-6
"""Each look is a pass over all keys: whoever asks means what is there now, also what came late."""
LARGEST_PICTURE_BYTES = 256 * 2**20


class PictureSorter(Sorter):
    """Also remembers which sessions have a picture.

    Attributes:
        pictures: keys of pictures.
    """

    def __init__(self, bucket: str) -> None:
        super().__init__(bucket)
        self.pictures: set[str] = set()

    def refs_of(self, objects: Iterable[ListedObject]) -> list[FileRef]:
        """Return the spans whose data objects are among some keys, in their order."""
        listed = list(objects)
        self.pictures.update(found.key for found in listed if found.key.endswith(f"/{HTML_FILE}"))
        return super().refs_of(listed)


class BucketSource(S3Source):
    """Follows one prefix when somebody asks, and keeps what it downloads.

    Args:
        mirror: the local folder; made when the first object is kept.
    """

    def __init__(self, client: S3Client, url: S3Url, *, job: str, mirror: Path) -> None:
        super().__init__(client, url, job=job, poll_interval_seconds=NEVER_SECONDS, full_scan_seconds=EACH_TIME_SECONDS)
        self._objects = Bucket(client, url.bucket)
        self._url_bucket = url.bucket
        self._pictures = self._finder.sorter = PictureSorter(url.bucket)
        self._mirror = mirror

    async def poll(self) -> None:
        """List what is there, now.

        Raises:
            SourceUnavailable: the bucket cannot be listed; says why.
        """
        await super().poll()
        if self.failure:
            raise SourceUnavailable(f"s3_path={self.name!r}: {self.failure}")

    async def read(self, refs: Sequence[FileRef], *, max_bytes: int) -> list[Readable]:
        """Give data files from the local folder, and download those that are not there yet."""
        kept = await anyio.to_thread.run_sync(lambda: [self._kept(ref.path) for ref in refs])
        missing = [ref for ref, file in zip(refs, kept, strict=True) if file is None]
        downloaded = iter(await super().read(missing, max_bytes=max_bytes) if missing else [])
        answers: list[Readable] = [next(downloaded) if file is None else file for file in kept]
        await anyio.to_thread.run_sync(self._keep_all, refs, answers)
        return answers

    async def fetch_picture(self, row: SpanRow) -> str:
        """Download the picture of a session where it is not kept yet; returns where it lies.

        Raises:
            ReadError: there is none, or it is too large. RequestFailed (a MonitorError): it could not be downloaded.
        """
        url = f"{row.path.rpartition('/')[0]}/{HTML_FILE}"
        target = self._target(url)
        if target is None:
            raise ReadError(f"its key {url} cannot be a path", kind="refused")
        if not target.exists():
            key = url.removeprefix(f"s3://{self._url_bucket}/")
            found = await self._objects.get(key, LARGEST_PICTURE_BYTES)
            if isinstance(found, ReadError):
                raise found
            await anyio.to_thread.run_sync(keep, target, found.data)
        return str(target)

    def unchanged(self) -> bool:
        """Tell nothing: a bucket has to be asked."""
        return False

    def unreadable(self) -> Mapping[str, str]:
        """Return nothing: a listing that fails ends the call with an error."""
        return {}

    def near(self, row: SpanRow) -> LocalFile | None:
        """Return the data file where it is kept."""
        return self._kept(row.path)

    def place(self, path: str) -> str:
        """Return where a data object is kept, or its URL."""
        kept = self._kept(path)
        return path if kept is None else kept.path

    def picture(self, path: str) -> str | None:
        """Return where the picture beside a data object is kept, or its URL; None where there is none."""
        url = f"{path.rpartition('/')[0]}/{HTML_FILE}"
        if url.removeprefix(f"s3://{self._url_bucket}/") not in self._pictures.pictures:
            return None
        return self.place(url)

    def _target(self, url: str) -> Path | None:
        """Return where an object is kept; None for a key that would lead elsewhere."""
        parts = url.removeprefix("s3://").split("/")
        if any(part in ("", ".", "..") or "\0" in part or len(part.encode()) > 255 for part in parts):
            return None
        return self._mirror.joinpath(*parts)

    def _kept(self, url: str) -> LocalFile | None:
        target = self._target(url)
        if target is None or not target.is_file():
            return None
        return LocalFile(str(target), str(self._mirror))

    def _keep_all(self, refs: Sequence[FileRef], answers: Sequence[Readable]) -> None:
        for ref, answer in zip(refs, answers, strict=True):
            target = self._target(ref.path)
            if isinstance(answer, FileData) and target is not None:
                keep(target, answer.data)


def keep(target: Path, data: bytes) -> None:
    """Write a file beside its place and move it there, so that it is there whole or not at all.

    A disk that is full costs the copy and not the answer.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as written:
            written.write(data)
        os.replace(written.name, target)  # noqa: PTH105 - the name is a text
    except OSError:
        return


def open_bucket(url: S3Url, job: str, local_folder: Path) -> OpenSource:
    """Return what opens a prefix of a bucket as a source; the client uses the standard credential chain."""

    mirror = Path(os.path.realpath(local_folder)) / MIRROR_FOLDER

    @asynccontextmanager
    async def opened() -> AsyncIterator[NotebookSource]:
        async with open_s3_client(S3Settings()) as client:
            yield BucketSource(client, url, job=job, mirror=mirror)

    return opened
