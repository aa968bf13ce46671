"""Where the pages of short jobs are left: in a Pushgateway, or in the folder of a textfile collector."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import basic_auth_handler, default_handler, delete_from_gateway, push_to_gateway

from monitor.errors import QueryError, SourceUnavailable

SCRAPE_JOB = "phasewatch"
"""The label `job` of what is pushed: the rules and alerts are about this one."""
ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 0.5
TIMEOUT_SECONDS = 15.0
LONGEST_NAME = 120

Headers = list[tuple[str, str]]


class Place(Protocol):
    """Where the page of a job is put."""

    def put(self, job: str, page: bytes) -> str:
        """Leave a page in the place of the last one; returns where."""

    def delete(self, job: str) -> str:
        """Remove it; returns where it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A Pushgateway; each job, or each instance of it, is a group that a push replaces.

    Attributes:
        instance: tells apart several hosts that push parts of one job; "" where one pushes all of it.
        user, password: for basic authentication; "" for none.
    """

    url: str
    instance: str = ""
    user: str = ""
    password: str = ""

    def put(self, job: str, page: bytes) -> str:
        """Push a page.

        Raises:
            QueryError: the gateway refuses it. SourceUnavailable: it cannot be reached, again and again.
        """
        empty = CollectorRegistry(auto_describe=False)  # the client makes the request, the page is ours
        key = self._key(job)
        self._try(lambda: push_to_gateway(self.url, SCRAPE_JOB, empty, key, TIMEOUT_SECONDS, self._handler(page)))
        return self.url

    def delete(self, job: str) -> str:
        """Delete a job's group; raises as `put` does."""
        self._try(
            lambda: delete_from_gateway(self.url, SCRAPE_JOB, self._key(job), TIMEOUT_SECONDS, self._handler(b""))
        )
        return self.url

    def _key(self, job: str) -> dict[str, str]:
        return {"training_job": job} | ({"instance": self.instance} if self.instance else {})

    def _handler(self, page: bytes) -> Callable[..., Callable[[], None]]:
        def handle(url: str, method: str, timeout: float, headers: Headers, data: bytes) -> Callable[[], None]:
            if self.user:
                return basic_auth_handler(url, method, timeout, headers, page, self.user, self.password)
            return default_handler(url, method, timeout, headers, page)

        return handle

    def _try(self, send: Callable[[], None]) -> None:
        pause = FIRST_PAUSE_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return send()
            except HTTPError as error:
                with error:
                    said = error.read(1000).decode(errors="replace").strip() or error.reason
                failure = f"answers {error.code}: {said}"
                if error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code != HTTPStatus.TOO_MANY_REQUESTS:
                    raise QueryError(f"the Pushgateway {self.url} {failure}", status=error.code) from error
            except OSError as error:
                failure = f"cannot be reached ({getattr(error, 'reason', None) or error})"
            if attempt < ATTEMPTS:
                time.sleep(pause)
                pause *= 2
        raise SourceUnavailable(f"the Pushgateway {self.url} {failure}; tried {ATTEMPTS} times")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextfileFolder:
    """The folder of a node exporter's textfile collector."""

    folder: Path

    def put(self, job: str, page: bytes) -> str:
        """Leave a page as a file that appears whole.

        Raises:
            QueryError: the folder cannot be written.
        """
        path = self._path(job)
        try:
            # The collector reads *.prom only, so it never sees the file before it has its name.
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".phasewatch-", suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(page)
                    os.fchmod(file.fileno(), 0o644)
                Path(temporary).replace(path)
            except BaseException:
                with suppress(OSError):
                    Path(temporary).unlink()
                raise
        except OSError as error:
            raise QueryError(f"cannot write {path}: {error.strerror}") from error
        return str(path)

    def delete(self, job: str) -> str:
        """Remove a job's file; one that is not there is no error."""
        path = self._path(job)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise QueryError(f"cannot remove {path}: {error.strerror}") from error
        return str(path)

    def _path(self, job: str) -> Path:
        return self.folder / f"phasewatch-{safe_name(job)}.prom"


def safe_name(job: str) -> str:
    """Return a part of a file name that no other job has."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", job)[:LONGEST_NAME]
    return safe if safe == job else f"{safe}-{hashlib.sha256(job.encode(errors='replace')).hexdigest()[:8]}"
