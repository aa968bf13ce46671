"""New spans as server-sent events. A slow reader loses the oldest events and is told how many; nobody waits for it."""

from __future__ import annotations

import anyio
import msgspec
from aiohttp import web

from monitor.answers import Dropped, Engine, Scope, SpanRow
from monitor.api.schema import DroppedEvent, profile_answer

HEARTBEAT_SECONDS = 15.0
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def stream_events(request: web.Request, engine: Engine, scope: Scope) -> web.StreamResponse:
    """Send events until the client leaves; aiohttp then cancels the handler."""
    response = web.StreamResponse(headers=HEADERS)
    with engine.subscribe() as events:
        await response.prepare(request)
        await response.write(b": listening\n\n")
        while True:
            text = b": still here\n\n"
            with anyio.move_on_after(HEARTBEAT_SECONDS):
                event = await events.__anext__()
                if isinstance(event, Dropped):
                    text = event_text("dropped", DroppedEvent(count=event.count))
                elif admits(scope, event):
                    text = event_text("span", profile_answer(event))
                else:
                    continue
            try:
                await response.write(text)
            except ConnectionError:
                return response


def event_text(kind: str, content: msgspec.Struct) -> bytes:
    """Write one event; JSON holds no line breaks."""
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"


def admits(scope: Scope, row: SpanRow) -> bool:
    """Tell whether a reader wants a span."""
    return (
        scope.profiler in (None, row.profiler)
        and (not scope.jobs or row.job in scope.jobs)
        and (not scope.nodes or row.node in scope.nodes)
        and (not scope.frameworks or row.framework in scope.frameworks)
    )
