"""What a training script imports to profile itself step by step. Owns only the public names; loads nothing beyond the
standard library, so that a trainer pays for no part of the daemon."""

from __future__ import annotations

from monitor.capture.counts import CaptureStatistics
from monitor.capture.recorder import Capture
from monitor.capture.schedule import Schedule
from monitor.capture.settings import CaptureSettings
from monitor.spans import PythonProfileModes

__all__ = ["Capture", "CaptureSettings", "CaptureStatistics", "PythonProfileModes", "Schedule"]
