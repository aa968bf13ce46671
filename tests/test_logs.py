"""Logs: one line for one message whatever a file is called, and complaints that are made once."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from monitor.logs import (
    MOST_A_WINDOW,
    WINDOW_SECONDS,
    HumanFormatter,
    JsonFormatter,
    LimitedHandler,
    LogFormat,
    Once,
    configure_logging,
    log_counts,
    log_once,
    printable,
)

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
        "suppressed": 0,
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


# -- floods ------------------------------------------------------------------------------------------------------------


class Flooded:
    """A log with a clock of its own, and what was written to it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.stream = io.StringIO()
        self.handler = LimitedHandler(self.stream, clock=lambda: self.now)
        self.handler.setFormatter(JsonFormatter())
        root = logging.getLogger("phasewatch")
        root.handlers[:] = [self.handler]
        root.setLevel("INFO")
        root.propagate = False

    def taken(self) -> list[tuple[str, int]]:
        """Take the lines that were written since, as (message, suppressed)."""
        entries = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        self.stream.seek(0)
        self.stream.truncate()
        assert all(entry.keys() == {"time", "level", "logger", "message", "suppressed"} for entry in entries)
        return [(entry["message"], entry["suppressed"]) for entry in entries]


def test_a_flood_of_one_error_is_bounded_and_told() -> None:
    log, before = Flooded(), log_counts().suppressed
    for number in range(100_000):
        logger.error("cannot read %d", number)
    assert log.taken() == [(f"cannot read {number}", 0) for number in range(MOST_A_WINDOW)]
    assert log_counts().suppressed - before == 100_000 - MOST_A_WINDOW
    log.now += WINDOW_SECONDS
    logger.error("cannot read %d", 7)
    logger.error("cannot read %d", 8)
    assert log.taken() == [("cannot read 7", 100_000 - MOST_A_WINDOW), ("cannot read 8", 0)]


def test_a_flood_leaves_room_for_other_lines() -> None:
    log = Flooded()
    for _ in range(100):
        logger.error("cannot read")
    logger.warning("cannot read")
    logger.error("cannot write")
    logging.getLogger("phasewatch.source").error("cannot read")
    assert log.taken()[MOST_A_WINDOW:] == [("cannot read", 0), ("cannot write", 0), ("cannot read", 0)]


@pytest.mark.parametrize("how", ["another line", "asked", "the end"])
def test_the_end_of_a_flood_is_told(how: str) -> None:
    log = Flooded()
    for _ in range(MOST_A_WINDOW + 5):
        logger.error("100 %% of %s", "it")
    log.handler.tell_suppressed()
    assert len(log.taken()) == MOST_A_WINDOW
    if how == "the end":
        log.handler.close()
        assert log.taken() == [("100 %% of %s", 5)]
        return
    log.now += WINDOW_SECONDS
    if how == "asked":
        log.handler.tell_suppressed()
        log.handler.tell_suppressed()
        assert log.taken() == [("100 %% of %s", 5)]
    else:
        logger.info("well")
        assert log.taken() == [("100 %% of %s", 5), ("well", 0)]


def test_people_are_told_of_a_flood_too() -> None:
    log = Flooded()
    log.handler.setFormatter(HumanFormatter())
    for _ in range(MOST_A_WINDOW + 5):
        logger.error("cannot read")
    log.handler.close()
    assert log.stream.getvalue().endswith("error   ingest: cannot read (5 more like this were left out)\n")


def test_a_reload_tells_what_was_left_out() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    for _ in range(MOST_A_WINDOW + 5):
        logger.error("cannot read")
    configure_logging("info", "json", stream)
    logger.error("cannot read")
    assert [json.loads(line)["suppressed"] for line in stream.getvalue().splitlines()[MOST_A_WINDOW:]] == [5, 0]


def test_what_libraries_complain_of_has_the_same_fields() -> None:
    code = (
        "import logging; from monitor.logs import configure_logging; configure_logging('info', 'json')\n"
        "logging.getLogger('asyncio').error('a %s failed', 'task'); logging.getLogger('asyncio').info('quiet')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert json.loads(line).keys() == {"time", "level", "logger", "message", "suppressed"}
    assert json.loads(line)["message"] == "a task failed"
