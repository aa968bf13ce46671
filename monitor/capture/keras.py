"""Keras 3, on any backend: a callback for fit, evaluate and predict. Loads keras; owns nothing but the callback."""

from __future__ import annotations

import os
from typing import Unpack

from monitor.capture.recorder import Capture
from monitor.capture.settings import CaptureOptions
from monitor.capture.steps import Steps, begin
from monitor.spans import PythonProfileModes

try:
    import keras
except ImportError as error:
    raise ImportError(f"monitor.capture.keras needs Keras 3 ({error}): pip install 'phasewatch[keras]'") from error

FRAMEWORKS = {"torch": "pytorch"}
"""Keras's name of a backend -> the framework folder, where they differ."""


class CaptureCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Profiles batches as steps, numbered on from epoch to epoch, each mode by itself. Keras does not tell where the
    forward pass ends.

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
        backend = keras.backend.backend()
        self._steps = Steps(begin(capture, base, options, FRAMEWORKS.get(backend, backend)))

    @property
    def capture(self) -> Capture:
        """Whose close() ends it."""
        return self._steps.capture

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Begin a step of fit()."""
        self._steps.start(PythonProfileModes.TRAIN)

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """End it."""
        self._steps.capture.step_end()

    def on_test_batch_begin(self, batch: int, logs: object = None) -> None:
        """Begin a step of evaluate(), or of the validation inside fit()."""
        self._steps.start(PythonProfileModes.EVAL)

    def on_test_batch_end(self, batch: int, logs: object = None) -> None:
        """End it."""
        self._steps.capture.step_end()

    def on_predict_batch_begin(self, batch: int, logs: object = None) -> None:
        """Begin a step of predict()."""
        self._steps.start(PythonProfileModes.PREDICT)

    def on_predict_batch_end(self, batch: int, logs: object = None) -> None:
        """End it."""
        self._steps.capture.step_end()
