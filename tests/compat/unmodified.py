"""A script as users of smdebug have it: writes spans and asks about them. Runs unchanged under the real smdebug and under
`python -m monitor.compat`, and prints the same:

    unmodified.py BASE cprofile|pyinstrument
"""

import contextlib
import io
import json
import sys
import time

with contextlib.redirect_stdout(io.StringIO()):
    from smdebug.core.access_layer.utils import is_s3
    from smdebug.core.utils import FRAMEWORK
    from smdebug.profiler.analysis.python_profile_analysis import PyinstrumentAnalysis, cProfileAnalysis
    from smdebug.profiler.analysis.utils.python_profile_analysis_utils import Metrics
    from smdebug.profiler.profiler_constants import CPROFILE_NAME, PYINSTRUMENT_NAME
    from smdebug.profiler.python_profile_utils import (
        PythonProfileModes,
        StepPhase,
        cProfileTimer,
        python_profile_mode_to_str,
        str_to_python_profile_mode,
    )
    from smdebug.profiler.python_profiler import PyinstrumentPythonProfiler, cProfilePythonProfiler

TRAIN, EVAL = PythonProfileModes.TRAIN, PythonProfileModes.EVAL


def inner(n):
    return sum(range(n))


def work(n):
    until = time.perf_counter() + 0.005
    while time.perf_counter() < until:
        pass
    return [inner(10) for _ in range(n)]


def write(profiler):
    profiler.start_profiling(StepPhase.START)
    work(1)
    profiler.stop_profiling(StepPhase.STEP_START, TRAIN, 0)
    for step in range(4):
        mode = EVAL if step == 3 else TRAIN
        profiler.start_profiling(StepPhase.STEP_START, mode, step)
        work(step + 1)
        profiler.stop_profiling(StepPhase.STEP_END, mode, step)
    profiler.stop_profiling(StepPhase.END)
    profiler.start_profiling(StepPhase.END)
    work(7)
    profiler.stop_profiling(StepPhase.END)


def calls(stats):
    if stats is None:
        return None
    if isinstance(stats, list):
        return len(stats)
    return {f.function_name.split("(")[-1]: f.total_calls for f in stats.function_stats_list if "inner" in f.function_name}


def main(base, name):
    if name == CPROFILE_NAME:
        write(cProfilePythonProfiler(base, FRAMEWORK.PYTORCH, cProfileTimer.TOTAL_TIME))
    else:
        write(PyinstrumentPythonProfiler(base, FRAMEWORK.PYTORCH))
    analysis_class = cProfileAnalysis if name == CPROFILE_NAME else PyinstrumentAnalysis
    analysis = analysis_class(local_profile_dir=f"{base}/framework/pytorch/{name}")
    steps = analysis.fetch_profile_stats_by_step(1, 2)
    listed = analysis.list_profile_stats()
    out = {
        "names": [CPROFILE_NAME, PYINSTRUMENT_NAME, python_profile_mode_to_str(str_to_python_profile_mode("eval"))],
        "s3": [is_s3("s3://bucket/some/key"), is_s3("s3://bucket"), is_s3("/tmp/x")],
        "nodes": len(analysis.list_available_node_ids()),
        "columns": list(listed.columns),
        "modes": [list(pair) for pair in zip(listed["start_mode"], listed["end_mode"])],
        "phases": [phase.value for phase in listed["start_phase"]],
        "steps": calls(steps),
        "eval": calls(analysis.fetch_profile_stats_by_step(3, mode=EVAL)),
        "nothing": calls(analysis.fetch_profile_stats_by_step(99)),
        "pre": calls(analysis.fetch_pre_step_zero_profile_stats()),
        "post": calls(analysis.fetch_post_hook_close_profile_stats()),
        "between": calls(analysis.fetch_profile_stats_between_modes(TRAIN, TRAIN, node_id="any", refresh_stats=False)),
    }
    if name == CPROFILE_NAME:
        phases = analysis.fetch_profile_stats_by_training_phase()
        out["training"] = sorted([start.name, end.name, calls(value)] for (start, end), value in phases.items())
        steps.print_top_n_functions(Metrics.TOTAL_TIME, 2)
        steps.ps.strip_dirs().sort_stats("ncalls").print_callers("inner")
        out["rows"] = len(steps.get_function_stats()) == len(steps.function_stats_list) > 3
    else:
        out["roots"] = [session.json_stats["root_frame"]["function"] for session in steps]
        out["pages"] = [session.html_file_path.endswith("python_stats.html") for session in steps]
    print("RESULT " + json.dumps(out))


main(*sys.argv[1:])
