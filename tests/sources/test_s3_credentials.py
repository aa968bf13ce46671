"""How requests are signed and who pays: told by the settings, seen by the endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.s3_url import S3Url
from monitor.settings import S3Settings
from monitor.sources.s3 import S3Source
from monitor.sources.s3_client import S3Client, open_s3_client
from tests.sources.conformance import running
from tests.sources.moto_server import MotoServer
from tests.sources.s3_endpoint import Endpoint, open_endpoint
from tests.sources.test_s3_listing_cost import Run

pytestmark = pytest.mark.usefixtures("aws_keys")


async def follow(endpoint: Endpoint, client: S3Client, *, requester_pays: bool = False) -> None:
    """Find and read what is there; every request must have been answered."""
    keys = [Run().begin()]
    for key in keys:
        endpoint.put(key, b"data")
    url = S3Url("bucket", "job/profiler-output/")
    source = S3Source(client, url, job="job", poll_interval_seconds=3_600, requester_pays=requester_pays)
    async with running(source) as collector:
        assert len(collector.refs) == len(keys)
        await source.read(collector.refs, max_bytes=100)
        await source.versions(collector.refs)
    assert {operation for operation, _ in endpoint.headers} == {"list", "get", "head"}


async def test_signed_by_the_standard_chain() -> None:
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        await follow(endpoint, client)
        for _, headers in endpoint.headers:
            assert "Credential=AKIDEXAMPLE/" in headers["Authorization"]
            assert "x-amz-request-payer" not in headers


async def test_anonymous_requests_carry_no_signature() -> None:
    async with open_endpoint() as endpoint:
        settings = S3Settings(region="us-east-1", endpoint=endpoint.url, path_style=True, anonymous=True)
        async with open_s3_client(settings) as client:
            await follow(endpoint, client)
        assert not any("Authorization" in headers for _, headers in endpoint.headers)


async def test_every_request_says_that_the_requester_pays() -> None:
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        await follow(endpoint, client, requester_pays=True)
        assert {headers.get("x-amz-request-payer") for _, headers in endpoint.headers} == {"requester"}


async def test_a_profile_assumes_its_role(
    moto_server: MotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile base]\naws_access_key_id = AKIDBASE\naws_secret_access_key = example\n"
        "[profile reader]\nsource_profile = base\nrole_arn = arn:aws:iam::123456789012:role/reader\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto_server.endpoint)
    async with open_endpoint() as endpoint:
        settings = S3Settings(region="us-east-1", endpoint=endpoint.url, path_style=True, profile="reader")
        async with open_s3_client(settings) as client:
            await follow(endpoint, client)
        for _, headers in endpoint.headers:
            assert headers["X-Amz-Security-Token"]  # those of a role, not of a user
            assert not any(key in headers["Authorization"] for key in ("AKIDBASE", "AKIDEXAMPLE"))
