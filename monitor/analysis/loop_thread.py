"""An event loop on a thread of its own, for code that is called from none or from inside another one, as a notebook is.

Owns the thread and its end; knows nothing of profiles.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - anyio would load it when the first loop starts, while somebody waits for an answer
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from monitor.errors import ForkedProcess, MonitorError

ResultT = TypeVar("ResultT")

_open: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_watching = threading.Event()
STOP_SECONDS = 5.0
ENDED = "the reading of profiles has ended: the analysis was closed, or the program ends"


class LoopThread:
    """A running loop. Work is given to it through anyio's blocking portal.

    It ends with `stop()` or with the main thread: at the interpreter's exit the threads that a loop starts are waited
    for before any exit handler runs, so a loop that went on would hang the program.
    """

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._portal: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _open.add(self)
        if not _watching.is_set():
            _watching.set()
            threading.Thread(target=stop_with_main_thread, name="phasewatch exit", daemon=True).start()

    def start(self, function: Callable[..., Awaitable[ResultT]], *arguments: object) -> Future[ResultT]:
        """Begin a coroutine function on the loop.

        Raises:
            ForkedProcess: this is a forked child, which has no such thread. MonitorError: the loop has ended.
        """
        self.refuse_forked()
        try:
            return self._portal.result().start_task_soon(function, *arguments)
        except RuntimeError as error:
            raise MonitorError(ENDED) from error

    def refuse_forked(self) -> None:
        """Raise ForkedProcess in a forked child. Ask before a lock is taken, which may be held for ever there."""
        if os.getpid() != self._process:
            raise ForkedProcess(
                "this analysis was made before the process was forked, and its threads are in the parent only: "
                "make a new one in the child"
            )

    def begin(self, function: Callable[..., Awaitable[None]], *arguments: object) -> tuple[Future[None], Any]:
        """Begin a task that tells when it is ready; waits for that, and returns the task and what it told."""
        return self._portal.result().start_task(function, *arguments)

    def stop(self) -> None:
        """End the loop and all its tasks, and wait for that a few seconds at most."""
        if os.getpid() != self._process or not self._thread.is_alive():
            return
        if any(threading.current_thread() is loop._thread for loop in list(_open)):
            # The garbage collector runs on any thread. On a loop's own the portal takes nothing, and nobody may wait.
            threading.Thread(target=self.stop, name="phasewatch end", daemon=True).start()
            return
        portal = self._portal.result()
        try:
            portal.start_task_soon(portal.stop, True)
        except RuntimeError:
            return  # it is stopping already
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as error:
            if not self._portal.done():
                self._portal.set_exception(error)
            raise

    async def _serve(self) -> None:
        async with BlockingPortal() as portal:
            self._portal.set_result(portal)
            await portal.sleep_until_stopped()


def stop_with_main_thread() -> None:
    """Wait for the end of the main thread, then end all loops."""
    threading.main_thread().join()
    for loop in list(_open):
        loop.stop()
