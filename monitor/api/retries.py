"""POST /v1/retry: reads files again that were set aside, whether they have changed or not. On the unix socket only."""

from __future__ import annotations

import msgspec

from monitor.answers import Engine
from monitor.errors import QueryError

RETRY_PATH = "/v1/retry"


class RetryRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose files; without jobs and nodes all of them."""

    jobs: list[str] = []
    nodes: list[str] = []


class RetryAnswer(msgspec.Struct, kw_only=True):
    """How many files are read again; `status` tells what becomes of them."""

    retried: int


def ask_retry(engine: Engine, body: bytes) -> RetryAnswer:
    """Have files read again.

    Raises:
        QueryError: the body is wrong.
    """
    try:
        wanted = msgspec.json.decode(body or b"{}", type=RetryRequest)
    except msgspec.DecodeError as error:
        message = f'the body must be a JSON object such as {{"nodes": ["0-algo-1"]}}, or empty: {error}'
        raise QueryError(message, parameter="body") from error
    return RetryAnswer(retried=engine.retry(wanted.jobs, wanted.nodes))
