"""A real Prometheus scrapes a real daemon and answers PromQL; promtool finds nothing to say about the page."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from monitor.client import Client
from monitor.errors import QueryError
from monitor.exposition import FUNCTION_FAMILIES, PACKAGE_FAMILIES
from tests.integration.corpora import node_folder, span_names, write_run, write_span
from tests.integration.daemons import DEADLINE_SECONDS, daemon_child, stop

DRAWN_FROM_PROFILES = {
    *(family.name for family in FUNCTION_FAMILIES + PACKAGE_FAMILIES),
    "phasewatch_function_series_limit_hits_total",
    "phasewatch_profiles_total",
    "phasewatch_last_profile_timestamp_seconds",
    "phasewatch_last_step",
    "phasewatch_span_seconds",
    "phasewatch_steps_total",
    "phasewatch_step_part_seconds_total",
    "phasewatch_step_spread_ratio",
}
TAKEN_LABELS = {
    "job", "instance", "type", "region", "zone", "cluster", "az", "datacenter", "dc", "owner", "customer", "stage",
    "service", "environment", "env",
}  # fmt: skip
"""Of Prometheus itself, or likely to be put on a target by those who run it."""


def program(name: str) -> str:
    """Find a program of Debian's prometheus package."""
    found = shutil.which(name)
    assert found is not None, f"{name} is missing: apt-get install -y prometheus"
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def prometheus(
    folder: Path, target: str, rule_files: Sequence[Path] = (), scrape: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Run Prometheus on one target, or as a scrape configuration says; gives its address."""
    folder.mkdir()
    scrape = scrape or {"job_name": "phasewatch", "static_configs": [{"targets": [target]}]}
    config = {
        "global": {"scrape_interval": "200ms"},
        "rule_files": [str(file) for file in rule_files],
        "scrape_configs": [scrape],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    address = f"127.0.0.1:{free_port()}"
    command = [program("prometheus"), f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(timeout=DEADLINE_SECONDS)


def ask(address: str, promql: str) -> list[dict[str, Any]]:
    """Ask Prometheus; nothing while it does not answer yet."""
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': promql})}"
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            result: list[dict[str, Any]] = json.load(response)["data"]["result"]
    except OSError:
        return []
    return result


def until_value(address: str, promql: str, expected: float) -> None:
    """Ask until a query gives one value."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    got: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        got = ask(address, promql)
        if got and float(got[0]["value"][1]) == pytest.approx(expected, rel=1e-9):
            return
        threading.Event().wait(0.1)  # Prometheus scrapes when it scrapes
    raise AssertionError(f"{promql} gave {got}, not {expected}")


def wait_for_page(client: Client, text: str) -> bytes:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        with suppress(QueryError):  # no page yet
            page = client.raw("/metrics")[1]
            if text.encode() in page:
                return page
        threading.Event().wait(0.05)  # the page is made anew by itself
    raise AssertionError(f"the page never held {text}")


def test_prometheus_sees_true_totals_and_no_reset_through_a_restart(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    source = tmp_path / "profiles"
    profiles = write_run(source, data_dir / "formats", nodes=2, steps=20)
    listen = f"127.0.0.1:{free_port()}"
    settings = short_tmp_path / "c.toml"
    settings.write_text("[metrics]\nfunctions_per_phase = 5\nrefresh_seconds = 0.2\n")
    arguments = ("--listen", listen, "-c", str(settings))
    functions = 'sum(phasewatch_function_calls_total{profiler="cprofile"})'
    with prometheus(tmp_path / "prometheus", listen) as address:
        with daemon_child(short_tmp_path, source, *arguments) as (process, client):
            calls = sum(
                row.calls or 0 for phase in client.training_phases(fresh=True).phases for row in phase.functions
            )
            until_value(address, "sum(phasewatch_profiles_total)", profiles)
            until_value(address, functions, calls)
            until_value(address, "max(phasewatch_last_step)", 20)
            stop(process)
        folder = node_folder(source, "0-host-0")
        sample = (data_dir / "formats" / "cpython-3.12" / "python_stats").read_bytes()
        for name in list(span_names(60))[-90:]:
            write_span(folder, name, sample)
        with daemon_child(short_tmp_path, source, *arguments) as (process, client):
            calls = sum(
                row.calls or 0 for phase in client.training_phases(fresh=True).phases for row in phase.functions
            )
            until_value(address, functions, calls)
            until_value(address, "sum(phasewatch_profiles_total)", profiles + 90)
            for family in ("self_seconds", "cumulative_seconds", "calls", "primitive_calls"):
                until_value(address, f"sum(resets(phasewatch_function_{family}_total[1m]))", 0)
            shown = ask(address, "max(count by (node, start_mode, end_mode) (phasewatch_function_calls_total))")
            assert float(shown[0]["value"][1]) <= 2 * 5 + 1
            stop(process)


def test_promtool_finds_nothing_to_say_about_the_page(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    source = tmp_path / "profiles"
    write_run(source, data_dir / "formats", nodes=2, steps=10)
    session = (data_dir / "formats" / "pyinstrument-5.1.3" / "python_stats.json").read_bytes()
    write_span(node_folder(source, "0-a", "pyinstrument"), next(span_names(1)), session, "python_stats.json")
    with daemon_child(short_tmp_path, source) as (process, client):
        client.training_phases(fresh=True)
        first = 'profiler="pyinstrument",job_phase="initialization",start_mode="prestepzero",end_mode="train"'
        wait_for_page(client, f"{first},package=")
        page = wait_for_page(client, 'end_mode="posthookclose",package=')
        stop(process)
    checked = subprocess.run([program("promtool"), "check", "metrics"], input=page, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout.decode(), checked.stderr.decode()) == (0, "", "")
    families = {family.name: family for family in text_string_to_metric_families(page.decode())}
    missing = {name.removesuffix("_total") for name in DRAWN_FROM_PROFILES} - families.keys()
    assert missing == {"phasewatch_step_spread_ratio"}  # all nodes have ended
    for name, family in families.items():
        assert family.documentation.strip()
        assert not TAKEN_LABELS & {label for sample in family.samples for label in sample.labels}, name
        if name in DRAWN_FROM_PROFILES or f"{name}_total" in DRAWN_FROM_PROFILES:
            assert re.search(r"(May|Not to|Never to) be summed", family.documentation), name
    phases = {(s.labels["job_phase"], s.value) for s in families["phasewatch_profiles"].samples}
    assert ("finalization", 0.0) in phases
    assert [s.labels.keys() for s in families["phasewatch_build_info"].samples] == [{"version"}]
    own = sum(s.value for s in families["phasewatch_function_self_seconds"].samples)
    packages = families["phasewatch_package_self_seconds"].samples
    assert sum(s.value for s in packages) == pytest.approx(own, rel=1e-9)
    assert {"standard library", "built-in"} <= {s.labels["package"] for s in packages}


def self_seconds(page: bytes) -> dict[tuple[tuple[str, str], ...], float]:
    """Return the self seconds of functions on a page, by their labels."""
    (family,) = (
        family
        for family in text_string_to_metric_families(page.decode())
        if family.name == "phasewatch_function_self_seconds"
    )
    return {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}


def wait_for_total(client: Client) -> bytes:
    """Wait for a page whose functions add up to what the socket says."""
    phases = client.training_phases(fresh=True).phases
    seconds = sum(row.self_seconds for phase in phases for row in phase.functions)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while sum(self_seconds(page := wait_for_page(client, "function=")).values()) != pytest.approx(seconds, rel=1e-9):
        assert time.monotonic() < deadline, seconds
        threading.Event().wait(0.05)  # the page is made anew by itself
    return page


def test_rules_may_change_at_a_reload_and_at_a_restart_and_no_series_falls(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    source, settings = tmp_path / "profiles", short_tmp_path / "c.toml"
    write_run(source, data_dir / "formats", nodes=1, steps=10)
    rules = "[metrics]\nfunctions_per_phase = 20\nrefresh_seconds = 0.1\n"
    settings.write_text(rules)
    pages: list[bytes] = []
    with daemon_child(short_tmp_path, source, "-c", str(settings)) as (process, client):
        pages.append(wait_for_total(client))
        settings.write_text(f"{rules}rename = ['^.*/([^/]+)$ => reloaded/\\1']\n")
        process.send_signal(signal.SIGHUP)
        pages.append(wait_for_page(client, 'function="reloaded/'))
        stop(process)
    settings.write_text(f"{rules}packages = ['application code']\nrename = ['^ => restarted ']\n")
    with daemon_child(short_tmp_path, source, "-c", str(settings)) as (process, client):
        pages.append(wait_for_page(client, 'function="restarted '))
        folder = node_folder(source, "0-host-0")
        sample = (data_dir / "formats" / "cpython-3.12" / "python_stats").read_bytes()
        for name in list(span_names(12))[-7:]:
            write_span(folder, name, sample)
        pages.append(wait_for_total(client))
        stop(process)
    for before, after in pairwise([self_seconds(page) for page in pages]):
        assert all(after[labels] >= value for labels, value in before.items())
    for before, after in pairwise([self_seconds(page) for page in pages[:3]]):
        assert len(after) > len(before)
        assert sum(after.values()) == pytest.approx(sum(before.values()), rel=1e-9)


def test_the_scrape_example_is_valid() -> None:
    example = Path(__file__).parents[2] / "config" / "prometheus" / "prometheus.yml"
    subprocess.run([program("promtool"), "check", "config", str(example)], check=True, capture_output=True)


@pytest.mark.parametrize("way", ["token", "password"])
def test_prometheus_comes_in_over_tls_with_a_token_or_a_password(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path, way: str
) -> None:
    source = tmp_path / "profiles"
    data = (data_dir / "formats" / "cpython-3.12" / "python_stats").read_bytes()
    write_span(node_folder(source, "0-a"), next(iter(span_names(1))), data)
    ca = trustme.CA()
    certificate = ca.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "tls.key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    ca.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "secret").write_text("open sesame\n")
    hashed = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(5)).decode()
    toolkit = f"tls_server_config: {{cert_file: tls.crt, key_file: tls.key}}\nbasic_auth_users: {{ann: {hashed}}}\n"
    web = tmp_path / "web.yml"
    web.write_text(toolkit)
    subprocess.run([program("promtool"), "check", "web-config", web], check=True, capture_output=True)
    web.write_text(f"{toolkit}bearer_tokens: {{prometheus: {hashlib.sha256(b'open sesame').hexdigest()}}}\n")
    secret = str(tmp_path / "secret")
    scrape: dict[str, object] = {
        "job_name": "phasewatch",
        "scheme": "https",
        "tls_config": {"ca_file": str(tmp_path / "ca.crt"), "server_name": "localhost"},
    }
    scrape |= {
        "token": {"authorization": {"credentials_file": secret}},
        "password": {"basic_auth": {"username": "ann", "password_file": secret}},
    }[way]
    with daemon_child(short_tmp_path, source, "--web-config-file", str(web)) as (_, client):
        wait_for_page(client, "phasewatch_profiles_total{")
        scrape["static_configs"] = [{"targets": [client.status()["address"]]}]
        with prometheus(tmp_path / "prometheus", client.status()["address"], scrape=scrape) as address:
            until_value(address, "sum(phasewatch_profiles_total)", 1)
            refused = client.status()["queries"]["refused"]
            assert refused == {"malformed": 0}
