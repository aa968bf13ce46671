"""Tells what is odd about the answers, at the line that asked."""

from __future__ import annotations

import sys
import warnings

PACKAGE = __name__.rpartition(".")[0]


class SkippedFileWarning(UserWarning):
    """A profile could not be used and is missing from the answers; it is looked at again when it changes."""


class SeveralRunsWarning(UserWarning):
    """The folder or prefix holds several runs, whose steps are added together as if they were one run's."""


def warn_caller(message: str, kind: type[Warning]) -> None:
    """Warn at the line outside this package that asked."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)
