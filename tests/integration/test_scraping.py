"""A real Prometheus finds jobs at /sd, scrapes them as targets of their own, in OpenMetrics, and sees them end."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from monitor.endings import META_KEY, loaded
from monitor.state import STORE_FILE
from monitor.store import open_store
from tests.integration.corpora import node_folder, span_names, write_run, write_span
from tests.integration.daemons import daemon_child, daemon_inside, settings_for, stop, until
from tests.integration.test_prometheus import ask, free_port, prometheus, until_value

EXAMPLE = Path(__file__).parents[2] / "config" / "prometheus" / "prometheus.yml"


def discovering(listen: str) -> dict[str, Any]:
    """Take the commented example of many jobs, with another address and less patience."""
    lines = EXAMPLE.read_text().splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("  # - job_name: phasewatch"))
    block = [line.removeprefix("  # ") for line in lines[first : lines.index("", first)]]
    scrape: dict[str, Any] = yaml.safe_load("\n".join(block))[0]
    del scrape["scrape_interval"]
    scrape["http_sd_configs"][0] |= {"url": f"http://{listen}/sd", "refresh_interval": "200ms"}
    return scrape


def settings_of(folder: Path, sources: dict[str, Path], keep_ended_seconds: float) -> Path:
    text = f"[metrics]\nrefresh_seconds = 0.2\nkeep_ended_seconds = {keep_ended_seconds}\n"
    text += "".join(f'[[source]]\njob = "{job}"\npath = "{path}"\n' for job, path in sources.items())
    file = folder / "c.toml"
    file.write_text(text)
    return file


def test_prometheus_finds_jobs_at_sd_and_sees_them_end_and_come_back(
    data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    sources = {job: tmp_path / job.replace("/", "-") for job in ("alpha", "team/béta 2")}
    profiles = {job: write_run(path, data_dir / "formats", nodes=1, steps=5) for job, path in sources.items()}
    listen = f"127.0.0.1:{free_port()}"
    settings = settings_of(short_tmp_path, sources, 3600)
    with (
        prometheus(tmp_path / "prometheus", listen, scrape=discovering(listen)) as address,
        daemon_child(short_tmp_path, None, "--listen", listen, "-c", str(settings)) as (process, client),
    ):
        client.jobs(fresh=True)
        for job, count in profiles.items():
            until_value(address, f'sum(phasewatch_profiles_total{{training_job="{job}",job="phasewatch"}})', count)
            until_value(address, f'up{{training_job="{job}"}}', 1)
        until_value(address, 'up{training_job=""}', 1)
        until_value(address, "count(phasewatch_build_info)", 1)
        assert ask(address, "count(up)")[0]["value"][1] == "3"
        assert ask(address, '{__name__=~"phasewatch_.*", exported_training_job!=""}') == []
        assert counter_names(address) == {"phasewatch_function_calls"}, "it was not scraped as OpenMetrics"

        settings_of(short_tmp_path, sources, 0.1)
        process.send_signal(signal.SIGHUP)
        until_value(address, "count(up)", 1)
        until_value(address, "count(phasewatch_profiles_total) or vector(0)", 0)
        assert client.raw("/metrics", job="alpha")[1] == b""
        assert {row.job for row in client.jobs().jobs} == set(sources)
        assert client.job_phases(job="alpha").phases[0].spans > 0

        sample = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
        write_span(node_folder(sources["alpha"], "0-host-0"), list(span_names(90))[-3], sample)  # after the closing one
        until_value(address, 'sum(phasewatch_profiles_total{training_job="alpha"})', profiles["alpha"] + 1)
        until_value(address, "count(up)", 2)
        stop(process)


def counter_names(address: str) -> set[str]:
    """Ask Prometheus under which name it knows a counter's type: OpenMetrics says it without _total."""
    with urllib.request.urlopen(f"{address}/api/v1/metadata", timeout=5) as response:
        return {name for name in json.load(response)["data"] if name.startswith("phasewatch_function_calls")}


async def test_an_ended_job_stays_ended_through_a_restart(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    count = write_run(tmp_path / "profiles", data_dir / "formats", nodes=1, steps=2)
    settings = settings_for(short_tmp_path, tmp_path / "profiles", metrics__keep_ended_seconds=3600)
    async with daemon_inside(settings) as (daemon, client):
        await until(client, lambda status: status["profiles"] == count)
        await daemon.round.page.render()  # type: ignore[union-attr]
        assert (await client.raw("/metrics", job="training"))[1] != b""
    with open_store(settings.daemon_state_dir / STORE_FILE) as store:
        (job, arrival), *others = loaded(store.get_meta(META_KEY)).items()
        assert (job, arrival.spans, others) == ("training", count, [])
        with store.transaction():
            store.set_meta(META_KEY, json.dumps({job: [count, arrival.seconds - 3600]}))  # an hour passes
    async with daemon_inside(settings) as (_, client):
        assert (await client.raw("/metrics", job="training"))[1] == b""
        assert (await client.status())["profiles"] == count
