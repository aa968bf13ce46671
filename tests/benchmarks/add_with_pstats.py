"""The rival: add profiles with pstats as the original does, and ask the original itself. Prints JSON.

.cache/oracle/bin/python tests/benchmarks/add_with_pstats.py add PROFILER_FOLDER COUNT
.cache/oracle/bin/python tests/benchmarks/add_with_pstats.py job-phases PROFILER_FOLDER COUNT
"""

import contextlib
import io
import json
import logging
import pathlib
import pstats
import sys
import time

what, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
if what == "add":
    files = [str(path) for path in pathlib.Path(folder).glob("*/*/python_stats")][:count]
    for path in files:  # the page cache is warm for both sides
        with open(path, "rb") as file:
            file.read()
    started = time.perf_counter()
    stats = pstats.Stats()
    for path in files:
        stats.add(path)
    seconds = time.perf_counter() - started
else:
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):
        from smdebug.profiler.analysis.python_profile_analysis import cProfileAnalysis

        analysis = cProfileAnalysis(local_profile_dir=folder)
        started = time.perf_counter()
        analysis.fetch_profile_stats_by_job_phase()
        seconds = time.perf_counter() - started
json.dump({"seconds": seconds}, sys.stdout)
