"""What a stopped profiler becomes: the dictionary that Python itself writes, and files for sessions of any kind."""

from __future__ import annotations

import cProfile
import json
import marshal

import pyinstrument

from monitor.capture.profilers import cprofile_files, pstats_dictionary, pyinstrument_files


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


def test_the_dictionary_is_the_one_that_python_writes() -> None:
    def there_and_back() -> None:
        assert json.loads(json.dumps({"a": [1, 2.5, "x"] * 20}))["a"]

    profile = profiled(lambda: recurse(4), there_and_back)
    ours = pstats_dictionary(profile)
    profile.create_stats()
    assert ours == profile.stats


def test_calls_and_callers_stand_in_their_order() -> None:
    stats = marshal.loads(cprofile_files(profiled(lambda: recurse(3)))["python_stats"])
    (label,) = (label for label in stats if label[2] == "recurse")
    primitive, total, _, _, callers = stats[label]
    assert (primitive, total) == (1, 4)
    assert callers[label][:2] == (3, 1)  # all calls first, then the primitive ones


def test_functions_that_share_a_label_are_summed() -> None:
    one, two = (lambda: recurse(1)), (lambda: recurse(2))  # fmt: skip
    stats = pstats_dictionary(profiled(one, two, two))
    (numbers,) = (numbers for label, numbers in stats.items() if label[2] == "<lambda>")
    assert numbers[:2] == (3, 3)
    (numbers,) = (numbers for label, numbers in stats.items() if label[2] == "recurse")
    assert sum(edge[0] for caller, edge in numbers[4].items() if caller[2] == "<lambda>") == 3


def test_a_session_without_samples_is_written_as_empty() -> None:
    profiler = pyinstrument.Profiler(interval=60.0, async_mode="disabled")
    profiler.start()
    files = pyinstrument_files(profiler.stop())
    assert json.loads(files["python_stats.json"])["root_frame"] is None
    assert files["python_stats.html"].startswith(b"<!DOCTYPE html>")


def test_a_session_that_cannot_be_rendered_is_written_as_the_original_does() -> None:
    profiler = pyinstrument.Profiler(async_mode="disabled")
    profiler.start()
    session = profiler.stop()
    session.frame_records = [([""], 1.0)]
    session.start_time = "not a number"  # type: ignore[assignment]
    files = pyinstrument_files(session)
    assert files == {
        "python_stats.json": b'{"root_frame": null}',
        "python_stats.html": b"An error occurred during profiling!",
    }
