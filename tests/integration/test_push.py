"""`phasewatch push` into a real Pushgateway and to a real node exporter, from a folder and from a daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from monitor.cli import main
from tests.integration.corpora import node_folder, write_run, write_span
from tests.integration.daemons import DEADLINE_SECONDS, daemon_child, stop
from tests.integration.test_prometheus import free_port

JOBS = {"alpha": 3, "beta": 6}
FORGETTING = ["--persistence.file="]
"""Debian's gateway would keep what it has below /var."""
PASSWORD = "correct horse"
PASSWORD_HASH = "$2b$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e"

Sample = tuple[str, frozenset[tuple[str, str]], float]


@contextmanager
def running(program: str, arguments: Sequence[str], path: str) -> Iterator[str]:
    """Run one of Debian's exporters on a free port; gives its address."""
    found = shutil.which(program)
    assert found is not None, f"{program} is missing: bash tests/run unpacks it"
    address = f"127.0.0.1:{free_port()}"
    command = [found, f"--web.listen-address={address}", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"http://{address}{path}", timeout=5).close()
                break
            except urllib.error.HTTPError as error:
                error.close()  # it answers, and wants a password
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline, f"{program} did not answer"
                time.sleep(0.02)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(timeout=DEADLINE_SECONDS)


def push(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `phasewatch push`."""
    command = [sys.executable, "-m", "monitor", "push", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)


def fetch(url: str) -> bytes:
    """Read a page as the user who may."""
    login = b64encode(f"ann:{PASSWORD}".encode()).decode()
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"Authorization": f"Basic {login}"}), timeout=5
    ) as response:
        body: bytes = response.read()
    return body


def samples(url: str, leave_out: Iterable[str] = ()) -> set[Sample]:
    """Read our samples of a page."""
    return read(fetch(url), leave_out)


def read(page: bytes, leave_out: Iterable[str] = ()) -> set[Sample]:
    """Read the samples of jobs; bounds are numbers, which others write otherwise."""
    every = [sample for family in text_string_to_metric_families(page.decode()) for sample in family.samples]
    for each in every:
        if "le" in each.labels:
            each.labels["le"] = str(float(each.labels["le"]))
    return {
        (each.name, frozenset((key, value) for key, value in each.labels.items() if key not in leave_out), each.value)
        for each in every
        if "training_job" in each.labels and each.name.startswith("phasewatch_")
    }


def profiles(found: set[Sample]) -> Mapping[str, float]:
    """Count profiles by job."""
    counts: dict[str, float] = {}
    for name, labels, value in found:
        if name == "phasewatch_profiles_total":
            job = dict(labels)["training_job"]
            counts[job] = counts.get(job, 0) + value
    return counts


def groups(gateway: str) -> list[dict[str, str]]:
    """Ask the gateway for its groups."""
    data: list[dict[str, Any]] = json.loads(fetch(f"{gateway}/api/v1/metrics"))["data"]
    return sorted((each["labels"] for each in data), key=str)


def test_a_folder_is_pushed_to_a_gateway_that_wants_a_password(data_dir: Path, tmp_path: Path) -> None:
    count = write_run(tmp_path / "profiles", data_dir / "formats", nodes=2, steps=5)
    broken = write_span(
        node_folder(tmp_path / "profiles", "0-host-0"), "train-90-stepstart-9.0_train-90-stepend-9.5", b"half"
    )
    web, secret = tmp_path / "web.yml", tmp_path / "secret"
    web.write_text(json.dumps({"basic_auth_users": {"ann": PASSWORD_HASH}}))
    secret.write_text(f"{PASSWORD}\n")
    with running("prometheus-pushgateway", [*FORGETTING, f"--web.config.file={web}"], "/-/ready") as gateway:
        words = ("--job", "team/béta", "--gateway", gateway)
        pushed = push(tmp_path / "profiles", *words, "--user", "ann", "--password-file", secret)
        said = pushed.stderr.splitlines()
        assert said[0] == f"pushed team/béta, {count} profiles, to {gateway}"
        assert [line.split(" ")[:4] for line in said[1:]] == [["not", "in", "it:", str(broken)]]
        assert pushed.returncode == 0
        found = samples(f"{gateway}/metrics")
        assert profiles(found) == {"team/béta": count}
        assert {(dict(labels)["job"], dict(labels)["instance"]) for _, labels, _ in found} == {("phasewatch", "")}
        refused = push(*words, "--delete", PHASEWATCH_PUSH_USER="ann", PHASEWATCH_PUSH_PASSWORD="wrong")
        assert (refused.returncode, "answers 401" in refused.stderr) == (1, True)
        assert groups(gateway) == [{"job": "phasewatch", "training_job": "team/béta"}]
        deleted = push(*words, "--delete", PHASEWATCH_PUSH_USER="ann", PHASEWATCH_PUSH_PASSWORD=PASSWORD)
        assert (deleted.returncode, deleted.stderr) == (0, f"deleted team/béta from {gateway}\n")
        assert groups(gateway) == []


def test_a_daemon_pushes_each_of_its_jobs_whole(data_dir: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    counts = {job: write_run(tmp_path / job, data_dir / "formats", nodes=1, steps=steps) for job, steps in JOBS.items()}
    settings = short_tmp_path / "c.toml"
    settings.write_text("".join(f'[[source]]\njob = "{job}"\npath = "{tmp_path / job}"\n' for job in counts))
    with (
        running("prometheus-pushgateway", FORGETTING, "/-/ready") as gateway,
        daemon_child(short_tmp_path, None, "-c", str(settings)) as (process, client),
    ):
        pushed = push("--socket", short_tmp_path / "s.sock", "--gateway", gateway)
        assert pushed.returncode == 0, pushed.stderr
        ours = read(client.raw("/metrics")[1])
        assert profiles(ours) == counts
        assert samples(f"{gateway}/metrics", ("job", "instance")) == ours
        stop(process)


def test_a_node_exporter_shows_what_is_left_in_its_folder(data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "textfiles"
    folder.mkdir()
    counts = {job: write_run(tmp_path / job, data_dir / "formats", nodes=1, steps=steps) for job, steps in JOBS.items()}
    for job in counts:
        assert push(tmp_path / job, "--job", job, "--textfile", folder).returncode == 0
    collectors = ["--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={folder}"]
    with running("prometheus-node-exporter", collectors, "/metrics") as exporter:
        assert profiles(samples(f"{exporter}/metrics")) == counts
        assert b"node_textfile_scrape_error 0\n" in fetch(f"{exporter}/metrics")
        deleted = CliRunner().invoke(main, ["push", "--job", "alpha", "--textfile", str(folder), "--delete"])
        assert deleted.exit_code == 0
        assert profiles(samples(f"{exporter}/metrics")) == {"beta": counts["beta"]}


def test_an_empty_folder_gives_nothing_to_push(tmp_path: Path) -> None:
    told = push(tmp_path, "--textfile", tmp_path)
    assert (told.returncode, told.stderr) == (1, "phasewatch: there are no profiles to push\n")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_pushed_is_told(tmp_path: Path) -> None:
    refused: list[tuple[tuple[str | Path, ...], int, str]] = [
        ((tmp_path,), 2, "say where to push: one of --gateway URL and --textfile FOLDER"),
        ((tmp_path / "none", "--textfile", tmp_path), 2, f"there is no folder {tmp_path / 'none'}"),
        (
            (tmp_path, "--textfile", tmp_path, "--delete"),
            2,
            "--delete reads no folder: leave out PATH and name the job",
        ),
        (("--socket", tmp_path / "s", "--textfile", tmp_path), 1, f"no daemon answers on {tmp_path / 's'}"),
    ]
    for arguments, code, message in refused:
        told = CliRunner().invoke(main, ["push", *map(str, arguments)])
        assert (told.exit_code, message in told.stderr) == (code, True), told.stderr
        assert list(tmp_path.iterdir()) == []
