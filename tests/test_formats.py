"""Real files of every supported version, and every beginning of them."""

from __future__ import annotations

import json
import marshal
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.profiles.batch import decode_batch
from monitor.profiles.columns import NO_CALLER, DecodedBatch
from monitor.profiles.finish import arrays, finish, in_range, read_parts
from monitor.profiles.raw import COLUMN_CODES, RawBatch, batch_parts, json_part, lengths_of, parts_of

FORMATS = Path(__file__).parent / "data" / "formats"
PSTATS = sorted(path.name for path in FORMATS.glob("cpython-*"))
SESSIONS = sorted(path.name for path in FORMATS.glob("pyinstrument-*"))
Key = tuple[str, int, str]


def decode_raw(*files: tuple[str, bytes], careful: bool = False) -> RawBatch:
    given = [(profiler, lambda data=data: data) for profiler, data in files]
    return decode_batch(given, careful=careful)


def decode(*files: tuple[str, bytes]) -> DecodedBatch:
    """Decode as the pool of decoders does: carefully where a value turns out to be out of range."""
    batch = arrays(decode_raw(*files))
    return finish(batch if in_range(batch) else arrays(decode_raw(*files, careful=True)))


def rows(batch: DecodedBatch, file: int = 0) -> dict[tuple[Key, Key | None], tuple[int, int, float, float]]:
    """Lay one file's entries out by function and caller: total calls, primitive calls, self, cumulative seconds."""
    found = {}
    for row in np.flatnonzero(batch.row_file == file).tolist():
        entry = batch.row_entry[row]
        caller = int(batch.entry_caller[entry])
        key = (batch.functions[batch.entry_function[entry]], None if caller == NO_CALLER else batch.functions[caller])
        found[key] = (
            int(batch.calls[row]),
            int(batch.primitive_calls[row]),
            float(batch.self_seconds[row]),
            float(batch.cumulative_seconds[row]),
        )
    return found


def marshalled(stats: dict[Any, Any]) -> bytes:
    return marshal.dumps(stats)


@pytest.mark.parametrize("name", PSTATS)
def test_pstats_files_of_every_version_give_the_expected_counts(name: str) -> None:
    expected = json.loads((FORMATS / "expected.json").read_text())[f"{name}/python_stats"]
    batch = decode(("cprofile", (FORMATS / name / "python_stats").read_bytes()))
    assert batch.failures == {}
    found = rows(batch)
    own = {key: values for (key, caller), values in found.items() if caller is None}
    assert len(own) == expected["functions"]
    assert sum(values[0] for values in own.values()) == expected["total_calls"]
    assert sum(values[1] for values in own.values()) == expected["primitive_calls"]
    recursive = next(key for key in own if key[2] == "rec")
    assert own[recursive][:2] == (expected["rec"]["total_calls"], expected["rec"]["primitive_calls"])
    callers = {caller[2]: list(values[:2]) for (key, caller), values in found.items() if key == recursive and caller}
    assert callers == expected["rec"]["callers"]


@pytest.mark.parametrize("name", SESSIONS)
def test_sessions_of_every_version_add_up(name: str) -> None:
    data = (FORMATS / name / "python_stats.json").read_bytes()
    root = json.loads(data)["root_frame"]
    batch = decode(("pyinstrument", data))
    assert batch.failures == {}
    if root is None:
        assert batch.empty == [0]
        assert len(batch.row_file) == 0
        return
    own = {key: values for (key, caller), values in rows(batch).items() if caller is None}
    assert sum(values[2] for values in own.values()) == pytest.approx(root["time"], rel=1e-3)
    assert batch.sample_self_seconds.sum() == pytest.approx(sum(values[2] for values in own.values()))
    assert max(values[3] for values in own.values()) == pytest.approx(root["time"])


def test_no_beginning_of_a_pstats_file_is_taken_for_a_whole_one() -> None:
    data = (FORMATS / "cpython-3.11" / "python_stats").read_bytes()
    beginnings = [("cprofile", data[:end]) for end in range(len(data))]
    batch = decode(*beginnings)
    assert batch.failures.keys() == set(range(len(data)))
    assert {failure.kind for failure in batch.failures.values()} == {"incomplete"}
    assert batch.functions == []


def test_no_beginning_of_a_session_is_taken_for_a_whole_one() -> None:
    data = (FORMATS / "pyinstrument-5.1.3" / "python_stats.json").read_bytes().rstrip()
    batch = decode(*[("pyinstrument", data[:end]) for end in range(len(data))])
    assert batch.failures.keys() == set(range(len(data)))
    assert {failure.kind for failure in batch.failures.values()} <= {"incomplete", "corrupt"}


