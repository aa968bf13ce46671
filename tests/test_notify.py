"""Messages to a service manager, over real datagram sockets: never waits, never fails, leaves nothing to children."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.notify import LONGEST_STATUS, Notifier, extend, reloading, status, take_notifier

ABSTRACT = f"@phasewatch-test-{os.getpid()}"


@contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    """A socket that receives what is told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + address[1:] if address.startswith("@") else address)
        receiver.settimeout(10)
        yield receiver


@contextmanager
def notifier(address: str) -> Iterator[Notifier]:
    """A notifier that is closed at the end."""
    notifier = Notifier(address)
    try:
        yield notifier
    finally:
        notifier.close()


@pytest.mark.parametrize("abstract", [True, False])
def test_all_states_of_a_call_come_in_one_message(short_tmp_path: Path, abstract: bool) -> None:
    address = ABSTRACT if abstract else str(short_tmp_path / "notify")
    with manager(address) as receiver, notifier(address) as told:
        assert told
        assert told.send("READY=1", "STATUS=watching")
        assert receiver.recv(4096) == b"READY=1\nSTATUS=watching"


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative/path"])
def test_without_a_socket_of_ours_nothing_is_told(address: str) -> None:
    with notifier(address) as told:
        assert not told
        assert not told.send("READY=1")


def test_a_manager_that_is_gone_is_no_error(short_tmp_path: Path) -> None:
    with notifier(str(short_tmp_path / "gone")) as told:
        assert not told.send("READY=1")


def test_an_address_that_no_socket_can_have_is_no_error() -> None:
    with notifier("/" + "x" * 300) as told:
        assert not told.send("READY=1")


def test_a_full_queue_is_not_waited_for(short_tmp_path: Path) -> None:
    address = str(short_tmp_path / "notify")
    with manager(address) as receiver, notifier(address) as told:
        sent = 0
        while told.send("WATCHDOG=1"):
            sent += 1
        for _ in range(sent):
            receiver.recv(4096)
        assert told.send("READY=1")


def test_what_the_manager_gives_is_taken_out_of_the_environment(short_tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(short_tmp_path / "n"), "WATCHDOG_USEC": "2500000", "WATCHDOG_PID": str(os.getpid())}
    told = take_notifier(environ)
    told.close()
    assert told.watchdog_seconds == 2.5
    assert environ == {}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "-1"},
        {"WATCHDOG_USEC": "²"},
    ],
)
def test_a_watchdog_of_another_process_or_of_nonsense_is_none(variables: dict[str, str]) -> None:
    assert take_notifier(dict(variables)).watchdog_seconds == 0


def test_a_status_is_one_line_of_bounded_length() -> None:
    assert status("a\nREADY=1\x1b[2J") == "STATUS=a READY=1 [2J"
    assert status("x" * 1000) == "STATUS=" + "x" * (LONGEST_STATUS - 1) + "…"


def test_a_name_that_is_no_unicode_is_told_too(short_tmp_path: Path) -> None:
    address = str(short_tmp_path / "notify")
    with manager(address) as receiver, notifier(address) as told:
        assert told.send("STATUS=a\udcffb")
        assert receiver.recv(4096) == b"STATUS=a?b"


def test_a_reload_has_the_time_of_its_begin() -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    first, second = reloading().split("\n")
    name, _, stamp = second.partition("=")
    assert (first, name) == ("RELOADING=1", "MONOTONIC_USEC")
    assert before <= int(stamp) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def test_more_time_is_asked_for_in_microseconds() -> None:
    assert extend(1.5) == "EXTEND_TIMEOUT_USEC=1500000"
