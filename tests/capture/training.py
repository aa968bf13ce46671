"""Runs the scripts of tests/training under the interpreter that has the frameworks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "training"
DEADLINE_SECONDS = 55


def training_python() -> str:
    """The interpreter with torch, keras, lightning and transformers."""
    python = os.environ.get("PHASEWATCH_TRAINING_PYTHON")
    if not python:
        pytest.fail(
            "PHASEWATCH_TRAINING_PYTHON names no interpreter that has the frameworks: run the tests with "
            "`bash tests/run`, which makes it, or: python3 -m venv .cache/training && .cache/training/bin/pip install "
            "torch keras lightning transformers accelerate numpy pyinstrument"
        )
    return python


def training_environment(**more: str) -> dict[str, str]:
    """The environment of a training process: nothing from outside decides, nothing is looked for on a network."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("RANK", "WORLD", "MASTER"))}
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return {**kept, **quiet, "KERAS_BACKEND": "torch", "PYTHONPATH": str(ROOT), **more}


def train(*words: str | Path, ending: int = 0, **more: str) -> str:
    """Run a script to its end; returns what it printed."""
    done = subprocess.run(
        [training_python(), *map(str, words)],
        env=training_environment(**more),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == ending, done.stdout + done.stderr
    return done.stdout
