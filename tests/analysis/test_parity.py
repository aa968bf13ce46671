"""The original's recorded answers, asked of the notebook classes: from the folder, and through a running daemon."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.analysis import PyinstrumentAnalysis, PythonProfileAnalysis, cProfileAnalysis
from monitor.analysis.classes import NOTHING_IN_INTERVAL
from tests.analysis.answers import ask, assert_same
from tests.integration.daemons import daemon_child

CLASSES: dict[str, type[PythonProfileAnalysis[Any]]] = {
    "cprofile": cProfileAnalysis,
    "pyinstrument": PyinstrumentAnalysis,
}


def recorded(data_dir: Path, profiler: str) -> list[tuple[str, dict[str, Any], Any]]:
    queries = json.loads((data_dir / "parity" / f"{profiler}_queries.json").read_text())
    with gzip.open(data_dir / "parity" / f"{profiler}_answers.json.gz") as file:
        answers = json.load(file)
    return [(method, words, answer) for (method, words), answer in zip(queries, answers, strict=True)]


@contextlib.contextmanager
def opened(way: str, profiler: str, parity_dir: Path, short_tmp_path: Path) -> Iterator[PythonProfileAnalysis[Any]]:
    """Open an analysis of the recorded profiles in one of the ways that there are."""
    folders = {
        "the folder that the original takes": parity_dir / "framework" / "pytorch" / profiler,
        "the base folder": parity_dir,
        "a folder of another name": short_tmp_path / "python_stats",
    }
    if way == "a folder of another name":
        folders[way].symlink_to(parity_dir / "framework" / "pytorch" / profiler)
    if way == "a daemon's socket":
        with daemon_child(short_tmp_path, parity_dir), CLASSES[profiler](socket=short_tmp_path / "s.sock") as analysis:
            yield analysis
    else:
        with CLASSES[profiler](str(folders[way])) as analysis:
            yield analysis


@pytest.mark.parametrize("profiler", CLASSES)
@pytest.mark.parametrize(
    "way",
    ["the folder that the original takes", "the base folder", "a folder of another name", "a daemon's socket"],
)
def test_every_question_gets_the_original_answer(
    way: str, profiler: str, parity_dir: Path, data_dir: Path, short_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = recorded(data_dir, profiler)
    assert len(cases) > 20
    with opened(way, profiler, parity_dir, short_tmp_path) as analysis:
        for method, words, answer in cases:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                mine = ask(analysis, method, words)
            try:
                assert_same(mine, answer)
            except AssertionError as error:
                raise AssertionError(f"{method} {words}: {error}") from error
            assert out.getvalue() == (f"{NOTHING_IN_INTERVAL}\n" if answer is None else "")
