"""GET /healthz and /readyz, for whatever starts daemons and asks how they are. Never waits for a turn among queries."""

from __future__ import annotations

from collections.abc import Mapping

from monitor.answers import Engine
from monitor.errors import QueryError

PROBES: Mapping[str, str] = {
    "/healthz": "Alive: the loop turns and the task that stores profiles comes round; 503 says what hangs.",
    "/readyz": "Ready: each source has been looked at completely once; 503 says which has not.",
}
WELL = b'{"status":"ok"}'


def probe(engine: Engine, path: str) -> bytes:
    """Answer one of `PROBES`.

    Raises:
        QueryError: with status 503 and the reason.
    """
    health = engine.health()
    reason, code = (health.hangs, "hangs") if path == "/healthz" else (health.waits, "not_ready")
    if reason:
        raise QueryError(reason, status=503, code=code)
    return WELL
