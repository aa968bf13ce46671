"""SIGTERM: writes the last spans, then ends the process as SIGTERM does. Owns the handler, and sets it only where
nobody else handles the signal.

A handler in Python runs when the main thread comes back to Python: where it hangs in one call of C code, SIGTERM alone
no longer ends the process, as with every program that handles it. `handle_sigterm=False` is for those.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

_finishers: list[Callable[[], object]] = []
_masks: list[set[int]] = []
"""The signal masks of the threads that are forking."""


def finish_on_term(finish: Callable[[], object]) -> None:
    """Call something on SIGTERM before the signal takes its course; nothing happens outside of the main thread, which
    alone may set handlers, or where the program handles the signal itself."""
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGTERM)
    if handler is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, on_term)
    elif handler is not on_term:
        return
    _finishers.append(finish)


def forget_term(finish: Callable[[], object]) -> None:
    """Take it back; the last one gives the signal its default meaning again, if the handler is still ours."""
    if finish not in _finishers:
        return
    _finishers.remove(finish)
    main = threading.current_thread() is threading.main_thread()
    if not _finishers and main and signal.getsignal(signal.SIGTERM) is on_term:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def on_term(number: int, _frame: FrameType | None) -> None:
    """Finish all, then end as the signal does by default."""
    try:
        for finish in tuple(_finishers):  # each one takes itself off the list
            finish()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def hold_back() -> None:
    """Before a fork: Python forgets a signal that reaches a child so early that the handler is still ours, and the
    child would live on."""
    if _finishers:
        _masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))


def let_through() -> None:
    """After a fork, in the parent."""
    if _masks:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop())


def let_through_in_child() -> None:
    """After a fork, in the child, which ends on SIGTERM as if there were no capture."""
    _finishers.clear()
    if signal.getsignal(signal.SIGTERM) is on_term:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    let_through()
    _masks.clear()


os.register_at_fork(before=hold_back, after_in_parent=let_through, after_in_child=let_through_in_child)
