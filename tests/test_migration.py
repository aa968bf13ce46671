"""Stores of every schema version open, answer as they did, and are kept as they were; newer ones are refused."""

from __future__ import annotations

import gzip
import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import monitor
from monitor.errors import StoreError
from monitor.migration import copy_path, prepare_schema
from monitor.schema import MIGRATIONS, SCHEMA_VERSION
from monitor.store import open_store
from tests.integration.daemons import daemon_inside, settings_for
from tests.store_samples import STORES

OLD_VERSIONS = range(1, SCHEMA_VERSION)


def put_sample(version: int, path: Path) -> Path:
    """Lay the store that a version wrote where a daemon looks for it."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.decompress((STORES / f"{version}.duckdb.gz").read_bytes()))
    return path


def version_in(path: Path) -> str:
    """Tell the schema version of a file."""
    with duckdb.connect(str(path), read_only=True) as connection:
        ((version,),) = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall()
    return str(version)


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
async def test_a_store_of_each_version_answers_as_it_did(version: int, short_tmp_path: Path) -> None:
    path = put_sample(version, short_tmp_path / "state" / "phasewatch.duckdb")
    answers = json.loads(gzip.decompress((STORES / f"{version}.json.gz").read_bytes()))
    for turn in ("migrated", "opened again", "the copy"):
        async with daemon_inside(settings_for(short_tmp_path, short_tmp_path / "gone")) as (_, client):
            for question, answer in answers.items():
                assert (await client.raw(question))[1].decode() == answer, (turn, question)
        assert version_in(path) == str(SCHEMA_VERSION)
        if turn == "opened again" and version in OLD_VERSIONS:
            shutil.copy(copy_path(path, version), path)


@pytest.mark.parametrize("version", OLD_VERSIONS)
def test_the_store_is_kept_as_it_was_before_it_is_changed(version: int, tmp_path: Path) -> None:
    path = put_sample(version, tmp_path / 'it\'s a "store".duckdb')
    with open_store(path) as store:
        assert store.read_table("SELECT phasewatch FROM versions")["phasewatch"].tolist() == [monitor.__version__]
        assert "another process uses it" in opened_elsewhere(path)  # the lock was not lost
    copy = copy_path(path, version)
    assert version_in(copy) == str(version)
    assert {file.name for file in tmp_path.iterdir()} == {path.name, copy.name}
    with open_store(path):
        assert not copy_path(path, SCHEMA_VERSION).exists()


def opened_elsewhere(path: Path) -> str:
    """Open a store in another process; returns what that complains of."""
    code = "import sys, pathlib, monitor.store as s; s.open_store(pathlib.Path(sys.argv[1])).__enter__()"
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False).stderr


async def test_the_copy_belongs_to_its_user_alone(short_tmp_path: Path) -> None:
    path = put_sample(1, short_tmp_path / "state" / "phasewatch.duckdb")
    async with daemon_inside(settings_for(short_tmp_path, short_tmp_path / "gone")):
        assert stat.S_IMODE(copy_path(path, 1).stat().st_mode) == 0o600


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = put_sample(1, tmp_path / "store.duckdb")
    broken = MIGRATIONS | {2: [*MIGRATIONS[2], "INSERT INTO no_such_table VALUES (1)"]}
    with duckdb.connect(str(path)) as connection, pytest.raises(duckdb.CatalogException):
        prepare_schema(connection, path=path, migrations=broken)
    assert version_in(path) == "1"
    with duckdb.connect(str(path)) as connection:
        assert connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'captures'").fetchall() == []
    with open_store(path):
        pass
    assert version_in(path) == str(SCHEMA_VERSION)


def test_a_copy_that_cannot_be_kept_leaves_the_store_alone(tmp_path: Path) -> None:
    path = put_sample(1, tmp_path / "store.duckdb")
    copy_path(path, 1).mkdir()
    with (
        pytest.raises(StoreError, match=r"cannot keep a copy of the store as .*store\.duckdb\.schema-1"),
        open_store(path),
    ):
        pass
    assert version_in(path) == "1"
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("names_itself", [True, False])
def test_a_newer_store_is_refused_by_name_with_the_way_back(names_itself: bool, short_tmp_path: Path) -> None:
    path = put_sample(SCHEMA_VERSION, short_tmp_path / "phasewatch.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
        if names_itself:
            connection.execute("INSERT INTO versions VALUES (99, '7.0.1', 1e9)")
    before = path.read_bytes()
    copy_path(path, SCHEMA_VERSION).touch()
    command = [sys.executable, "-m", "monitor", "run", str(short_tmp_path / "gone"), "--listen", ""]
    command += ["--state-dir", str(short_tmp_path), "--socket", str(short_tmp_path / "s.sock")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    writer = "phasewatch 7.0.1" if names_itself else "a newer phasewatch"
    assert done.stderr == (
        f"phasewatch: {writer} wrote the store {path} (schema version 99); this is phasewatch {monitor.__version__}, "
        f"which knows up to {SCHEMA_VERSION}: install the newer one again, or choose another --state-dir, "
        f"or put {path}.schema-{SCHEMA_VERSION}, kept before it was changed, in its place\n"
    )
    assert path.read_bytes() == before


def test_every_schema_version_has_its_store() -> None:
    wanted = {f"{version}.{end}" for version in range(1, SCHEMA_VERSION + 1) for end in ("duckdb.gz", "json.gz")}
    assert {file.name for file in STORES.iterdir()} == wanted
