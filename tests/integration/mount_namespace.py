"""A mount namespace of a test's own, in which file systems may fill up and become read-only without harm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class MountNamespace:
    """A namespace that lives as long as its holder does; `entry` is put before a command to run it inside."""

    entry: tuple[str, ...]

    def run(self, *command: str) -> None:
        """Run a command inside; it must succeed."""
        subprocess.run([*self.entry, *command], check=True, capture_output=True)


@contextmanager
def mount_namespace() -> Iterator[MountNamespace]:
    """Make a namespace: as root a plain one, otherwise one in a user namespace, where this user is root."""
    ways: list[tuple[list[str], list[str]]] = [([], []), (["-r"], ["-U", "--preserve-credentials"])]
    for options, entering in ways:
        holder = subprocess.Popen(
            ["unshare", "-m", *options, "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert holder.stdout is not None
        if holder.stdout.readline() == b"ready\n":
            entry = ("nsenter", "-t", str(holder.pid), *entering, "-m")
            break
        holder.communicate()
    else:
        pytest.fail(f"user {os.getuid()} may make no mount namespace: allow it (CAP_SYS_ADMIN, or user namespaces)")
    try:
        yield MountNamespace(entry)
    finally:
        holder.communicate()
