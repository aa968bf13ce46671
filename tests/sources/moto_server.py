"""moto's S3 and SQS on 127.0.0.1, and the keys that lie in it. Right, and slow: for correctness, not for measuring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monitor.settings import S3Settings

ACCOUNT = "123456789012"
REGION = "us-east-1"


class MotoServer:
    """A running server. Keys are put and removed past the network, which is fast and blocks nobody.

    Attributes:
        endpoint: its URL.
    """

    def __init__(self, endpoint: str) -> None:
        from moto.s3.models import s3_backends
        from moto.sqs.models import sqs_backends

        self.endpoint = endpoint
        self._backend: Any = s3_backends[ACCOUNT]["aws"]
        self._queues: Any = sqs_backends[ACCOUNT][REGION]
        self._buckets = 0

    def make_queue(self) -> str:
        """Make a queue of its own for a test; returns its URL."""
        self._buckets += 1
        name = f"queue-{self._buckets}"
        self._queues.create_queue(name)
        return f"{self.endpoint}/{ACCOUNT}/{name}"

    def send(self, queue: str, body: str) -> None:
        """Send a message."""
        self._queues.send_message(queue.rpartition("/")[2], body)

    def messages(self, queue: str) -> int:
        """Count the messages of a queue, the hidden ones included."""
        return len(self._queues.queues[queue.rpartition("/")[2]]._messages)

    @property
    def settings(self) -> S3Settings:
        """How a client reaches it."""
        return S3Settings(region=REGION, endpoint=self.endpoint)

    def make_bucket(self) -> str:
        """Make a bucket of its own for a test."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        self._backend.create_bucket(name, REGION)
        return name

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Put an object."""
        self._backend.put_object(bucket, key, data)

    def get(self, bucket: str, key: str) -> bytes:
        """Return an object's bytes."""
        data: bytes = self._backend.get_object(bucket, key).value
        return data

    def remove(self, bucket: str, key: str) -> None:
        """Remove an object."""
        self._backend.delete_object(bucket, key)

    def keys(self, bucket: str) -> list[str]:
        """Return all keys."""
        return sorted(self._backend.buckets[bucket].keys)

    def upload(self, bucket: str, prefix: str, folder: Path) -> int:
        """Put all files below a folder; returns how many."""
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in files:
            self.put(bucket, f"{prefix}{path.relative_to(folder).as_posix()}", path.read_bytes())
        return len(files)


@contextmanager
def serve_moto() -> Iterator[MotoServer]:
    """Run a server on a free port until the block ends."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield MotoServer(f"http://{host}:{port}")
    finally:
        server.stop()


@pytest.fixture(scope="session")
def moto_server() -> Iterator[MotoServer]:
    """One server for all tests; each makes a bucket of its own."""
    with serve_moto() as server:
        yield server


@pytest.fixture
def aws_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials as the standard chain finds them, and none of whoever runs the tests."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def aws_endpoint(aws_keys: None, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server as the store that the environment names, for daemons whose settings say only s3://bucket/prefix."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_server.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
