"""Where settings come from when the code gives none: the environment, a TOML file, SageMaker's profilerconfig.json, in
this order of precedence. Parses and never evaluates."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from monitor.capture.settings import READERS, CaptureSettings, settings_from
from monitor.errors import ConfigError

PREFIX = "PHASEWATCH_CAPTURE_"
FILE_VARIABLE = "PHASEWATCH_CAPTURE_FILE"

SAGEMAKER_VARIABLE = "SMPROFILER_CONFIG_PATH"
SAGEMAKER_FILE = "/opt/ml/input/config/profilerconfig.json"
SAGEMAKER_BASE = "/opt/ml/output/profiler"
"""Where SageMaker puts its settings and expects the profiles; the original's names."""

LARGEST_FILE_BYTES = 2**20


def load_settings(given: Mapping[str, object], environ: Mapping[str, str] | None = None) -> CaptureSettings:
    """Put settings together: what the code gives wins over the environment, that over the TOML file that
    PHASEWATCH_CAPTURE_FILE names, that over SageMaker's file.

    Raises:
        ConfigError: a setting is unknown or wrong, a file cannot be read, or no base folder is known.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, object] = {**from_sagemaker(environ), **from_toml(environ), **from_variables(environ), **given}
    if not values.get("base") and values.get("enabled") in (False, "false", "0"):
        values["base"] = SAGEMAKER_BASE  # never written to
    return settings_from(values, where="capture")


def from_variables(environ: Mapping[str, str]) -> dict[str, object]:
    """Read PHASEWATCH_CAPTURE_NAME for each setting; an unknown name is an error, for it is a typing mistake."""
    values: dict[str, object] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in READERS:
            raise ConfigError(f"{variable}: there is no setting {name!r}; there are: {', '.join(READERS)}")
        values[name] = text
    return values


def from_toml(environ: Mapping[str, str]) -> dict[str, object]:
    """Read the file that PHASEWATCH_CAPTURE_FILE names."""
    path = environ.get(FILE_VARIABLE)
    if not path:
        return {}
    try:
        values: dict[str, object] = tomllib.loads(read_small_file(path))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    settings_from({"base": "checked-below", **values}, where=path)
    return values


def from_sagemaker(environ: Mapping[str, str]) -> dict[str, object]:
    """Read SageMaker's profilerconfig.json where it is; {} where it is not."""
    path = environ.get(SAGEMAKER_VARIABLE, SAGEMAKER_FILE)
    if not Path(path).is_file():
        return {}
    try:
        document = lowered(json.loads(read_small_file(path)))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: an object is needed")
    parameters = document.get("profilingparameters") or {}
    if document.get("disableprofiler") in (True, "true") or not isinstance(parameters, dict) or not parameters:
        return {"enabled": False, "base": SAGEMAKER_BASE}
    profiling = parameters.get("pythonprofilingconfig", {})
    if isinstance(profiling, str):
        try:
            profiling = json.loads(profiling or "{}")
        except ValueError as error:
            raise ConfigError(f"{path}: PythonProfilingConfig is no JSON: {error}") from error
    if not isinstance(profiling, dict):
        raise ConfigError(f"{path}: PythonProfilingConfig must hold an object")
    base = local_path(json.loads(read_small_file(path))) or SAGEMAKER_BASE
    values = {"base": base, "enabled": bool(profiling)}
    try:
        return {**values, **profile_range(profiling), **profiler_of(profiling)}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: PythonProfilingConfig {profiling}: {error}") from error


def profile_range(profiling: Mapping[str, object]) -> dict[str, object]:
    """Translate the range of steps or of time; values are numbers or their text.

    As in the original: steps or time and not both, NumSteps is 1 where it is left out, a missing StartStep is the first
    step that comes, a start time without a duration is one step, and without any range no step is profiled.
    """
    start, count, since, seconds = (
        None if profiling.get(name) in (None, "") else float(str(profiling[name]))
        for name in ("startstep", "numsteps", "starttimeinsecsinceepoch", "durationinseconds")
    )
    if (start is not None or count) and (since or seconds):
        raise ValueError("gives steps and time; use one of them")
    if start is not None:
        return {"steps": [(int(start), int(start) + int(count or 1) - 1)]}
    if count:
        return {"first": int(count)}
    if seconds:
        return {"start_time": since or None, "duration_seconds": seconds}
    if since:
        return {"start_time": since, "first": 1}
    return {"every": 0}


def profiler_of(profiling: Mapping[str, object]) -> dict[str, object]:
    """Translate the profiler and its clock."""
    profiler = profiling.get("profilername", "cprofile")
    if profiler != "cprofile":
        return {"profiler": profiler}
    return {"profiler": "cprofile", "timer": profiling.get("cprofiletimer", "total_time")}


def local_path(document: Mapping[str, object]) -> str | None:
    """Find LocalPath, whose value is a path and so keeps its capitals."""
    for name, parameters in document.items():
        if name.lower() == "profilingparameters" and isinstance(parameters, dict):
            for key, value in parameters.items():
                if key.lower() == "localpath":
                    return str(value)
    return None


def lowered(value: object) -> object:
    """Write names and texts small, as the original does before it looks at them."""
    if isinstance(value, dict):
        return {str(key).lower(): lowered(item) for key, item in value.items()}
    if isinstance(value, str):
        return value.lower()
    return value


def read_small_file(path: str) -> str:
    """Read a settings file, which is never large.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if len(text) > LARGEST_FILE_BYTES:
        raise ConfigError(f"{path}: more than {LARGEST_FILE_BYTES} characters are no settings")
    return text
