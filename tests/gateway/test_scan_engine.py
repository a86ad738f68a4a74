"""The engine's limits, its isolation, its extensions, and its way to object stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from modak.errors import LakeError, MissingComponent, UsageError
from modak.lake.storage import Storage
from modak.scan.engine import Engine, extension_path, secret_sql
from modak.scan.paths import readable, without_globs


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine([], memory_limit="200MB", threads=2, temp_directory=tmp_path / "a b" / "tmp", settings={"integer_division": "true"})
    yield made
    made.close()


def test_every_cursor_has_the_settings(engine: Engine, tmp_path: Path) -> None:
    cursor = engine.cursor()
    found = dict(cursor.execute("select name, value from duckdb_settings()").fetchall())
    assert found["TimeZone"] == "UTC"
    assert found["threads"] == "2"
    assert found["memory_limit"] == "190.7 MiB"
    assert found["temp_directory"] == str(tmp_path / "a b" / "tmp")
    assert (found["parquet_metadata_cache"], found["enable_external_file_cache"]) == ("true", "false")
    assert (found["autoinstall_known_extensions"], found["autoload_known_extensions"]) == ("false", "false")
    assert cursor.execute("select 7 / 2").fetchall() == [(3,)]
    assert cursor.execute("select timestamptz '2024-01-01 00:00:00+00'::varchar").fetchall() == [("2024-01-01 00:00:00+00",)]


@pytest.mark.parametrize("statement", ["set memory_limit = '8GB'", "set threads = 64", "reset memory_limit", "set global TimeZone = 'CET'"])
def test_a_query_cannot_change_them(engine: Engine, statement: str) -> None:
    with pytest.raises(duckdb.Error, match="locked"):
        engine.cursor().execute(statement)


def test_settings_have_plain_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Engine([], memory_limit="1GB", threads=1, temp_directory=tmp_path, settings={"threads = 3; --": "1"})


def test_variables_of_python_are_no_tables(engine: Engine) -> None:
    secret = pa.table({"a": [1]})
    with pytest.raises(duckdb.CatalogException):
        engine.cursor().execute("select * from secret")
    assert secret.num_rows == 1


def test_cursors_are_independent_and_share_the_database(engine: Engine) -> None:
    one, other = engine.cursor(), engine.cursor()
    one.execute("begin")
    one.execute("create table shared (a int)")
    with pytest.raises(duckdb.CatalogException):
        other.execute("select * from shared")
    one.execute("commit")
    assert other.execute("select * from shared").fetchall() == []


def test_interrupt_stops_one_cursor_only(engine: Engine) -> None:
    slow, other = engine.cursor(), engine.cursor()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            slow.execute("select count(*) from range(100000000) a, range(100000) b where hash(a.range) = hash(b.range) + 1").fetchall()
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    assert other.execute("select 1").fetchall() == [(1,)]
    # An interrupt before the query has begun is none.
    for _ in range(600):
        slow.interrupt()
        thread.join(0.1)
        if not thread.is_alive():
            break
    assert not thread.is_alive()
    assert isinstance(failures[0], duckdb.InterruptException)
    assert slow.execute("select 2").fetchall() == [(2,)]


def test_memory_is_bounded(engine: Engine) -> None:
    with pytest.raises(duckdb.OutOfMemoryException):
        engine.cursor().execute("select list(range) from range(100000000)").fetchall()


def _s3(**config: str) -> Storage:
    return Storage("modak_s3", "s3a://bucket/lake", "jdbc", "", config)


def test_object_stores_need_their_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "duckdb_extension_httpfs", None)
    with pytest.raises(MissingComponent, match="httpfs is not installed") as missing:
        Engine([_s3()], memory_limit="1GB", threads=1, temp_directory=tmp_path)
    assert missing.value.hint is not None
    assert f"duckdb-extension-httpfs=={duckdb.__version__}" in missing.value.hint


def test_extensions_are_found_in_their_wheels() -> None:
    assert extension_path("iceberg").is_file()


def test_a_profile_becomes_a_secret() -> None:
    config = {
        "s3.access-key-id": "me",
        "s3.secret-access-key": "it's secret",
        "s3.region": "eu-west-1",
        "s3.endpoint": "http://minio:9000",
        "s3.path-style-access": "true",
    }
    assert secret_sql("modak_s3", "s3://bucket/lake", config) == (
        "CREATE OR REPLACE SECRET \"modak_s3\" (TYPE s3, SCOPE 's3://bucket/lake', KEY_ID 'me', SECRET 'it''s secret', "
        "REGION 'eu-west-1', ENDPOINT 'minio:9000', USE_SSL false, URL_STYLE 'path')"
    )
    assert secret_sql("m", "s3://b", {}) == "CREATE OR REPLACE SECRET \"m\" (TYPE s3, SCOPE 's3://b', PROVIDER credential_chain)"
    assert "URL_STYLE 'vhost'" in secret_sql("m", "s3://b", config | {"s3.force-virtual-addressing": "true"})


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("file:/a b/c", "/a b/c"),
        ("file:///a/c%20", "/a/c%20"),
        ("/plain", "/plain"),
        ("s3a://bucket/x", "s3://bucket/x"),
        ("s3://bucket/x", "s3://bucket/x"),
    ],
)
def test_locations_become_paths(location: str, path: str) -> None:
    assert readable(location) == path


def test_other_stores_are_refused() -> None:
    with pytest.raises(LakeError, match="kind of storage"):
        readable("hdfs://host/x")


@pytest.mark.parametrize(
    "name", ["a[1].parquet", "*.parquet", "?.parquet", "[!a].parquet", "[[]x].parquet", "a]b[.parquet", "{a,b}.parquet"]
)
def test_wildcards_match_themselves_only(engine: Engine, tmp_path: Path, name: str) -> None:
    import pyarrow.parquet as pq

    for number, found in enumerate((name, "a1.parquet", "a.parquet", "b.parquet", "[x].parquet")):
        pq.write_table(pa.table({"n": [number]}), tmp_path / found)
    pattern = without_globs(str(tmp_path / name)).replace("'", "''")
    assert engine.cursor().execute(f"select n from read_parquet(['{pattern}'])").fetchall() == [(0,)]


def test_a_path_that_no_pattern_can_say_is_refused() -> None:
    assert without_globs("/a\\b") == "/a\\b"
    with pytest.raises(LakeError, match="backslash"):
        without_globs("/a\\b/*")
