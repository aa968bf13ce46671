"""DataLoader workers: each one captures itself, as a node of its own, in spans of some batches. Loads torch only inside
a worker, where it is loaded already."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from multiprocessing.util import Finalize
from typing import Any

from monitor.capture.recorder import Capture
from monitor.capture.settings import CaptureSettings
from monitor.spans import PythonProfileModes

logger = logging.getLogger("phasewatch.capture")

FETCH_MODULE = "torch.utils.data._utils.fetch"
FETCHERS = ("_MapDatasetFetcher", "_IterableDatasetFetcher")
"""What fetches batches in a worker. Private names: where they are gone a worker is one span, which is said once."""


def worker_init(
    capture: Capture,
    worker_init_fn: Callable[[int], object] | None = None,
    *,
    mode: PythonProfileModes = PythonProfileModes.TRAIN,
    batches_per_span: int = 10,
) -> WorkerInit:
    """Make a worker_init_fn for a DataLoader; the user's own one runs first.

    Args:
        capture: the training process's; workers have its settings, and nodes named NODE-worker-K.
        batches_per_span: a span begins with every so many batches that a worker fetches; they are its steps.
    """
    settings = replace(capture.settings, node=capture.node, handle_sigterm=False)
    return WorkerInit(settings, worker_init_fn, mode, batches_per_span)


class WorkerInit:
    """Runs in a worker before its first batch. Can be pickled, for workers that are spawned."""

    def __init__(
        self,
        settings: CaptureSettings,
        inner: Callable[[int], object] | None,
        mode: PythonProfileModes,
        batches_per_span: int,
    ) -> None:
        self._settings = settings
        self._inner = inner
        self._mode = mode
        self._batches_per_span = batches_per_span

    def __call__(self, worker: int) -> None:
        """Begin to capture this worker."""
        if self._inner is not None:
            self._inner(worker)
        try:
            capture = Capture(settings=self._settings.for_node(f"{self._settings.node}-worker-{worker}"))
            capture.start()
            # Workers end without the interpreter's exit functions, but with those of multiprocessing.
            Finalize(None, capture.finish, exitpriority=100)
            mark_batches(BatchSpans(capture, self._mode, self._batches_per_span))
        except Exception as error:  # noqa: BLE001  # a worker that is not captured still has to load data
            logger.warning("worker %s is not captured: %s: %s", worker, type(error).__name__, error)


class BatchSpans:
    """Counts batches and begins a span with every so many."""

    __slots__ = ("_batches", "_batches_per_span", "_capture", "_mode")

    def __init__(self, capture: Capture, mode: PythonProfileModes, batches_per_span: int) -> None:
        self._capture = capture
        self._mode = mode
        self._batches_per_span = batches_per_span
        self._batches = 0

    def fetching(self) -> None:
        """A batch is about to be fetched."""
        if self._batches % self._batches_per_span == 0:
            self._capture.step_start(self._mode, self._batches)
        self._batches += 1


def mark_batches(spans: BatchSpans) -> None:
    """Have each fetch in this worker's process counted."""
    module = import_module(FETCH_MODULE)
    classes = [getattr(module, name) for name in FETCHERS if hasattr(getattr(module, name, None), "fetch")]
    for fetcher in classes:
        wrap_fetch(fetcher, spans)
    if not classes:
        logger.warning("this version of torch fetches batches in an unknown way: each worker is one span")


def wrap_fetch(fetcher: Any, spans: BatchSpans) -> None:
    """Count one class's fetches."""
    inner = fetcher.fetch

    def fetch(self: object, index: object) -> object:
        spans.fetching()
        return inner(self, index)

    fetcher.fetch = fetch
