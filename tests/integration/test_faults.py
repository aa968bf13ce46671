"""What happens when: each fault of the README's table, really made, and afterwards the sums of one clean pass."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from monitor import store as store_module
from monitor.api.schema import TrainingPhasesAnswer
from monitor.checkpoint import load_index
from monitor.client import Client
from monitor.errors import QueryError, SourceUnavailable, StoreDamaged
from monitor.state import STORE_FILE
from monitor.store import open_store
from tests.integration.corpora import FIRST_US, node_folder, span_names, write_run, write_span
from tests.integration.daemons import DEADLINE_SECONDS, daemon_child, daemon_inside, settings_for, stop, until
from tests.integration.mount_namespace import mount_namespace
from tests.integration.totals import Counters, assert_same, counters, phases, wait_for_counters, whole_pass

STEPS = 20
PROFILES = 2 * len(list(span_names(STEPS)))
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Path:
    """A run of two nodes, which no test changes."""
    source = tmp_path_factory.mktemp("run") / "profiles"
    assert write_run(source, data_dir / "formats", nodes=2, steps=STEPS) == PROFILES
    return source


@pytest.fixture(scope="module")
def killed(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingPhasesAnswer, bytes]:
    """The state that kill -9 leaves after a clean pass, that pass's answer, and its metrics."""
    return pass_over(run, tmp_path_factory.mktemp("killed"), signal.SIGKILL)


@pytest.fixture(scope="module")
def stopped(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingPhasesAnswer, bytes]:
    """The same after a stop in order, when the log is folded into the file."""
    return pass_over(run, tmp_path_factory.mktemp("stopped"), signal.SIGTERM)


Passed = tuple[Path, TrainingPhasesAnswer, bytes]


def pass_over(run: Path, folder: Path, number: signal.Signals) -> Passed:
    with daemon_child(folder, run) as (process, client):
        answer = phases(client)
        wait_for_counters(client)
        wait_for(lambda: f'"profiles": {PROFILES}' in text_of(folder / "state" / "phasewatch.count"))
        page = client.raw("/metrics")[1]
        stop(process, number)
    return folder / "state", answer, page


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait for what tells nobody that it happened."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def status_when(client: Client, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Wait for a state of a daemon."""

    def asked() -> bool:
        try:
            return holds(client.status())
        except SourceUnavailable:
            return False

    wait_for(asked)


def log_of(process: subprocess.Popen[bytes]) -> str:
    """Return what an ended child logged."""
    assert process.stderr is not None
    return process.stderr.read().decode()


def refused(folder: Path, source: Path) -> str:
    """Start a daemon that must refuse, as one whose store cannot be used; returns what it says."""
    command = [sys.executable, "-m", "monitor", "run", str(source), "--state-dir", str(folder / "state")]
    command += ["--socket", str(folder / "other.sock"), "--listen", ""]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, cwd=Path(__file__).parents[2]
    )
    assert ended.returncode == 3, ended.stderr
    return ended.stderr


def counters_of(client: Client) -> Counters:
    """Return what is shown of the functions now: nothing where no page is drawn yet, or the daemon begins anew."""
    try:
        return counters(client.raw("/metrics")[1])
    except (QueryError, SourceUnavailable):
        return {}


