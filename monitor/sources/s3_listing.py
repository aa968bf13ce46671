"""What to list in a bucket, and what the keys that come mean. Pure: asks nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from monitor.errors import LayoutError
from monitor.layout import DATA_FILES, locate
from monitor.sources.base import FileRef


class ListedObject(NamedTuple):
    """One key of a listing; `modified` in seconds since the epoch, `etag` without its quotes."""

    key: str
    size_bytes: int
    modified: float
    etag: str = ""


class ListPage(NamedTuple):
    """One page of a listing, in the order of keys. `token` is empty on the last one."""

    objects: list[ListedObject]
    folders: list[str]
    token: str


class Sorter:
    """Tells data objects of spans from all other keys of one bucket.

    Attributes:
        ignored_names: data objects whose path is no span's.
    """

    def __init__(self, bucket: str) -> None:
        self._root = f"s3://{bucket}/"
        self.ignored_names = 0

    def refs_of(self, objects: Iterable[ListedObject]) -> list[FileRef]:
        """Return the spans whose data objects are among some keys, in their order."""
        refs: list[FileRef] = []
        for found in objects:
            if found.key.rpartition("/")[2] not in DATA_FILES:
                continue
            try:
                file = locate(self._root + found.key)
            except LayoutError:
                self.ignored_names += 1
                continue
            refs.append(FileRef(key=file.key, span=file.span, path=file.path))
        return refs

    def key_of(self, ref: FileRef) -> str:
        """Return the key of a span's data object."""
        return ref.path.removeprefix(self._root)
