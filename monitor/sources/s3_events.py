"""What S3 tells through a queue: plain events, the same wrapped by SNS, and those of EventBridge. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from monitor.errors import CorruptFile

DEEPEST = 3


class Created(NamedTuple):
    """An object that was put."""

    bucket: str
    key: str


def parse_message(body: str) -> list[Created]:
    """Read the body of a message; an empty list for events that tell of no new object.

    Raises:
        CorruptFile: it is no message of S3; the reason says why.
    """
    try:
        return list(created(json.loads(body), DEEPEST))
    except RecursionError:
        raise CorruptFile("is nested too deeply") from None
    except ValueError as error:
        raise CorruptFile(f"is not JSON: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"is no event of S3: {type(error).__name__} {error}") from None


def created(event: Mapping[str, Any], depth: int) -> Iterator[Created]:
    """Give the objects that an event tells of; raises KeyError, TypeError or AttributeError where it is no event."""
    if event.get("Type") == "Notification" and depth:
        yield from created(json.loads(event["Message"]), depth - 1)
    elif event.get("source") == "aws.s3":
        if event["detail-type"] == "Object Created":
            detail = event["detail"]
            yield Created(text(detail["bucket"]["name"]), text(detail["object"]["key"]))
    elif event.get("Event") != "s3:TestEvent":
        for record in event["Records"]:
            if record["eventName"].removeprefix("s3:").startswith("ObjectCreated:"):
                found = record["s3"]
                yield Created(text(found["bucket"]["name"]), unquote_plus(text(found["object"]["key"])))


def text(value: object) -> str:
    """Return a text; raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError("a name that is no text")
    return value
