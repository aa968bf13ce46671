"""The decoder process: reads batches of files from its standard input and answers with columns, until the input ends.

It parses bytes that others wrote, so it holds no secrets, may use little, and what it says is checked by its parent. It
opens only the profiles it is told, no socket and no other process. It imports little, because others wait for it to be
there: no numpy, and msgspec only for a session of pyinstrument.
"""

from __future__ import annotations

import ctypes
import gc
import marshal
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from monitor.errors import ReadError
from monitor.profiles.batch import decode_batch
from monitor.profiles.raw import LENGTH, batch_parts, json_part, lengths_of
from monitor.reading import LocalFile, read_file

PLACE = struct.Struct("<q")
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
NICER = 5
BATCHES_BETWEEN_COLLECTIONS = 50


class Request(NamedTuple):
    """Files to decode: each as (profiler, its bytes or none, path, root); a file without bytes is read from its path.

    It crosses the process boundary marshalled: a decoder believes who started it, and never the other way round.
    """

    max_bytes: int
    careful: bool
    files: list[tuple[str, bytes | None, bytes, bytes]]


def limit_self(memory_bytes: int) -> None:
    """Bound what this process may use, and end it with its parent."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    os.nice(NICER)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def read_frame(stream: BinaryIO) -> bytes | None:
    """Read one length-prefixed frame, or None at the end of the input."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def serve(requests: BinaryIO, answers: BinaryIO, place_file: int) -> None:
    """Answer requests one after the other."""

    def begin(place: int) -> None:
        os.pwrite(place_file, PLACE.pack(place), 0)

    gc.disable()  # a batch makes very many tuples and no cycles
    gc.freeze()
    since_collection = 0
    while (frame := read_frame(requests)) is not None:
        parts = answer_to(Request(*marshal.loads(frame)), begin)
        lengths = lengths_of(parts)
        answers.write(LENGTH.pack(len(lengths) + sum(map(len, parts))))
        answers.writelines([lengths, *parts])
        answers.flush()
        del frame, parts
        since_collection += 1
        if since_collection == BATCHES_BETWEEN_COLLECTIONS:
            since_collection = 0
            gc.collect()


def answer_to(request: Request, begin: Callable[[int], None]) -> list[bytes]:
    """Read and decode the files of one request; the first part tells the version and size in bytes of each, the others
    are the batch."""
    versions: list[tuple[int, ...]] = [()] * len(request.files)
    sizes = [0] * len(request.files)

    def getter(place: int) -> Callable[[], bytes]:
        _, given, path, root = request.files[place]

        def get() -> bytes:
            data = given
            if data is None:
                try:
                    data, versions[place] = read_file(
                        LocalFile(os.fsdecode(path), os.fsdecode(root)), request.max_bytes
                    )
                except ReadError as error:
                    versions[place] = error.version
                    raise
            sizes[place] = len(data)
            return data

        return get

    files = [(file[0], getter(place)) for place, file in enumerate(request.files)]
    batch = decode_batch(files, begin, careful=request.careful)
    return [json_part({"versions": versions, "sizes": sizes}), *batch_parts(batch)]


def main(arguments: list[str]) -> None:
    """Run with MEMORY_BYTES and the number of the descriptor that tells the place."""
    memory_bytes, place_file = (int(argument) for argument in arguments)
    limit_self(memory_bytes)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the whole group; the parent decides
    serve(sys.stdin.buffer, sys.stdout.buffer, place_file)


if __name__ == "__main__":
    main(sys.argv[1:])
