"""PyTorch: hooks on the outermost module tell where steps begin and forward passes end. Loads torch; owns nothing but
the hooks, and never changes what the module is given or gives."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Unpack

from monitor.capture.recorder import Capture
from monitor.capture.settings import CaptureOptions
from monitor.capture.steps import Steps, begin
from monitor.spans import PythonProfileModes

try:
    import torch
except ImportError as error:
    raise ImportError(f"monitor.capture.torch needs PyTorch ({error}): pip install 'phasewatch[torch]'") from error

TRAIN, EVAL = PythonProfileModes.TRAIN, PythonProfileModes.EVAL


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    base: str | os.PathLike[str] | None = None,
    capture: Capture | None = None,
    **options: Unpack[CaptureOptions],
) -> Capture:
    """Profile the training of a model step by step; returns the capture, whose close() ends it.

    A step begins with a forward pass, in mode TRAIN or EVAL as `model.training` says. With the optimizer, a training
    step goes on over all forward passes until the optimizer has stepped, as it should where gradients are accumulated;
    without it, each forward pass begins a step.

    Args:
        model: the outermost module, as the training loop calls it: after wrapping it (DDP, FSDP) and compiling it.
        base, options: see Capture; without a base the environment decides.

    Raises:
        ConfigError: a setting that cannot work.
    """
    hooks = ModelHooks(Steps(begin(capture, base, options, "pytorch")), until_optimizer=optimizer is not None)
    hooks.register(model)
    if optimizer is not None:
        optimizer.register_step_post_hook(hooks.optimizer_stepped)
    return hooks.steps.capture


class ModelHooks:
    """What happens around the forward passes of one module.

    Args:
        until_optimizer: a training step ends with the optimizer's step, and not with the next forward pass.
    """

    __slots__ = ("_depth", "_in_step", "_thread", "steps", "until_optimizer")

    def __init__(self, steps: Steps, *, until_optimizer: bool) -> None:
        self.steps = steps
        self.until_optimizer = until_optimizer
        self._depth = 0
        self._in_step = False
        self._thread = 0

    def register(self, model: torch.nn.Module) -> None:
        """Begin."""
        model.register_forward_pre_hook(Hook(self.before))
        model.register_forward_hook(Hook(self.after), always_call=True)

    def before(self, module: torch.nn.Module, *_: object) -> None:
        """A forward pass begins; the module may call itself, and copies of it may run in other threads."""
        if not self._mine():
            return
        self._depth += 1
        if self._depth > 1:
            return
        if not module.training:
            self._in_step = False
            self.steps.start(EVAL)
        elif not (self.until_optimizer and self._in_step):
            self._in_step = True
            self.steps.start(TRAIN)

    def after(self, _module: torch.nn.Module, _inputs: object, output: object, *_: object) -> None:
        """A forward pass has ended, or an exception has ended it: then there is no output."""
        if not self._mine() or not self._depth:
            return
        self._depth -= 1
        if output is None and sys.exc_info()[0] is not None:
            self._in_step = False
            self.steps.capture.step_broken()
        elif not self._depth:
            self.steps.capture.forward_end()

    def optimizer_stepped(self, *_: object) -> None:
        """The optimizer has stepped."""
        if self._in_step:
            self._in_step = False
            self.steps.capture.step_end()

    def _mine(self) -> bool:
        """Whether this is the thread that trains: the one of the first forward pass."""
        thread = threading.get_ident()
        if not self._thread:
            self._thread = thread
        return self._thread == thread


class Hook:
    """A hook that copies and pickles as one that does nothing: a copy of the model is another model, and a checkpoint
    of the whole model may be loaded where there is no phasewatch."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        """Call the hook, unless a compiler only looks at it."""
        if not torch.compiler.is_compiling():
            self._call(*arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Leave a method of the standard library that takes anything and does nothing."""
        return getattr, (contextlib.nullcontext(), "__exit__")
