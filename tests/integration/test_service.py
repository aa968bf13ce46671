"""A real daemon tells a real NOTIFY_SOCKET how it does: ready, status, watchdog, reload, stop."""

from __future__ import annotations

import http.server
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.integration.corpora import span_names
from tests.integration.daemons import DEADLINE_SECONDS, daemon_child, stop
from tests.integration.service_manager import Manager, listening, read_line_with, write_one, write_some

WATCHDOG_SECONDS = 4.0
SILENCE_SECONDS = 6.0
MORE_THAN_TRIES = 10
"""So often the store is tried again in a minute: the pauses grow to 30 s, in which the daemon is well."""
LAST_TURNS = 2
"""So many turns of the storing task may still have to be told when it hangs; one that is well has one a second."""
TROUBLE_WHILE_A_FILE_IS_THERE = """
import sys, time
from pathlib import Path
from monitor.__main__ import main
from monitor.errors import StoreError
from monitor.store import Store
trouble, commit = Path(sys.argv.pop(1)), Store.commit
def troubled(self, *rest):
    while trouble.exists():
        trouble.with_name("seen").touch()
        if trouble.name == "failing":
            raise StoreError("the disk is full")
        time.sleep(0.05)
    return commit(self, *rest)
Store.commit = troubled
main()
"""
EMPTY_LISTING = b"""<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name><Prefix></Prefix>
<KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"""


@pytest.fixture
def manager(short_tmp_path: Path) -> Iterator[Manager]:
    """A service manager."""
    with listening(str(short_tmp_path / "notify")) as manager:
        yield manager


@pytest.fixture
def source(data_dir: Path, tmp_path: Path) -> Path:
    """A folder with some profiles."""
    return write_some(tmp_path / "profiles", data_dir)


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_hears_of_the_whole_life(source: Path, short_tmp_path: Path, abstract: bool) -> None:
    address = f"@phasewatch-{os.getpid()}" if abstract else str(short_tmp_path / "notify")
    with listening(address) as manager, daemon_child(short_tmp_path, source, variables=manager.variables) as child:
        process, _ = child
        manager.wait_for("READY=1")
        manager.wait_for(f"STATUS=watching {source}: 7 profiles stored since the start")
        stop(process)
        manager.wait_for("STOPPING=1")
        assert process.returncode == 0
        manager.hear_all()
        assert manager.heard.count("READY=1") == 1
        assert manager.heard[-2] == "STOPPING=1"
        assert not [state for state in manager.heard if state.startswith("WATCHDOG")]


