"""Writes the store of a small run and what it answers into tests/data/stores: once for each schema version, with the
code that had it, before the schema changes.

    python -m tests.store_samples
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import anyio

from monitor.schema import SCHEMA_VERSION
from tests.integration.corpora import node_folder, write_run, write_span
from tests.integration.daemons import daemon_inside, settings_for

STORES = Path(__file__).parent / "data" / "stores"
FORMATS = Path(__file__).parent / "data" / "formats"
SESSION = "train-3-stepstart-1700000000060001.0_train-3-stepend-1700000000075000.25"
QUESTIONS = (
    "/v1/stats/step?start=2&end=7&callers=true",
    "/v1/stats/modes?start_mode=train&end_mode=eval",
    "/v1/stats/training-phases?callers=true",
    "/v1/stats/job-phases?callers=true",
    "/v1/stats/step?start=3&profiler=pyinstrument&format=folded",
    "/v1/profiles",
    "/v1/nodes",
)
"""Asked when the store was written, and of each later version that opens it."""


async def write_sample(folder: Path) -> None:
    """Watch a small run with a daemon, ask it, and keep its store."""
    base = folder / "profiles"
    write_run(base, FORMATS, nodes=2, steps=12)
    session = (FORMATS / "pyinstrument-5.0.0" / "python_stats.json").read_bytes()
    write_span(node_folder(base, "0-host-0", "pyinstrument"), SESSION, session, "python_stats.json")
    settings = settings_for(folder, base)
    async with daemon_inside(settings) as (_, client):
        await client.jobs(fresh=True)
        answers = {question: (await client.raw(question))[1].decode() for question in QUESTIONS}
    STORES.mkdir(exist_ok=True)
    store = (settings.daemon_state_dir / "phasewatch.duckdb").read_bytes()
    (STORES / f"{SCHEMA_VERSION}.duckdb.gz").write_bytes(gzip.compress(store, mtime=0))
    (STORES / f"{SCHEMA_VERSION}.json.gz").write_bytes(gzip.compress(json.dumps(answers).encode(), mtime=0))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="pw-") as place:
        anyio.run(write_sample, Path(place))
