"""Profiles in a bucket, asked of from a notebook: moto's S3 on 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import io
from pathlib import Path

import pytest

from monitor.analysis import (
    ArgumentError,
    PyinstrumentAnalysis,
    SkippedFileWarning,
    SourceUnavailable,
    cProfileAnalysis,
)
from tests.analysis.answers import ask, assert_same, found
from tests.analysis.test_classes import calls_in, write_step
from tests.analysis.test_parity import CLASSES, recorded
from tests.sources.moto_server import MotoServer

pytestmark = pytest.mark.usefixtures("aws_endpoint")


@pytest.fixture
def bucket(moto_server: MotoServer) -> str:
    return moto_server.make_bucket()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that are downloaded."""
    from monitor.sources import s3_client

    got: list[str] = []
    real = s3_client.Bucket.get

    async def get(self: s3_client.Bucket, key: str, max_bytes: int) -> object:
        got.append(key)
        return await real(self, key, max_bytes)

    monkeypatch.setattr(s3_client.Bucket, "get", get)
    return got


@pytest.mark.parametrize("profiler", CLASSES)
def test_every_question_gets_the_original_answer(
    profiler: str, bucket: str, moto_server: MotoServer, parity_dir: Path, data_dir: Path, tmp_path: Path
) -> None:
    moto_server.upload(bucket, "jobs/resnet/profiler-output/", parity_dir)
    with CLASSES[profiler](str(tmp_path), f"s3://{bucket}/jobs/resnet/profiler-output") as analysis:
        analysis.list_profile_stats()
        for method, words, answer in recorded(data_dir, profiler):
            known = {} if method == "documented_job_phases" else {"refresh_stats": False}  # moto lists slowly
            with contextlib.redirect_stdout(io.StringIO()):
                mine = ask(analysis, method, words | known)
            assert_same(mine, answer)


def upload_step(moto_server: MotoServer, bucket: str, folder: Path, step: int, **more: object) -> None:
    file = write_step(folder, step, **more)  # type: ignore[arg-type]
    for path in file.parent.iterdir():
        moto_server.put(bucket, f"job/{path.relative_to(folder).as_posix()}", path.read_bytes())


def test_only_what_is_new_is_downloaded_also_by_the_next_notebook(
    bucket: str, moto_server: MotoServer, tmp_path: Path, requests: list[str]
) -> None:
    local = tmp_path / "local"
    (local / "python_stats").mkdir(parents=True)
    (local / "python_stats" / "mine.txt").write_text("not to be wiped")
    for step in range(3):
        upload_step(moto_server, bucket, tmp_path / "made", step, calls=step + 1)
    with cProfileAnalysis(str(local), f"s3://{bucket}/job") as analysis:
        assert calls_in(analysis.fetch_profile_stats_by_step(0, 9)) == 6
        assert len(requests) == 3
        upload_step(moto_server, bucket, tmp_path / "made", 3, calls=10)
        assert calls_in(analysis.fetch_profile_stats_by_step(0, 9)) == 16
        assert len(requests) == 4
        paths = list(analysis.list_profile_stats()["stats_path"])
        assert all(Path(path).is_file() and path.startswith(str(local)) for path in paths)
    with cProfileAnalysis(str(local), f"s3://{bucket}/job/") as again:
        assert calls_in(again.fetch_profile_stats_by_step(0, 9)) == 16
    assert len(requests) == 4
    assert (local / "python_stats" / "mine.txt").read_text() == "not to be wiped"


def test_the_kept_copies_are_a_folder_of_profiles_themselves(
    bucket: str, moto_server: MotoServer, tmp_path: Path
) -> None:
    upload_step(moto_server, bucket, tmp_path / "made", 2, calls=7)
    with cProfileAnalysis(str(tmp_path / "local"), f"s3://{bucket}/job") as analysis:
        assert calls_in(analysis.fetch_profile_stats_by_step(2)) == 7
    with cProfileAnalysis(str(tmp_path / "local")) as local:
        assert calls_in(local.fetch_profile_stats_by_step(2)) == 7


