"""Local folders as the source of a notebook."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from monitor.analysis.intake import NEVER_SECONDS, NotebookSource, OpenSource
from monitor.answers import SpanRow
from monitor.errors import SourceUnavailable
from monitor.layout import HTML_FILE
from monitor.reading import LocalFile
from monitor.sources.local import LocalSource


class FolderSource(LocalSource):
    """A local folder that is looked at only when somebody asks."""

    def __init__(self, root: Path, *, job: str) -> None:
        super().__init__(root, job=job, poll_interval_seconds=NEVER_SECONDS, events=False)

    async def poll(self) -> None:
        """List every folder that has changed, now.

        Raises:
            SourceUnavailable: the folder is gone.
        """
        await super().poll()
        if not self.statistics().available:
            raise SourceUnavailable(f"local_profile_dir={self.name!r}: it is not there any more")

    async def fetch_picture(self, row: SpanRow) -> str:
        """Return where the picture of a session lies: beside its data."""
        return str(Path(row.path).with_name(HTML_FILE))

    def place(self, path: str) -> str:
        """Return a data file's path as it is."""
        return path

    def picture(self, path: str) -> str | None:
        """Return the picture beside a data file; None where there is none."""
        return picture_beside(path)

    def near(self, row: SpanRow) -> LocalFile:
        """Return the data file."""
        return LocalFile(row.path, self.root_path)


def picture_beside(path: str) -> str | None:
    """Return the picture beside a session's data file; None where there is none."""
    picture = f"{path.rpartition('/')[0]}/{HTML_FILE}"
    return picture if os.path.exists(picture) else None  # noqa: PTH110 - for each session of a run


def open_folder(root: Path, job: str) -> OpenSource:
    """Return what opens a folder as a source."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[NotebookSource]:
        yield FolderSource(root, job=job)

    return opened
