"""smdebug's import paths: an unmodified script does as under the real smdebug, and nothing is shadowed in silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import monitor.compat
from monitor.analysis import PythonProfileModes, StepPhase, cProfileAnalysis
from monitor.compat.finder import STANDINS, ShadowedWarning
from monitor.errors import ArgumentError, MonitorError

SCRIPT = Path(__file__).with_name("unmodified.py")
HOME = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def oracle() -> str:
    """The interpreter that holds smdebug."""
    python = os.environ.get("PHASEWATCH_ORACLE_PYTHON", "")
    if not Path(python).is_file():
        pytest.fail("the original library is missing: `bash tests/run` makes it and runs the tests")
    return python


@pytest.fixture
def installed() -> Iterator[None]:
    monitor.compat.install()
    yield
    monitor.compat.uninstall()
    assert not [name for name in sys.modules if name.startswith("smdebug")]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this project's home."""
    where = {**os.environ, "PYTHONPATH": str(HOME), **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=50, env=where)


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return result


def with_compat(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "monitor.compat", *arguments, **environment)


@pytest.mark.parametrize("profiler", ["cprofile", "pyinstrument"])
def test_an_unmodified_script_does_what_it_does_under_the_real_smdebug(
    profiler: str, oracle: str, tmp_path: Path
) -> None:
    theirs = subprocess.run(
        [oracle, str(SCRIPT), str(tmp_path / "theirs"), profiler], capture_output=True, text=True, timeout=50
    )
    ours = with_compat(str(SCRIPT), str(tmp_path / "ours"), profiler)
    assert result_of(ours) == result_of(theirs)
    if profiler == "cprofile":
        for printed in (ours.stdout, theirs.stdout):
            assert "Ordered by: internal time" in printed
            assert "List reduced" in printed


@pytest.mark.parametrize("profiler", ["cprofile", "pyinstrument"])
def test_the_original_reads_what_our_writers_leave(profiler: str, oracle: str, tmp_path: Path) -> None:
    """And ours reads theirs: the same script, the other one's spans."""
    result_of(with_compat(str(SCRIPT), str(tmp_path), profiler))
    reader = Path(__file__).parents[1] / "oracle" / "answer_many.py"
    folder = tmp_path / "framework" / "pytorch" / profiler
    question = {"folder": str(folder), "questions": [["fetch_profile_stats_by_step", {"start_step": 1, "end_step": 2}]]}
    done = subprocess.run(
        [oracle, str(reader)], input=json.dumps([question]), capture_output=True, text=True, timeout=50
    )
    ((answer,),) = json.loads(done.stdout)
    if profiler == "cprofile":
        (inner,) = [numbers for name, numbers in answer.items() if "(inner)" in name]
        assert inner[1] == 2 + 3
    else:
        assert [session["root_frame"]["function"] for session in answer] == ["write", "write"]


def test_a_script_keeps_its_exit_code_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    script = tmp_path / "script.py"
    script.write_text("import sys, beside, smdebug.core.utils\nsys.exit(beside.VALUE + len(sys.argv))\n")
    assert with_compat(str(script), "--flag").returncode == 7


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [([], 2, "usage: "), (["--help"], 0, "For example:"), (["nowhere.py"], 2, "there is no script 'nowhere.py'")],
)
def test_the_command_says_how_it_is_used(arguments: list[str], code: int, said: str) -> None:
    done = with_compat(*arguments)
    assert done.returncode == code
    assert said in done.stderr


