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
from monitor.compat.profiler_constants import CONVERT_TO_MICROSECS, CPROFILE_NAME, PYINSTRUMENT_NAME
from monitor.compat.python_profile_utils import python_profile_mode_to_str

__all__ = [
    "CONVERT_TO_MICROSECS",
    "CPROFILE_NAME",
    "PYINSTRUMENT_NAME",
    "PyinstrumentAnalysis",
    "PyinstrumentStepStats",
    "PythonProfileAnalysis",
    "PythonProfileModes",
    "StepPhase",
    "StepPythonProfileStats",
    "cProfileAnalysis",
    "cProfileStats",
    "python_profile_mode_to_str",
]
