"""The API on a real daemon: the socket's manners, errors in one shape, OpenAPI, slow readers, other tools."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from pathlib import Path

import anyio
import pytest
from openapi_spec_validator import validate

from monitor.errors import ConfigError, QueryError
from tests.analysis.test_classes import write_step
from tests.integration.corpora import node_folder, span_names, write_run, write_span
from tests.integration.daemons import DEADLINE_SECONDS, daemon_inside, settings_for, until


async def test_the_socket_is_for_its_group_and_goes_with_the_daemon(tmp_path: Path, short_tmp_path: Path) -> None:
    settings = settings_for(short_tmp_path, tmp_path)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(settings.daemon_socket))
    stale.close()
    async with daemon_inside(settings) as (_, client):
        found = settings.daemon_socket.stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o660
        assert (await client.status())["profiles"] == 0
    assert not settings.daemon_socket.exists()


async def test_a_file_in_the_way_is_refused_and_kept(tmp_path: Path, short_tmp_path: Path) -> None:
    settings = settings_for(short_tmp_path, tmp_path)
    settings.daemon_socket.write_text("precious")
    with pytest.raises(ExceptionGroup) as caught:
        async with daemon_inside(settings):
            pass
    assert caught.group_contains(ConfigError, match="is in the way and is no socket")
    assert settings.daemon_socket.read_text() == "precious"


WRONG = [
    ("/v1/stats/step", {}, 400, "start"),
    ("/v1/stats/step", {"start": "x"}, 400, "start"),
    ("/v1/stats/step", {"start": "-1"}, 400, "start"),
    ("/v1/stats/step", {"start": "1", "mode": "trian"}, 400, "mode"),
    ("/v1/stats/step", {"start": "1", "end_phase": "stop"}, 400, "end_phase"),
    ("/v1/stats/step", {"start": "1", "rule": "documented"}, 400, "end"),
    ("/v1/stats/step", {"start": ["1", "2"]}, 400, "start"),
    ("/v1/stats/step", {"start": "1", "limt": "3"}, 400, "limt"),
    ("/v1/stats/time", {"start": "nan", "end": "1"}, 400, "start"),
    ("/v1/stats/time", {"start": "1_000", "end": "2000"}, 400, "start"),
    ("/v1/stats/time", {"start": "1", "end": "٢٠٠٠"}, 400, "end"),
    ("/v1/stats/time", {"start": "1", "end": "0"}, 400, "end"),
    ("/v1/stats/modes", {"start_mode": "train"}, 400, "end_mode"),
    ("/v1/stats/job-phases", {"format": "pstats"}, 400, "format"),
    ("/v1/stats/job-phases", {"format": "html"}, 400, "format"),
    ("/v1/stats/job-phases", {"sort": "time"}, 400, "sort"),
    ("/v1/stats/job-phases", {"limit": "many"}, 400, "limit"),
    ("/v1/stats/job-phases", {"callers": "perhaps"}, 400, "callers"),
    ("/v1/stats/job-phases", {"node": "9-nobody"}, 404, "node"),
    ("/v1/stats/job-phases", {"framework": "none"}, 404, "framework"),
    ("/v1/stats/modes", {"start_mode": "train", "end_mode": "train", "format": "folded"}, 400, "format"),
    ("/v1/profiles", {"after": "x"}, 400, "after"),
    ("/v1/nothing", {}, 404, None),
    ("/v1/stats/step", {"start": "1", "node": "n" * 70_000}, 413, None),
]


async def test_every_error_has_one_shape_and_names_its_parameter(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    write_run(tmp_path, data_dir / "formats", nodes=1, steps=2)
    async with daemon_inside(settings_for(short_tmp_path, tmp_path)) as (_, client):
        await client.jobs(fresh=True)
        for path, words, status, parameter in WRONG:
            with pytest.raises(QueryError) as caught:
                await client.raw(path, **words)  # type: ignore[arg-type]
            assert (caught.value.status, caught.value.parameter) == (status, parameter), (path, words)


async def test_the_openapi_document_is_valid_and_complete(tmp_path: Path, short_tmp_path: Path) -> None:
    async with daemon_inside(settings_for(short_tmp_path, tmp_path)) as (_, client):
        document = json.loads((await client.raw("/v1/openapi.json"))[1])
    validate(document)
    assert {"/v1/status", "/v1/capture", "/v1/retry", "/healthz", "/readyz"} < document["paths"].keys()
    step = document["paths"]["/v1/stats/step"]["get"]["parameters"]
    assert [parameter["name"] for parameter in step if parameter["required"]] == ["start"]
    modes = document["paths"]["/v1/stats/modes"]["get"]["parameters"]
    assert [parameter["name"] for parameter in modes if parameter["required"]] == ["start_mode", "end_mode"]


async def test_a_reader_that_is_slow_is_told_of_its_loss_and_harms_nobody(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    sample = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    node_folder(tmp_path, "0-a").mkdir(parents=True)
    async with daemon_inside(settings_for(short_tmp_path, tmp_path, query__watch_events=5)) as (daemon, client):
        stuck = socket.socket(socket.AF_UNIX)
        stuck.connect(str(short_tmp_path / "s.sock"))
        stuck.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(client, lambda status: status["watchers"]["readers"] == 1)
        with daemon.watchers.subscribe() as slow:
            names = list(span_names(20))
            for name in names:
                write_span(node_folder(tmp_path, "0-a"), name, sample)
            await until(client, lambda status: status["profiles"] == len(names))
            with anyio.fail_after(DEADLINE_SECONDS):
                told = await anext(slow)
                assert getattr(told, "count", None) == len(names) - 5
                rest = [await anext(slow) for _ in range(5)]
        assert len({getattr(event, "name", "") for event in rest} & set(names)) == 5
        stuck.close()
        await until(client, lambda status: status["watchers"]["readers"] == 0)


async def test_watch_streams_new_spans_to_a_client(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    sample = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    node_folder(tmp_path, "0-a").mkdir(parents=True)
    async with daemon_inside(settings_for(short_tmp_path, tmp_path)) as (_, client):
        name = list(span_names(3))[4]

        async def write() -> None:
            await until(client, lambda status: status["watchers"]["readers"] == 1)
            write_span(node_folder(tmp_path, "0-a"), name, sample)

        async with anyio.create_task_group() as group:
            group.start_soon(write)
            events = client.watch()
            with anyio.fail_after(DEADLINE_SECONDS):
                event = await anext(events)
            await events.aclose()
    assert (getattr(event, "span", None), getattr(event, "node_id", None)) == (name, "0-a")


async def test_a_pstats_answer_loads_in_the_tools_that_people_use(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    write_run(tmp_path, data_dir / "formats", nodes=1, steps=4)
    async with daemon_inside(settings_for(short_tmp_path, tmp_path)) as (_, client):
        _, body = await client.raw("/v1/stats/step", start=0, end=4, format="pstats", fresh=True)
    file = tmp_path / "answer.pstats"
    file.write_bytes(body)
    for program in (
        [sys.executable, "-m", "gprof2dot", "-f", "pstats", str(file)],
        [
            sys.executable,
            "-c",
            "import pstats, sys; from snakeviz.stats import table_rows, json_stats; s = pstats.Stats(sys.argv[1]); "
            "assert table_rows(s); assert json_stats(s)",
            str(file),
        ],
    ):
        done = await anyio.run_process(program, check=False)
        assert done.returncode == 0, done.stderr.decode()


ONE_STEP = {"framework": "pytorch", "profiler": "cprofile", "node": "0-algo-0"}


async def test_a_span_s_data_file_comes_from_its_source_and_from_nowhere_else(short_tmp_path: Path) -> None:
    base, secret = short_tmp_path / "base", short_tmp_path / "secret"
    file = write_step(base, 3, calls=5)
    data, span = file.read_bytes(), file.parent.name
    secret.write_bytes(b"not a profile of this job")
    async with daemon_inside(settings_for(short_tmp_path, base)) as (_, client):
        await client.jobs(fresh=True)
        words = {"job": "training", "span": span, **ONE_STEP}
        assert (await client.raw("/v1/profile", **words))[1] == data

        async def refused(**other: str) -> str:
            with pytest.raises(QueryError) as refusal:
                await client.raw("/v1/profile", **(words | other))
            assert (refusal.value.status, refusal.value.code) == (404, "not_found")
            return refusal.value.message

        strangers = [{"job": "another"}, {"node": "../0-algo-0"}, {"span": f"../{span}"}, {"span": "../../../secret"}]
        for other in strangers:
            assert "there is no span" in await refused(**other)
        file.unlink()
        assert "holds no data file" in await refused()
        file.symlink_to(secret)
        assert "leads out of" in await refused()
        file.unlink()
        os.mkfifo(file)
        assert "is not a plain file" in await refused()
