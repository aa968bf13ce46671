"""Sidecar files are read at most once a minute for each node, there or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

import pytest

from monitor.errors import ReadError
from monitor.layout import SIDECAR_FILE
from monitor.reading import FileData
from monitor.sidecars import ASK_AGAIN_SECONDS, Sidecars
from monitor.sources.base import FileRef, Readable, Source
from monitor.store import open_store


class Shelf:
    """A source with the same answer to all, which remembers what it was asked for."""

    def __init__(self, answer: Readable) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def read(self, refs: Sequence[FileRef], *, max_bytes: int) -> list[Readable]:
        self.asked += [ref.path for ref in refs]
        return [self.answer for _ in refs]


def span_of(node: str) -> FileRef:
    return FileRef(key=None, span=None, path=f"{node}/span/python_stats")  # type: ignore[arg-type]


MISSING = ReadError("is not there", kind="missing")


@pytest.mark.parametrize("answer", [MISSING, FileData(json.dumps({"pid": 7}).encode(), ())])
async def test_a_node_is_asked_about_once_a_minute(answer: Readable) -> None:
    now = 100.0
    shelf = Shelf(answer)
    with open_store(None) as store:
        sidecars = Sidecars(store, monotonic=lambda: now)
        source, refs = cast(Source, shelf), {0: span_of("a"), 1: span_of("b")}
        await sidecars.keep(source, refs)
        assert shelf.asked == [f"a/span/{SIDECAR_FILE}", f"b/span/{SIDECAR_FILE}"]
        await sidecars.keep(source, refs)
        assert len(shelf.asked) == 2
        shelf.answer = FileData(b'{"pid": 8}', ())
        now += ASK_AGAIN_SECONDS
        await sidecars.keep(source, refs)
        assert len(shelf.asked) == 4
        assert sidecars.facts() == {0: {"pid": 8}, 1: {"pid": 8}}
