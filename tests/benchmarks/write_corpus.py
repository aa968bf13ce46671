"""Leave step profiles with the original library's own writer. Runs in the environment that holds smdebug:

    .cache/oracle/bin/python tests/benchmarks/write_corpus.py BASE NODE SPANS

The training is a stand-in of the standard library's heavier modules, about as many functions a span as a small model.
"""

import contextlib
import copy
import datetime
import decimal
import fractions
import heapq
import html
import io
import json
import logging
import pathlib
import pprint
import random
import shlex
import statistics
import string
import sys
import textwrap

logging.disable(logging.CRITICAL)
with contextlib.redirect_stdout(io.StringIO()):
    import smdebug.core.locations as locations
    from smdebug.core.utils import FRAMEWORK
    from smdebug.profiler.python_profile_utils import PythonProfileModes, StepPhase
    from smdebug.profiler.python_profiler import cProfilePythonProfiler, cProfileTimer


def load_batch(chance, size):
    rows = [{"x": chance.random(), "y": [chance.randint(0, 9) for _ in range(8)]} for _ in range(size)]
    return json.loads(json.dumps(rows))


def forward(batch):
    values = [row["x"] for row in batch]
    return statistics.fmean(values), statistics.pstdev(values), statistics.median(values)


def backward(loss):
    gradient = fractions.Fraction(str(round(loss, 3)))
    return float(sum((gradient / (place + 1) for place in range(12)), fractions.Fraction(0)))


def describe(batch):
    tree = copy.deepcopy(batch[:2])
    words = shlex.split("step --loss 0.5 --rate 'one tenth'")
    return html.escape(pprint.pformat(tree, width=60)) + " ".join(words) + string.Template("$a").substitute(a=1)


def plan(step):
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=step)
    queue = [(abs(step - other), other) for other in range(6)]
    heapq.heapify(queue)
    return start.isoformat(), pathlib.PurePosixPath("/data", str(step)).with_suffix(".bin"), heapq.nsmallest(3, queue)


def optimizer_step(gradient):
    with decimal.localcontext() as context:
        context.prec = 30
        return sum(decimal.Decimal(str(gradient)) / decimal.Decimal(place) for place in range(1, 12))


def main(base, node, spans):
    locations.get_node_id = lambda: node
    chance = random.Random(node)
    profiler = cProfilePythonProfiler(base, FRAMEWORK.PYTORCH, cProfileTimer.TOTAL_TIME)
    train, evaluate = PythonProfileModes.TRAIN, PythonProfileModes.EVAL

    def turn(phase, mode, step):
        profiler.stop_profiling(phase, mode, step)
        profiler.start_profiling(phase, mode, step)

    profiler.start_profiling(StepPhase.START)
    batch = load_batch(chance, 8)
    for step in range(spans // 3):
        mode = evaluate if step % 10 == 9 else train
        turn(StepPhase.STEP_START, mode, step)
        loss = forward(batch)[0]
        describe(batch)
        if mode is evaluate:
            textwrap.fill(json.dumps(batch), 60)
        turn(StepPhase.FORWARD_PASS_END, mode, step)
        optimizer_step(backward(loss))
        describe(batch)
        plan(step)
        turn(StepPhase.STEP_END, mode, step)
        batch = load_batch(chance, chance.randint(4, 12))
        describe(batch)
        plan(step)
    profiler.stop_profiling(StepPhase.END)
    profiler.start_profiling(StepPhase.END)
    profiler.stop_profiling(StepPhase.END)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
