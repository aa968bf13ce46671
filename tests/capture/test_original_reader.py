"""The original's own reader, in an interpreter of its own, answers right on files that capture wrote."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from monitor.capture.snapshots import ProfilerName
from tests.capture.capture_on_disk import EVAL, ROOT, TRAIN, Open, seconds_in, spin


@pytest.mark.parametrize("profiler", ["cprofile", "pyinstrument"])
def test_the_original_reads_what_we_write(open_capture: Open, tmp_path: Path, profiler: ProfilerName) -> None:
    capture = open_capture(profiler=profiler)
    capture.start()
    train_as_known()
    for step in range(3):
        with capture.step(TRAIN, step):
            train_as_known(step + 1)
            capture.forward_end()
            train_as_known(10)
    with capture.step(EVAL, 0):
        train_as_known(2)
    capture.close()
    train_as_known(3)
    capture.finish()
    answers = ask_the_original(capture.node_folder.parent)
    assert answers["nodes"] == ["0-test"]
    assert answers["spans"] == (EXPECTED_SPANS if profiler == "cprofile" else doubled(EXPECTED_SPANS))
    if profiler == "cprofile":
        assert answers["pre_step_zero"]["unit_of_time"] == [1, 1]
        assert answers["train_step_1"]["unit_of_time"] == [12, 12]
        # The original counts the end of training and the time after it as "after the hook closed".
        assert answers["post_hook_close"]["unit_of_time"] == [3, 3]
        assert "unit_of_time" not in answers["train_to_eval"]
    else:
        (session,) = answers["pre_step_zero"]
        assert seconds_in(session["root_frame"], "train_as_known") > 0
        assert len(answers["train_step_1"]) == 2
        assert len(answers["post_hook_close"]) == 2


EXPECTED_SPANS: list[list[Any]] = [
    [5, -1, "start", 1, 0, "stepstart"],
    *(
        end
        for step in range(3)
        for end in (
            [1, step, "stepstart", 1, step, "forwardpassend"],
            [1, step, "forwardpassend", 1, step, "stepend"],
            [1, step, "stepend", *([1, step + 1] if step < 2 else [2, 0]), "stepstart"],
        )
    ),
    [2, 0, "stepstart", 2, 0, "stepend"],
    [2, 0, "stepend", 6, None, "end"],
    [5, -1, "end", 6, None, "end"],
]


def doubled(spans: list[list[Any]]) -> list[list[Any]]:
    """The original lists a pyinstrument span twice: its data and its picture."""
    return [span for span in spans for _ in range(2)]


def train_as_known(times: int = 1) -> None:
    for _ in range(times):
        unit_of_time()


def unit_of_time() -> None:
    spin(0.003)


def ask_the_original(profile_dir: Path) -> dict[str, Any]:
    python = os.environ.get("PHASEWATCH_ORACLE_PYTHON")
    if not python:
        pytest.fail(
            "PHASEWATCH_ORACLE_PYTHON names no interpreter that has smdebug: run the tests with `bash tests/run`"
        )
    result = subprocess.run(
        [python, str(ROOT / "tests/oracle/read_capture.py"), str(profile_dir)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answers: dict[str, Any] = json.loads(result.stdout)
    return answers
