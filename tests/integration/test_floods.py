"""More than any job should have, through a real daemon: many nodes, and names of every kind in files and labels."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

from monitor.client import Client
from monitor.profiles.names import LONGEST_LABEL, LONGEST_NAME, drop_addresses, safe_text
from tests.integration.corpora import node_folder, span_names, write_span
from tests.integration.daemons import DEADLINE_SECONDS, daemon_child, stop
from tests.integration.hostile_names import names, profile_of
from tests.integration.test_prometheus import program

NODES = 1_000
SPAN = next(span_names(1))
JOB = 'a "quoted" \\ {job="x"} é 漢'


def spans_shown(page: str) -> Counter[tuple[str, str]]:
    """Read how many spans a page shows, by job and node, all phases together."""
    shown: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "phasewatch_profiles_total":
                shown[sample.labels["training_job"], sample.labels["node"]] += int(sample.value)
    return shown


def page_with(client: Client, spans: int) -> str:
    """Wait for a page that shows so many spans."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while spans_shown(page := client.raw("/metrics")[1].decode()).total() < spans:
        assert time.monotonic() < deadline, "the page never showed all spans"
        time.sleep(0.2)  # the page is made anew by itself
    return page


def complaints(page: str) -> str:
    """Return what promtool says about a page."""
    command = [program("promtool"), "check", "metrics"]
    checked = subprocess.run(command, input=page.encode(), capture_output=True, check=False)
    return (checked.stdout + checked.stderr).decode()


def test_a_thousand_nodes_are_counted_shown_and_answered(tmp_path: Path, short_tmp_path: Path) -> None:
    data = profile_of([("train.py", 1, "step"), ("train.py", 2, "loss")])
    for node in range(NODES):
        write_span(node_folder(tmp_path, f"{node}-host"), SPAN, data)
    with daemon_child(short_tmp_path, tmp_path) as (process, client):
        assert len(client.nodes(fresh=True).nodes) == NODES
        functions = client.job_phases().phases[0].functions
        assert {row.name: row.calls for row in functions} == {"step": NODES, "loss": 2 * NODES}
        page = page_with(client, NODES)
        stop(process)
    assert set(spans_shown(page).values()) == {1}
    assert complaints(page) == ""


def test_the_daemon_gives_way_to_the_job_beside_it(tmp_path: Path, short_tmp_path: Path) -> None:
    write_span(node_folder(tmp_path, "0-host"), SPAN, profile_of([("train.py", 1, "step")]))
    with daemon_child(short_tmp_path, tmp_path) as (process, client):
        client.jobs(fresh=True)
        daemon = psutil.Process(process.pid)
        assert (daemon.nice(), daemon.ionice()) == (5, (psutil.IOPRIO_CLASS_BE, 7))
        decoders = {(child.nice(), child.ionice()) for child in daemon.children()}  # one of them may still be starting
        assert (10, (psutil.IOPRIO_CLASS_BE, 7)) in decoders
        stop(process)
    environment = {"PHASEWATCH_DAEMON_NICE": "0", "PHASEWATCH_DAEMON_IONICE": "idle"}
    with daemon_child(short_tmp_path, tmp_path, variables=environment) as (process, _):
        daemon = psutil.Process(process.pid)
        assert (daemon.nice(), daemon.ionice()[0]) == (0, psutil.IOPRIO_CLASS_IDLE)
        stop(process)


def test_names_of_every_kind_are_kept_apart_and_break_no_page(tmp_path: Path, short_tmp_path: Path) -> None:
    functions = [(name, line, f"{line} {name}") for line, name in enumerate(names())]
    wild = [name for name in names() if name.isprintable() and "/" not in name and 0 < len(name.encode()) < 200]
    nodes = [name for name in wild if name not in (".", "..")]
    assert len(nodes) > 10
    for node in nodes:
        write_span(node_folder(tmp_path, node), SPAN, profile_of(functions))
    arguments = ("--job", JOB)
    environment = {"PHASEWATCH_METRICS_FUNCTIONS_PER_PHASE": str(len(functions))}
    with daemon_child(short_tmp_path, tmp_path, *arguments, variables=environment) as (process, client):
        assert {node.node for node in client.nodes(fresh=True).nodes} == set(nodes)
        answer = json.loads(client.raw("/v1/stats/pre-step-zero", job=JOB)[1])
        alone = json.loads(client.raw("/v1/stats/pre-step-zero", node=nodes[0])[1])
        page = page_with(client, len(nodes))
        stop(process)
    expected = {
        (safe_text(file), line, safe_text(drop_addresses(name))): (place + 1) * len(nodes)
        for place, (file, line, name) in enumerate(functions)
    }
    got = {(row["file"], row["line"], row["name"]): row["calls"] for row in answer["functions"]}
    assert got == expected
    assert max(len(name) for _, _, name in got) == LONGEST_NAME
    assert len(alone["functions"]) == len(functions)
    assert spans_shown(page) == {(JOB, node): 1 for node in nodes}
    labels = {
        sample.labels["function"]
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "phasewatch_function_calls_total"
    }
    assert len(labels - {"(other)"}) > len(functions) - 10  # paths that are shortened to the same text share a series
    assert max(map(len, labels)) <= LONGEST_LABEL
    assert complaints(page) == ""