LEFT_OUT = {
    # what the modules themselves import
    *("Enum", "IntEnum", "JSONRenderer", "PyinstrumentProfiler", "cProfileProfiler", "defaultdict", "get_logger"),
    *("json", "os", "pd", "pstats", "time"),
    # readers and places of files, which are the engine's
    *("LocalPythonStatsReader", "S3PythonStatsReader", "TraceFileLocation"),
    # constants of the timeline and TensorFlow profilers, which have no stand-in
    *("CLOSE_FILE_INTERVAL_DEFAULT", "CONVERT_MICRO_TO_NS", "DEFAULT_PREFIX", "DEFAULT_SYSTEM_PROFILER_PREFIX"),
    *("ENV_TIME_BUFFER", "ENV_TRAIILING_DURATION", "FILE_OPEN_FAIL_THRESHOLD_DEFAULT", "HOROVODTIMELINE_SUFFIX"),
    *("MAX_FILE_SIZE_DEFAULT", "MERGEDTIMELINE_SUFFIX", "MODELTIMELINE_SUFFIX", "PT_DATALOADER_INITIALIZE"),
    *("PT_DATALOADER_ITER", "PT_DATALOADER_WORKER", "PYTHONTIMELINE_SUFFIX", "SMDATAPARALLELTIMELINE_SUFFIX"),
    *("TENSORBOARDTIMELINE_SUFFIX", "TF_DATALOADER_END_FLAG_FILENAME", "TF_DATALOADER_ITER", "TF_METRICS_PREFIX"),
    *("TF_DATALOADER_START_FLAG_FILENAME", "TIME_BUFFER_DEFAULT", "TRACE_DIRECTORY_FORMAT"),
    "TRAILING_DURATION_DEFAULT",
}
WHOLE = [name for name in STANDINS if name.startswith("smdebug.profiler.")]
"""Of smdebug.core only what the profiling part's scripts take has a stand-in."""


@pytest.mark.parametrize("name", WHOLE)
def test_every_stand_in_has_the_names_of_the_original(name: str, oracle: str) -> None:
    asked = f"import importlib; print(*dir(importlib.import_module({name!r})))"
    done = subprocess.run([oracle, "-c", asked], capture_output=True, text=True, timeout=50)
    theirs = {word for word in done.stdout.splitlines()[-1].split() if not word.startswith("_")}
    assert len(theirs) > 5
    assert theirs - set(import_module(STANDINS[name]).__all__) - LEFT_OUT == set()


def test_timers_are_given_as_members_or_words_and_others_refused(tmp_path: Path) -> None:
    profilers: Any = import_module("monitor.compat.python_profiler")
    core: Any = import_module("monitor.compat.core")
    for timer, function in (("default", "total_time"), (profilers.cProfileTimer.CPU_TIME, "cpu_time")):
        assert (
            profilers.cProfilePythonProfiler(tmp_path, core.FRAMEWORK.PYTORCH, timer).cprofile_timer.__name__
            == function
        )
    with pytest.raises(ArgumentError, match="cprofile_timer='wall': must be a member of cProfileTimer: TOTAL_TIME"):
        profilers.cProfilePythonProfiler(tmp_path, core.FRAMEWORK.PYTORCH, "wall")


@pytest.mark.usefixtures("installed")
def test_their_names_are_our_classes() -> None:
    analysis: Any = import_module("smdebug.profiler.analysis.python_profile_analysis")
    words: Any = import_module("smdebug.profiler.python_profile_utils")
    assert analysis.cProfileAnalysis is cProfileAnalysis
    assert (words.StepPhase, words.PythonProfileModes) == (StepPhase, PythonProfileModes)


@pytest.mark.usefixtures("installed")
def test_what_has_no_stand_in_is_named_with_what_there_is() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"smdebug\.trials is no part of what phasewatch stands in for"):
        import_module("smdebug.trials")


