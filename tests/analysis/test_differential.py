"""The real smdebug and the notebook classes, asked the same random questions about the same random runs.

What may differ stands in DEVIATIONS and nowhere else.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from monitor.analysis import ArgumentError, PyinstrumentAnalysis, PythonProfileAnalysis, cProfileAnalysis
from tests.analysis.answers import ask, assert_same, assert_same_list
from tests.analysis.runs import Question, random_questions, write_run
from tests.integration.daemons import daemon_child

CLASSES: dict[str, type[PythonProfileAnalysis[Any]]] = {
    "cprofile": cProfileAnalysis,
    "pyinstrument": PyinstrumentAnalysis,
}
RUNS = {"cprofile": 240, "pyinstrument": 120}
QUESTIONS = 14
SEED = 20261201

DEVIATIONS = {
    "addresses": "Memory addresses are dropped from names and what then coincides is added up: they differ in every "
    "process, so no two runs or nodes would merge. The original's answers are treated the same before comparing.",
    "job phases": "Follow the documentation, by phase. The original tests modes, takes the span after closing for "
    "initialization and keeps the last of several pairs of modes. The judge is documented_job_phases.",
    "equal starts": "Two sessions of one node that start at the same time are two sessions. The original puts their "
    "files together and fails with ValueError. Such runs are not made here; test_classes asks ours about one.",
    "empty profile": "A profile without any function is a span with no functions. The original fails with TypeError. "
    "Such runs are not made here; test_classes asks ours about one.",
    "no picture": "A session whose HTML is missing is a session. The original fails with ValueError.",
    "order of files": "Where several files have the same start time and node, the original lists them in the order of "
    "the folder, which is any.",
    "start after end": "An interval that ends before it starts is refused. The original finds nothing.",
    "steps below 0 of a daemon": "The socket has no steps below 0; the classes refuse them there.",
}


@pytest.fixture(scope="module")
def oracle() -> str:
    """The interpreter that holds smdebug."""
    python = os.environ.get("PHASEWATCH_ORACLE_PYTHON", "")
    if not Path(python).is_file():
        pytest.fail("the original library is missing: `bash tests/run` makes it and runs the tests")
    return python


def ask_original(oracle: str, cases: list[tuple[Path, list[Question]]]) -> list[list[Any]]:
    """Ask the original everything in one process."""
    questions = [{"folder": str(folder), "questions": asked} for folder, asked in cases]
    script = Path(__file__).parents[1] / "oracle" / "answer_many.py"
    done = subprocess.run(
        [oracle, str(script)], input=json.dumps(questions), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    answers: list[list[Any]] = json.loads(done.stdout)
    return answers


def make_cases(base: Path, profiler: str, runs: int, seed: int) -> list[tuple[Path, list[Question]]]:
    """Leave runs and choose questions."""
    chance = Random(seed)
    return [
        (write_run(base / f"run-{number}", profiler, chance), random_questions(profiler, chance, QUESTIONS))
        for number in range(runs)
    ]


def compare(analysis: PythonProfileAnalysis[Any], questions: list[Question], answers: list[Any]) -> Counter[str]:
    """Ask ours the same; returns how many questions of each kind were answered with something."""
    seen: Counter[str] = Counter()
    for (method, words), answer in zip(questions, answers, strict=True):
        words = {name: float("inf") if value == "inf" else value for name, value in words.items()}
        with contextlib.redirect_stdout(io.StringIO()):
            mine = ask(analysis, method, words)
        try:
            if method == "list_profile_stats":
                assert_same_list(in_any_order(mine), sorted(answer, key=record_key))
                assert [key(row) for row in mine.to_dict("records")] == [key(row) for row in answer]
            else:
                assert_same(mine, answer)
        except AssertionError as error:
            raise AssertionError(f"{analysis!r}: {method} {words}: {error}") from error
        seen[f"{method} {'found' if answer else 'nothing'}"] += 1
    return seen


def key(record: dict[str, Any]) -> tuple[float, str]:
    """What the original sorts files by."""
    return record["start_time_since_epoch_in_micros"], record["node_id"]


def record_key(record: dict[str, Any]) -> tuple[str, ...]:
    """A total order of files."""
    return tuple(str(value) for name, value in sorted(record.items()) if name != "stats_path")


def in_any_order(frame: Any) -> Any:
    """Sort a list of files by everything but the path."""
    if not len(frame):
        return frame
    words = frame.assign(
        start_phase=[phase.value for phase in frame["start_phase"]],
        end_phase=[phase.value for phase in frame["end_phase"]],
    )
    order = sorted(range(len(frame)), key=lambda row: record_key(words.iloc[row].to_dict()))
    return frame.iloc[order].reset_index(drop=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("profiler", CLASSES)
def test_random_questions_about_random_runs_get_the_original_answers(
    profiler: str, oracle: str, tmp_path: Path
) -> None:
    cases = make_cases(tmp_path, profiler, RUNS[profiler], SEED)
    seen: Counter[str] = Counter()
    for (folder, questions), answers in zip(cases, ask_original(oracle, cases), strict=True):
        with CLASSES[profiler](str(folder)) as analysis:
            seen += compare(analysis, questions, answers)
    assert sum(seen.values()) == RUNS[profiler] * QUESTIONS
    for method in ("fetch_profile_stats_by_step", "fetch_profile_stats_by_time", "fetch_profile_stats_between_modes"):
        assert min(seen[f"{method} found"], seen[f"{method} nothing"]) > 20, seen


@pytest.mark.parametrize("profiler", CLASSES)
def test_a_daemon_gives_the_original_answers_too(profiler: str, oracle: str, short_tmp_path: Path) -> None:
    cases = make_cases(short_tmp_path, profiler, 6, SEED + 1)
    for number, ((folder, questions), answers) in enumerate(zip(cases, ask_original(oracle, cases), strict=True)):
        asked = [place for place, (_, words) in enumerate(questions) if words.get("start_step", 0) >= 0]
        home = short_tmp_path / f"{number}"
        home.mkdir()
        with daemon_child(home, folder), CLASSES[profiler](socket=home / "s.sock") as analysis:
            compare(analysis, [questions[place] for place in asked], [answers[place] for place in asked])


def test_the_original_is_the_judge_of_what_it_gets_wrong_too(oracle: str, tmp_path: Path) -> None:
    """Each deviation that is an error of the original is one still."""
    folder = write_run(tmp_path / "run", "cprofile", Random(3))
    questions: list[Question] = [("fetch_profile_stats_by_step", {"start_step": 5, "end_step": 2})]
    assert ask_original(oracle, [(folder, questions)]) == [[None]]
    with (
        cProfileAnalysis(str(folder)) as analysis,
        pytest.raises(ArgumentError, match="end_step=2: must not be before"),
    ):
        analysis.fetch_profile_stats_by_step(5, 2)
