"""The jobs that a pattern stands for: of s3://bucket/training/*/profiler-output each prefix that fits is a source."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

import anyio

from monitor.errors import RequestFailed
from monitor.logs import log_once
from monitor.s3_url import S3Url, is_wild, parse_s3_url
from monitor.settings import SourceSettings
from monitor.sources.opening import Clients
from monitor.sources.pacing import Pacer
from monitor.sources.s3_client import Bucket

logger = logging.getLogger("phasewatch.source")

ATTEMPTS = 3
AT_ONCE = 8
LONGEST_LOOK_SECONDS = 4.0
"""A daemon that starts waits for it. What was found until then is kept, and the next look goes on from there."""


class JobFinder:
    """Finds the folders that fit a pattern.

    A folder fits once a key lies below it, and is not asked about again; one that is deleted stays known.

    Args:
        pattern: `*`, `?` and `[…]` stand for what they do in a shell, within one part of the prefix.

    Attributes:
        jobs: prefix -> the job's name: what its wild parts are called, joined by slashes; in order of the prefixes.
    """

    def __init__(self, bucket: Bucket, pattern: S3Url) -> None:
        self._bucket = bucket
        self._parts = pattern.prefix.rstrip("/").split("/")
        self._pacer = Pacer(most=AT_ONCE)
        self.jobs: dict[str, str] = {}

    async def look(self) -> None:
        """Look for new ones.

        Raises:
            RequestFailed: the bucket cannot be listed; what was found until then is kept.
        """
        candidates = [("", "")]
        for part in self._parts:
            if not is_wild(part):
                candidates = [(f"{prefix}{part}/", job) for prefix, job in candidates]
                continue
            candidates = [
                (child, f"{job}/{name}" if job else name)
                for prefix, job in candidates
                for child in await self._folders(prefix)
                if fnmatchcase(name := child[len(prefix) : -1], part)
            ]
        rest = iter([candidate for candidate in candidates if candidate[0] not in self.jobs])

        async def some() -> None:
            for prefix, job in rest:
                if await self._holds_keys(prefix):
                    self.jobs = dict(sorted([*self.jobs.items(), (prefix, job)]))

        await run_all([some] * AT_ONCE)

    async def _folders(self, prefix: str) -> list[str]:
        folders: list[str] = []
        token = ""
        while True:
            ask = partial(self._bucket.list_page, prefix, token=token, delimiter="/")
            page = await self._pacer.ask("list", ask, attempts=ATTEMPTS)
            folders += page.folders
            token = page.token
            if not token:
                return folders

    async def _holds_keys(self, prefix: str) -> bool:
        page = await self._pacer.ask("list", partial(self._bucket.list_page, prefix, most=1), attempts=ATTEMPTS)
        return bool(page.objects or page.folders)


class Jobs:
    """Puts the sources that patterns stand for in the place of the patterns.

    Attributes:
        failures: looks for new jobs that failed.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._finders: dict[SourceSettings, JobFinder] = {}

    async def expanded(self, sources: Sequence[SourceSettings], clients: Clients) -> tuple[SourceSettings, ...]:
        """Look for new jobs; where a bucket cannot be listed now, the ones that are known are given."""
        found: list[SourceSettings] = []
        for source in sources:
            if not source.jobs:
                found.append(source)
                continue
            finder = self._finder(source, clients)
            try:
                with anyio.fail_after(LONGEST_LOOK_SECONDS):
                    await finder.look()
            except (RequestFailed, TimeoutError) as error:
                self.failures += 1
                reason = str(error) or f"no answer within {LONGEST_LOOK_SECONDS:g} s"
                log_once(logger, f"jobs:{reason}", "%s: %s; trying again", source.jobs, reason, level=logging.WARNING)
            bucket = parse_s3_url(source.jobs).bucket
            found += [
                replace(source, jobs="", path=str(S3Url(bucket, prefix)), job=job)
                for prefix, job in finder.jobs.items()
            ]
        return tuple(distinct(found))

    def _finder(self, source: SourceSettings, clients: Clients) -> JobFinder:
        if source not in self._finders:
            pattern = parse_s3_url(source.jobs)
            bucket = Bucket(clients.of(source.s3), pattern.bucket, requester_pays=source.requester_pays)
            self._finders[source] = JobFinder(bucket, pattern)
        return self._finders[source]


def distinct(sources: Sequence[SourceSettings]) -> list[SourceSettings]:
    """Drop sources of a path that stands before them already: every file would be taken for two."""
    return list({source.path: source for source in reversed(sources)}.values())[::-1]


async def run_all(workers: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run all at the same time; the first failure ends the others and is raised as it is."""
    failures: list[RequestFailed] = []
    async with anyio.create_task_group() as group:

        async def guarded(worker: Callable[[], Awaitable[None]]) -> None:
            try:
                await worker()
            except RequestFailed as error:
                failures.append(error)
                group.cancel_scope.cancel()

        for worker in workers:
            group.start_soon(guarded, worker)
    if failures:
        raise failures[0]
