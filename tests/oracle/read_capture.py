"""Ask the original's analysis classes about a folder and print the answers as JSON. Runs under the original's own
interpreter (see tests/capture), with nothing of this project on its path.

    read_capture.py PROFILE_DIR

PROFILE_DIR is BASE/framework/FRAMEWORK/PROFILER.
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


def calls(answer: Any) -> Any:
    """Reduce a cProfile answer to {function: [primitive calls, calls]}, keep a pyinstrument one as it is."""
    if answer is None:
        return None
    if isinstance(answer, list):
        return [session.json_stats for session in answer]
    totals: dict[str, list[int]] = {}
    for (_, _, name), numbers in answer.ps.stats.items():
        primitive, total = totals.get(name, (0, 0))
        totals[name] = [primitive + numbers[0], total + numbers[1]]
    return totals


def main(profile_dir: str) -> None:
    """Ask each question that a run of tests/capture answers."""
    with contextlib.redirect_stdout(io.StringIO()):
        python_profile_analysis = import_module("smdebug.profiler.analysis.python_profile_analysis")
        modes = import_module("smdebug.profiler.python_profile_utils").PythonProfileModes

        name = "PyinstrumentAnalysis" if profile_dir.endswith("pyinstrument") else "cProfileAnalysis"
        analysis = getattr(python_profile_analysis, name)(local_profile_dir=profile_dir)
        train, evaluate = modes.TRAIN, modes.EVAL
        answers = {
            "nodes": analysis.list_available_node_ids(),
            "spans": [
                [
                    row.start_mode.value,
                    row.start_step,
                    row.start_phase.value,
                    row.end_mode.value,
                    None if row.end_step == float("inf") else row.end_step,
                    row.end_phase.value,
                ]
                for row in analysis.python_profile_stats
            ],
            "pre_step_zero": calls(analysis.fetch_pre_step_zero_profile_stats()),
            "post_hook_close": calls(analysis.fetch_post_hook_close_profile_stats()),
            "train_step_1": calls(analysis.fetch_profile_stats_by_step(1, end_step=1, mode=train)),
            "train_to_eval": calls(analysis.fetch_profile_stats_between_modes(train, evaluate)),
        }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
