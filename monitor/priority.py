"""Giving way to the job beside us: a lower priority for the processor and the disk. Standard library only."""

from __future__ import annotations

import ctypes
import os

IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
"""The system call by machine; the C library has no name for it."""
THIS_PROCESS = 1
CLASSES = {"lowest": (2 << 13) | 7, "idle": 3 << 13}
"""Best effort at its lowest level, and only where nobody else wants the disk."""


def give_way(*, nice: int, ionice: str) -> None:
    """Lower the priority of this process; what is lower already stays so. Threads and children to come inherit it, so
    it must be the first thing that a process does.

    Args:
        ionice: one of CLASSES, or "none". Left out where the machine has no such call.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    number, value = IOPRIO_SET.get(os.uname().machine), CLASSES.get(ionice)
    if number is not None and value is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, THIS_PROCESS, 0, value)
