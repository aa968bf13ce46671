"""Ask the original's analysis classes many questions about many folders. Runs under the original's own interpreter:

    answer_many.py < QUESTIONS.json > ANSWERS.json

QUESTIONS is a list of {"folder": BASE/framework/FRAMEWORK/PROFILER, "questions": [[method, words], …]}, modes and
phases in their words on disk; ANSWERS a list of lists. What the original raises is answered as {"raised": its class}.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
from importlib import import_module
from typing import Any

logging.disable(logging.CRITICAL)
with contextlib.redirect_stdout(io.StringIO()):
    classes = import_module("smdebug.profiler.analysis.python_profile_analysis")
    words_module = import_module("smdebug.profiler.python_profile_utils")
pstats = import_module("pstats")


def documented_job_phases(analysis: Any, node_id: str = "any") -> dict[str, Any]:
    """Add up job phases as the documentation defines them, with the original's own reading and adding."""
    start, end = words_module.StepPhase.START, words_module.StepPhase.END
    phases: dict[str, list[Any]] = {"initialization": [], "training_loop": [], "finalization": []}
    for span in analysis._fetch_profile_stats_by_node_id(node_id):
        name = "initialization" if span.start_phase == start else "finalization" if span.end_phase == end else None
        phases[name or "training_loop"].append(span)
    return {name: analysis._aggregate_stats(spans) for name, spans in phases.items()}


def read(name: str, value: Any) -> Any:
    """Turn a word into what the original takes."""
    if name in ("mode", "start_mode", "end_mode"):
        return words_module.str_to_python_profile_mode(value)
    if name in ("start_phase", "end_phase"):
        return words_module.StepPhase(value)
    return float("inf") if value == "inf" else value


def write(answer: Any) -> Any:
    """Turn an answer into JSON."""
    if hasattr(answer, "ps"):
        label = pstats.func_std_string
        return {
            label(key): [*numbers[:4], {label(caller): list(values) for caller, values in numbers[4].items()}]
            for key, numbers in answer.ps.stats.items()
        }
    if hasattr(answer, "json_stats"):
        return answer.json_stats
    if isinstance(answer, dict):
        mode = words_module.python_profile_mode_to_str
        return {k if isinstance(k, str) else ",".join(map(mode, k)): write(value) for k, value in answer.items()}
    if isinstance(answer, list):
        return [write(value) for value in answer]
    if hasattr(answer, "to_dict"):
        records = answer.to_dict("records")
        for record in records:
            del record["stats_path"]
            record["start_phase"], record["end_phase"] = record["start_phase"].value, record["end_phase"].value
        return records
    return answer


def answer(analysis: Any, method: str, words: dict[str, Any]) -> Any:
    """Answer one question."""
    arguments = {name: read(name, value) for name, value in words.items()}
    try:
        if method == "documented_job_phases":
            return write(documented_job_phases(analysis, **arguments))
        return write(getattr(analysis, method)(**arguments))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the original's answer
        return {"raised": type(error).__name__}


def main() -> None:
    """Answer everything."""
    answers = []
    with contextlib.redirect_stdout(io.StringIO()):
        for case in json.load(sys.stdin):
            kind = "PyinstrumentAnalysis" if case["folder"].endswith("pyinstrument") else "cProfileAnalysis"
            analysis = getattr(classes, kind)(local_profile_dir=case["folder"])
            answers.append([answer(analysis, method, words) for method, words in case["questions"]])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
