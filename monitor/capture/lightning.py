"""Lightning: a callback for its Trainer. Loads the Lightning that is loaded already, under either of its names; owns
nothing but the callback."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Unpack

from monitor.capture.recorder import Capture
from monitor.capture.settings import CaptureOptions
from monitor.capture.steps import Steps, begin
from monitor.spans import PythonProfileModes

NAMES = ("lightning.pytorch", "pytorch_lightning")


def load_lightning() -> Any:
    """Load Lightning; the script's own one, for the two names have two Callback classes.

    Raises:
        ImportError: there is none; names what to install.
    """
    names = sorted(NAMES, key=lambda name: name not in sys.modules)
    reason: ImportError | None = None
    for name in names:
        try:
            return import_module(name)
        except ImportError as error:
            reason = error
    raise ImportError(
        f"monitor.capture.lightning needs Lightning ({reason}): pip install 'phasewatch[lightning]'"
    ) from reason


class CaptureCallback(load_lightning().Callback):  # type: ignore[misc]  # found at run time
    """Profiles batches as steps, numbered on from epoch to epoch, each mode by itself; the forward pass ends where the
    backward pass begins.

    Args:
        base, options: see Capture; without a base the environment decides.

    Raises:
        ConfigError: a setting that cannot work.
    """

    def __init__(
        self,
        base: str | os.PathLike[str] | None = None,
        *,
        capture: Capture | None = None,
        **options: Unpack[CaptureOptions],
    ) -> None:
        super().__init__()
        self._steps = Steps(begin(capture, base, options, "pytorch"))

    @property
    def capture(self) -> Capture:
        """Whose close() ends it."""
        return self._steps.capture

    def on_train_batch_start(self, *_: object) -> None:
        """Begin a step of training."""
        self._steps.start(PythonProfileModes.TRAIN)

    def on_before_backward(self, *_: object) -> None:
        """The forward pass has given its loss."""
        self._steps.capture.forward_end()

    def on_train_batch_end(self, *_: object) -> None:
        """End it."""
        self._steps.capture.step_end()

    def on_validation_batch_start(self, *_: object) -> None:
        """Begin a step of validation, the trainer's own check before training included."""
        self._steps.start(PythonProfileModes.EVAL)

    def on_validation_batch_end(self, *_: object) -> None:
        """End it."""
        self._steps.capture.step_end()

    def on_test_batch_start(self, *_: object) -> None:
        """Begin a step of a test."""
        self._steps.start(PythonProfileModes.EVAL)

    def on_test_batch_end(self, *_: object) -> None:
        """End it."""
        self._steps.capture.step_end()

    def on_predict_batch_start(self, *_: object) -> None:
        """Begin a step of a prediction."""
        self._steps.start(PythonProfileModes.PREDICT)

    def on_predict_batch_end(self, *_: object) -> None:
        """End it."""
        self._steps.capture.step_end()

    def on_exception(self, *_: object) -> None:
        """Leave the profiler off."""
        self._steps.capture.step_broken()
