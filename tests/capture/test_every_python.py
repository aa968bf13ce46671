"""Conflicts with other profilers, and the slot that threads share from 3.12 on, on every CPython that is found here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.capture.capture_on_disk import ROOT
from tests.capture.pythons import found_pythons

HEAD = """
import cProfile, json, marshal, pathlib, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from monitor.capture import Capture, PythonProfileModes
TRAIN = PythonProfileModes.TRAIN
SHARED = sys.version_info >= (3, 12)
def unit(): pass
def work(times):
    for _ in range(times): unit()
def counts(capture):
    found = {}
    for folder in capture.node_folder.iterdir():
        if not folder.name.startswith("."):
            stats = marshal.loads((folder / "python_stats").read_bytes())
            start = "-".join(folder.name.split("_")[0].split("-")[:3])
            found[start] = sum(value[1] for (_, _, name), value in stats.items() if name == "unit")
    return found
def theirs_counted(profile):
    profile.create_stats()
    return sum(value[1] for (_, _, name), value in profile.stats.items() if name == "unit")
def end(capture, profile=None, **more):
    capture.finish()
    if profile is not None:
        more["theirs"] = theirs_counted(profile)  # its create_stats() switches off whatever is on, up to 3.11
    statistics = capture.statistics()
    print(json.dumps({"counts": counts(capture), "shared": SHARED, "refused": statistics.refused,
        "interrupted": statistics.interrupted, "written": statistics.written, **more}))
capture = Capture(sys.argv[1], node="0-test")
"""


@pytest.fixture(params=list(found_pythons()), ids=lambda version: f"cpython-{version}")
def python(request: pytest.FixtureRequest) -> str:
    """An interpreter; the standard library is all it needs."""
    return found_pythons()[request.param]


def run(python: str, base: Path, script: str, ending: int = 0) -> dict[str, object]:
    done = subprocess.run(
        [python, "-c", HEAD + script, str(base)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == ending, done.stderr
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return answer


def test_each_span_holds_its_own_calls(python: str, tmp_path: Path) -> None:
    script = """
capture.start()
work(3)
for step in range(3):
    with capture.step(TRAIN, step):
        work(10 + step)
        capture.forward_end()
        work(20 + step)
capture.close()
end(capture)
"""
    answer = run(python, tmp_path, script)
    assert answer["counts"] == {
        "prestepzero-*-start": 3,
        **{f"train-{step}-stepstart": 10 + step for step in range(3)},
        **{f"train-{step}-forwardpassend": 20 + step for step in range(3)},
        **{f"train-{step}-stepend": 0 for step in range(3)},
        "prestepzero-*-end": 0,
    }


def test_a_profiler_that_is_already_on_goes_on_alone(python: str, tmp_path: Path) -> None:
    script = """
theirs = cProfile.Profile()
theirs.enable()
with capture.step(TRAIN, 0):
    work(5)
theirs.disable()
with capture.step(TRAIN, 1):
    work(7)
end(capture, profile=theirs)
"""
    answer = run(python, tmp_path, script)
    assert answer["theirs"] == 5
    assert answer["refused"] == 2
    assert answer["counts"] == {"train-1-stepstart": 7, "train-1-stepend": 0}


def test_a_profiler_started_inside_a_span_costs_a_span_or_is_refused_by_python(python: str, tmp_path: Path) -> None:
    script = """
theirs, refused = cProfile.Profile(), False
with capture.step(TRAIN, 0):
    work(2)
    try:
        theirs.enable()
    except ValueError:
        refused = True
    work(3)
if not refused:
    theirs.disable()
with capture.step(TRAIN, 1):
    work(4)
end(capture, profile=theirs, python_refused=refused)
"""
    answer = run(python, tmp_path, script)
    assert answer["python_refused"] == answer["shared"]
    assert answer["theirs"] == (0 if answer["shared"] else 3)
    assert answer["interrupted"] == (0 if answer["shared"] else 1)
    counts = answer["counts"]
    assert isinstance(counts, dict)
    assert counts["train-1-stepstart"] == 4
    assert counts.get("train-0-stepstart") == (5 if answer["shared"] else None)


def test_after_an_exception_another_profiler_may_start(python: str, tmp_path: Path) -> None:
    script = """
try:
    with capture.step(TRAIN, 0):
        raise KeyError("theirs")
except KeyError:
    pass
theirs = cProfile.Profile()
theirs.runcall(work, 6)
end(capture, profile=theirs)
"""
    answer = run(python, tmp_path, script)
    assert answer["theirs"] == 6
    assert answer["refused"] == answer["interrupted"] == 0


def test_what_other_threads_do_is_seen_from_3_12_on_only(python: str, tmp_path: Path) -> None:
    script = """
with capture.step(TRAIN, 0):
    thread = threading.Thread(target=work, args=(50,))
    thread.start()
    thread.join()
end(capture)
"""
    answer = run(python, tmp_path, script)
    counts = answer["counts"]
    assert isinstance(counts, dict)
    assert counts["train-0-stepstart"] == (50 if answer["shared"] else 0)


def test_a_capture_of_another_thread_sees_that_thread_or_is_refused(python: str, tmp_path: Path) -> None:
    script = """
answers = {}
def loader():
    mine = capture.sibling("loader")
    with mine.step(TRAIN, 0):
        work(8)
    mine.finish()
    answers.update(loader=counts(mine) if mine.node_folder.exists() else {}, loader_refused=mine.statistics().refused)
with capture.step(TRAIN, 0):
    thread = threading.Thread(target=loader)
    thread.start()
    thread.join()
    work(2)
end(capture, **answers)
"""
    answer = run(python, tmp_path, script)
    counts = answer["counts"]
    assert isinstance(counts, dict)
    if answer["shared"]:
        assert answer["loader_refused"] == 2
        assert answer["loader"] == {}
        assert counts["train-0-stepstart"] == 10
    else:
        assert answer["loader_refused"] == 0
        assert answer["loader"] == {"train-0-stepstart": 8, "train-0-stepend": 0}
        assert counts["train-0-stepstart"] == 2


def test_a_forked_child_may_capture_for_itself(python: str, tmp_path: Path) -> None:
    script = """
import os
capture.step_start(TRAIN, 0)
work(1)
child = os.fork()
if child == 0:
    mine = capture.sibling("child")
    with mine.step(TRAIN, 0):
        work(9)
    mine.finish()
    os._exit(0 if counts(mine)["train-0-stepstart"] == 9 else 1)
assert os.waitpid(child, 0)[1] == 0
work(2)
capture.step_end()
end(capture)
"""
    answer = run(python, tmp_path, script)
    counts = answer["counts"]
    assert isinstance(counts, dict)
    assert counts["train-0-stepstart"] == 3


def test_os_exit_keeps_what_was_written(python: str, tmp_path: Path) -> None:
    script = """
import os, time
for step in range(5):
    with capture.step(TRAIN, step):
        work(step)
deadline = time.monotonic() + 20
while capture.statistics().waiting and time.monotonic() < deadline:
    os.sched_yield()
print(json.dumps(counts(capture)), flush=True)
os._exit(3)
"""
    answer = run(python, tmp_path, script, ending=3)
    assert {name: answer[name] for name in answer if name.endswith("stepstart")} == {
        f"train-{step}-stepstart": step for step in range(5)
    }
