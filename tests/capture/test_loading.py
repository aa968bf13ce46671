"""Settings from the environment, TOML and SageMaker's file: what wins, what they mean, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from monitor.capture.loading import load_settings
from monitor.capture.settings import CaptureSettings
from monitor.errors import ConfigError
from tests.capture.capture_on_disk import EVAL, TRAIN


def write_toml(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "capture.toml"
    path.write_text(text)
    return {"PHASEWATCH_CAPTURE_FILE": str(path)}


def write_sagemaker(tmp_path: Path, profiling: object, **more: object) -> dict[str, str]:
    """Write a file as SageMaker does; strings hold JSON."""
    path = tmp_path / "profilerconfig.json"
    text = profiling if isinstance(profiling, str) else json.dumps(profiling)
    parameters = {"LocalPath": "/opt/ml/Output/profiler", "PythonProfilingConfig": text}
    path.write_text(json.dumps({"ProfilingIntervalInMilliseconds": 500, "ProfilingParameters": parameters, **more}))
    return {"SMPROFILER_CONFIG_PATH": str(path)}


def test_code_wins_over_the_environment_that_over_toml_that_over_sagemaker(tmp_path: Path) -> None:
    environ = {
        **write_sagemaker(tmp_path, {"NumSteps": "7", "cProfileTimer": "cpu_time"}),
        **write_toml(tmp_path, 'base = "/toml"\nevery = 3\nqueue_spans = 9\n'),
        "PHASEWATCH_CAPTURE_EVERY": "4",
        "PHASEWATCH_CAPTURE_BASE": "/environment",
    }
    settings = load_settings({"base": "/code"}, environ)
    assert (settings.base, settings.every, settings.queue_spans) == ("/code", 4, 9)
    assert (settings.first, settings.timer) == (7, "cpu_time")


def test_the_environment_says_everything_in_text() -> None:
    environ = {
        "PHASEWATCH_CAPTURE_BASE": "/profiles",
        "PHASEWATCH_CAPTURE_STEPS": "10-20, 30,40-",
        "PHASEWATCH_CAPTURE_MODES": "train,eval",
        "PHASEWATCH_CAPTURE_TIMER": "thread_cpu_time",
        "PHASEWATCH_CAPTURE_HANDLE_SIGTERM": "off",
        "PHASEWATCH_CAPTURE_OVERHEAD_SHARE": "0.1",
        "UNRELATED": "1",
    }
    assert load_settings({}, environ) == CaptureSettings(
        base="/profiles",
        steps=((10, 20), (30, 30), (40, None)),
        modes=frozenset({TRAIN, EVAL}),
        timer="thread_cpu_time",
        handle_sigterm=False,
        overhead_share=0.1,
    )


def test_toml_says_the_same_with_types(tmp_path: Path) -> None:
    text = 'base = "/p"\nsteps = [[10, 20], "30-", 5]\nmodes = ["predict"]\nstart_time = 5\nduration_seconds = 1.5\n'
    settings = load_settings({}, write_toml(tmp_path, text))
    assert settings.steps == ((10, 20), (30, None), (5, 5))
    assert (settings.start_time, settings.duration_seconds) == (5.0, 1.5)


@pytest.mark.parametrize(
    ("profiling", "expected"),
    [
        ({"StartStep": "5", "NumSteps": "3"}, {"steps": ((5, 7),)}),
        ({"StartStep": 5}, {"steps": ((5, 5),)}),
        ({"NumSteps": 2}, {"first": 2}),
        ({"StartTimeInSecSinceEpoch": "1700000000.5", "DurationInSeconds": "10"}, {"start_time": 1700000000.5}),
        ({"DurationInSeconds": 10}, {"start_time": None, "duration_seconds": 10.0}),
        ({"StartTimeInSecSinceEpoch": 1700000000}, {"start_time": 1700000000.0, "first": 1}),
        ({"ProfilerName": "Pyinstrument", "NumSteps": 1}, {"profiler": "pyinstrument"}),
        ({"ProfilerName": "cprofile", "cProfileTimer": "off_cpu_time", "NumSteps": 1}, {"timer": "off_cpu_time"}),
        ({"cProfileTimer": "default", "StartStep": 9, "NumSteps": 3}, {"timer": "default", "steps": ((9, 11),)}),
        ({"ProfilerName": "cprofile"}, {"every": 0, "timer": "total_time"}),
        ({}, {"enabled": False}),
        ("", {"enabled": False}),
    ],
)
def test_sagemakers_file_means_what_it_meant(tmp_path: Path, profiling: object, expected: dict[str, object]) -> None:
    settings = load_settings({}, write_sagemaker(tmp_path, profiling))
    assert settings.base == "/opt/ml/Output/profiler"
    assert {name: getattr(settings, name) for name in expected} == expected


def test_a_disabled_profiler_is_disabled(tmp_path: Path) -> None:
    assert not load_settings({}, write_sagemaker(tmp_path, {"NumSteps": 1}, DisableProfiler=True)).enabled


def test_nothing_in_sagemakers_file_is_evaluated(tmp_path: Path) -> None:
    target = tmp_path / "evaluated"
    environ = write_sagemaker(tmp_path, f"__import__('pathlib').Path({str(target)!r}).touch() or {{}}")
    with pytest.raises(ConfigError, match="PythonProfilingConfig is no JSON"):
        load_settings({}, environ)
    assert not target.exists()


@pytest.mark.parametrize(
    ("profiling", "message"),
    [
        ({"StartStep": 1, "DurationInSeconds": 5}, "gives steps and time"),
        ({"StartStep": "soon"}, "could not convert string to float: 'soon'"),
        ({"NumSteps": 1, "ProfilerName": "perf"}, "profiler 'perf' is none of cprofile, pyinstrument"),
        ({"NumSteps": 1, "cProfileTimer": "moon"}, "timer 'moon' is none of wall, total_time"),
        ([1], "PythonProfilingConfig must hold an object"),
    ],
)
def test_mistakes_in_sagemakers_file_are_named(tmp_path: Path, profiling: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings({}, write_sagemaker(tmp_path, profiling))


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "no base folder is given"),
        ({"PHASEWATCH_CAPTURE_EVRY": "2"}, "PHASEWATCH_CAPTURE_EVRY: there is no setting 'evry'; there are: base"),
        ({"PHASEWATCH_CAPTURE_EVERY": "two"}, "every = 'two' cannot be used: invalid literal"),
        ({"PHASEWATCH_CAPTURE_MODES": "walk"}, "'walk' is none of train, eval, predict, global"),
        ({"PHASEWATCH_CAPTURE_TRIGGERS": "maybe"}, "true or false is needed"),
        ({"PHASEWATCH_CAPTURE_FILE": "/nowhere/capture.toml"}, "/nowhere/capture.toml: cannot be read"),
    ],
)
def test_mistakes_in_the_environment_are_named(environ: dict[str, str], message: str) -> None:
    base = {"PHASEWATCH_CAPTURE_BASE": "/p"} if environ else {}
    with pytest.raises(ConfigError, match=message):
        load_settings({}, {**base, **environ})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("every = ", "Invalid value"),
        ("every = true", "every = True cannot be used: a whole number is needed"),
        ("steps = [[1, 2, 3]]", "a range is FIRST-LAST or a pair of steps"),
        ("evry = 1", "there is no setting 'evry'"),
        ('framework = "a/b"', "the framework 'a/b' cannot name a folder"),
        ("interval_seconds = 0", "interval_seconds is 0.0: it must be greater than 0"),
        ("max_bytes = -1", "max_bytes is -1: it must not be negative"),
    ],
)
def test_mistakes_in_toml_are_named_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings({"base": "/p"}, write_toml(tmp_path, text))
