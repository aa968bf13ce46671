"""Every warning and error that the daemon logs can be seen in /metrics too: each place that logs one is listed here
with its metric, and the daemon gives each of these metrics."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

MONITOR = Path(__file__).parents[1] / "monitor"
NOT_THE_DAEMON = ("analysis", "capture", "compat", "demo.py", "demo_training.py")
STARTS = "fatal, or said once at the start: there is no page yet, or no more"

METRICS = {
    "api/access.py:_read_changed": "phasewatch_query_access_failures",
    "api/access.py:admit": "phasewatch_query_refused_requests",
    "api/connections.py:_accept": "phasewatch_query_dropped_connections",
    "api/connections.py:_refuse": "phasewatch_query_dropped_connections",
    "api/connections.py:affordable": STARTS,
    "api/connections.py:handle_error": "phasewatch_query_refused_requests",  # reason="internal"
    "api/server.py:guard": "phasewatch_query_requests",  # status="500"
    "daemon.py:_take_settings": "phasewatch_reload_failures",
    "daemon.py:tell_deprecated": STARTS,
    "decoding.py:_start": "phasewatch_decode_start_failures",
    "ingest.py:_commit": "phasewatch_ingest_store_failures",
    "ingest.py:_keep_sidecars": "phasewatch_ingest_store_failures",
    "ingest.py:_note_failure": "phasewatch_ingest_failures",
    "service.py:check_watchdog": STARTS,
    "service.py:tell": "phasewatch_notify_failures",
    "shipping.py:delete_unchanged": "phasewatch_ship_delete_failures",
    "shipping.py:run": "phasewatch_ship_failures",
    "sources/local.py:_watch": "phasewatch_source_event_failures",
    "sources/s3.py:_look": "phasewatch_source_failed_polls",
    "sources/s3_jobs.py:expanded": "phasewatch_source_job_failures",
    "sources/s3_queue.py:_receive_forever": "phasewatch_source_requests",  # operation="receive"
    "sources/s3_queue.py:_set_aside": "phasewatch_source_messages_set_aside",
    "sources/walk.py:_current_root": "phasewatch_source_failed_polls",
    "sources/walk.py:_leads_inside": "phasewatch_source_refused_links",
    "sources/walk.py:_lose": "phasewatch_source_unreadable_folders",
    "sources/walk.py:_note_absence": "phasewatch_source_available",
    "sources/walk.py:_span_ref": "phasewatch_source_ignored_names",
    "sources/walk.py:_take_identity": "phasewatch_source_refused_links",
    "state.py:close_to_others": STARTS,
    "state.py:opened": "phasewatch_store_rebuilding",
    "state.py:set_aside": "phasewatch_store_damaged_stores",
    "upkeep.py:finish": STARTS,
    "upkeep.py:run_due": "phasewatch_store_upkeep_failures",
}


def complains(call: ast.Call) -> bool:
    """Tell whether a call logs a warning or an error."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "log_once":
        level = next((word.value for word in call.keywords if word.arg == "level"), None)
        return isinstance(level, ast.Attribute) and level.attr in ("WARNING", "ERROR", "CRITICAL")
    return name in ("warning", "error", "exception", "critical") and "logger" in ast.unparse(call.func)


def complaints() -> set[str]:
    """Find the functions of the daemon that log a warning or an error."""
    found: set[str] = set()
    for path in MONITOR.rglob("*.py"):
        place = path.relative_to(MONITOR).as_posix()
        if place.startswith(NOT_THE_DAEMON):
            continue
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
                if any(complains(call) for call in calls):
                    found.add(f"{place}:{function.name}")
    return found


def test_every_complaint_has_its_metric() -> None:
    assert complaints() == METRICS.keys()


@pytest.mark.parametrize("metric", sorted(set(METRICS.values()) - {STARTS}))
def test_every_such_metric_is_given(metric: str) -> None:
    assert re.search(rf'"{metric}"', (MONITOR / "status.py").read_text(encoding="utf-8"))