def number(page: bytes, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", page.decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


# -- the store -----------------------------------------------------------------------------------------------------


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def garble(path: Path, at: int, length: int = 64) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(random.Random(at).randbytes(length))


def places(size: int) -> list[int]:
    """Sizes to cut a file to: near its end, near its beginning, and between them."""
    return sorted({0, 1, 40, *(size * part // 8 for part in range(1, 8)), size - 100, size - 2, size - 1})


@pytest.mark.parametrize(("kind", "end", "verdict"), [("killed", ".wal", "whole"), ("stopped", "", "damaged")])
def test_a_store_cut_anywhere_opens_with_whole_batches_or_is_known_to_be_damaged(
    kind: str, end: str, verdict: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    state: Path = request.getfixturevalue(kind)[0]
    file = state / f"{STORE_FILE}{end}"
    verdicts = set()
    for size in places(file.stat().st_size):
        copy = tmp_path / str(size)
        shutil.copytree(state, copy)
        cut(copy / file.name, size)
        try:
            with open_store(copy / STORE_FILE) as store:
                index = load_index(store)
                spans = len(index.spans)
                assert spans == index.next_number <= PROFILES
                assert kind == "killed" or spans == PROFILES  # nothing lay where the file was cut
                assert len(set(store.read_rows(0, PROFILES).span.tolist())) == spans
                verdicts.add("whole")
        except StoreDamaged:
            verdicts.add("damaged")
    assert {verdict} <= verdicts <= {verdict, "whole"}


@pytest.mark.parametrize(
    ("kind", "harm", "aside"),
    [
        ("killed", lambda state: cut(state / f"{STORE_FILE}.wal", 200_000), False),
        ("killed", lambda state: cut(state / f"{STORE_FILE}.wal", 0), False),
        ("killed", lambda state: garble(state / f"{STORE_FILE}.wal", 100_000), True),
        ("stopped", lambda state: cut(state / STORE_FILE, (state / STORE_FILE).stat().st_size // 2), True),
        ("stopped", lambda state: cut(state / STORE_FILE, 0), True),
        ("stopped", lambda state: (state / STORE_FILE).write_bytes(random.Random(1).randbytes(100_000)), True),
    ],
    ids=["log cut", "log emptied", "log garbled", "file cut", "file emptied", "garbage"],
)
def test_a_damaged_store_is_kept_aside_and_made_anew(
    kind: str,
    harm: Callable[[Path], object],
    aside: bool,
    run: Path,
    short_tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    state, expected, page_before = request.getfixturevalue(kind)
    shutil.copytree(state, short_tmp_path / "state")
    harm(short_tmp_path / "state")
    damaged = (short_tmp_path / "state" / STORE_FILE).read_bytes()
    shown: list[Counters] = []
    with daemon_child(short_tmp_path, run) as (process, client):
        while not shown or not shown[-1]:
            shown.append(counters_of(client))
        assert_same(phases(client), expected)
        status_when(client, lambda status: not status["store"]["rebuilding"])
        wait_for_counters(client)
        page = client.raw("/metrics")[1]
        store = client.status()["store"]
        stop(process)
        log = log_of(process)
    assert (store["damaged_stores"], store["lost_profiles"]) == (int(aside), 0)
    assert number(page, "phasewatch_store_damaged_stores") == int(aside)
    assert "the store is whole again" in log
    kept = [path for path in (short_tmp_path / "state").glob("*.damaged-*") if path.suffix != ".wal"]
    assert [path.read_bytes() for path in kept] == ([damaged] if aside else [])
    assert all(str(path) in log for path in kept)
    before = counters(page_before)
    for seen in (*(each for each in shown if each), counters(page)):
        fallen = {
            key: (value, seen.get(key)) for key, value in before.items() if seen.get(key, 0.0) < value * (1 - 1e-9)
        }
        assert not fallen


def test_what_has_no_file_any_more_is_told_and_counted(
    killed: Passed, run: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    source = tmp_path / "profiles"
    shutil.copytree(run, source)
    shutil.copytree(killed[0], short_tmp_path / "state")
    shutil.rmtree(node_folder(source, "1-host-1"))
    (short_tmp_path / "state" / STORE_FILE).write_bytes(b"no database")
    with daemon_child(short_tmp_path, source) as (process, client):
        status_when(client, lambda status: not status["store"]["rebuilding"])
        assert client.status()["store"]["lost_profiles"] == PROFILES // 2
        stop(process)
        assert f"{PROFILES // 2} have no file any more" in log_of(process)
    with daemon_child(short_tmp_path, source) as (process, client):
        store = client.status()["store"]
        assert (store["lost_profiles"], store["rebuilding"], store["damaged_stores"]) == (PROFILES // 2, False, 1)


def test_damage_that_a_question_comes_upon_makes_the_store_anew(
    stopped: Passed, run: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    state, expected, _ = stopped
    shutil.copytree(state, short_tmp_path / "state")
    garble(short_tmp_path / "state" / STORE_FILE, block_of_rows(state / STORE_FILE, tmp_path))
    with daemon_child(short_tmp_path, run) as (process, client):
        with pytest.raises(QueryError, match="Corrupt"):
            client.step(0, STEPS)
        status_when(client, lambda status: status["store"]["damaged_stores"] == 1)
        assert_same(phases(client), expected)
        assert client.step(0, STEPS).spans
        stop(process)
        assert process.returncode == 0


def block_of_rows(file: Path, folder: Path) -> int:
    """Return a place in a store that a start does not read and a question does."""
    copy = folder / "copy.duckdb"
    for at in range(3 * 4096 + 1000, file.stat().st_size, 128 * 1024):
        shutil.copy(file, copy)
        garble(copy, at)
        try:
            with open_store(copy) as store:
                load_index(store)
                try:
                    store.read_rows(0, PROFILES)
                except StoreDamaged:
                    return at
        except StoreDamaged:
            continue
    raise AssertionError("every place is read at the start")


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(
    stopped: Passed, run: Path, short_tmp_path: Path
) -> None:
    shutil.copytree(stopped[0], short_tmp_path / "state")
    file = short_tmp_path / "state" / STORE_FILE
    with duckdb.connect(str(file)) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    before = file.read_bytes()
    assert "99" in refused(short_tmp_path, run)
    assert file.read_bytes() == before
    make_newer(file)
    before = file.read_bytes()
    assert "install the newer phasewatch again" in refused(short_tmp_path, run)
    assert file.read_bytes() == before
    assert not list(file.parent.glob("*.damaged-*"))


def make_newer(file: Path) -> None:
    """Raise the storage version in a file's head; duckdb itself tells the checksum that fits."""
    head = bytearray(file.read_bytes())
    head[12] = 200
    file.write_bytes(head)
    with pytest.raises(duckdb.Error) as caught:
        duckdb.connect(str(file))
    found = re.search(r"computed checksum (\d+)", str(caught.value))
    assert found is not None
    head[:8] = int(found[1]).to_bytes(8, "little")
    file.write_bytes(head)


def test_a_second_daemon_on_one_state_folder_names_the_first(run: Path, short_tmp_path: Path) -> None:
    with daemon_child(short_tmp_path, run) as (process, client):
        assert f"another phasewatch (pid {process.pid}) uses the state folder" in refused(short_tmp_path, run)
        assert client.status()["pid"] == process.pid
        stop(process, signal.SIGKILL)
    with daemon_child(short_tmp_path, run) as (process, client):
        assert client.status()["pid"] == process.pid


# -- disks ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_and_then_a_read_only_one_lose_nothing(run: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    source, later = tmp_path / "profiles", node_folder(tmp_path / "profiles", "1-host-1")
    shutil.copytree(run, source)
    shutil.move(later, tmp_path / "later")
    expected = whole_pass(short_tmp_path / "whole", run)
    state = short_tmp_path / "state"
    state.mkdir()
    with mount_namespace() as namespace:
        namespace.run("mount", "-t", "tmpfs", "-o", "size=12m", "none", str(state))
        inside = (*namespace.entry, sys.executable)
        with daemon_child(short_tmp_path, source, python=inside) as (process, client):
            shown = phases(client)
            namespace.run("sh", "-c", f"cat /dev/zero >{state}/ballast || true")
            shutil.copytree(tmp_path / "later", later)
            status_when(client, lambda status: status["ingest"]["store_failures"] > 0)
            assert_same(client.training_phases(callers=True), shown)
            assert client.step(0, STEPS).functions
            namespace.run("rm", f"{state}/ballast")
            wait_for(lambda: sum(phase.spans for phase in client.training_phases().phases) == PROFILES)
            assert_same(phases(client), expected)
            stop(process, signal.SIGKILL)
            log = log_of(process)
        assert "No space left on device; what is found waits" in log
        assert "the store can be written again" in log
        with daemon_child(short_tmp_path, source, python=inside) as (process, client):
            assert_same(phases(client), expected)
            stop(process)
        namespace.run("mount", "-o", "remount,ro", str(state))
        ended = subprocess.run(
            [
                *inside,
                "-m",
                "monitor",
                "run",
                str(source),
                "--state-dir",
                str(state),
                "--socket",
                str(short_tmp_path / "o"),
            ],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        assert ended.returncode == 3
        assert f"cannot write into the state folder {state}: Read-only file system; make it writable" in ended.stderr


def test_a_file_system_that_becomes_read_only_under_the_daemon_is_waited_for(
    run: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    source = tmp_path / "profiles"
    state = short_tmp_path / "state"
    state.mkdir()
    with mount_namespace() as namespace:
        namespace.run("mount", "-t", "tmpfs", "-o", "size=32m", "none", str(state))
        with daemon_child(short_tmp_path, source, python=(*namespace.entry, sys.executable)) as (process, client):
            stop(process)
        with daemon_child(short_tmp_path, source, python=(*namespace.entry, sys.executable)) as (process, client):
            namespace.run("mount", "--bind", str(state), str(state))  # what is open stays, what is opened is refused
            namespace.run("mount", "-o", "remount,bind,ro", str(state))
            shutil.copytree(run, source)
            status_when(client, lambda status: status["ingest"]["store_failures"] > 0)
            namespace.run("umount", str(state))
            wait_for(lambda: sum(phase.spans for phase in client.training_phases().phases) == PROFILES)
            stop(process)
            assert "Read-only file system" in log_of(process)


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fold the log into the file at once, so that a full disk is met there."""
    monkeypatch.setattr(store_module, "LOG_BYTES", 20_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_log")
async def test_a_database_that_gives_up_on_a_full_disk_is_opened_again(
    run: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    expected = whole_pass(short_tmp_path / "whole", run)
    source = tmp_path / "profiles"
    shutil.copytree(run, source)
    later = node_folder(source, "1-host-1")
    shutil.move(later, tmp_path / "later")
    settings = settings_for(short_tmp_path, source, ingest__batch_files=10)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    async with daemon_inside(settings) as (daemon, client):
        await client.jobs(fresh=True)
        await until(client, lambda status: status["profiles"] == PROFILES // 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (settings.daemon_state_dir.joinpath(STORE_FILE).stat().st_size, hard))
        shutil.copytree(tmp_path / "later", later)
        await until(client, lambda status: status["ingest"]["store_failures"] > 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await until(client, lambda status: status["profiles"] == PROFILES)
        assert_same(await client.training_phases(callers=True), expected)
        rows = daemon.store.read_table("SELECT count(*) AS all, count(DISTINCT number) AS distinct FROM spans")
        assert [int(column[0]) for column in rows.values()] == [PROFILES, PROFILES]
    async with daemon_inside(settings) as (_, client):
        assert_same(await client.training_phases(callers=True, fresh=True), expected)


@pytest.mark.parametrize("where", ["/dev/full", "a closed pipe"])
def test_a_log_that_cannot_be_written_stops_nothing(where: str, run: Path, short_tmp_path: Path) -> None:
    if where == "/dev/full":
        target = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, target = os.pipe()
        os.close(reader)
    try:
        with daemon_child(short_tmp_path, run, stderr=target) as (process, client):
            assert sum(phase.spans for phase in phases(client).phases) == PROFILES
            stop(process)
            assert process.returncode == 0
    finally:
        os.close(target)


# -- sources -------------------------------------------------------------------------------------------------------


def test_a_source_that_goes_and_comes_back_is_followed_on(run: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    source, away = tmp_path / "profiles", tmp_path / "away"
    shutil.copytree(run, source)
    moved = node_folder(source, "1-host-1")
    shutil.move(moved, tmp_path / "later")
    expected = whole_pass(short_tmp_path / "whole", run)
    with daemon_child(short_tmp_path, source) as (process, client):
        shown = phases(client)
        source.rename(away)
        status_when(client, lambda status: status["sources"][0]["available"] is False)
        assert_same(phases(client), shown)
        source.mkdir()  # an empty mount point
        status_when(client, lambda status: status["sources"][0]["available"] is True)
        assert_same(phases(client), shown)
        source.rmdir()
        shutil.move(tmp_path / "later", node_folder(away, "1-host-1"))  # written while it was away
        away.rename(source)
        wait_for(lambda: sum(phase.spans for phase in phases(client).phases) == PROFILES)
        assert_same(phases(client), expected)
        stop(process)
        log = log_of(process)
    assert f"{source} is gone; waiting for it to come back" in log
    assert f"{source} is there again" in log or f"{source} is another folder than before" in log


def test_a_new_run_in_the_place_of_the_old_one_is_added_and_the_same_names_count_once(
    run: Path, data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    source = tmp_path / "profiles"
    shutil.copytree(run, source)
    sample = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    with daemon_child(short_tmp_path, source) as (process, client):
        old = phases(client)
        shutil.rmtree(source)
        shutil.copytree(run, source)  # the same names
        assert_same(phases(client), old)
        source.rename(tmp_path / "old")  # still there, so that the new folder cannot get its inode
        at = FIRST_US + 3.6e9
        for step in range(3):  # the same steps an hour later, by the same node
            name = f"train-{step}-stepstart-{at + step}_train-{step}-forwardpassend-{at + step + 1}"
            write_span(node_folder(source, "0-host-0"), name, sample)
        assert sum(phase.spans for phase in phases(client).phases) == PROFILES + 3
        stop(process)
        assert "is another folder than before (mounted, unmounted or replaced)" in log_of(process)


def test_a_node_with_a_new_name_is_another_node(run: Path, tmp_path: Path, short_tmp_path: Path) -> None:
    source = tmp_path / "profiles"
    shutil.copytree(run, source)
    with daemon_child(short_tmp_path, source) as (process, client):
        phases(client)
        shown = counters(client.raw("/metrics")[1])
        stop(process)
    node_folder(source, "1-host-1").rename(node_folder(source, "4711-host-1"))
    with daemon_child(short_tmp_path, source) as (process, client):
        assert sum(phase.spans for phase in phases(client).phases) == PROFILES * 3 // 2
        assert {node.node for node in client.nodes().nodes} == {"0-host-0", "1-host-1", "4711-host-1"}
        wait_for_counters(client)
        again = counters(client.raw("/metrics")[1])
        assert not {key for key, value in shown.items() if again[key] < value}


def test_a_clock_that_jumps_back_an_hour_changes_nothing(
    run: Path, data_dir: Path, tmp_path: Path, short_tmp_path: Path
) -> None:
    assert FAKETIME is not None, "install libfaketime"
    source, clock = tmp_path / "profiles", tmp_path / "clock"
    shutil.copytree(run, source)
    clock.write_text("+0\n")
    faked = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
        "PHASEWATCH_STORE_RETENTION_DAYS": "36500",
    }
    sample = (data_dir / "formats" / "cpython-3.11" / "python_stats").read_bytes()
    with daemon_child(short_tmp_path, source, variables=faked) as (process, client):
        shown = phases(client)
        before = client.status()["uptime_seconds"]
        clock.write_text("-3600\n")
        at, folder = FIRST_US - 3.6e9, node_folder(source, "0-host-0")
        write_span(folder, f"train-0-stepstart-{at}_train-0-forwardpassend-{at + 1}", sample)
        hour_ago = time.time() - 3600
        os.utime(folder, (hour_ago, hour_ago))
        assert sum(phase.spans for phase in phases(client).phases) == sum(phase.spans for phase in shown.phases) + 1
        status = client.status()
        assert status["uptime_seconds"] >= before
        assert status["ingest"]["lag_seconds"] >= 0
        stop(process)
        lines = log_of(process).splitlines()
        assert min(lines) < lines[0]  # the daemon's clock did go back
