"""A queue that tells of new objects: messages become references, and are deleted once their spans are stored.

A message whose spans are not stored yet comes back after the queue's visibility timeout. One that means nothing, or has
come back too often, is set aside: hidden for as long as SQS allows, so that it costs nothing and a redrive policy can
move it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import anyio

from monitor.errors import CorruptFile, RequestFailed
from monitor.logs import log_once
from monitor.sources.base import Cursors, FileRef
from monitor.sources.pacing import Pacer
from monitor.sources.s3_client import Message, Queue
from monitor.sources.s3_events import Created, parse_message

logger = logging.getLogger("phasewatch.source")

RECEIVERS = 4
MOST_RECEIVED = 5
"""A message that came so often without its spans being stored is set aside."""
ASIDE_SECONDS = 42_000
"""SQS allows twelve hours, what has passed since the message came included."""
ATTEMPTS = 4
AGAIN_SECONDS = 5.0

Take = Callable[[Sequence[Created]], Awaitable[list[FileRef]]]
"""Hands over the spans among some objects, and returns them."""


class Known(NamedTuple):
    """A message that was understood."""

    message: Message
    refs: list[FileRef]


class QueueReader:
    """Follows one queue.

    Attributes:
        events: messages received. set_aside: messages that were set aside.
        active: the last request to the queue succeeded.
    """

    def __init__(self, queue: Queue, pacer: Pacer, cursors: Cursors, take: Take) -> None:
        self._queue = queue
        self._pacer = pacer
        self._cursors = cursors
        self._take = take
        self.events = self.set_aside = 0
        self.active = False

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many requests were sent, by operation and then by result."""
        return self._pacer.counts()

    async def run(self) -> None:
        """Follow the queue until cancelled; a queue that cannot be reached is tried again."""
        async with anyio.create_task_group() as group:
            for _ in range(RECEIVERS):
                group.start_soon(self._receive_forever)

    async def _receive_forever(self) -> None:
        while True:
            try:
                messages = await self._pacer.ask("receive", self._queue.receive, attempts=ATTEMPTS)
                self.active = True
                await self._use(messages)
            except RequestFailed as error:
                self.active = False
                log_once(logger, f"queue:{error.kind}", "%s; listing goes on alone", error, level=logging.WARNING)
                await anyio.sleep(AGAIN_SECONDS)

    async def _use(self, messages: Sequence[Message]) -> None:
        self.events += len(messages)
        known: list[Known] = []
        for message in messages:
            try:
                refs = await self._take(parse_message(message.body))
            except CorruptFile as error:
                await self._set_aside(message, error.reason)
            else:
                known.append(Known(message, refs))
        await self._cursors.settled()
        done: list[str] = []
        for message, refs in known:
            if all(self._cursors.is_stored(ref) for ref in refs):
                done.append(message.receipt)
            elif message.received >= MOST_RECEIVED:
                await self._set_aside(message, f"its spans were not stored after {message.received} times")
        if done:
            await self._pacer.ask("delete", partial(self._queue.delete, done), attempts=ATTEMPTS)

    async def _set_aside(self, message: Message, reason: str) -> None:
        self.set_aside += 1
        log_once(logger, f"message:{message.number}", "set a message aside: it %s", reason, level=logging.WARNING)
        hide = partial(self._queue.hide, message.receipt, ASIDE_SECONDS)
        try:
            await self._pacer.ask("hide", hide, attempts=ATTEMPTS)
        except RequestFailed as error:  # it comes back the sooner; the others of its batch must not wait for that
            log_once(logger, f"hide:{error.kind}", "%s", error, level=logging.WARNING)
