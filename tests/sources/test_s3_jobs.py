"""Jobs found by a pattern: which prefixes fit, how they are called, and what listing them costs."""

from __future__ import annotations

import pytest

from monitor.errors import RequestFailed
from monitor.s3_url import parse_s3_url
from monitor.sources.s3_client import Bucket, open_s3_client
from monitor.sources.s3_jobs import JobFinder
from tests.sources.s3_endpoint import SLOW_DOWN, Fault, open_endpoint

pytestmark = pytest.mark.usefixtures("aws_keys")

KEYS = (
    "training/resnet/profiler-output/framework/a",
    "training/bert/profiler-output/framework/a",
    "training/empty/other/a",
    "training/a-file",
    "teams/x/run-1/p/a",
    "teams/y/run-2/p/a",
    "teams/y/trial-3/p/a",
)


@pytest.mark.parametrize(
    ("pattern", "jobs"),
    [
        ("training/*/profiler-output", {"bert": "training/bert/profiler-output", "resnet": None}),
        ("training/*", {"bert": None, "empty": None, "resnet": "training/resnet"}),
        ("training/b*", {"bert": "training/bert"}),
        ("teams/*/run-*/p", {"x/run-1": "teams/x/run-1/p", "y/run-2": None}),
        ("teams/[xz]/run-?", {"x/run-1": None}),
        ("*", {"teams": None, "training": None}),
        ("nothing/*", {}),
    ],
)
async def test_prefixes_that_fit_are_jobs(pattern: str, jobs: dict[str, str | None]) -> None:
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        endpoint.put_many(dict.fromkeys(KEYS, b"x"))
        finder = JobFinder(Bucket(client, "bucket"), parse_s3_url(f"s3://bucket/{pattern}"))
        await finder.look()
        assert set(finder.jobs.values()) == set(jobs)
        for prefix, job in finder.jobs.items():
            assert jobs[job] in (None, prefix.rstrip("/"))


async def test_known_jobs_cost_nothing_and_new_ones_are_found() -> None:
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        endpoint.put_many({f"training/job-{number:04}/out/a": b"x" for number in range(1_500)})
        finder = JobFinder(Bucket(client, "bucket"), parse_s3_url("s3://bucket/training/*/out"))
        await finder.look()
        assert len(finder.jobs) == 1_500
        endpoint.requests.clear()
        endpoint.put("training/new/out/a", b"x")
        await finder.look()
        assert finder.jobs["training/new/out/"] == "new"
        assert endpoint.requests["list"] == 2 + 1  # two pages of jobs, and whether the new one holds something


async def test_what_was_found_before_a_failure_is_kept() -> None:
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        endpoint.put_many(dict.fromkeys(KEYS, b"x"))
        finder = JobFinder(Bucket(client, "bucket"), parse_s3_url("s3://bucket/training/*/profiler-output"))
        await finder.look()
        known = dict(finder.jobs)
        endpoint.judge = lambda operation, key: Fault(code="AccessDenied", status=403)
        with pytest.raises(RequestFailed, match="AccessDenied"):
            await finder.look()
        assert finder.jobs == known
        faults = iter([SLOW_DOWN, Fault(reset=True)])
        endpoint.judge = lambda operation, key: next(faults, None)
        await finder.look()
        assert finder.jobs == known
