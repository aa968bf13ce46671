"""Where pages are left: what is retried and what is not, names of files, and that they appear whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from monitor.errors import QueryError, SourceUnavailable
from monitor.pushing import ATTEMPTS, Gateway, TextfileFolder, safe_name


class Answering(ThreadingHTTPServer):
    """Answers with one status after the other; keeps what it was sent."""

    statuses: list[int]
    seen: list[tuple[str, str, str | None, bytes]]


class Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, self.headers.get("Authorization"), body))
        status = self.server.statuses.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"because\n" if status >= 400 else b"")

    do_DELETE = do_PUT

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    monkeypatch.setattr("monitor.pushing.FIRST_PAUSE_SECONDS", 0.001)
    with Answering(("127.0.0.1", 0), Handler) as server:
        server.statuses, server.seen = [], []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url(server: Answering) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_a_job_is_a_group_of_its_own_and_the_page_is_sent_as_it_is(gateway: Answering) -> None:
    gateway.statuses = [200, 202, 202]
    place = Gateway(url=url(gateway), user="ann", password="secret:x")
    place.put("resnet50", b"a 1\n")
    place.delete("resnet50")
    Gateway(url=f"{url(gateway)}/", instance="host-1").put("team/béta", b"b 2\n")
    login = "Basic YW5uOnNlY3JldDp4"
    assert gateway.seen == [
        ("PUT", "/metrics/job/phasewatch/training_job/resnet50", login, b"a 1\n"),
        ("DELETE", "/metrics/job/phasewatch/training_job/resnet50", login, b""),
        ("PUT", "/metrics/job/phasewatch/instance/host-1/training_job@base64/dGVhbS9iw6l0YQ==", None, b"b 2\n"),
    ]


def test_what_may_pass_is_tried_again(gateway: Answering) -> None:
    gateway.statuses = [503, 429, 502, 200]
    Gateway(url=url(gateway)).put("job", b"a 1\n")
    assert len(gateway.seen) == 4


def test_a_gateway_that_stays_away_is_given_up(gateway: Answering) -> None:
    gateway.statuses = [500] * 10
    with pytest.raises(SourceUnavailable, match=rf"answers 500: because; tried {ATTEMPTS} times"):
        Gateway(url=url(gateway)).put("job", b"a 1\n")
    assert len(gateway.seen) == ATTEMPTS
    with pytest.raises(SourceUnavailable, match=r"127.0.0.1:1 cannot be reached \(.*refused.*\); tried"):
        Gateway(url="http://127.0.0.1:1").delete("job")


def test_a_refusal_is_not_tried_again(gateway: Answering) -> None:
    gateway.statuses = [400, 200]
    with pytest.raises(QueryError, match="answers 400: because"):
        Gateway(url=url(gateway)).put("job", b"a 1\n")
    assert len(gateway.seen) == 1


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("resnet50-a.1_b", "resnet50-a.1_b"),
        ("../../etc/passwd", ".._.._etc_passwd-"),
        ("a/b", "a_b-"),
        ("a b", "a_b-"),
        ("é" * 300, "_" * 120 + "-"),
        ("x" * 300, "x" * 120 + "-"),
    ],
)
def test_names_of_files_are_safe_and_tell_jobs_apart(job: str, name: str) -> None:
    assert safe_name(job).startswith(name)
    assert len(safe_name(job)) == len(name) + (8 if name.endswith("-") else 0)
    assert safe_name(job) != safe_name(job + " ")


def test_a_file_is_replaced_whole_and_readable_by_all(tmp_path: Path) -> None:
    place = TextfileFolder(folder=tmp_path)
    place.put("a/b", b"x 1\n")
    file = Path(place.put("a/b", b"x 2\n"))
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert (file.parent, file.suffix, file.stat().st_mode & 0o777) == (tmp_path, ".prom", 0o644)
    assert file.read_bytes() == b"x 2\n"
    place.delete("a/b")
    place.delete("a/b")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match=r"cannot write .*/gone/phasewatch-a\.prom: No such file"):
        TextfileFolder(folder=tmp_path / "gone").put("a", b"")
    (tmp_path / "phasewatch-a.prom").mkdir()
    with pytest.raises(QueryError, match=r"cannot write .*: Is a directory"):
        TextfileFolder(folder=tmp_path).put("a", b"x 1\n")
    assert [path.name for path in tmp_path.iterdir()] == ["phasewatch-a.prom"]
