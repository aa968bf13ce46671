"""Stands in for `smdebug.profiler.analysis.python_profile_analysis`."""

from __future__ import annotations

from monitor.analysis import (
    PyinstrumentAnalysis,
    PyinstrumentStepStats,
    PythonProfileAnalysis,
    PythonProfileModes,
    StepPhase,
    StepPythonProfileStats,
    cProfileAnalysis,
    cProfileStats,
)

__all__ = [
    "PyinstrumentAnalysis",
    "PyinstrumentStepStats",
    "PythonProfileAnalysis",
    "PythonProfileModes",
    "StepPhase",
    "StepPythonProfileStats",
    "cProfileAnalysis",
    "cProfileStats",
]
