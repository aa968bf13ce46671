"""Leave step profiles with the original library's own writer. Runs in the environment that holds smdebug:

    .cache/oracle/bin/python tests/benchmarks/write_corpus.py BASE NODE SPANS

The training is a stand-in of the standard library's heavier modules, about as many functions a span as a small model.
"""

import contextlib
import decimal
import fractions
import io
import json
import logging
import random
import statistics
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
        if mode is evaluate:
            textwrap.fill(json.dumps(batch), 60)
        turn(StepPhase.FORWARD_PASS_END, mode, step)
        optimizer_step(backward(loss))
        turn(StepPhase.STEP_END, mode, step)
        batch = load_batch(chance, chance.randint(4, 12))
    profiler.stop_profiling(StepPhase.END)
    profiler.start_profiling(StepPhase.END)
    profiler.stop_profiling(StepPhase.END)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
