"""POST /v1/capture: asks the jobs that the daemon watches to profile their next steps. On the unix socket only: whoever
may use that may ask, as far as the daemon's own rights go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import anyio
import msgspec

from monitor.answers import Engine
from monitor.errors import QueryError
from monitor.triggers import MOST_STEPS, Wish, find_base, write_request

CAPTURE_PATH = "/v1/capture"


class CaptureRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to profile; without nodes and modes all of them, without a job all that are watched."""

    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]
    nodes: list[str] = []
    modes: list[Literal["train", "eval", "predict", "global"]] = []
    profiler: Literal["cprofile", "pyinstrument"] | None = None
    job: str | None = None


class CaptureAsked(msgspec.Struct, kw_only=True):
    """A request that was left in one base folder; nodes answer beside it."""

    job: str
    base: str
    id: str


class CaptureAnswer(msgspec.Struct, kw_only=True):
    """Where the request was left."""

    asked: list[CaptureAsked]


async def ask_captures(engine: Engine, body: bytes) -> CaptureAnswer:
    """Leave the request in the base folder of each source that it is for.

    Raises:
        QueryError: the body is wrong, no source fits, or a folder is not ours.
    """
    try:
        wanted = msgspec.json.decode(body, type=CaptureRequest)
    except msgspec.DecodeError as error:
        message = f'the body must be a JSON object such as {{"steps": 20}}: {error}'
        raise QueryError(message, parameter="body") from error
    sources = sources_of(engine, wanted.job)
    wish = Wish(steps=wanted.steps, nodes=tuple(wanted.nodes), modes=tuple(wanted.modes), profiler=wanted.profiler)
    asked = []
    for job, path in sources:
        base = await anyio.to_thread.run_sync(find_base, Path(path))
        asked.append(
            CaptureAsked(job=job, base=str(base), id=await anyio.to_thread.run_sync(write_request, base, wish))
        )
    return CaptureAnswer(asked=asked)


def sources_of(engine: Engine, job: str | None) -> list[tuple[str, str]]:
    """Return job and folder of the watched local folders."""
    rows = engine.status().get("sources")
    sources: Sequence[Mapping[str, object]] = rows if isinstance(rows, list) else []
    watched = [(str(row["job"]), str(row["path"])) for row in sources if not str(row["path"]).startswith("s3://")]
    chosen = [(name, path) for name, path in watched if job in (None, name)]
    if not chosen:
        known = ", ".join(sorted({name for name, _ in watched})) or "none"
        raise QueryError(
            f"no local folder is watched for that job; jobs with one: {known}",
            parameter="job",
            status=404,
            code="not_found",
        )
    return chosen