def test_addresses_are_dropped_and_entries_that_coincide_are_summed() -> None:
    one, two = (
        ("~", 0, "<built-in method __new__ of type object at 0x7f01>"),
        ("~", 0, "<built-in method __new__ of type object at 0xAB>"),
    )
    caller = ("a.py", 1, "f")
    stats = {
        one: (1, 2, 0.5, 1.0, {caller: (2, 1, 0.5, 1.0)}),
        two: (3, 4, 0.25, 0.5, {caller: (4, 3, 0.25, 0.5)}),
        caller: (1, 1, 0.0, 1.5, {}),
    }
    name = ("~", 0, "<built-in method __new__ of type object>")
    found = rows(decode(("cprofile", marshalled(stats))))
    assert found[name, None] == (6, 4, 0.75, 1.5)
    assert found[name, caller] == (6, 4, 0.75, 1.5)


def test_odd_but_legal_files_are_understood() -> None:
    key, caller = ("a.py", 1, "f"), ("b.py", 2, "g")
    counted = {key: (1, 2, -0.5, 0.0, {caller: 7}), ("__sampled__",): True}
    uncounted = {key: (-1, -1, 0.5, 1, {caller: (-1, -1, 0.5, 1)})}
    batch = decode(("cprofile", marshalled(counted)), ("cprofile", marshalled(uncounted)), ("cprofile", marshalled({})))
    assert batch.failures == {}
    assert rows(batch, 0) == {(key, None): (2, 1, -0.5, 0.0), (key, caller): (7, 7, 0.0, 0.0)}
    assert rows(batch, 1) == {(key, None): (0, 0, 0.5, 1.0), (key, caller): (0, 0, 0.5, 1.0)}
    assert rows(batch, 2) == {}


