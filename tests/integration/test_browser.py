"""The interactive pages in a real browser: the script runs, the frames are there, and a hostile name stays a name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from monitor.analysis import PyinstrumentAnalysis
from tests.analysis.answers import found
from tests.analysis.test_classes import write_step
from tests.integration.daemons import daemon_child

EVIL = '</script><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'


@pytest.fixture(scope="module")
def chromium() -> str:
    """A browser; `bash tests/run` installs it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.fail("chromium is missing: `bash tests/run` installs it, or apt-get install -y chromium")
    return found


def rendered(chromium: str, page: Path, profile: Path) -> str:
    """What a page looks like to the browser once its script has run."""
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom"]
    command += ["--virtual-time-budget=5000", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(drawn: str) -> str:
    """What is on the page, without the scripts and the data that they hold."""
    return re.sub(r"<script.*?</script>", "", drawn, flags=re.DOTALL)


@pytest.fixture
def run_of_sessions(tmp_path: Path) -> Path:
    """Two sessions, one with a hostile name in it."""
    for step, name in enumerate(["load_batch", EVIL]):
        leaf = {"function": name, "file_path": "/app/data.py", "line_no": 7, "time": 0.5, "children": []}
        root = {"function": "train_loop", "file_path": "/app/train.py", "line_no": 1, "time": 0.75, "children": [leaf]}
        write_step(tmp_path / "run", step, profiler="pyinstrument").write_text(json.dumps({"root_frame": root}))
    return tmp_path / "run"


@pytest.mark.timeout(120)
def test_a_merged_tree_is_drawn(chromium: str, run_of_sessions: Path, tmp_path: Path) -> None:
    with PyinstrumentAnalysis(str(run_of_sessions)) as analysis:
        page = Path(found(analysis.fetch_profile_stats_by_step(0, 9)).show(tmp_path / "tree.html"))
    drawn = rendered(chromium, page, tmp_path / "profile")
    assert "<title>owned</title>" not in drawn
    for name in ("train_loop", "load_batch", "document.title"):
        assert name in shown(drawn)


@pytest.mark.timeout(120)
def test_the_daemon_s_page_is_drawn_too(chromium: str, run_of_sessions: Path, short_tmp_path: Path) -> None:
    with daemon_child(short_tmp_path, run_of_sessions) as (_, client):
        client.jobs(fresh=True)
        kind, body = client.raw("/v1/stats/step", start=0, end=9, profiler="pyinstrument", format="html")
    assert kind == "text/html; charset=utf-8"
    page = short_tmp_path / "page.html"
    page.write_bytes(body)
    drawn = rendered(chromium, page, short_tmp_path / "profile")
    assert "<title>owned</title>" not in drawn
    assert "train_loop" in shown(drawn)
