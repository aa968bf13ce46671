"""Hugging Face: a callback for transformers.Trainer. Loads transformers; owns only the callback and its hooks."""

from __future__ import annotations

import os
from typing import Any, Unpack

from monitor.capture.recorder import Capture
from monitor.capture.settings import CaptureOptions
from monitor.capture.steps import Steps, begin
from monitor.capture.torch import Hook
from monitor.spans import PythonProfileModes

try:
    import transformers
except ImportError as error:
    raise ImportError(
        f"monitor.capture.transformers needs transformers ({error}): pip install 'phasewatch[transformers]'"
    ) from error


class CaptureCallback(transformers.TrainerCallback):  # type: ignore[misc]  # its types are not seen here
    """Profiles the trainer's steps, which are the optimizer's, under the trainer's numbers; each forward pass outside
    of training is a step of mode EVAL, in predict() too, which the trainer does not tell apart in time.

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
        self._model: Any = None
        self._evaluating = False

    @property
    def capture(self) -> Capture:
        """Whose close() ends it."""
        return self._steps.capture

    def on_init_end(self, args: object, state: object, control: object, **more: Any) -> None:
        """Put hooks on the model, which tell where forward passes end and evaluation steps begin."""
        self._hook(more.get("model"))

    def on_train_begin(self, args: object, state: object, control: object, **more: Any) -> None:
        """Do so where the model is made only now."""
        self._hook(more.get("model"))

    def on_step_begin(self, args: object, state: Any, control: object, **more: Any) -> None:
        """Begin a step of training."""
        self._steps.start(PythonProfileModes.TRAIN, state.global_step)

    def on_step_end(self, args: object, state: object, control: object, **more: Any) -> None:
        """End it."""
        self._steps.capture.step_end()

    def on_prediction_step(self, args: object, state: object, control: object, **more: Any) -> None:
        """End a step of evaluation."""
        if self._evaluating:
            self._evaluating = False
            self._steps.capture.step_end()

    def _hook(self, model: Any) -> None:
        if model is not None and model is not self._model:
            self._model = model
            model.register_forward_pre_hook(Hook(self._before))
            model.register_forward_hook(Hook(self._after))

    def _before(self, module: Any, *_: object) -> None:
        if not module.training:
            self._evaluating = True
            self._steps.start(PythonProfileModes.EVAL)

    def _after(self, *_: object) -> None:
        self._steps.capture.forward_end()
