"""Finds the steps of a script that knows nothing of capture: waits until it loads torch or keras, then follows the
first model that trains. Loads no framework itself."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from monitor.capture.recorder import Capture
from monitor.capture.steps import Steps

logger = logging.getLogger("phasewatch.capture")


class AfterImport(MetaPathFinder):
    """Calls functions when modules have been loaded for the first time."""

    def __init__(self, functions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._functions = functions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as everybody would, and have the function called once it is loaded."""
        function = self._functions.pop(fullname, None)
        if function is None:
            return None
        spec = find_spec(fullname)  # finds this finder too, which by now passes the name over
        if spec is not None and spec.loader is not None:
            call_after(spec.loader, function)
        return spec


def call_after(loader: Any, function: Callable[[ModuleType], None]) -> None:
    """Have a loader call a function after the module; a function that fails costs the capture, not the import."""
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        try:
            function(module)
        except Exception as error:  # noqa: BLE001  # a framework of an unknown kind must not end the script
            logger.warning("steps of %s are not found: %s: %s", module.__name__, type(error).__name__, error)

    loader.exec_module = exec_module


def follow_frameworks(capture: Capture) -> None:
    """Mark the steps of whatever framework the script will load."""
    functions = {"torch": lambda _: follow_torch(capture), "keras": lambda keras: follow_keras(capture, keras)}
    sys.meta_path.insert(0, AfterImport(functions))


def follow_torch(capture: Capture) -> None:
    """Follow the first outermost module that trains and has something to train; from the first step of any optimizer
    on, steps are the optimizer's."""
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from monitor.capture.torch import Hook, ModelHooks

    hooks = ModelHooks(Steps(capture), until_optimizer=False)

    def first(module: Any, inputs: object) -> None:
        keras = sys.modules.get("keras")
        if keras is not None and isinstance(module, keras.Layer):
            return  # on its torch backend Keras's layers are modules too, but its callback knows better
        if module.training and any(parameter.requires_grad for parameter in module.parameters()):
            handle.remove()
            hooks.register(module)
            hooks.before(module)  # this pass has its list of hooks already

    def stepped(*_: object) -> None:
        hooks.until_optimizer = True
        hooks.optimizer_stepped()

    handle = register_module_forward_pre_hook(Hook(first))
    register_optimizer_step_post_hook(stepped)


def follow_keras(capture: Capture, keras: Any) -> None:
    """Add the callback wherever keras makes a list of callbacks."""
    from monitor.capture.keras import CaptureCallback

    callback = CaptureCallback(capture=capture)
    kind = keras.callbacks.CallbackList
    make = kind.__init__

    def with_ours(self: object, callbacks: Any = None, *arguments: object, **named: object) -> None:
        given = [] if callbacks is None else list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
        make(self, [*given, callback], *arguments, **named)

    kind.__init__ = with_ours
