"""Stands in for `smdebug.profiler.analysis.utils.python_profile_analysis_utils`."""

from __future__ import annotations

from monitor.analysis import (
    Metrics,
    PyinstrumentStepStats,
    PythonProfileModes,
    StepPhase,
    StepPythonProfileStats,
    cProfileFunctionStats,
    cProfileStats,
)
from monitor.compat.python_profile_utils import str_to_python_profile_mode

__all__ = [
    "Metrics",
    "PyinstrumentStepStats",
    "PythonProfileModes",
    "StepPhase",
    "StepPythonProfileStats",
    "cProfileFunctionStats",
    "cProfileStats",
    "str_to_python_profile_mode",
]
