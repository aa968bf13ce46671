"""The wheel holds what runs and nothing else, and a trainer that captures loads nothing of the daemon."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel made from a copy, so that nothing is left in the tree; no network is used."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "monitor", source / "monitor", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", source / "tests", ignore=shutil.ignore_patterns("__pycache__", "data"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-build-isolation", "--no-deps", "--no-index", "-w", out, source, cwd=source)
    (built,) = out.iterdir()
    with zipfile.ZipFile(built) as archive:
        return archive


def test_the_wheel_holds_every_module_and_the_typing_mark(wheel: zipfile.ZipFile) -> None:
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "monitor").rglob("*.py")} | {"monitor/py.typed"}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


def test_the_wheel_holds_the_license(wheel: zipfile.ZipFile) -> None:
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())


def test_capturing_loads_nothing_of_the_daemon(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import monitor.capture; "
        "print(*{'anyio', 'aiohttp', 'duckdb', 'numpy', 'pandas', 'msgspec'} & set(sys.modules))"
    )
    assert run(sys.executable, "-c", code, cwd=tmp_path).strip() == ""
