"""A decoder that hostile bytes have taken over: what the kernel refuses it. Each attempt is a real one."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.confinement import LANDLOCK_CREATE_RULESET, LANDLOCK_VERSION, MACHINES

ATTEMPTS = {
    "a network socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
    "a unix socket": "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)",
    "a pair of sockets": "import socket; socket.socketpair()",
    "another program": "os.execv('/bin/true', ['true'])",
    "another process": "os.fork()",
    "a thread": "import threading; threading.Thread(target=int).start()",
    "a signal to its parent": "os.kill(os.getppid(), 0)",
    "its parent's limits": "resource.prlimit(os.getppid(), resource.RLIMIT_CORE)",
    "access rights": "os.chmod(folder, 0o777)",
    "a time stamp": "os.utime(folder)",
}
LANDLOCKED = {
    "a new file": "open(folder + '/new', 'w')",
    "an old file, to write": "open(folder + '/old', 'a')",
    "an old file, away": "os.unlink(folder + '/old')",
    "a folder": "os.mkdir(folder + '/made')",
    "another name": "os.rename(folder + '/old', folder + '/other')",
    "its parent's environment": "open(f'/proc/{os.getppid()}/environ', 'rb').read()",
}
PROGRAM = """
import json, os, resource, sys
from monitor.decode_worker import limit_self
attempts, confined, folder = json.loads(sys.argv[1]), sys.argv[2] == "confined", sys.argv[3]
import socket, threading
if confined:
    limit_self(2**29)
came_of_it = {}
for name, code in attempts.items():
    try:
        exec(code)
        came_of_it[name] = "done"
    except (OSError, RuntimeError) as error:
        came_of_it[name] = "refused"
print(json.dumps(came_of_it), flush=True)
print(open(folder + '/kept').read())
"""


def attempt(folder: Path, attempts: dict[str, str], *, confined: bool) -> dict[str, str]:
    """Try things in a child, confined as a decoder is or not."""
    for name in ("old", "kept"):
        (folder / name).write_text("may be read")
    command = [sys.executable, "-c", PROGRAM, json.dumps(attempts), "confined" if confined else "", str(folder)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.defpath}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=30)
    first, second = done.stdout.splitlines()
    assert second == "may be read"
    result: dict[str, str] = json.loads(first)
    return result


def has_landlock() -> bool:
    """Tell whether this kernel has Landlock, with the scopes of its sixth version."""
    version: int = ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_VERSION)
    return version >= 1


@pytest.mark.skipif(os.uname().machine not in MACHINES, reason="no table of calls for this machine")
def test_a_decoder_opens_no_socket_and_starts_nothing(tmp_path: Path) -> None:
    assert attempt(tmp_path, ATTEMPTS, confined=True) == dict.fromkeys(ATTEMPTS, "refused")


@pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")
def test_a_decoder_changes_no_file_and_sees_no_secret_of_its_parent(tmp_path: Path) -> None:
    assert attempt(tmp_path, LANDLOCKED, confined=True) == dict.fromkeys(LANDLOCKED, "refused")
    assert {path.name for path in tmp_path.iterdir()} == {"old", "kept"}


def test_unconfined_the_same_attempts_succeed(tmp_path: Path) -> None:
    """Or the tests above would prove nothing."""
    harmless = {name: code for name, code in ATTEMPTS.items() if name not in ("another program", "another process")}
    assert attempt(tmp_path, harmless, confined=False) == dict.fromkeys(harmless, "done")
    for name, code in LANDLOCKED.items():
        assert attempt(tmp_path, {name: code}, confined=False) == {name: "done"}
        for made in tmp_path.iterdir():
            made.rmdir() if made.is_dir() else made.unlink()


def test_the_kernel_ends_a_decoder_that_takes_too_long_when_nobody_else_does() -> None:
    code = "from monitor.decode_worker import renew_cpu_limit; renew_cpu_limit(5); renew_cpu_limit(1)\nwhile True: pass"
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=50)
    assert done.returncode == -signal.SIGXCPU
