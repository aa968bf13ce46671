"""One fixture: captures that never outlive their test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.capture import Capture
from tests.capture.capture_on_disk import Open
from tests.capture.pythons import found_pythons, missing_pythons


@pytest.fixture
def open_capture(tmp_path: Path) -> Iterator[Open]:
    """Make captures that are finished, profiler off, whatever the test does."""
    opened: list[Capture] = []

    def make(**settings: object) -> Capture:
        base = settings.pop("base", tmp_path / "base")
        opened.append(Capture(base, **{"node": "0-test", **settings}))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for capture in opened:
        capture.finish()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say on which Pythons capture was tested."""
    missing = ", ".join(missing_pythons()) or "none"
    terminalreporter.write_line(f"capture: ran on CPython {', '.join(found_pythons())}; not found here: {missing}")
