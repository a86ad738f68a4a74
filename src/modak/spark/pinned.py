"""A registered table in Spark: hot rows and corrected cold rows as one DataFrame, at one pinned seam.

Cold rows come from Spark's own Iceberg reader at the pinned snapshot. Hot rows come by JDBC, one task per range of pages, each in the
same exported snapshot; they cross as integers and text where JDBC's own values would bend. Only the public DataFrame API is used, so
that everything works over Spark Connect as well.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from modak import settings as configuration
from modak.app import App
from modak.connection import PINNED_SETTINGS, Connection
from modak.core.profile import Profile
from modak.core.tier_key import TierKeyType
from modak.errors import UsageError
from modak.jobs.spark import SHARED
from modak.lake.storage import Storage, jdbc_url, spark_properties
from modak.pinned.moment import moment
from modak.pinned.pin import TTL
from modak.pinned.seam import LOCK_TIMEOUT, Seam, SeamColumn, pinned
from modak.pinned.statements import by_jdbc, corrected_keys, corrected_rows, hot_predicate, hot_source
from modak.settings import Settings
from modak.source import heap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["configure", "pinned_table", "pinned_tables"]

CHUNK_BYTES_MIN = 32 * 1024 * 1024
CHUNK_BYTES_MAX = 512 * 1024 * 1024
TASKS_WANTED = 32
FETCH_ROWS = 10_000
# Up to here the keys of corrections go to every executor; with more of them both sides are sorted.
BROADCAST_ROWS_MAX = 50_000

# What read_sql yields, as Spark is to take it; a column whose type is not here crosses in Spark's type for it.
_CROSSING = {"date": "int", "timestamp": "bigint", "timestamptz": "bigint"}
# The type map's own expression goes by way of the session's time zone, which is the user's here.
_NAIVE_TIME = "timestampadd(MICROSECOND, {column}, timestamp_ntz'1970-01-01 00:00:00')"


@contextlib.contextmanager
def pinned_table(
    spark: SparkSession,
    dsn: str,
    name: str,
    columns: Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    tasks: int = TASKS_WANTED,
    ttl: str = TTL,
) -> Iterator[DataFrame]:
    """The table ``name`` (``schema.table``) as one DataFrame, to be evaluated inside the block, as often as you like.

    ``columns`` narrows what is read, and ``tasks`` is about how many read a large heap. Executors reach Postgres at the DSN's address and
    the lake by the storage profile's; the lake's place comes from ``settings``, by default those of the environment.
    """
    chosen = replace(settings or configuration.load(os.environ), dsn=dsn)
    with pinned(dsn, name, ttl=ttl) as (seam, reading):
        wanted = seam.columns if columns is None else seam.named(columns)
        if not wanted:
            raise UsageError("a DataFrame needs at least one column", hint="leave `columns` out for all of them")
        yield _Read(spark, dsn, seam, App(chosen)).frame(reading, wanted, tasks)


@contextlib.contextmanager
def pinned_tables(
    spark: SparkSession, dsn: str, names: Sequence[str], *, settings: Settings | None = None, ttl: str = TTL
) -> Iterator[dict[str, DataFrame]]:
    """Several mirrored tables at one moment, by the names given: joined, they show the boundary of one transaction.

    The rows are the lake's, a little behind Postgres; columns are those the lake had then.
    """
    app = App(replace(settings or configuration.load(os.environ), dsn=dsn))
    with moment(dsn, names, ttl=ttl) as found:
        frames = {}
        for name, member in zip(names, found.members, strict=True):
            storage = app.storage(member.profile)
            use_catalog(spark, storage)
            table = f"{storage.catalog_name}.{member.table.lake_table_ref}"
            if member.pin.snapshot_id is None:
                frames[name] = spark.read.table(table).where("false")
            else:
                frames[name] = spark.read.option("versionAsOf", member.pin.snapshot_id).table(table)
        yield frames


def configure(builder: SparkSession.Builder, dsn: str, *, settings: Settings | None = None) -> SparkSession.Builder:
    """A builder of a local session with all that ``pinned_table`` needs: Iceberg's and Postgres's jars, found on this machine or fetched.

    A session of another make needs ``iceberg-spark-runtime`` and ``postgresql`` among its jars, and nothing else.
    """
    app = App(replace(settings or configuration.load(os.environ), dsn=dsn))
    machine = app.machine()
    os.environ.setdefault("JAVA_HOME", str(machine.java_home))
    wanted = {
        "spark.jars": ",".join(map(str, machine.jars)),
        "spark.sql.extensions": SHARED["spark.sql.extensions"],
        **spark_properties(app.storage(Profile("default"))),
    }
    for key, value in wanted.items():
        builder = builder.config(key, value)
    return builder


class _Read:
    """One DataFrame in the making. Columns cross from Postgres as c0, c1, …: no name of a user's meets one of Spark's."""

    def __init__(self, spark: SparkSession, dsn: str, seam: Seam, app: App) -> None:
        self._spark, self._dsn, self._seam, self._app = spark, dsn, seam, app

    def frame(self, reading: Connection, columns: Sequence[SeamColumn], tasks: int) -> DataFrame:
        arms = [self._hot(reading, columns, tasks), self._corrected(columns), self._cold(columns)]
        found = [arm for arm in arms if arm is not None] or [self._nothing(columns)]
        result = found[0]
        for arm in found[1:]:
            result = result.unionAll(arm)
        return result

    def _hot(self, reading: Connection, columns: Sequence[SeamColumn], tasks: int) -> DataFrame | None:
        names = [part.name for part in self._seam.parts]
        cut = heap.chunks(reading, names, bytes_min=CHUNK_BYTES_MIN, bytes_max=CHUNK_BYTES_MAX, wanted=tasks)
        if not cut:
            return None
        predicates = [hot_predicate(self._seam, chunk) for chunk in cut]
        return self._from_postgres(hot_source(self._seam, columns, _crossing_names(columns)), columns, predicates)

    def _corrected(self, columns: Sequence[SeamColumn]) -> DataFrame | None:
        if not self._seam.delta_rows:
            return None
        query = corrected_rows(self._seam, columns, by_jdbc, _crossing_names(columns))
        return self._from_postgres(f"({query}) corrected", columns)

    def _cold(self, columns: Sequence[SeamColumn]) -> DataFrame | None:
        seam = self._seam
        if seam.pin.snapshot_id is None:
            return None
        storage = self._app.storage(seam.profile)
        use_catalog(self._spark, storage)
        names = seam.lake_names(self._fields())
        table = self._spark.read.option("versionAsOf", seam.pin.snapshot_id).table(f"{storage.catalog_name}.{seam.table.lake_table_ref}")
        needed = list(dict.fromkeys([*columns, seam.tier_key, *seam.keys]))
        rows = table.selectExpr(*(f"{_cold_value(column, names)} as {_quoted(column.name)}" for column in needed))
        # A mirrored table's lake holds hot rows as well; of those the heap speaks.
        rows = rows.where(_below_line(seam))
        if seam.delta_rows:
            keys = self._from_postgres(f"({corrected_keys(seam, by_jdbc, _crossing_names(seam.keys))}) keys", seam.keys)
            keys = keys.hint("broadcast") if seam.delta_rows <= BROADCAST_ROWS_MAX else keys
            rows = rows.join(keys, [key.name for key in seam.keys], "left_anti")
        return rows.selectExpr(*(_quoted(column.name) for column in columns))

    def _fields(self) -> Mapping[int, str]:
        """Names by field id in the pinned snapshot's own schema, which is the one that Spark shows of an older snapshot."""
        lake = self._app.lake(self._seam.profile).load(self._seam.table.lake_table_ref)
        snapshot = lake.snapshot_by_id(self._seam.pin.snapshot_id or 0)
        schema = lake.schemas()[snapshot.schema_id] if snapshot is not None and snapshot.schema_id is not None else lake.schema()
        return {field.field_id: field.name for field in schema.fields}

    def _from_postgres(self, source: str, columns: Sequence[SeamColumn], predicates: list[str] | None = None) -> DataFrame:
        """Rows of a relation in the shared snapshot, in the lake's types and under the table's names."""
        url, user, password = jdbc_url(self._dsn)
        crossing = _crossing_names(columns)
        properties = {
            "driver": "org.postgresql.Driver",
            "user": user,
            "fetchsize": str(FETCH_ROWS),
            "sessionInitStatement": _session_init(self._seam.snapshot),
            "customSchema": ", ".join(f"{name} {_crossing_type(column)}" for name, column in zip(crossing, columns, strict=True)),
            # A condition on text would be answered by Postgres in the database's collation, and by Spark for cold rows in binary order.
            "pushDownPredicate": "false",
        } | ({"password": password} if password else {})
        predicates = predicates or ["true"]
        rows = self._spark.read.jdbc(url, source, predicates=predicates, properties=properties)
        return rows.selectExpr(
            *(f"{_arrived(column, name)} as {_quoted(column.name)}" for column, name in zip(columns, crossing, strict=True))
        )

    def _nothing(self, columns: Sequence[SeamColumn]) -> DataFrame:
        schema = ", ".join(f"{_quoted(column.name)} {column.lake.type.spark}" for column in columns)
        return self._spark.createDataFrame([], schema)


