"""A bucket as a source: the rules that all sources keep, and what only a bucket can do."""

from __future__ import annotations

import pytest

from monitor.errors import ConfigError
from monitor.s3_url import S3Url, parse_s3_url
from monitor.settings import S3Settings
from monitor.sources.s3 import S3Source, open_s3_client
from monitor.sources.s3_client import S3Client
from tests.sources.conformance import NODE, RULES, Rule, contents, running, span_name
from tests.sources.moto_server import MotoServer

NEVER_SECONDS = 3600.0

pytestmark = pytest.mark.usefixtures("aws_keys")


class S3Place:
    """A bucket and the source that follows it; it polls only when it is asked to."""

    def __init__(self, server: MotoServer, client: S3Client, prefix: str = "job/profiler-output/") -> None:
        self.server = server
        self.bucket = server.make_bucket()
        self._prefix = prefix
        self.source = S3Source(client, S3Url(self.bucket, prefix), job="job", poll_interval_seconds=NEVER_SECONDS)

    def put(self, step: int, data: bytes, *, node: str = NODE) -> None:
        """Make a span."""
        self.server.put(self.bucket, self.key(step, node), data)

    def empty(self, step: int) -> None:
        """Remove a span's object: there are no folders."""
        self.remove(step)

    def remove(self, step: int, *, node: str = NODE) -> None:
        """Remove a span."""
        self.server.remove(self.bucket, self.key(step, node))

    def key(self, step: int, node: str = NODE) -> str:
        """Name the object of a span."""
        return f"{self._prefix}{node}/{span_name(step)}/python_stats"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
async def test_a_source(rule: Rule, moto_server: MotoServer) -> None:
    async with open_s3_client(moto_server.settings) as client:
        await rule(S3Place(moto_server, client))


async def test_three_thousand_keys_are_paged_and_pictures_never_downloaded(moto_server: MotoServer) -> None:
    async with open_s3_client(moto_server.settings) as client:
        place = S3Place(moto_server, client)
        node = NODE.replace("cprofile", "pyinstrument")
        for step in range(1_500):
            folder = f"job/profiler-output/{node}/{span_name(step)}"
            moto_server.put(place.bucket, f"{folder}/python_stats.json", b"{}")
            moto_server.put(place.bucket, f"{folder}/python_stats.html", b"<html>")
        async with running(place.source) as collector:
            assert collector.steps() == list(range(1_500))
            assert all(ref.path.endswith(".json") for ref in collector.refs)
            answers = await place.source.read(collector.refs, max_bytes=100)
            assert {contents(answer) for answer in answers} == {b"{}"}
            assert place.source.statistics().listings >= 3


async def test_a_prefix_is_a_folder_and_not_the_beginning_of_a_name(moto_server: MotoServer) -> None:
    async with open_s3_client(moto_server.settings) as client:
        place = S3Place(moto_server, client, prefix="job/")
        place.put(1, b"mine")
        moto_server.put(place.bucket, f"job-2/{NODE}/{span_name(2)}/python_stats", b"another's")
        async with running(place.source) as collector:
            assert collector.steps() == [1]


async def test_a_bucket_that_is_not_there_is_waited_for(moto_server: MotoServer) -> None:
    async with open_s3_client(moto_server.settings) as client:
        source = S3Source(client, S3Url("not-there", ""), job="job", poll_interval_seconds=NEVER_SECONDS)
        async with running(source) as collector:
            assert not source.statistics().available
            failed = source.statistics().unreadable_folders
            assert failed >= 1
            await source.poll()
            assert source.statistics().unreadable_folders > failed
            assert collector.refs == []


@pytest.mark.parametrize(
    ("text", "url", "name"),
    [
        ("s3://bucket", S3Url("bucket", ""), "s3://bucket"),
        ("s3://bucket/", S3Url("bucket", ""), "s3://bucket"),
        ("s3://my.bucket-1/a/b/", S3Url("my.bucket-1", "a/b/"), "s3://my.bucket-1/a/b"),
    ],
)
def test_a_place_in_s3(text: str, url: S3Url, name: str) -> None:
    assert parse_s3_url(text) == url
    assert str(url) == name


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("/a/b", "is no place in S3: write s3://bucket/prefix"),
        ("s3:/bucket/x", "is no place in S3"),
        ("s3://", "names no bucket"),
        ("s3:///x", "names no bucket"),
        ("s3://b ucket/x", "names no bucket"),
        ("s3://bucket/a//b", "empty part"),
        ("s3://bucket/../b", "empty part"),
        ("s3://bucket/a\nb", "cannot be printed"),
    ],
)
def test_what_is_no_place_in_s3_is_told(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_s3_url(text)


async def test_a_profile_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="check the source's profile"):
        async with open_s3_client(S3Settings(profile="nobody")):
            pass
