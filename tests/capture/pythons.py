"""Every CPython that phasewatch supports and that is found here: on PATH, or where pyenv keeps them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")


@cache
def found_pythons() -> dict[str, str]:
    """Version such as 3.12.1 -> interpreter, the newest of each minor version; always the one that runs the tests."""
    found = {".".join(map(str, sys.version_info[:3])): sys.executable}
    for minor in SUPPORTED:
        for candidate in candidates(minor):
            version = version_of(candidate)
            if version.startswith(f"{minor}.") and not any(known.startswith(f"{minor}.") for known in found):
                found[version] = candidate
    return dict(sorted(found.items()))


def missing_pythons() -> list[str]:
    """Supported minor versions that are not here."""
    return [minor for minor in SUPPORTED if not any(known.startswith(f"{minor}.") for known in found_pythons())]


def candidates(minor: str) -> list[str]:
    """Where an interpreter may be, pyenv's own first: its shims answer only for versions that are switched on."""
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{minor}.*/bin/python{minor}"), reverse=True)
    on_path = shutil.which(f"python{minor}")
    return [*map(str, pyenv), *([on_path] if on_path else [])]


def version_of(python: str) -> str:
    """Ask an interpreter for its version; empty where it is not CPython or does not run."""
    script = "import platform; print(platform.python_implementation(), platform.python_version())"
    try:
        done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    implementation, _, version = done.stdout.strip().partition(" ")
    return version if done.returncode == 0 and implementation == "CPython" else ""
