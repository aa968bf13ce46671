"""Logs: one line for one message whatever a file is called, and complaints that are made once."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from monitor.logs import LogFormat, Once, configure_logging, log_once, printable

FORGED = "x\n12:00:00 error   ingest: forged\r\x1b[2J\u2028\x9b"
logger = logging.getLogger("phasewatch.ingest")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger("phasewatch")
    handlers, level, propagate = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    root.propagate = propagate


def logged(log_format: LogFormat, message: str, *arguments: object, **fields: object) -> str:
    stream = io.StringIO()
    configure_logging("info", log_format, stream)
    logger.info(message, *arguments, extra=fields)
    return stream.getvalue()


def test_people_get_short_lines() -> None:
    line = logged("human", "stored %d profiles", 312)
    assert re.fullmatch(r"\d\d:\d\d:\d\d info    ingest: stored 312 profiles\n", line)


def test_programs_get_one_object_a_line_with_its_fields() -> None:
    entry = json.loads(logged("json", "stored %d profiles", 312, seconds=0.9))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry.pop("time"))
    assert entry == {
        "level": "info",
        "logger": "phasewatch.ingest",
        "message": "stored 312 profiles",
        "seconds": 0.9,
    }


@pytest.mark.parametrize(("stream", "human"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_terminal_decides_unless_told(stream: io.StringIO, human: bool) -> None:
    configure_logging("info", "auto", stream)
    logger.info("hello")
    assert stream.getvalue().startswith("{") is not human


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_a_hostile_name_stays_on_its_line(log_format: LogFormat) -> None:
    text = logged(log_format, "ignored %s", FORGED, file=FORGED)
    assert text.endswith("\n")
    assert text[:-1].isprintable()


def test_a_hostile_name_in_a_traceback_begins_no_line() -> None:
    stream = io.StringIO()
    configure_logging("info", "human", stream)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("failed")
    first, *rest = stream.getvalue().removesuffix("\n").split("\n")
    assert first.endswith("ingest: failed")
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_the_level_can_be_changed_while_running() -> None:
    stream = io.StringIO()
    configure_logging("warning", "human", stream)
    logger.info("quiet")
    configure_logging("debug", "human", stream)
    logger.debug("loud")
    assert "quiet" not in stream.getvalue()
    assert stream.getvalue().count("loud") == 1


@pytest.mark.parametrize(("text", "escaped"), [("é 漢 a", "é 漢 a"), ("a\tb", r"a\tb"), ("\udc80", r"\udc80")])
def test_only_what_cannot_be_printed_is_escaped(text: str, escaped: str) -> None:
    assert printable(text) == escaped


def test_a_complaint_is_made_once() -> None:
    stream = io.StringIO()
    configure_logging("info", "human", stream)
    for _ in range(3):
        log_once(logger, "test_logs:a", "broken: %s", "a")
    log_once(logger, "test_logs:b", "broken: %s", "b")
    assert stream.getvalue().count("broken: a") == 1
    assert stream.getvalue().count("broken: b") == 1


def test_only_recent_keys_are_remembered() -> None:
    once = Once(most=2)
    assert [once.first(key) for key in "abacab"] == [True, True, False, True, False, True]
