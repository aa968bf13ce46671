"""/healthz and /readyz of a real daemon, and files that are read again on request."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from monitor.cli import main
from monitor.client import AsyncClient, Client
from monitor.config import load_settings
from monitor.errors import QueryError
from monitor.store import Store
from tests.api.test_server import ask
from tests.integration.corpora import node_folder, span_names, write_run, write_span
from tests.integration.daemons import DEADLINE_SECONDS, daemon_inside, settings_for, until
from tests.integration.test_service import bucket_behind

SPANS = list(span_names(2))


async def probed(client: AsyncClient, path: str) -> str:
    """Return "ok", or the code and the message of a refusal."""
    try:
        answer: str = json.loads((await client.raw(path))[1])["status"]
    except QueryError as error:
        return f"{error.status} {error.code}: {error.message}"
    return answer


async def until_probed(client: AsyncClient, path: str, start: str) -> None:
    """Wait until a probe's answer starts so."""
    with anyio.fail_after(DEADLINE_SECONDS):
        while True:
            if (await probed(client, path)).startswith(start):
                return
            await anyio.sleep(0.01)


async def test_it_is_ready_after_the_first_complete_poll_of_each_source_also_over_tcp(
    tmp_path: Path, short_tmp_path: Path
) -> None:
    gate = threading.Event()
    config = tmp_path / "c.toml"
    with bucket_behind(gate) as endpoint:
        config.write_text(
            f'[[source]]\npath = "s3://bucket/job"\nendpoint = "{endpoint}"\npath_style = true\nanonymous = true\n'
            f'region = "us-east-1"\n[[source]]\npath = "{tmp_path}"\n'
        )
        places = {"daemon.state_dir": short_tmp_path / "state", "daemon.socket": short_tmp_path / "s.sock"}
        overrides = {key: str(place) for key, place in places.items()} | {"daemon.listen": "127.0.0.1:0"}
        async with daemon_inside(load_settings(config, {}, overrides)) as (daemon, client):
            await until_probed(client, "/readyz", "503 not_ready: not looked at completely yet: s3://bucket/job")
            assert await probed(client, "/healthz") == "ok"
            gate.set()
            await until_probed(client, "/readyz", "ok")
            daemon.reload()
            await until_probed(client, "/readyz", "ok")
            assert daemon.server is not None
            for path in ("/healthz", "/readyz"):
                status, _, body = await ask(daemon.server.address, path)
                assert (status, json.loads(body)) == (200, {"status": "ok"})


async def test_a_daemon_whose_storing_task_hangs_is_not_alive(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, commit = threading.Event(), Store.commit

    def held(*arguments: Any) -> Any:
        gate.wait()
        return commit(*arguments)

    monkeypatch.setattr(Store, "commit", held)
    monkeypatch.setattr("monitor.status.STALLED_SECONDS", 1.5)  # an idle one comes round once a second
    async with daemon_inside(settings_for(short_tmp_path, tmp_path)) as (_, client):
        assert await probed(client, "/healthz") == "ok"
        write_run(tmp_path, data_dir / "formats", nodes=1, steps=1)
        try:
            await until_probed(client, "/healthz", "503 hangs: the task that stores profiles has not come round for")
            assert (await probed(client, "/readyz")).startswith("503 not_ready: the task that stores")
        finally:
            gate.set()
        await until_probed(client, "/healthz", "ok")


async def test_a_file_mended_without_a_trace_is_read_again_on_request(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    good = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    corrupt = b"\xff" * len(good)
    files = [write_span(node_folder(tmp_path, node), SPANS[1], corrupt) for node in ("0-a", "1-b", "2-c")]
    settings = settings_for(short_tmp_path, tmp_path, ingest__broken_after_seconds=0.2, ingest__recheck_seconds=0.1)
    async with daemon_inside(settings) as (_, client):
        await until(client, lambda status: len(status["set_aside"]) == 3)
        before = files[0].stat()
        with files[0].open("r+b") as file:
            file.write(good)
        os.utime(files[0], ns=(before.st_atime_ns, before.st_mtime_ns))
        await client.jobs(fresh=True)  # looks at what was set aside, and sees no change
        status = await client.status()
        assert (status["profiles"], len(status["set_aside"])) == (0, 3)
        failures = status["ingest"]["failures"]["corrupt"]
        socket = settings.daemon_socket
        retry = Client(socket).retry
        assert await anyio.to_thread.run_sync(lambda: retry(jobs=["other"])) == 0
        assert await anyio.to_thread.run_sync(lambda: retry(nodes=["1-b"])) == 1
        await until(client, lambda status: status["ingest"]["failures"]["corrupt"] == failures + 1)
        words = ["retry", "--node", "0-a", "--node", "2-c", "--job", "training", "--socket", str(socket)]
        result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(main, words))
        assert (result.exit_code, result.output) == (0, "files read again: 2\n")
        status = await until(client, lambda status: status["profiles"] == 1)
        assert status["ingest"]["failures"]["corrupt"] == failures + 2
        assert sorted(Path(each["path"]).parts[-3] for each in status["set_aside"]) == ["1-b", "2-c"]


async def test_only_the_unix_socket_has_files_read_again(tmp_path: Path, short_tmp_path: Path) -> None:
    settings = settings_for(short_tmp_path, tmp_path, daemon__listen_api=True)
    async with daemon_inside(settings) as (daemon, _):
        assert daemon.server is not None
        assert (await ask(daemon.server.address, "/v1/retry", "POST"))[0] == 404
        assert (await ask(daemon.server, "/v1/retry", "POST"))[0] == 200