KEY = ("a.py", 1, "f")
WRONG = {
    "a tuple of four": ({KEY: (1, 1, 0.0, 0.0)}, "in place of"),
    "callers in a list": ({KEY: (1, 1, 0.0, 0.0, [])}, "not a dictionary"),
    "a float for a count": ({KEY: (1, 1.0, 0.0, 0.0, {})}, "call count"),
    "a negative count": ({KEY: (1, -2, 0.0, 0.0, {})}, "call count"),
    "a huge count": ({KEY: (1, 2**70, 0.0, 0.0, {})}, "call count"),
    "not a number": ({KEY: (1, 1, float("nan"), 0.0, {})}, "the time"),
    "infinity": ({KEY: (1, 1, 0.0, float("inf"), {})}, "the time"),
    "a huge time": ({KEY: (1, 1, 1e300, 0.0, {})}, "the time"),
    "text for a time": ({KEY: (1, 1, "0.1", 0.0, {})}, "the time"),
    "a bare key": ({"f": (1, 1, 0.0, 0.0, {})}, "not (file, line, name)"),
    "bytes for a name": ({("a.py", 1, b"f"): (1, 1, 0.0, 0.0, {})}, "not (file, line, name)"),
    "a bare caller": ({KEY: (1, 1, 0.0, 0.0, {"g": (1, 1, 0.0, 0.0)})}, "a caller of"),
    "a caller's tuple of three": ({KEY: (1, 1, 0.0, 0.0, {KEY: (1, 1, 0.0)})}, "not four numbers"),
    "a caller's time": ({KEY: (1, 1, 0.0, 0.0, {KEY: (1, 1, 0.0, float("nan"))})}, "the time"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_costs_its_file_and_no_other(case: str) -> None:
    stats, reason = WRONG[case]
    good = (FORMATS / "cpython-3.11" / "python_stats").read_bytes()
    hostile = dict(stats) | {("hostile.py", 1, "name"): (1, 1, 0.0, 0.0, {})}  # type: ignore[call-overload]
    batch = decode(("cprofile", good), ("cprofile", marshalled(hostile)), ("cprofile", good))
    assert batch.failures.keys() == {1}
    assert batch.failures[1].kind == "corrupt"
    assert reason in batch.failures[1].reason
    assert rows(batch, 0) == rows(batch, 2) == rows(decode(("cprofile", good)))
    assert not any(name[0] == "hostile.py" for name in batch.functions)


def test_a_batch_crosses_the_process_boundary_unchanged() -> None:
    good = (FORMATS / "cpython-3.11" / "python_stats").read_bytes()
    session = (FORMATS / "pyinstrument-5.1.3" / "python_stats.json").read_bytes()
    files = (("cprofile", good), ("cprofile", good[:50]), ("pyinstrument", session))
    batch, parts = decode(*files), batch_parts(decode_raw(*files))
    message = lengths_of(parts) + b"".join(parts)
    back = finish(read_parts(parts_of(message), 3))
    assert (back.functions, back.failures, back.empty) == (batch.functions, batch.failures, batch.empty)
    assert rows(back, 0) == rows(batch, 0)
    assert rows(back, 2) == rows(batch, 2)
    damaged = bytearray(message)
    for place in range(0, len(damaged), 97):
        damaged[place] ^= 0xFF
    with pytest.raises(ValueError):  # noqa: PT011 - whichever check finds it first
        read_parts(parts_of(damaged), 3)
    with pytest.raises(ValueError, match="different length"):
        read_parts(parts_of(message), 4)
    for shorter in (0, 7, 50, len(message) - 1):
        with pytest.raises(ValueError, match="message"):
            parts_of(message[:shorter])


WRONG_COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "a function that is not there": ({"function": [0, 9]}, "points at nothing"),
    "a caller that is not there": ({"caller": [-1, -2]}, "points at nothing"),
    "a path of no function": ({"path_function": [-1, 0]}, "points at nothing"),
    "a sample of no path": ({"sample_path": [2]}, "points at nothing"),
    "a path that is its own parent": ({"path_parent": [-1, 1]}, "paths out of order"),
    "rows that end before they begin": ({"row_ends": [2, 1]}, "rows out of order"),
    "rows of no file": ({"row_ends": [0, 1]}, "rows out of order"),
    "samples of no file": ({"sample_ends": [0, 0]}, "rows out of order"),
    "a count too few": ({"calls": [1]}, "different length"),
    "a time too many": ({"sample_self_seconds": [0.5, 0.5]}, "different length"),
    "a file too many": ({"sample_ends": [0, 1, 1]}, "different length"),
    "half a number": ({"calls": b"abc"}, "buffer size"),
}


@pytest.mark.parametrize("case", WRONG_COLUMNS)
def test_nothing_that_a_decoder_says_is_believed(case: str) -> None:
    right = {
        "calls": [1, 1],
        "primitive_calls": [1, 1],
        "self_seconds": [0.5, 0.5],
        "cumulative_seconds": [0.5, 0.5],
        "row_ends": [1, 2],
        "sample_self_seconds": [0.5],
        "sample_ends": [0, 1],
        "function": [0, 1],
        "caller": [-1, 0],
        "path_parent": [-1, 0],
        "path_function": [0, 1],
        "sample_path": [1],
    }
    change, reason = WRONG_COLUMNS[case]
    names = [("a.py", 1, "f"), ("a.py", 2, "g")]
    head: dict[str, object] = {"functions": names, "failures": {}, "empty": [], "shared_names": False}

    def parts(values: dict[str, Any], **other: object) -> list[bytes]:
        columns = [
            value if isinstance(value, bytes) else array(COLUMN_CODES[name], value).tobytes()
            for name, value in values.items()
        ]
        return [json_part(head | other), *columns]

    assert finish(read_parts(parts(right), 2)).files == 2
    with pytest.raises(ValueError, match=reason):
        read_parts(parts(right | change), 2)
    for other in ({"failures": {"2": ["gone", "corrupt"]}}, {"empty": [-1]}, {"functions": [["a.py", 2**31, "f"]] * 2}):
        with pytest.raises(ValueError, match=r"points at nothing|Expected"):
            read_parts(parts(right, **other), 2)


def test_a_decoder_starts_without_what_takes_long_to_load() -> None:
    code = "import sys, monitor.decode_worker; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True)
    assert {"numpy", "msgspec", "dataclasses", "inspect"} & set(run.stdout.split()) == set()


def test_functions_that_share_their_callers_are_refused() -> None:
    shared = {("c.py", line, "caller"): (1, 1, 0.0, 0.0) for line in range(300)}
    bomb = marshalled({("a.py", line, "f"): (1, 1, 0.0, 0.0, shared) for line in range(300)})
    assert len(bomb) < 60_000
    batch = decode(("cprofile", bomb))
    assert "which no profiler writes" in batch.failures[0].reason
    assert batch.functions == []


def test_counts_that_add_up_beyond_bounds_cost_their_file_alone() -> None:
    good = (FORMATS / "cpython-3.11" / "python_stats").read_bytes()
    names = [("~", 0, f"<x at 0x{place:x}>") for place in range(1100)]
    large = marshalled({name: (1, 2**53, 0.0, 0.0, {}) for name in names})
    batch = decode(("cprofile", good), ("cprofile", large))
    assert batch.failures.keys() == {1}


def test_a_full_batch_leaves_the_rest_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.profiles.batch.MOST_ROWS", 100)
    good = (FORMATS / "cpython-3.11" / "python_stats").read_bytes()
    batch = decode(*[("cprofile", good)] * 3)
    assert {place: failure.kind for place, failure in batch.failures.items()} == {1: "postponed", 2: "postponed"}
