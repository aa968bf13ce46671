"""A store that misbehaves: refusals, broken and stalled bodies, resets, wrong checksums, credentials that expire."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import anyio
import pytest

from monitor.errors import ReadError
from monitor.s3_url import S3Url
from monitor.settings import S3Settings
from monitor.sources import pacing, s3_client
from monitor.sources.s3 import S3Source
from monitor.sources.s3_client import open_s3_client
from tests.sources.conformance import NODE, contents, running, span_name
from tests.sources.s3_endpoint import SLOW_DOWN, Endpoint, Fault, open_endpoint

NEVER_SECONDS = 3600.0
SPANS = 40

pytestmark = pytest.mark.usefixtures("aws_keys")


def key_of(step: int) -> str:
    return f"base/{NODE}/{span_name(step)}/python_stats"


def data_of(step: int) -> bytes:
    return f"profile {step} ".encode() * 100


def source_on(endpoint: Endpoint, client: s3_client.S3Client) -> S3Source:
    for step in range(SPANS):
        endpoint.put(key_of(step), data_of(step))
    return S3Source(client, S3Url("bucket", "base/"), job="job", poll_interval_seconds=NEVER_SECONDS)


FAULTS = {
    "throttled": SLOW_DOWN,
    "server": Fault(code="InternalError", status=500),
    "connection": Fault(reset=True),
    "clock_skew": Fault(code="RequestTimeTooSkewed", status=403),
    "expired": Fault(code="ExpiredToken", status=400),
    "broken_body": Fault(keep=7),
}


@pytest.mark.parametrize("kind", FAULTS)
async def test_each_passing_fault_is_counted_by_its_class_and_every_byte_is_right(kind: str) -> None:
    seen: Counter[str] = Counter()

    def judge(operation: str, key: str) -> Fault | None:
        seen[key] += operation == "get"
        chosen = operation == "get" and sum(map(ord, key)) % 4 == 0
        return FAULTS[kind] if chosen and seen[key] <= 2 else None  # the HTTP client itself repeats after a reset

    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        source = source_on(endpoint, client)
        async with running(source) as collector:
            endpoint.judge = judge
            answers = await source.read(collector.refs, max_bytes=10_000)
            steps = [ref.span.start_step for ref in collector.refs]
            assert [contents(answer, max_bytes=10_000) for answer in answers] == [data_of(step) for step in steps]
            gets = source.statistics().requests["get"]
            assert gets["ok"] == SPANS
            assert gets[kind] >= 1
            assert source.statistics().trouble == ""


async def test_a_body_that_is_not_what_its_etag_says_is_not_believed() -> None:
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        source = source_on(endpoint, client)
        async with running(source) as collector:
            bad = key_of(3)
            endpoint.judge = lambda operation, key: Fault(wrong_etag=True) if key == bad else None
            answers = await source.read(collector.refs, max_bytes=10_000)
            failed = [answer for answer in answers if isinstance(answer, ReadError)]
            assert [answer.kind for answer in failed] == ["unreadable"]
            assert "do not have the MD5" in failed[0].reason
            assert source.statistics().requests["get"]["broken_body"] == 5
            endpoint.judge = lambda operation, key: None
            versions = await source.versions(collector.refs)
            assert all(versions)  # not (), the version of the failure: so ingest reads it again


async def test_a_stalled_body_is_given_up_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "READ_TIMEOUT_SECONDS", 0.3)
    stalls = iter([Fault(keep=5, stall=True)])
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        source = source_on(endpoint, client)
        async with running(source) as collector:
            endpoint.judge = lambda operation, key: next(stalls, None) if operation == "get" else None
            answers = await source.read(collector.refs[:3], max_bytes=10_000)
            assert all(isinstance(contents(answer, max_bytes=10_000), bytes) for answer in answers)
            assert source.statistics().requests["get"]["timeout"] == 1


async def test_one_object_that_may_not_be_read_stops_no_other() -> None:
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        source = source_on(endpoint, client)
        async with running(source) as collector:
            denied = Fault(code="AccessDenied", status=403)
            endpoint.judge = lambda operation, key: denied if key == key_of(5) else None
            answers = await source.read(collector.refs, max_bytes=10_000)
            assert sum(isinstance(answer, ReadError) for answer in answers) == 1
            assert (await source.versions(collector.refs)).count(()) == 1


async def test_an_object_that_is_too_large_is_not_downloaded() -> None:
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        source = source_on(endpoint, client)
        async with running(source) as collector:
            endpoint.put(key_of(0), b"x" * 50_000_000)
            with anyio.fail_after(5):
                answers = await source.read(collector.refs, max_bytes=10_000)
            assert [contents(answer, max_bytes=10_000) for answer in answers].count("too_large") == 1
            assert source.statistics().bytes_read < 100_000


async def test_a_call_gives_so_many_bytes_and_postpones_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.sources.s3.MOST_BYTES_AT_ONCE", 5_000)
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        source = source_on(endpoint, client)
        async with running(source) as collector:
            answers = [contents(one, max_bytes=10_000) for one in await source.read(collector.refs, max_bytes=10_000)]
            assert 1 <= sum(isinstance(answer, bytes) for answer in answers) < SPANS
            assert {answer for answer in answers if isinstance(answer, str)} == {"postponed"}


async def test_throttling_makes_requests_fewer_and_success_more_again() -> None:
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        source = source_on(endpoint, client)
        async with running(source) as collector:
            refusals = iter([SLOW_DOWN] * 12)
            rooms: list[int] = []

            def judge(operation: str, key: str) -> Fault | None:
                rooms.append(source.statistics().requests_at_once)
                return next(refusals, None)

            endpoint.judge = judge
            before = source.statistics().requests_at_once
            answers = await source.read(collector.refs, max_bytes=10_000)
            assert not [answer for answer in answers if isinstance(answer, ReadError)]
            low = min(rooms)
            for _ in range(10):
                await source.read(collector.refs, max_bytes=10_000)
            assert low < before < source.statistics().requests_at_once


async def test_reading_waits_for_a_store_that_is_away_and_looking_says_so() -> None:
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        source = source_on(endpoint, client)
        async with running(source) as collector:
            endpoint.judge = lambda operation, key: Fault(reset=True)
            async with anyio.create_task_group() as group:
                answers: list[object] = []

                async def read() -> None:
                    answers.extend(await source.read(collector.refs[:2], max_bytes=10_000))

                group.start_soon(read)
                await source.poll()
                assert not source.statistics().available
                assert source.statistics().trouble == "connection"
                endpoint.judge = lambda operation, key: None
            assert not [answer for answer in answers if isinstance(answer, ReadError)]
            await source.poll()
            assert source.statistics().available


async def test_the_pause_grows_and_is_drawn_at_random() -> None:
    pacer = pacing.Pacer(most=4, chance=lambda: 0.0)
    assert [round(pacer._pause(times), 3) for times in (1, 2, 3, 20)] == [0.05, 0.1, 0.2, 10.0]


async def test_credentials_that_expire_are_renewed_by_the_standard_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process gives the credentials, each set good for an hour less than the client's margin: it is asked again."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    count = tmp_path / "count"
    answer = {"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "s", "SessionToken": "t"}
    program = tmp_path / "give"
    program.write_text(
        f'#!/bin/sh\necho x >>{count}\nat=$(date -u -d "+60 seconds" +%Y-%m-%dT%H:%M:%SZ)\n'
        f"echo '{json.dumps(answer)[:-1]}, \"Expiration\": \"'$at'\"}}'\n"
    )
    program.chmod(0o700)
    config = tmp_path / "config"
    config.write_text(f"[profile p]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    async with open_endpoint() as endpoint:
        settings = S3Settings(region="us-east-1", endpoint=endpoint.url, profile="p")
        async with open_s3_client(settings) as client:
            source = source_on(endpoint, client)
            async with running(source) as collector:
                assert len(collector.refs) == SPANS
    assert count.read_text().count("x") >= 2
