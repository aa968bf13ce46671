"""What a notebook imports: the analysis classes of the original library, under its names, and their results."""

from __future__ import annotations

from monitor.analysis.classes import PyinstrumentAnalysis, PythonProfileAnalysis, cProfileAnalysis
from monitor.analysis.functions import Metrics, cProfileFunctionStats, cProfileStats
from monitor.analysis.sessions import PyinstrumentSessions, PyinstrumentStepStats, PyinstrumentTree
from monitor.analysis.skipping import SeveralRunsWarning, SkippedFileWarning
from monitor.analysis.spans import StepPythonProfileStats
from monitor.analysis.tabular import GroupedStats, StatsDiff, diff
from monitor.errors import ArgumentError, MonitorError, SourceUnavailable
from monitor.spans import PythonProfileModes, StepPhase

__all__ = [
    "ArgumentError",
    "GroupedStats",
    "Metrics",
    "MonitorError",
    "PyinstrumentAnalysis",
    "PyinstrumentSessions",
    "PyinstrumentStepStats",
    "PyinstrumentTree",
    "PythonProfileAnalysis",
    "PythonProfileModes",
    "SeveralRunsWarning",
    "SkippedFileWarning",
    "SourceUnavailable",
    "StatsDiff",
    "StepPhase",
    "StepPythonProfileStats",
    "cProfileAnalysis",
    "cProfileFunctionStats",
    "cProfileStats",
    "diff",
]