def use_catalog(spark: SparkSession, storage: Storage) -> None:
    """Tell the session where the lake is. Spark keeps a catalog it has loaded, so a name that means another lake is refused."""
    for key, value in spark_properties(storage).items():
        found = spark.conf.get(key, None)
        if found is None:
            spark.conf.set(key, value)
        elif found != value and key.endswith((".uri", ".warehouse", ".type")):
            raise UsageError(
                f"the catalog {storage.catalog_name} of this Spark session is another lake's",
                hint="one session reads the tables of one database; open another with spark.newSession()",
                setting=key,
            )


def _session_init(snapshot: str) -> str:
    """Run by Spark at the start of each task's transaction, which fetchsize keeps open until the last row."""
    settings = {**PINNED_SETTINGS, "statement_timeout": "0", "lock_timeout": LOCK_TIMEOUT}
    local = [f"set local {name} = {value if name == 'search_path' else repr(value)}" for name, value in settings.items()]
    return "; ".join(
        ["set transaction isolation level repeatable read, read only", f"set transaction snapshot '{snapshot}'", *local],
    )


def _crossing_names(columns: Sequence[SeamColumn]) -> list[str]:
    return [f"c{number}" for number in range(len(columns))]


def _crossing_type(column: SeamColumn) -> str:
    return _CROSSING.get(column.lake.type.iceberg, column.lake.type.spark)


def _arrived(column: SeamColumn, crossing: str) -> str:
    """A value that crossed, in the lake's type as Spark has it."""
    kept = column.lake.type
    form = _NAIVE_TIME if kept.iceberg == "timestamp" else kept.spark_sql
    return form.format(column=crossing)


def _cold_value(column: SeamColumn, names: Mapping[str, str | None]) -> str:
    """A column of the lake; rows from before it was added have none."""
    name = names[column.name]
    return f"cast({_quoted(name) if name is not None else 'null'} as {column.lake.type.spark})"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _below_line(seam: Seam) -> str:
    """A condition on a cold row: its tier key lies below T."""
    line, key_type = seam.pin.tier_key_hi, seam.table.key_type
    bound = key_type.encode_bound(line)
    if bound in ("MINVALUE", "MAXVALUE"):
        return "true" if bound == "MAXVALUE" else "false"
    values = {
        TierKeyType.DATE: f"date_from_unix_date({line})",
        TierKeyType.TIMESTAMP: _NAIVE_TIME.format(column=f"{line}L"),
        TierKeyType.TIMESTAMPTZ: f"timestamp_micros({line}L)",
    }
    return f"{_quoted(seam.table.tier_key_col)} < {values.get(key_type, f'{line}L')}"
