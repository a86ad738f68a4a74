"""``modak.spark.pinned_table`` against a plain twin of the table; few tests and one session, since a JVM is slow to start."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests import events
from tests.events import put_under_modak
from tests.flows.test_pinned_duckdb import E_ROWS, every_type
from tests.flows.test_pinned_seam import Row, Writer, cold_events, no_spark, pin_count  # noqa: F401 - fixtures
from tests.support import rows

from modak.app import App
from modak.connection import Connection
from modak.core import digest
from modak.core.profile import Profile
from modak.errors import UsageError
from modak.settings import Settings
from modak.source.expressions import reference
from modak.spark import configure, pinned_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def spark(app: App) -> SparkSession:
    """A user's session: it has the jars and knows nothing of any lake."""
    session = app.spark(Profile("default")).newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    return session


def found(frame: DataFrame) -> list[Row]:
    return sorted(tuple(row) for row in frame.collect())


def test_hot_and_corrected_cold_are_one_table(
    spark: SparkSession,
    cold_events: None,  # noqa: F811
    connection: Connection,
    settings: Settings,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pinned_table(spark, dsn, "public.events", settings=settings) as frame:
        assert frame.dtypes == [("id", "bigint"), ("event_time", "bigint"), ("val", "string")]
        assert found(frame) == E_ROWS
        assert pin_count(connection) == 1
    assert pin_count(connection) == 0
    connection.execute("update public.events_hot set val = 'corrected' where id = 2")
    connection.execute("delete from public.events_hot where id = 3")
    connection.execute("insert into public.events_hot select n, 200 + n % 100, repeat('x', 90) from generate_series(1000, 9000) n")
    monkeypatch.setattr("modak.spark.pinned.CHUNK_BYTES_MIN", 256 * 1024)
    with pinned_table(spark, dsn, "public.events", ["val", "id"], settings=settings, tasks=4) as frame:
        assert frame.columns == ["val", "id"]
        read = frame.selectExpr("spark_partition_id() as task", "id", "val").collect()
        assert sorted((row["id"], row["val"]) for row in read if row["id"] < 1000) == [(1, "a"), (2, "corrected"), (4, "hot"), (5, "hot")]
        assert sorted(row["id"] for row in read if row["id"] >= 1000) == list(range(1000, 9001))
        assert len({row["task"] for row in read if row["id"] >= 1000}) == 4
    with pytest.raises(UsageError), pinned_table(spark, dsn, "public.events", [], settings=settings):
        pass
    # The snapshot went with the block: a read after it fails instead of showing another moment.
    with pytest.raises(Exception, match="snapshot"):
        frame.collect()


def test_every_type(
    spark: SparkSession,
    app: App,
    connection: Connection,
    settings: Settings,
    dsn: str,
    no_spark: None,  # noqa: F811
) -> None:
    name = every_type(app, connection)
    with app.job(name) as job:
        columns = job.columns(job.relation())
    quoted = [reference(column.name) for column in columns]
    wanted = [row[0] for row in rows(connection, f"select {digest.postgres_key(columns, quoted)} from public.twin")]
    with pinned_table(spark, dsn, str(name), settings=settings) as frame:
        assert frame.columns == [column.name for column in columns]
        assert [kind for _, kind in frame.dtypes] == [column.type.spark for column in columns]
        # The frame was made in New York; only the texts to compare it by are made in UTC.
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        texts = frame.selectExpr(f"{digest.spark_key(columns, [f'`{column.name}`' for column in columns])} as row")
        assert sorted(row["row"] for row in texts.collect()) == sorted(wanted)


def test_one_instant_while_the_table_is_written_and_tiered(
    spark: SparkSession,
    app: App,
    connection: Connection,
    settings: Settings,
    dsn: str,
    no_spark: None,  # noqa: F811
) -> None:
    partitions = 4
    events.create(connection, partitions=partitions)
    connection.execute("delete from public.events")
    connection.execute("insert into public.events values (0, %s, '0')", [partitions * 100 - 1])
    put_under_modak(app, connection)
    writer = Writer(dsn, partitions)
    writer.start()
    assert writer.ready.wait(60)
    seen: list[list[Row]] = []
    for line in (100, 200, 300):
        with pinned_table(spark, dsn, "public.events", settings=settings) as frame:
            seen.append(found(frame))
            assert events.tier(app, lock_attempts=200, upto=line).tier_key_hi == line
            assert found(frame) == seen[-1]
    writer.stop.set()
    writer.join(60)
    assert writer.failure is None, writer.failure
    assert [writer.ledger[int(state[0][2])] for state in seen] == seen
    with pinned_table(spark, dsn, "public.events", settings=settings) as frame:
        assert found(frame) == writer.ledger[max(writer.ledger)]


def test_a_catalog_of_another_lake_is_refused(spark: SparkSession, cold_events: None, settings: Settings, dsn: str) -> None:  # noqa: F811
    spark.conf.set("spark.sql.catalog.modak.uri", "jdbc:postgresql://elsewhere/other")
    with pytest.raises(UsageError, match="another lake"), pinned_table(spark, dsn, "public.events", settings=settings):
        pass


class Builder:
    """What ``configure`` does to a builder."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}

    def config(self, key: str, value: str) -> Builder:
        self.options[key] = value
        return self


def test_a_local_session_gets_what_it_needs(settings: Settings, dsn: str) -> None:
    options = configure(Builder(), dsn, settings=settings).options  # type: ignore[arg-type,attr-defined]
    assert {"iceberg-spark-runtime", "postgresql"} <= {
        name for name in ("iceberg-spark-runtime", "postgresql") if name in options["spark.jars"]
    }
    assert options["spark.sql.catalog.modak.warehouse"].endswith(str(settings.data / "warehouse"))


SCRIPT = """
import sys
from pyspark.sql import SparkSession
from modak.spark import pinned_table
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
with pinned_table(spark, sys.argv[2], "public.events") as frame:
    print(sorted(tuple(row) for row in frame.collect()))
"""


def test_over_spark_connect(
    spark_connect: str,
    cold_events: None,  # noqa: F811
    connection: Connection,
    settings: Settings,
    dsn: str,
) -> None:
    connection.execute("update public.events_hot set val = 'corrected' where id = 2")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MODAK_", "SPARK_", "PYSPARK_"))}
    environment = {**plain, "MODAK_DATA": str(settings.data), "MODAK_CACHE": str(settings.cache)}
    command = [sys.executable, "-c", SCRIPT, spark_connect, dsn]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([(*row[:2], "corrected") if row[0] == 2 else row for row in E_ROWS])
