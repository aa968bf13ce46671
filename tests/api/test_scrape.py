"""What /metrics and /sd make of a request; the pages themselves are literal here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from monitor.answers import PageWish
from monitor.api.scrape import OPENMETRICS_TYPE, PLAIN_TYPE, openmetrics_wanted
from monitor.api.server import Server, open_server
from tests.api.test_server import FakeEngine, ask, engine, error_of, server, serving

__all__ = ["engine", "server"]

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        ("application/openmetrics-text", True),
        ('Application/OpenMetrics-Text; Version="1.0.0"', True),
        ("text/plain, application/openmetrics-text; version=1.0.0", True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;version=2.0.0,text/plain;q=0.5", False),
        ("application/openmetrics-text;q=0.5,text/plain", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=much", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("*/*", False),
        (";;=,,q", False),
        ("", False),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str, openmetrics: bool) -> None:
    assert openmetrics_wanted(accept) is openmetrics


@pytest.mark.parametrize(
    ("target", "headers", "wish"),
    [
        ("/metrics", [], PageWish()),
        ("/metrics", [f"Accept: {PROMETHEUS_2}"], PageWish(openmetrics=True)),
        ("/metrics", ["Accept: text/html", "Accept: application/openmetrics-text"], PageWish(openmetrics=True)),
        ("/metrics", ["Accept-Encoding: deflate, GZIP;q=0.5"], PageWish(gzip=True)),
        ("/metrics", ["Accept-Encoding: gzip;q=0, identity"], PageWish()),
        ("/metrics?job=%C3%A9%2F%C3%BC", [], PageWish(job="é/ü")),
        ("/metrics?job=over", [], PageWish(job="over")),
        ("/metrics?daemon=true", [], PageWish(daemon=True)),
        ("/metrics?name[]=a&name%5B%5D=b_total", [], PageWish(names=frozenset({"a", "b_total"}))),
        ("/metrics?name[]=", [], PageWish(names=frozenset({""}))),
    ],
)
async def test_headers_and_parameters_say_which_page(
    engine: FakeEngine, server: Server, target: str, headers: Sequence[str], wish: PageWish
) -> None:
    status, answered, body = await ask(server, target, headers=["Host: x", *headers])
    assert (status, engine.wishes) == (200, [wish])
    assert body == b"# a page\n"
    assert answered["content-type"] == (OPENMETRICS_TYPE if wish.openmetrics else PLAIN_TYPE)
    assert answered.get("content-encoding") == ("gzip" if wish.gzip else None)
    assert answered["vary"] == "Accept, Accept-Encoding"


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("/metrics?job=nope", (404, "not_found", "no job 'nope'; there are: é/ü, over, training", "job")),
        ("/metrics?job=", (400, "bad_parameter", "job='': must not be empty", "job")),
        ("/metrics?job=a&job=b", (400, "bad_parameter", "job may be given only once", "job")),
        (
            "/metrics?jobs=training",
            (
                400,
                "bad_parameter",
                "unknown parameter 'jobs'; did you mean job? Allowed: job, daemon, name[]",
                "jobs",
            ),
        ),
        (
            "/metrics?job=training&daemon=true",
            (400, "bad_parameter", "daemon=true and job exclude each other", "daemon"),
        ),
        ("/sd?job=training", (400, "bad_parameter", "unknown parameter 'job'. Allowed: none", "job")),
    ],
)
async def test_what_is_refused(server: Server, target: str, error: tuple[int, str, str, str]) -> None:
    assert error_of(await ask(server, target)) == error


def target_groups(address: str) -> list[dict[str, object]]:
    shared = {"__scheme__": "http", "__metrics_path__": "/metrics"}
    return [
        {"targets": [address], "labels": shared | {"__param_daemon": "true"}},
        {"targets": [address], "labels": shared | {"__param_job": "é/ü", "__meta_phasewatch_job": "é/ü"}},
        {"targets": [address], "labels": shared | {"__param_job": "training", "__meta_phasewatch_job": "training"}},
    ]


@pytest.mark.parametrize("host", ["trainer-7.example:9753", "[::1]:9753", "127.0.0.1"])
async def test_targets_are_where_the_daemon_was_asked(engine: FakeEngine, short_tmp_path: Path, host: str) -> None:
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0") as server:
        status, headers, body = await ask(server.address, "/sd", headers=[f"Host: {host}"])
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == target_groups(host)


async def test_without_a_host_targets_are_where_the_daemon_listens(engine: FakeEngine, short_tmp_path: Path) -> None:
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0") as server:
        assert json.loads((await ask(server, "/sd", headers=["Host: localhost"]))[2]) == target_groups(server.address)


async def test_a_setting_says_where_targets_are(engine: FakeEngine, short_tmp_path: Path) -> None:
    async with open_server(
        engine,
        socket=short_tmp_path / "s.sock",
        socket_mode=0o660,
        listen="",
        listen_api=False,
        max_concurrent=1,
        timeout_seconds=5.0,
        target="public.example:80",
    ) as server:
        assert json.loads((await ask(server, "/sd"))[2]) == target_groups("public.example:80")


async def test_without_any_address_there_are_no_targets(server: Server) -> None:
    assert error_of(await ask(server, "/sd")) == (
        400,
        "no_target",
        "no address is known at which Prometheus can scrape: set metrics.target",
        None,
    )


@pytest.mark.parametrize("host", ["a b", "a,b:1", "evil/../x", 'x"', "x:123456"])
async def test_a_host_that_is_none_is_no_target(engine: FakeEngine, short_tmp_path: Path, host: str) -> None:
    async with serving(engine, short_tmp_path, listen="127.0.0.1:0") as server:
        status, _, body = await ask(server.address, "/sd", headers=[f"Host: {host}"])
    assert status == 400
    assert b"targets" not in body


async def test_before_the_first_page_prometheus_keeps_its_targets(engine: FakeEngine, server: Server) -> None:
    engine.page = None
    assert error_of(await ask(server, "/sd"))[:2] == (503, "starting")
