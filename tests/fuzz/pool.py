"""Damaged files through real decoder processes, as the daemon decodes them: the parent must get an answer to each.

Not guided by coverage: what the guided targets learned is the stuff that is damaged here, byte by byte.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import atheris

from monitor.decoding import open_decode_pool
from monitor.reading import FileData
from tests.fuzz.hostile import session_bytes, stats_bytes
from tests.fuzz.running import CORPUS, HANG_SECONDS, Outcome

BATCH_FILES = 500
MEMORY_BYTES = 512 * 2**20
LARGEST_SEED_BYTES = 20_000
DATA = Path(__file__).parents[1] / "data" / "formats"


def seeds(*folders: Path) -> list[tuple[str, bytes]]:
    """Collect files to damage: real ones, and those that the inputs of stored and learned corpora stand for."""
    real = [
        ("cprofile" if path.name == "python_stats" else "pyinstrument", path.read_bytes())
        for path in sorted(DATA.glob("*/python_stats*"))
    ]
    made = [
        (profiler, make(atheris.FuzzedDataProvider(path.read_bytes())))
        for folder in (CORPUS, *folders)
        for profiler, make in (("cprofile", stats_bytes), ("pyinstrument", session_bytes))
        for path in sorted(folder.glob(f"{profiler}/*"))
    ]
    return [(profiler, data) for profiler, data in (*real, *made) if len(data) <= LARGEST_SEED_BYTES]


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Damage a file in some places."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(6):
            case 0:
                made[at : at + 1] = chance.randbytes(1)
            case 1 if at < len(made):
                made[at] ^= 1 << chance.randrange(8)
            case 2:
                del made[at:]
            case 3:
                del made[at : at + chance.randint(1, 8)]
            case 4:
                made[at:at] = made[chance.randrange(len(made) + 1) :][: chance.randint(1, 40)]
            case _:
                made[at : at + 4] = chance.choice((b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\1\0"))
    return bytes(made)


async def fuzz_pool(files: Sequence[tuple[str, bytes]], *, executions: int, seconds: float, seed: int) -> Outcome:
    """Decode damaged files until there were so many, or it took so long. Any exception of the parent is a crash."""
    chance, outcome, started = random.Random(seed), Outcome(target="pool"), time.monotonic()
    async with open_decode_pool(
        workers=1, memory_bytes=MEMORY_BYTES, deadline_seconds=HANG_SECONDS, max_file_bytes=2**20
    ) as pool:
        while outcome.executions < executions and time.monotonic() - started < seconds:
            chosen = [chance.choice(files) for _ in range(min(BATCH_FILES, executions - outcome.executions))]
            batch = [(profiler, FileData(damaged(chance, data), ())) for profiler, data in chosen]
            with anyio.move_on_after(HANG_SECONDS * len(batch)) as scope:
                decoded = (await pool.decode(batch)).batch
                if decoded.files != len(batch) or not all(failure.reason for failure in decoded.failures.values()):
                    outcome.crashes += 1
            outcome.hangs += scope.cancelled_caught
            outcome.executions += len(batch)
        statistics = pool.statistics()
    outcome.died, outcome.hangs = statistics.crashes, outcome.hangs + statistics.timeouts
    outcome.inputs, outcome.seconds = outcome.executions, time.monotonic() - started
    return outcome
