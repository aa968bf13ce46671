"""Imports point one way: the contracts hold, and no module escapes them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("monitor", include_external_packages=True, cache_dir=None)


def test_the_contracts_hold() -> None:
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_module_has_a_layer(graph: grimp.ImportGraph) -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = document["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if "monitor.__main__" in each.get("layers", ()))
    layered = {name.strip(" ()") for layer in contract["layers"] for name in layer.split(":")}
    assert graph.find_children("monitor") == layered


def test_the_store_alone_knows_the_database(graph: grimp.ImportGraph) -> None:
    assert graph.find_modules_that_directly_import("duckdb") == {"monitor.store"}


def test_the_decoder_process_loads_only_what_decodes(graph: grimp.ImportGraph) -> None:
    inside = {name for name in graph.find_upstream_modules("monitor.decode_worker") if name.startswith("monitor")}
    allowed = ("monitor.profiles", "monitor.errors", "monitor.reading", "monitor.confinement")
    assert {name for name in inside if not name.startswith(allowed)} == set()
