"""What a stopped profiler becomes: the dictionary that Python itself writes, and files for sessions of any kind."""

from __future__ import annotations

import cProfile
import gc
import json
import marshal
from collections.abc import Iterator

import pyinstrument
import pytest

from monitor.capture.snapshots import (
    Statistics,
    columns_of,
    files_of,
    pack_cprofile,
    pack_pyinstrument,
    pstats_dictionary,
)


def recurse(depth: int) -> int:
    return 0 if depth == 0 else 1 + recurse(depth - 1)


def profiled(*functions: object) -> cProfile.Profile:
    profile = cProfile.Profile()
    profile.enable()
    for function in functions:
        assert callable(function)
        function()
    profile.disable()
    return profile


def dictionary(profile: cProfile.Profile) -> Statistics:
    """The way through another process."""
    return pstats_dictionary(marshal.loads(marshal.dumps(columns_of(profile))))


def test_the_dictionary_is_the_one_that_python_writes() -> None:
    def there_and_back() -> None:
        assert json.loads(json.dumps({"a": [1, 2.5, "x"] * 20}))["a"]

    profile = profiled(lambda: recurse(4), there_and_back)
    ours = dictionary(profile)
    profile.create_stats()
    assert ours == profile.stats


def test_a_profile_of_nothing_is_an_empty_dictionary() -> None:
    assert dictionary(cProfile.Profile()) == {}


@pytest.fixture
def garbage_collector() -> Iterator[None]:
    yield
    gc.enable()


class Odd:
    """Not a profile."""

    def getstats(self) -> list[object]:
        assert not gc.isenabled()
        raise MemoryError


@pytest.mark.parametrize("on", [True, False])
def test_the_garbage_collector_is_left_as_it_was(garbage_collector: None, on: bool) -> None:
    profile = profiled(lambda: recurse(3))
    (gc.enable if on else gc.disable)()
    collected: list[object] = []
    gc.callbacks.append(lambda *happened: collected.append(happened))
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        profile.getstats()
        expected = [bool(collected)]
        columns_of(profile)
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*before)
    assert expected == [on]
    assert gc.isenabled() == on
    with pytest.raises(MemoryError):
        columns_of(Odd())  # type: ignore[arg-type]
    assert gc.isenabled() == on


def test_calls_and_callers_stand_in_their_order() -> None:
    stats = marshal.loads(files_of(pack_cprofile(profiled(lambda: recurse(3))))["python_stats"])
    (label,) = (label for label in stats if label[2] == "recurse")
    primitive, total, _, _, callers = stats[label]
    assert (primitive, total) == (1, 4)
    assert callers[label][:2] == (3, 1)  # all calls first, then the primitive ones


def test_functions_that_share_a_label_are_summed() -> None:
    one, two = (lambda: recurse(1)), (lambda: recurse(2))  # fmt: skip
    stats = dictionary(profiled(one, two, two))
    (numbers,) = (numbers for label, numbers in stats.items() if label[2] == "<lambda>")
    assert numbers[:2] == (3, 3)
    (numbers,) = (numbers for label, numbers in stats.items() if label[2] == "recurse")
    assert sum(edge[0] for caller, edge in numbers[4].items() if caller[2] == "<lambda>") == 3


def test_a_session_without_samples_is_written_as_empty() -> None:
    profiler = pyinstrument.Profiler(interval=60.0, async_mode="disabled")
    profiler.start()
    files = files_of(pack_pyinstrument(profiler.stop()))
    assert json.loads(files["python_stats.json"])["root_frame"] is None
    assert files["python_stats.html"].startswith(b"<!DOCTYPE html>")


def test_a_session_that_cannot_be_rendered_is_written_as_the_original_does() -> None:
    profiler = pyinstrument.Profiler(async_mode="disabled")
    profiler.start()
    session = profiler.stop()
    session.frame_records = [([""], 1.0)]
    session.start_time = "not a number"  # type: ignore[assignment]
    files = files_of(pack_pyinstrument(session))
    assert files == {
        "python_stats.json": b'{"root_frame": null}',
        "python_stats.html": b"An error occurred during profiling!",
    }
