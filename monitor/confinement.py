"""What a decoder process may no longer do once it has begun: open sockets, start programs or processes, write files,
reach into other processes.

Each measure holds where the kernel has it and is left out where it has not; none needs rights, and none can be taken
back. Standard library only, and quick: a decoder's start is waited for.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterator

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
CAPABILITIES_VERSION = 0x20080522
READING = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
SECCOMP_MODE_FILTER = 2
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_RESTRICT_SELF = 446
LANDLOCK_VERSION = 1

LOAD, IF_EQUAL, IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
"""Instructions of the kernel's packet filters: load a word, compare and jump, answer."""
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
"""Where in its data a filter finds them."""
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
OTHER_ABI = 0x40000000
"""x86-64 offers its calls a second time from this number on."""

REFUSED_X86_64 = {
    **{"socket": 41, "socketpair": 53, "io_uring_setup": 425},
    **{"clone": 56, "fork": 57, "vfork": 58, "clone3": 435, "execve": 59, "execveat": 322},
    **{"kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297},
    **{"pidfd_open": 434, "pidfd_send_signal": 424, "pidfd_getfd": 438},
    **{"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311},
    **{"unshare": 272, "setns": 308, "mount": 165, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323},
    **{"add_key": 248, "request_key": 249, "keyctl": 250},
    **{"chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "chown": 92, "fchown": 93, "lchown": 94},
    **{"fchownat": 260, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "utimensat": 280, "utimes": 235},
}
REFUSED_AARCH64 = {
    **{"socket": 198, "socketpair": 199, "io_uring_setup": 425},
    **{"clone": 220, "clone3": 435, "execve": 221, "execveat": 281},
    **{"kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240},
    **{"pidfd_open": 434, "pidfd_send_signal": 424, "pidfd_getfd": 438},
    **{"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271},
    **{"unshare": 97, "setns": 268, "mount": 40, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282},
    **{"add_key": 217, "request_key": 218, "keyctl": 219},
    **{"fchmod": 52, "fchmodat": 53, "fchmodat2": 452, "fchown": 55, "fchownat": 54},
    **{"setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "utimensat": 88},
}
MACHINES = {
    "x86_64": (0xC000003E, REFUSED_X86_64, 302),
    "aarch64": (0xC00000B7, REFUSED_AARCH64, 261),
}
"""Machine -> its mark, the calls that are refused, and the number of prlimit64, which is for oneself only."""

CHANGING_FILES = 0x1FF3
"""Landlock's rights in its first version but for reading files and folders: programs, writing, making, removing."""
TRUNCATING, TCP, SCOPES = 1 << 14, 0b11, 0b11
"""Rights of later versions: truncating; binding and connecting; signals and abstract sockets outside."""


class Program(ctypes.Structure):
    """A filter as the kernel takes it."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def confine_self() -> None:
    """Give up what decoding never needs. Call it after the last fork."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    drop_capabilities(libc)
    restrict_files(libc)
    filter_calls(libc)


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """Keep of root's rights only those to read others' files: it could read its parent's environment with more."""
    head = struct.pack("=Ii", CAPABILITIES_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    if libc.capget(head, held) == 0:
        effective, permitted, _, *_ = struct.unpack("=6I", held.raw)
        libc.capset(head, struct.pack("=6I", effective & READING, permitted & READING, 0, 0, 0, 0))


def restrict_files(libc: ctypes.CDLL) -> None:
    """Change no file and start no program any more, and see nothing of processes outside (Linux 5.13, Landlock)."""
    version = libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_VERSION)
    if version < 1:
        return
    files = CHANGING_FILES | (TRUNCATING if version >= 3 else 0)
    rights = struct.pack("=QQQ", files, TCP, SCOPES)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = libc.syscall(LANDLOCK_CREATE_RULESET, rights, ctypes.c_size_t(len(rights)), 0)
    if rules >= 0:
        libc.syscall(LANDLOCK_RESTRICT_SELF, rules, 0)
        os.close(rules)


def filter_calls(libc: ctypes.CDLL) -> None:
    """Have the kernel refuse calls that decoding never makes (seccomp; x86-64 and 64-bit ARM)."""
    machine = os.uname().machine
    if machine in MACHINES and sys.maxsize > 2**32:
        code = b"".join(instructions(*MACHINES[machine]))
        program = Program(len(code) // 8, code)
        libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)


def instructions(mark: int, refused: dict[str, int], prlimit: int) -> Iterator[bytes]:
    """Write the filter. Jumps count instructions that are passed over."""
    numbers = sorted(refused.values())
    yield instruction(LOAD, ARCHITECTURE)
    yield instruction(IF_EQUAL, mark, 1, 0)
    yield instruction(RETURN, KILL)
    yield instruction(LOAD, NUMBER)
    yield instruction(IF_AT_LEAST, OTHER_ABI, len(numbers) + 4, 0)
    for place, number in enumerate(numbers):
        yield instruction(IF_EQUAL, number, len(numbers) - place + 3, 0)
    yield instruction(IF_EQUAL, prlimit, 0, 2)
    yield instruction(LOAD, FIRST_ARGUMENT)
    yield instruction(IF_EQUAL, 0, 0, 1)
    yield instruction(RETURN, ALLOW)
    yield instruction(RETURN, REFUSE)


def instruction(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    """Write one instruction."""
    return struct.pack("=HBBI", code, if_so, if_not, value)
