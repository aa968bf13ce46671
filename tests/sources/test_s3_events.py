"""Messages of a queue: plain, wrapped by SNS, of EventBridge; and what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitor.errors import CorruptFile
from monitor.sources.s3_events import Created, parse_message

KEY = "job/train-*-start-1.5 x+é/python_stats"
CODED = "job/train-%2A-start-1.5+x%2B%C3%A9/python_stats"


def plain(name: str = "ObjectCreated:Put", key: str = CODED) -> dict[str, Any]:
    return {"Records": [{"eventName": name, "s3": {"bucket": {"name": "b"}, "object": {"key": key}}}]}


def bridged(kind: str = "Object Created") -> dict[str, Any]:
    return {"source": "aws.s3", "detail-type": kind, "detail": {"bucket": {"name": "b"}, "object": {"key": KEY}}}


def wrapped(event: dict[str, Any]) -> dict[str, Any]:
    return {"Type": "Notification", "MessageId": "1", "Message": json.dumps(event)}


@pytest.mark.parametrize(
    "event",
    [plain(), plain("s3:ObjectCreated:CompleteMultipartUpload"), bridged(), wrapped(plain()), wrapped(bridged())],
)
def test_an_object_that_was_put_is_understood_however_it_is_wrapped(event: dict[str, Any]) -> None:
    assert parse_message(json.dumps(event)) == [Created("b", KEY)]


@pytest.mark.parametrize(
    "event", [plain("ObjectRemoved:Delete"), bridged("Object Deleted"), {"Event": "s3:TestEvent"}, {"Records": []}]
)
def test_other_events_tell_of_no_object(event: dict[str, Any]) -> None:
    assert parse_message(json.dumps(event)) == []


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no JSON",
        "[]",
        "3",
        "{}",
        '{"Records": [{}]}',
        '{"Records": 3}',
        json.dumps(plain(key=3)),  # type: ignore[arg-type]
        '{"Type": "Notification", "Message": "{"}',
        json.dumps(wrapped(wrapped(wrapped(wrapped(plain()))))),
        "[" * 100_000,
    ],
)
def test_what_is_no_event_is_told_and_never_a_crash(body: str) -> None:
    with pytest.raises(CorruptFile):
        parse_message(body)