@contextmanager
def bucket_behind(gate: threading.Event) -> Iterator[str]:
    """An empty bucket that answers when a gate is open."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            gate.wait()
            self.send_response(200)
            self.send_header("Content-Length", str(len(EMPTY_LISTING)))
            self.end_headers()
            self.wfile.write(EMPTY_LISTING)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            gate.set()
            server.shutdown()
            thread.join()


def test_it_is_ready_after_the_first_complete_poll_and_not_before(
    manager: Manager, tmp_path: Path, short_tmp_path: Path
) -> None:
    gate = threading.Event()
    config = tmp_path / "phasewatch.toml"
    with bucket_behind(gate) as endpoint:
        config.write_text(
            f'[[source]]\npath = "s3://bucket/job"\nendpoint = "{endpoint}"\npath_style = true\nanonymous = true\n'
            f'region = "us-east-1"\n[[source]]\npath = "{tmp_path}"\n'
        )
        with daemon_child(short_tmp_path, None, "-c", str(config), variables=manager.variables) as (process, _):
            first = manager.wait_for("EXTEND_TIMEOUT_USEC=")
            manager.wait_for("EXTEND_TIMEOUT_USEC=", first + 1)  # it lives, and so it gets more time
            manager.wait_for("STATUS=looking for the first time at s3://bucket/job")
            manager.hear_all()
            assert "READY=1" not in manager.heard
            gate.set()
            manager.wait_for("READY=1")
            manager.wait_for("STATUS=watching s3://bucket/job")
            stop(process)


def fill_from_one_sender(address: str) -> int:
    """Send as much as one socket may; returns how many messages found room."""
    sent = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as crowd, suppress(BlockingIOError):
        crowd.setblocking(False)
        while True:
            crowd.sendto(b"X", address)
            sent += 1
    return sent


def test_what_could_not_be_told_is_told_again(manager: Manager, source: Path, short_tmp_path: Path) -> None:
    while fill_from_one_sender(manager.variables["NOTIFY_SOCKET"]):
        pass
    with daemon_child(short_tmp_path, source, variables=manager.variables) as (process, client):
        assert client.training_phases(fresh=True).phases  # nobody hears it, and it works
        assert "could not be told" in read_line_with(process, "service")
        manager.wait_for("READY=1")
        stop(process)


def test_a_manager_that_is_gone_disturbs_nothing(source: Path, short_tmp_path: Path) -> None:
    variables = {"NOTIFY_SOCKET": str(short_tmp_path / "gone"), "WATCHDOG_USEC": "1000000"}
    with daemon_child(short_tmp_path, source, variables=variables) as (process, client):
        assert client.training_phases(fresh=True).phases
        stop(process)
        assert process.returncode == 0


def test_the_watchdog_is_fed_while_profiles_can_be_stored_and_only_then(
    manager: Manager, source: Path, data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    hang = tmp_path / "hanging"
    variables = {**manager.variables, "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6))}
    program = ("-c", TROUBLE_WHILE_A_FILE_IS_THERE, str(hang))
    with daemon_child(short_tmp_path, source, variables=variables, program=program) as (process, client):
        place = manager.wait_for("READY=1")
        for _ in range(3):
            place = manager.wait_for("WATCHDOG=1", place + 1)
        hang.touch()
        write_one(source, data_dir, list(span_names(2))[-1])
        wait_until_there(tmp_path / "seen")
        manager.hear_all()
        before = len(manager.heard)
        end = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < end:
            manager.hear(0.5)
            assert client.status()["ingest"]["waiting"] == 1  # the daemon answers, and yet it is not well
        assert manager.heard[before:].count("WATCHDOG=1") <= LAST_TURNS
        hang.unlink()
        manager.wait_for("WATCHDOG=1", len(manager.heard))
        stop(process)


def test_the_watchdog_is_fed_while_the_store_cannot_be_written(
    manager: Manager, source: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    failing = tmp_path / "failing"
    failing.touch()
    variables = {**manager.variables, "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6))}
    program = ("-c", TROUBLE_WHILE_A_FILE_IS_THERE, str(failing))
    with daemon_child(short_tmp_path, source, variables=variables, program=program) as (process, client):
        wait_until_there(tmp_path / "seen")
        place = manager.wait_for("READY=1")
        for _ in range(MORE_THAN_TRIES):
            place = manager.wait_for("WATCHDOG=1", place + 1)
        assert client.status()["ingest"]["stored"] == 0
        stop(process)


def wait_until_there(path: Path) -> None:
    """Wait until another process has made a file."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)  # there is no event to wait for


def test_a_watchdog_that_ends_it_leaves_the_place_of_each_thread_in_the_log(
    manager: Manager, source: Path, short_tmp_path: Path
) -> None:
    with daemon_child(short_tmp_path, source, variables=manager.variables) as (process, _):
        manager.wait_for("READY=1")
        stop(process, signal.SIGABRT)
        assert process.returncode == -signal.SIGABRT
        assert process.stderr is not None
        log = process.stderr.read().decode()
        assert "Fatal Python error: Aborted" in log
        assert "run_daemon" in log or "base_events.py" in log


@pytest.mark.parametrize("settings", ['[log]\nlevel = "debug"\n', "[nonsense]\nx = 1\n"])
def test_a_reload_is_told_with_its_time_and_ends_ready(
    manager: Manager, source: Path, tmp_path: Path, short_tmp_path: Path, settings: str
) -> None:
    config = tmp_path / "phasewatch.toml"
    config.write_text(f'[[source]]\npath = "{source}"\n')
    with daemon_child(short_tmp_path, None, "-c", str(config), variables=manager.variables) as (process, _):
        ready = manager.wait_for("READY=1")
        config.write_text(f'{settings}[[source]]\npath = "{source}"\n')
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        process.send_signal(signal.SIGHUP)
        again = manager.wait_for("RELOADING=1", ready)
        name, _, stamp = manager.heard[again + 1].partition("=")
        assert name == "MONOTONIC_USEC"
        assert before <= int(stamp) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        manager.wait_for("READY=1", again)
        manager.wait_for("STATUS=watching", again)
        stop(process)
