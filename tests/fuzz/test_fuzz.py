"""The stored corpus again, input by input, and a short new search of every target with a fixed seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio
import pytest

from monitor.profiles.batch import decode_batch
from monitor.profiles.raw import RawBatch
from monitor.reading import FileData
from tests.fuzz.pool import fuzz_pool, seeds
from tests.fuzz.running import CORPUS, Outcome, fuzz
from tests.fuzz.targets import DECODERS, TARGETS, check_files
from tests.integration.test_hostile import pool_of_one

SEED = 20_061
SECONDS_A_TARGET = 3
STORED = sorted((path.parent.name, path) for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize(("target", "path"), STORED, ids=[f"{target}-{path.name}" for target, path in STORED])
def test_what_fuzzing_once_tried_still_holds(target: str, path: Path) -> None:
    if target != "marshal":  # those go through a decoder process, below
        TARGETS[target](path.read_bytes())


async def test_bytes_that_marshal_may_not_bear_cost_no_more_than_a_decoder() -> None:
    stored = [path.read_bytes() for target, path in STORED if target == "marshal"]
    async with pool_of_one() as pool:
        batch = (await pool.decode([("cprofile", FileData(data, ())) for data in stored])).batch
    assert len(stored) > 10
    assert batch.files == len(stored)
    assert {failure.kind for failure in batch.failures.values()} <= {"corrupt", "incomplete", "crashed"}


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "marshal"])
def test_a_short_search_finds_nothing(target: str, tmp_path: Path) -> None:
    outcome = fuzz(target, executions=10**6, seconds=SECONDS_A_TARGET, seed=SEED, folder=tmp_path)
    assert (outcome.crashes, outcome.hangs) == (0, 0), outcome.reasons
    assert outcome.executions > 100
    assert outcome.coverage > (60 if target in DECODERS else 30)


def test_damaged_files_never_reach_past_a_decoder() -> None:
    outcome: Outcome = anyio.run(partial(fuzz_pool, seeds(), executions=1_000, seconds=20, seed=SEED))
    assert (outcome.crashes, outcome.hangs) == (0, 0)
    assert outcome.executions > 0


def test_the_checks_see_what_the_daemon_must_not_believe(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    kept = decode_batch

    def careless(files: Sequence[tuple[str, Callable[[], bytes]]], *, careful: bool) -> RawBatch:
        batch = kept(files, careful=careful)
        return batch._replace(functions=[*batch.functions, batch.functions[0]])

    good = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    assert check_files([("cprofile", good)]) == 1
    monkeypatch.setattr("tests.fuzz.targets.decode_batch", careless)
    with pytest.raises(AssertionError, match="a name twice"):
        check_files([("cprofile", good)])


@pytest.mark.parametrize("where", ["own", "child"])
def test_a_time_too_large_for_a_float_is_refused(where: str) -> None:
    child = {"function": "g", "file_path": "a.py", "line_no": 1, "time": 1.0}
    frame = {"function": "f", "file_path": "a.py", "line_no": 1, "time": 1.0, "children": [child]}
    (frame if where == "own" else child)["time"] = 10**400
    data = json.dumps({"root_frame": frame}).encode()
    batch = decode_batch([("pyinstrument", lambda: data)])
    assert "is no number of seconds in range" in batch.failures[0].reason
    assert check_files([("pyinstrument", data)]) == 1


def test_frames_that_add_up_to_too_much_are_refused() -> None:
    half = {"function": "f", "file_path": "a.py", "line_no": 1, "time": 6e8}
    data = json.dumps({"root_frame": half | {"function": "g", "children": [half, half]}}).encode()
    batch = decode_batch([("pyinstrument", lambda: data)])
    assert batch.failures[0].reason == "its frames add up to more seconds than a session can have"
    assert check_files([("pyinstrument", data)]) == 1