def test_installing_twice_changes_nothing(installed: None) -> None:
    finders = list(sys.meta_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.compat.install()
    assert sys.meta_path == finders


def site_of(oracle: str) -> str:
    """The folder that holds the real smdebug."""
    asked = [oracle, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def test_a_real_smdebug_is_passed_over_and_it_is_said(oracle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, site_of(oracle)])
    try:
        with pytest.warns(ShadowedWarning, match=r"smdebug 1\.0\.34 \(.*\) is installed; `import smdebug` now gives"):
            monitor.compat.install()
        assert import_module("smdebug.core.utils").is_s3("s3://a/b") == (True, "a", "b")
    finally:
        monitor.compat.uninstall()


def test_the_command_says_it_too(oracle: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import smdebug.core.utils as u\nprint(u.__spec__.origin)\n")
    done = with_compat(str(script), PYTHONPATH=f"{HOME}{os.pathsep}{site_of(oracle)}")
    assert done.stdout == "phasewatch\n"
    assert "python -m monitor.compat: smdebug 1.0.34" in done.stderr


def test_an_smdebug_that_is_imported_already_is_not_mixed_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "smdebug", type(sys)("smdebug"))
    with pytest.raises(MonitorError, match=r"imported already, .*: call monitor\.compat\.install\(\) before"):
        monitor.compat.install()


@pytest.mark.usefixtures("installed")
def test_words_and_modes_are_checked() -> None:
    words: Any = import_module("smdebug.profiler.python_profile_utils")
    with pytest.raises(ArgumentError, match="mode_str='training'"):
        words.str_to_python_profile_mode("training")
    with pytest.raises(ArgumentError, match="mode=9"):
        words.python_profile_mode_to_str(9)
    assert 0 <= words.total_time() - (words.cpu_time() + words.off_cpu_time()) < 1


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("step", "timer"), [(9, "total_time"), (10, "cpu_time"), (11, "off_cpu_time"), (0, "total_time")]
)
def test_without_a_timer_three_steps_measure_three_things(step: int, timer: str, tmp_path: Path) -> None:
    profilers: Any = import_module("smdebug.profiler.python_profiler")
    core: Any = import_module("smdebug.core.utils")

    class Config:
        local_path = str(tmp_path)
        python_profiling_config = type(
            "Profiling", (), {"profiler_name": "cprofile", "cprofile_timer": profilers.cProfileTimer.DEFAULT}
        )

    writer = profilers.PythonProfiler.get_python_profiler(Config, core.FRAMEWORK.TENSORFLOW)
    writer.start_profiling(StepPhase.STEP_START, PythonProfileModes.TRAIN, step)
    writer.stop_profiling(StepPhase.STEP_END, PythonProfileModes.TRAIN, step)
    assert writer.cprofile_timer.__name__ == timer
    assert len(list(tmp_path.glob("framework/tensorflow/cprofile/*/train-*/python_stats"))) == 1


@pytest.mark.usefixtures("installed")
def test_a_folder_that_cannot_be_written_is_told_and_the_profiler_is_off(tmp_path: Path) -> None:
    profilers: Any = import_module("smdebug.profiler.python_profiler")
    core: Any = import_module("smdebug.core.utils")
    (tmp_path / "framework").write_text("a file in the way")
    writer = profilers.cProfilePythonProfiler(tmp_path, core.FRAMEWORK.PYTORCH, profilers.cProfileTimer.CPU_TIME)
    writer.start_profiling(StepPhase.START)
    with pytest.raises(OSError, match="framework"):
        writer.stop_profiling(StepPhase.END)
    assert sys.getprofile() is None
    writer.stop_profiling(StepPhase.END)


@pytest.mark.usefixtures("installed")
def test_what_no_reader_would_find_is_refused_before_anything_is_lost(tmp_path: Path) -> None:
    profilers: Any = import_module("smdebug.profiler.python_profiler")
    core: Any = import_module("smdebug.core.utils")
    writer = profilers.cProfilePythonProfiler(tmp_path, core.FRAMEWORK.PYTORCH, profilers.cProfileTimer.TOTAL_TIME)
    writer.start_profiling(StepPhase.STEP_START, PythonProfileModes.TRAIN, 3)
    for phase, step in (("x", 4), (StepPhase.STEP_START, -1), (StepPhase.STEP_START, "four")):
        with pytest.raises(ArgumentError, match=r"^(phase|step)="):
            writer.start_profiling(phase, PythonProfileModes.TRAIN, step)
    assert sys.getprofile() is not None  # the span that is under way goes on
    writer.stop_profiling(StepPhase.STEP_END, PythonProfileModes.TRAIN, 3)
    assert len(list(tmp_path.glob("framework/pytorch/cprofile/*/train-3-*/python_stats"))) == 1
