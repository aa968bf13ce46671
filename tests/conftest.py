"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["tests.sources.moto_server"]

DATA = Path(__file__).parent / "data"
INTERPRETERS = ("PHASEWATCH_ORACLE_PYTHON", "PHASEWATCH_TRAINING_PYTHON")
SPARE_DESCRIPTORS = 8
"""Caches of the interpreter and of libraries may keep so many open for themselves."""


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of checked-in data."""
    return DATA


@pytest.fixture(scope="session")
def parity_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base folder with the profiles that the original answered questions about."""
    folder = tmp_path_factory.mktemp("parity")
    with tarfile.open(DATA / "parity" / "profiles.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def short_tmp_path() -> Iterator[Path]:
    """A folder whose path leaves room for a unix socket's name."""
    folder = Path(tempfile.mkdtemp(prefix="pw-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def scrubbed_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith(("PHASEWATCH_", "AWS_", "XDG_")) and name not in INTERPRETERS:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Take back what a daemon in a test's own process did to the project's logger."""
    logger = logging.getLogger("phasewatch")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    last_resort = logging.lastResort
    yield
    logging.lastResort = last_resort
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """Fail a test that leaves descriptors or threads behind."""
    descriptors, threads = count_descriptors(), set(threading.enumerate())
    yield
    gc.collect()
    left = count_descriptors() - descriptors
    assert left <= SPARE_DESCRIPTORS, f"{left} descriptors were left open"
    new = {thread for thread in threading.enumerate() if thread not in threads and not thread.daemon}
    named = [thread.name for thread in new if not thread.name.startswith(("AnyIO", "asyncio"))]
    assert not named, f"threads were left running: {named}"


def count_descriptors() -> int:
    """Count this process's open descriptors."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a plain count
