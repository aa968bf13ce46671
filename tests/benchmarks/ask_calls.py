"""Make an analysis of a folder, ask it everything, and print how long each call took. One script for both libraries,
each in a process of its own:

    .cache/oracle/bin/python tests/benchmarks/ask_calls.py original FOLDER REPEATS
    .cache/test/bin/python tests/benchmarks/ask_calls.py ours FOLDER REPEATS

FOLDER is BASE/framework/FRAMEWORK/PROFILER. Prints {"cold": seconds, "later": {call: [seconds, …]}, "used": the same,
with what people look at taken out of the result}.
"""

import contextlib
import io
import json
import logging
import sys
import time

logging.disable(logging.CRITICAL)
which, folder, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3])
if which == "original":
    with contextlib.redirect_stdout(io.StringIO()):
        from smdebug.profiler.analysis.python_profile_analysis import PyinstrumentAnalysis, cProfileAnalysis
        from smdebug.profiler.python_profile_utils import PythonProfileModes
else:
    from monitor.analysis import PyinstrumentAnalysis, PythonProfileModes, cProfileAnalysis

sampled = folder.rstrip("/").endswith("pyinstrument")
train = PythonProfileModes.TRAIN


def timed(call, use=lambda result: None):
    started = time.perf_counter()
    use(call())
    return time.perf_counter() - started


def open_and_ask():
    made = (PyinstrumentAnalysis if sampled else cProfileAnalysis)(folder)
    if sampled:
        made.fetch_profile_stats_by_step(0, 10**9)
    else:
        made.fetch_profile_stats_by_training_phase()
    return made


def use(result):
    """Touch what people look at: the functions of each result."""
    for one in result if isinstance(result, list) else result.values() if isinstance(result, dict) else [result]:
        if hasattr(one, "ps"):
            len(one.ps.stats)
        if hasattr(one, "json_stats"):
            len(one.json_stats)


with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    kept = []
    cold = timed(open_and_ask, kept.append)
    analysis = kept[0]
    middle = len(analysis.python_profile_stats) // 12
    first = analysis.python_profile_stats[0].start_time_since_epoch_in_micros / 1e6
    last = analysis.python_profile_stats[-1].end_time_since_epoch_in_micros / 1e6
    calls = {
        "by_step, one step": lambda: analysis.fetch_profile_stats_by_step(middle),
        "by_step, 20 steps": lambda: analysis.fetch_profile_stats_by_step(middle, middle + 20),
        "by_step, all": lambda: analysis.fetch_profile_stats_by_step(0, 10**9),
        "by_time, a tenth": lambda: analysis.fetch_profile_stats_by_time(first, first + (last - first) / 10),
        "between_modes": lambda: analysis.fetch_profile_stats_between_modes(train, train),
        "pre_step_zero": analysis.fetch_pre_step_zero_profile_stats,
        "post_hook_close": analysis.fetch_post_hook_close_profile_stats,
        "list_profile_stats": analysis.list_profile_stats,
        "list_available_node_ids": analysis.list_available_node_ids,
    }
    if not sampled:
        calls["by_training_phase"] = analysis.fetch_profile_stats_by_training_phase
        calls["by_job_phase"] = analysis.fetch_profile_stats_by_job_phase
    later = {name: [timed(call) for _ in range(repeats)] for name, call in calls.items()}
    used = {name: [timed(call, use) for _ in range(repeats)] for name, call in calls.items()}
print(json.dumps({"cold": cold, "later": later, "used": used}))
