"""Whole programs that capture themselves: how they import, end, fork, are killed, and what readers see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture.capture_on_disk import NODE, ROOT, TRAIN, Open, calls, run_script, shape, spans, work


def test_a_full_disk_costs_only_the_spans_and_leaves_no_halves(tmp_path: Path) -> None:
    script = """
import resource, sys
from monitor.capture import Capture, PythonProfileModes
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
capture = Capture(sys.argv[1], node="0-test")
capture.start()
for step in range(5):
    with capture.step(PythonProfileModes.TRAIN, step):
        pass
capture.close()
capture.finish()
print(capture.statistics().written, capture.statistics().failed)
"""
    result = run_script(script, tmp_path)
    assert (result.returncode, result.stdout) == (0, "0 12\n")
    assert result.stderr.count("File too large") == 1
    assert list((tmp_path / NODE).iterdir()) == []


@pytest.mark.parametrize("ending", ["", "raise ValueError('theirs')", "raise SystemExit(3)"])
def test_the_end_of_the_program_writes_the_last_spans(tmp_path: Path, ending: str) -> None:
    script = f"""
import sys
from monitor.capture import Capture, PythonProfileModes
capture = Capture(sys.argv[1], node="0-test")
capture.start()
capture.step_start(PythonProfileModes.TRAIN, 0)
{ending}
"""
    result = run_script(script, tmp_path)
    assert result.returncode == {"": 0, "raise SystemExit(3)": 3}.get(ending, 1)
    assert ("ValueError: theirs" in result.stderr) == ("theirs" in ending)
    assert [shape(span) for span in spans(tmp_path / NODE)] == [
        "prestepzero-*-start_train-0-stepstart",
        "train-0-stepstart_posthookclose-*-end",
    ]


def test_the_span_after_closing_ends_with_the_program(tmp_path: Path) -> None:
    script = """
import sys
from monitor.capture import Capture
capture = Capture(sys.argv[1], node="0-test")
capture.start()
capture.close()
def last(): pass
last()
"""
    assert run_script(script, tmp_path).returncode == 0
    folder = tmp_path / NODE
    last = spans(folder)[-1]
    assert shape(last) == "prestepzero-*-end_posthookclose-*-end"
    assert calls(folder, last, "last") == 1


def test_a_forked_child_is_left_alone_and_ends(tmp_path: Path) -> None:
    script = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from monitor.capture import Capture, PythonProfileModes
capture = Capture(sys.argv[1], node="0-test")
capture.start()
capture.step_start(PythonProfileModes.TRAIN, 0)
child = os.fork()
if child == 0:
    assert sys.getprofile() is None
    capture.step_end()
    sys.exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
capture.step_end()
sys.exit(code)
"""
    assert run_script(script, tmp_path).returncode == 7
    assert [shape(span) for span in spans(tmp_path / NODE)] == [
        "prestepzero-*-start_train-0-stepstart",
        "train-0-stepstart_train-0-stepend",
        "train-0-stepend_posthookclose-*-end",
    ]


def test_a_killed_program_leaves_only_whole_spans(tmp_path: Path) -> None:
    script = """
import itertools, sys
from monitor.capture import Capture, PythonProfileModes
capture = Capture(sys.argv[1], node="0-test")
for step in itertools.count():
    with capture.step(PythonProfileModes.TRAIN, step):
        pass
    if capture.statistics().written > 20:
        print("written", flush=True)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)
    folder = tmp_path / NODE
    found = spans(folder)
    assert len(found) > 20
    assert all(calls(folder, span, "stop") == 1 for span in found)


def test_a_reader_never_sees_half_a_span(open_capture: Open) -> None:
    capture = open_capture()
    script = """
import marshal, os, pathlib, sys
folder, seen = pathlib.Path(sys.argv[1]), set()
print("watching", flush=True)
while True:
    names = {name for name in os.listdir(folder) if not name.startswith(".")} - seen if folder.exists() else set()
    for name in names:
        marshal.loads((folder / name / "python_stats").read_bytes())
    seen |= names
    if any(name.startswith("prestepzero-*-end") for name in names):
        break
print(len(seen), flush=True)
"""
    command = [sys.executable, "-c", script, str(capture.node_folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "watching\n"
        for step in range(100):
            with capture.step(TRAIN, step):
                work(20)
        capture.close()
        capture.finish()
        assert watcher.wait(20) == 0
        assert int(watcher.stdout.readline()) >= 1
    assert capture.statistics().written == len(spans(capture.node_folder)) == 201


def test_importing_capture_loads_the_standard_library_only() -> None:
    script = """
import sys
before = set(sys.modules)
import monitor.capture
loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
ours = {name for name in sys.modules if name.startswith("monitor.") and not name.startswith("monitor.capture")}
print(sorted(loaded), sorted(ours))
"""
    result = run_script(script, flags=("-S",))
    assert result.stderr == ""
    assert result.stdout.strip() == "['monitor'] ['monitor.errors', 'monitor.layout', 'monitor.spans']"


@pytest.mark.parametrize("profiler", ["cprofile", "pyinstrument"])
def test_pyinstrument_is_loaded_only_when_chosen(tmp_path: Path, profiler: str) -> None:
    script = """
import sys
from monitor.capture import Capture
Capture(sys.argv[1], profiler=sys.argv[2])
print("pyinstrument" in sys.modules)
"""
    assert run_script(script, tmp_path, profiler).stdout == f"{profiler == 'pyinstrument'}\n"


def test_a_missing_pyinstrument_is_named(tmp_path: Path) -> None:
    script = "import sys\nfrom monitor.capture import Capture\nCapture(sys.argv[1], profiler='pyinstrument')"
    result = run_script(script, tmp_path, flags=("-S",))
    assert "profiler pyinstrument cannot be imported" in result.stderr
    assert "pip install pyinstrument" in result.stderr
