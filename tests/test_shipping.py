"""Shipping a folder to a bucket: interrupted at random, repeated, throttled, deleting, and right to the byte."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest

from monitor import reading
from monitor.config import load_settings
from monitor.reading import LocalFile
from monitor.s3_url import S3Url
from monitor.shipping import Found, Shipper, delete_unchanged, read_unchanged, shipper_beside
from monitor.sources.local import LocalSource
from monitor.sources.s3_client import Bucket, S3Client, open_s3_client
from tests.integration.corpora import node_folder, span_names, write_run, write_span
from tests.sources.moto_server import MotoServer
from tests.sources.s3_endpoint import SLOW_DOWN, Fault, open_endpoint

INTERRUPTIONS = 12
URL = S3Url("bucket", "job/profiler-output/")

pytestmark = pytest.mark.usefixtures("aws_keys")


def shipper_of(root: Path, client: S3Client, **more: object) -> Shipper:
    return Shipper(root, Bucket(client, "bucket"), URL, **{"settle_seconds": 0.0} | more)  # type: ignore[arg-type]


def files_below(root: Path) -> dict[str, bytes]:
    return {f"{URL.prefix}{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*") if path.is_file()}


async def test_interrupted_at_random_it_goes_on_and_every_byte_is_there(data_dir: Path, tmp_path: Path) -> None:
    write_run(tmp_path, data_dir / "formats", nodes=2, steps=40)
    chance = random.Random(os.urandom(8))
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        for _ in range(INTERRUPTIONS):
            with anyio.move_on_after(chance.uniform(0, 0.1)):
                await shipper_of(tmp_path, client).ship_all()
        last = shipper_of(tmp_path, client)
        await last.ship_all()
        assert endpoint.objects == files_below(tmp_path)
        assert last.statistics().uploaded + last.statistics().held == len(endpoint.objects)
        again = shipper_of(tmp_path, client)
        await again.ship_all()
        assert again.statistics().uploaded == 0


async def test_faults_of_the_store_cost_time_and_no_byte(data_dir: Path, tmp_path: Path) -> None:
    write_run(tmp_path, data_dir / "formats", nodes=1, steps=10)
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        faults = iter([SLOW_DOWN, Fault(reset=True), None, Fault(code="InternalError", status=500)])
        endpoint.judge = lambda operation, key: next(faults, None)
        await shipper_of(tmp_path, client).ship_all()
        assert endpoint.objects == files_below(tmp_path)


async def test_files_are_deleted_here_only_once_the_store_holds_their_bytes(data_dir: Path, tmp_path: Path) -> None:
    write_run(tmp_path, data_dir / "formats", nodes=1, steps=5)
    (tmp_path / "notes.txt").write_text("mine")
    expected = files_below(tmp_path)
    del expected[f"{URL.prefix}notes.txt"]
    refused = sorted(expected)[3]
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        denied = Fault(code="AccessDenied", status=403)
        endpoint.judge = lambda operation, key: denied if (operation, key) == ("put", refused) else None
        with pytest.raises(BaseExceptionGroup):
            await shipper_of(tmp_path, client, delete=True).ship_all()
        assert endpoint.objects.keys() | files_below(tmp_path).keys() >= expected.keys()
        assert refused in files_below(tmp_path)
        endpoint.judge = lambda operation, key: None
        await shipper_of(tmp_path, client, delete=True).ship_all()
        assert endpoint.objects == expected
        assert files_below(tmp_path) == {f"{URL.prefix}notes.txt": b"mine"}


async def test_a_file_that_is_being_written_waits(tmp_path: Path) -> None:
    name = next(span_names(1))
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        shipper = shipper_of(tmp_path, client, settle_seconds=0.3)
        path = write_span(node_folder(tmp_path, "0-a"), name, b"half")
        assert await shipper.ship() == 1
        assert endpoint.objects == {}
        path.write_bytes(b"half and half")
        await shipper.ship_all()
        assert list(endpoint.objects.values()) == [b"half and half"]
        path.write_bytes(b"another")
        await shipper.ship_all()
        assert list(endpoint.objects.values()) == [b"another"]


async def test_the_bandwidth_is_kept(tmp_path: Path) -> None:
    for name in list(span_names(4))[:10]:
        write_span(node_folder(tmp_path, "0-a"), name, b"x" * 10_000)
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        started = time.monotonic()
        await shipper_of(tmp_path, client, bytes_a_second=200_000).ship_all()
        assert time.monotonic() - started >= 0.4
        assert len(endpoint.objects) == 10


@pytest.mark.usefixtures("aws_endpoint")
def test_the_command_killed_at_random_moments(moto_server: MotoServer, data_dir: Path, tmp_path: Path) -> None:
    profiles = write_run(tmp_path, data_dir / "formats", nodes=1, steps=30)
    bucket = moto_server.make_bucket()
    command = [sys.executable, "-m", "monitor", "ship", str(tmp_path), f"s3://{bucket}/job/profiler-output", "--once"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    chance = random.Random(os.urandom(8))
    for _ in range(3):
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        killer = threading.Timer(chance.uniform(0.8, 1.6), process.send_signal, [signal.SIGKILL])
        killer.start()
        process.wait()
        killer.cancel()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "were there" in done.stderr
    assert {key: moto_server.get(bucket, key) for key in moto_server.keys(bucket)} == files_below(tmp_path)
    assert len(moto_server.keys(bucket)) == profiles


async def test_what_may_not_be_deleted_stays_and_shipping_goes_on(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, data_dir / "formats", nodes=1, steps=1)
    files = files_below(tmp_path)

    def refuse(path: str, *, dir_fd: int) -> None:
        raise PermissionError(13, "Permission denied", path)

    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", refuse)  # root, who runs the tests in CI, may delete everything
            shipper = shipper_of(tmp_path, client, delete=True)
            await shipper.ship_all()
        assert files_below(tmp_path) == files == endpoint.objects
        done = shipper.statistics()
        assert (done.deleted, done.delete_failures) == (0, len(files))


async def test_what_cannot_be_read_is_counted_and_read_later(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, data_dir / "formats", nodes=1, steps=1)
    files = files_below(tmp_path)

    def refuse(file: LocalFile) -> int:
        raise PermissionError(13, "Permission denied", file.path)

    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        shipper = shipper_of(tmp_path, client)
        with monkeypatch.context() as patch:
            patch.setattr(reading, "open_inside", refuse)  # root, who runs the tests in CI, may read everything
            await shipper.ship()
        assert (shipper.statistics().read_failures, shipper.statistics().uploaded) == (len(files), 0)
        await shipper.ship_all()
        assert endpoint.objects == files


@pytest.mark.parametrize("way", ["as it is", "through a link", "relative"])
async def test_a_file_that_a_source_watches_is_deleted_when_it_is_stored(
    way: str, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    write_run(base, data_dir / "formats", nodes=1, steps=1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(base)
    watched = {"as it is": base, "through a link": tmp_path / "link", "relative": Path("base")}[way]
    source = LocalSource(watched, job="job", poll_interval_seconds=3_600, events=False)
    stored: set[str] = set()
    overrides = {"ship.path": str(base), "ship.to": "s3://bucket/job", "ship.delete": True}
    settings = load_settings(None, {"HOME": "/"}, overrides)
    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        shipper = shipper_beside(
            settings, client, sources=[source], is_stored=lambda number, ref: ref.key.span in stored
        )
        shipper._settle = 0.0
        await shipper.ship_all()
        names = {Path(key).parent.name for key in endpoint.objects}
        assert {path.parent.name for path in base.rglob("python_stats")} == names
        stored.add(min(names))
        await shipper.ship_all()  # asked again, though the bucket holds all
        assert {path.parent.name for path in base.rglob("python_stats")} == names - {min(names)}


async def test_what_becomes_a_link_on_the_way_is_neither_read_nor_deleted(data_dir: Path, tmp_path: Path) -> None:
    base, outside = tmp_path / "base", tmp_path / "outside"
    write_run(base, data_dir / "formats", nodes=1, steps=1)
    for file in base.rglob("python_stats"):
        os.utime(file, ns=(10**18, 10**18))
    shutil.copytree(base, outside)
    before = files_below(outside)

    def swap(path: str) -> bool:
        """Let a span's folder lead to its twin outside, between the upload and the deletion."""
        folder = Path(path).parent
        shutil.rmtree(folder)
        folder.symlink_to(outside / folder.relative_to(base))
        return True

    async with open_endpoint() as endpoint, open_s3_client(endpoint.settings) as client:
        await shipper_of(base, client, delete=True, may_delete=swap).ship_all()
        assert len(endpoint.objects) == len(before)
        assert files_below(outside) == before


def test_a_file_that_became_a_link_is_not_read(tmp_path: Path) -> None:
    base, secret = tmp_path / "base", tmp_path / "secret"
    secret.write_bytes(b"s" * len(str(secret)))
    span = base / "framework/pytorch/cprofile/0-a" / next(iter(span_names(1)))
    span.mkdir(parents=True)
    (span / "python_stats").symlink_to(secret)
    state = (span / "python_stats").lstat()
    file = Found(str(span / "python_stats"), "key", state.st_size, state.st_mtime_ns)
    assert read_unchanged(file, str(base)) is None
    assert not delete_unchanged(Found(str(base / "framework/../../secret"), "key", *file[2:]), str(base))
    assert secret.exists()
