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

__all__ = [
    "Metrics",
    "PyinstrumentStepStats",
    "PythonProfileModes",
    "StepPhase",
    "StepPythonProfileStats",
    "cProfileFunctionStats",
    "cProfileStats",
]