def test_a_picture_is_downloaded_when_somebody_looks_at_it(
    bucket: str, moto_server: MotoServer, tmp_path: Path, requests: list[str]
) -> None:
    upload_step(moto_server, bucket, tmp_path / "made", 0, profiler="pyinstrument")
    with PyinstrumentAnalysis(str(tmp_path / "local"), f"s3://{bucket}/job") as analysis:
        (session,) = found(analysis.fetch_profile_stats_by_step(0))
        assert "root_frame" in session.json_stats
        assert [Path(key).name for key in requests] == ["python_stats.json"]
        listed = list(analysis.list_profile_stats()["stats_path"])
        assert listed[1].startswith(f"s3://{bucket}/job/framework/")
        assert Path(session.html_file_path).read_text().startswith("<!doctype html>")
        assert [Path(key).name for key in requests] == ["python_stats.json", "python_stats.html"]
        assert session.html_file_path.startswith(str(tmp_path / "local"))


def test_it_works_inside_a_running_event_loop(bucket: str, moto_server: MotoServer, tmp_path: Path) -> None:
    upload_step(moto_server, bucket, tmp_path / "made", 2, calls=7)

    async def cell() -> int:
        with cProfileAnalysis(str(tmp_path / "local"), f"s3://{bucket}/job") as analysis:
            return calls_in(analysis.fetch_profile_stats_by_step(2))

    assert asyncio.run(cell()) == 7


@pytest.mark.parametrize(
    ("s3_path", "message"),
    [
        ("/tmp/profiles", "write s3://bucket/prefix"),
        ("http://bucket/x", "write s3://bucket/prefix"),
        ("s3://", "names no bucket"),
        (5, "must be s3://bucket/prefix"),
    ],
)
def test_what_is_no_place_in_s3_is_refused_by_name(s3_path: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"s3_path=.*{message}"):
        cProfileAnalysis(str(tmp_path), s3_path)  # type: ignore[arg-type]


def test_a_bucket_that_is_not_there_is_no_empty_answer(moto_server: MotoServer, tmp_path: Path) -> None:
    with cProfileAnalysis(str(tmp_path), "s3://no-such-bucket/job") as analysis:
        with pytest.raises(SourceUnavailable, match=r"s3_path='s3://no-such-bucket/job': cannot list .*NoSuchBucket"):
            analysis.fetch_profile_stats_by_step(1)


def test_an_endpoint_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with cProfileAnalysis(str(tmp_path), "s3://bucket/job") as analysis:
        with pytest.raises(SourceUnavailable, match="s3_path='s3://bucket/job': cannot list s3://bucket/job"):
            analysis.list_profile_stats()


def test_an_empty_prefix_has_nothing(bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cProfileAnalysis(str(tmp_path), f"s3://{bucket}/nothing/here") as analysis:
        assert analysis.fetch_profile_stats_by_step(1) is None
    assert capsys.readouterr().out == "No stats were found for the requested interval!\n"


def test_a_local_folder_that_cannot_be_written_costs_the_copy_only(
    bucket: str, moto_server: MotoServer, tmp_path: Path
) -> None:
    upload_step(moto_server, bucket, tmp_path / "made", 2, calls=7)
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "python_stats").write_text("a file in the way")
    with cProfileAnalysis(str(tmp_path / "local"), f"s3://{bucket}/job") as analysis:
        assert calls_in(analysis.fetch_profile_stats_by_step(2)) == 7
        (path,) = analysis.list_profile_stats()["stats_path"]
        assert path.startswith(f"s3://{bucket}/job/")


def test_a_broken_object_is_told_and_the_others_answer(bucket: str, moto_server: MotoServer, tmp_path: Path) -> None:
    upload_step(moto_server, bucket, tmp_path / "made", 2, calls=7)
    key = next(key for key in moto_server.keys(bucket))
    moto_server.put(bucket, key.replace("train-2", "train-3"), b"no profile")
    with cProfileAnalysis(str(tmp_path / "local"), f"s3://{bucket}/job") as analysis:
        with pytest.warns(SkippedFileWarning, match=f"skipped s3://{bucket}/job"):
            assert calls_in(analysis.fetch_profile_stats_by_step(0, 9)) == 7


def test_a_key_that_leads_elsewhere_is_read_and_not_kept(bucket: str, moto_server: MotoServer, tmp_path: Path) -> None:
    file = write_step(tmp_path / "made", 2, calls=7)
    inside = file.relative_to(tmp_path / "made").as_posix()
    moto_server.put(bucket, f"job/../../../escaped/{inside}", file.read_bytes())
    local = tmp_path / "a" / "b" / "local"
    with cProfileAnalysis(str(local), f"s3://{bucket}/job") as analysis:
        assert calls_in(analysis.fetch_profile_stats_by_step(2)) == 7
    assert not list(tmp_path.rglob("escaped"))
