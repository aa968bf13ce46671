"""The training run that the demo watches: a small network on made data, profiled step by step. A program of its own,
started by the demo command as a child; it talks in lines of JSON on standard output and never touches a terminal."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from monitor.capture import Capture, PythonProfileModes
from monitor.capture.snapshots import ProfilerName

Floats: TypeAlias = NDArray[np.float64]

SEED = 7
SAMPLES = 4096
BATCH = 256
FEATURES = 48
HIDDEN = 96
LEARNING_RATE = 0.05
EVALUATE_EVERY = 10
EVALUATION_STEPS = 3
CLIP_REACH = 2.5
LATEST_SLOW_STEP = 200
"""A run without end has no middle: it becomes slow here, after 10 s at the usual pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Inputs and targets, split by rows."""

    inputs: Floats
    targets: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """What the forward pass keeps for the backward pass."""

    inputs: Floats
    hidden: Floats
    outputs: Floats


@dataclass(slots=True, kw_only=True)
class Network:
    """Two layers with tanh between them; changed in place by the optimizer."""

    first: Floats
    second: Floats


def make_data(random: np.random.Generator) -> Data:
    """Make inputs and a target that two layers can learn."""
    inputs = random.standard_normal((SAMPLES, FEATURES))
    weights = random.standard_normal((FEATURES, 1)) / np.sqrt(FEATURES)
    return Data(inputs=inputs, targets=np.sin(inputs @ weights))


def make_network(random: np.random.Generator) -> Network:
    """Draw the initial weights."""
    return Network(
        first=random.standard_normal((FEATURES, HIDDEN)) / np.sqrt(FEATURES),
        second=random.standard_normal((HIDDEN, 1)) / np.sqrt(HIDDEN),
    )


def load_batch(data: Data, random: np.random.Generator, *, thorough: bool) -> Data:
    """Draw a batch and prepare it; from the middle of the run on, thoroughly."""
    rows = random.integers(0, SAMPLES, BATCH)
    inputs = normalize(data.inputs[rows])
    if thorough:
        inputs = smooth_outliers(inputs)
    return Data(inputs=inputs, targets=data.targets[rows])


def normalize(inputs: Floats) -> Floats:
    """Give every feature of a batch mean 0 and deviation 1."""
    normalized: Floats = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 1e-9)
    return normalized


def smooth_outliers(inputs: Floats) -> Floats:
    """Clip each row around its own median, value by value in Python: the slow way, which the demo lets people find."""
    smoothed = inputs.copy()
    for row in smoothed:
        row[:] = clip_row(row.tolist())
    return smoothed


def clip_row(values: list[float]) -> list[float]:
    """Clip one row to CLIP_REACH around its median."""
    middle = sorted(values)[len(values) // 2]
    low, high = middle - CLIP_REACH, middle + CLIP_REACH
    clipped = values.copy()
    for place, value in enumerate(values):
        if value < low:
            clipped[place] = low
        elif value > high:
            clipped[place] = high
    return clipped


def forward(network: Network, inputs: Floats) -> Activations:
    """Run the network."""
    hidden = np.tanh(inputs @ network.first)
    return Activations(inputs=inputs, hidden=hidden, outputs=hidden @ network.second)


def mean_squared_error(outputs: Floats, targets: Floats) -> float:
    """Measure how far off the outputs are."""
    return float(np.mean((outputs - targets) ** 2))


def backward(network: Network, kept: Activations, targets: Floats) -> tuple[Floats, Floats]:
    """Return the gradients of both layers."""
    slope = 2.0 * (kept.outputs - targets) / len(targets)
    hidden_slope = (slope @ network.second.T) * (1.0 - kept.hidden**2)
    return kept.inputs.T @ hidden_slope, kept.hidden.T @ slope


def optimizer_step(network: Network, gradients: tuple[Floats, Floats]) -> None:
    """Follow the gradients down."""
    network.first -= LEARNING_RATE * gradients[0]
    network.second -= LEARNING_RATE * gradients[1]


class StopRequest:
    """What SIGTERM, SIGINT and the end of the parent process ask for. A pipe and not a threading.Event: Event.set() in
    a signal handler waits for ever when the signal arrives inside Event.wait() of the same thread."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._reader, self._writer = os.pipe()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os.write(self._writer, b"x"))

    def wait(self, seconds: float) -> bool:
        """Pause; True, at once, where a stop was asked for."""
        readable, _, _ = select.select([self._reader], [], [], seconds)
        return bool(readable) or os.getppid() != self._parent


class Training:
    """One run: its data, its network, its capture.

    Args:
        steps: training steps; from the middle on batches are prepared thoroughly, which is slow.
        delay_seconds: paces the steps.
        stop: ends the run after the step in hand.
    """

    def __init__(self, capture: Capture, *, steps: int, delay_seconds: float, stop: StopRequest) -> None:
        self._capture = capture
        self._steps = steps
        self._slow_from = min(steps // 2, LATEST_SLOW_STEP)
        self._delay_seconds = delay_seconds
        self._stop = stop
        self._random = np.random.default_rng(SEED)
        self._data = make_data(self._random)
        self._network = make_network(self._random)
        self._evaluated = 0

    def run(self) -> None:
        """Train until the last step or until stopped, and report now and then."""
        done, loss = 0, float("nan")
        for step in range(self._steps):
            loss = self.train_step(step)
            done = step + 1
            if done % EVALUATE_EVERY == 0:
                report(done, loss)
                self.evaluate()
            if self._stop.wait(self._delay_seconds):
                break
        if done % EVALUATE_EVERY:
            report(done, loss)

    def train_step(self, step: int) -> float:
        """Load a batch, go forward and backward, follow the gradient; returns the loss."""
        with self._capture.step(PythonProfileModes.TRAIN, step):
            batch = load_batch(self._data, self._random, thorough=step >= self._slow_from)
            kept = forward(self._network, batch.inputs)
            loss = mean_squared_error(kept.outputs, batch.targets)
            self._capture.forward_end()
            optimizer_step(self._network, backward(self._network, kept, batch.targets))
        return loss

    def evaluate(self) -> None:
        """Run a few evaluation steps, counted on their own."""
        for _ in range(EVALUATION_STEPS):
            with self._capture.step(PythonProfileModes.EVAL, self._evaluated):
                batch = load_batch(self._data, self._random, thorough=False)
                mean_squared_error(forward(self._network, batch.inputs).outputs, batch.targets)
            self._evaluated += 1


def report(step: int, loss: float) -> None:
    """Write one line of progress."""
    sys.stdout.write(json.dumps({"step": step, "loss": round(loss, 6)}) + "\n")
    sys.stdout.flush()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m monitor.demo_training", description=__doc__)
    parser.add_argument("base", type=Path, help="the folder that gets framework/…")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--node", default="0-demo")
    parser.add_argument("--profiler", choices=("cprofile", "pyinstrument"), default="cprofile")
    parser.add_argument("--delay", type=float, default=0.05, metavar="SECONDS", help="between steps")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; SIGTERM, SIGINT or the end of the parent end the run after the step in hand, with all spans written.
    Returns the exit code."""
    options = parse(arguments)
    profiler: ProfilerName = options.profiler
    stop = StopRequest()
    capture = Capture(options.base, profiler=profiler, node=options.node)
    capture.start()
    try:
        Training(capture, steps=options.steps, delay_seconds=options.delay, stop=stop).run()
    except BrokenPipeError:
        # Who started the run is gone: end as after a signal, and keep the exit from writing to the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    capture.close()
    capture.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
