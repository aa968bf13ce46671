"""Whose clock stamps the files of a file system. Reads /proc only."""

from __future__ import annotations

import os
from pathlib import Path

LOCAL_TYPES = frozenset({"ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"})
"""File systems that this machine's kernel stamps with its own clock."""

MOUNTS = Path("/proc/self/mountinfo")


def keeps_local_time(device: int) -> bool:
    """Tell whether the files of a device (`st_dev`) are stamped by this machine's own clock; False where unknown."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        # ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAGS …] - TYPE SOURCE OPTIONS, by proc(5)
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 2 and fields[2] == wanted:
            return after.split(" ", 1)[0] in LOCAL_TYPES
    return False
