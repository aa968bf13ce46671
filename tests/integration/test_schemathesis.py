"""The running server against its own OpenAPI document, by schemathesis: values of every kind, allowed and not."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.api.openapi import openapi_document
from tests.integration.corpora import write_run
from tests.integration.daemons import daemon_child

EXAMPLES = 12
"""For each route, besides some hundred that cover the document: about 20 s in all."""
SECONDS = 150
TOKEN = "a-token-for-the-test"
LEFT_OUT = ("/v1/watch", "/v1/capture", "/v1/retry")
"""A stream has no end to wait for; captures and retries are asked for on the socket only."""


@pytest.mark.timeout(180)
def test_no_request_finds_an_answer_that_is_not_documented(data_dir: Path, short_tmp_path: Path) -> None:
    source = short_tmp_path / "profiles"
    profiles = write_run(source, data_dir / "formats", nodes=2, steps=20)
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    (short_tmp_path / "web.yml").write_text(f"bearer_tokens: {{test: {digest}}}\n")
    config = short_tmp_path / "c.toml"
    config.write_text(f'[daemon]\nlisten_api = true\nweb_config_file = "{short_tmp_path / "web.yml"}"\n')
    with daemon_child(short_tmp_path, source, "-c", str(config)) as (process, client):
        client.step(0, fresh=True)
        status = client.status()
        assert status["profiles"] == profiles
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"http://{status['address']}/v1/openapi.json"),
            *(word for path in LEFT_OUT for word in ("--exclude-path", path)),
            *("--header", f"Authorization: Bearer {TOKEN}", "--max-examples", str(EXAMPLES), "--no-color"),
            *("--phases", "coverage,fuzzing", "--seed", "1", "--generation-database", "none"),
            # Some values do not go together (format=html, profiler=cprofile), which no schema can say.
            *("--exclude-checks", "positive_data_acceptance"),
        ]
        run = subprocess.run(command, cwd=short_tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert run.returncode == 0, run.stdout[-10_000:] + run.stderr[-2000:]
        assert f"Tested: {len(openapi_document()['paths']) - len(LEFT_OUT)}" in run.stdout, run.stdout
        assert process.poll() is None
        refused = [key for key in client.status()["queries"]["refused"] if key not in ("malformed", "internal")]
        assert refused == []
