"""A registered table in DuckDB: hot rows and corrected cold rows as one relation, at one pinned seam.

Hot rows and corrections come from Postgres as Arrow streams, cold rows straight from the lake's files; nothing is copied beforehand, and
every query over the relation reads the same rows again.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast, overload

import duckdb

from modak import settings as configuration
from modak.app import App
from modak.connection import Connection
from modak.core.tier_key import TierKeyType
from modak.errors import UsageError
from modak.lake.storage import Storage, io_properties
from modak.pinned.arrow_rows import ArrowRows, readers_wanted
from modak.pinned.moment import moment
from modak.pinned.pin import TTL, Pin
from modak.pinned.seam import Seam, SeamColumn, pinned
from modak.pinned.statements import by_copy, corrected_keys, corrected_rows, hot_rows
from modak.scan.deletes import Deletes
from modak.scan.engine import Cursor, Engine, extension_path, secret_sql
from modak.scan.paths import readable
from modak.scan.prune import KeyRange, prune
from modak.scan.relation import relation_sql
from modak.scan.snapshot import DataFile, Snapshot
from modak.scan.snapshots import Snapshots
from modak.scan.sqltext import quoted, string
from modak.settings import Settings
from modak.source import heap

__all__ = ["pinned_relation", "pinned_relations"]

CHUNK_BYTES_MIN = 16 * 1024 * 1024
CHUNK_BYTES_MAX = 256 * 1024 * 1024
CHUNKS_PER_READER = 4
# A condition does not pass a LIMIT. Past it, DuckDB would hand it to Arrow, where NaN is not the largest number, and forget it.
_BARRIER = f"LIMIT {2**63 - 1}"


@overload
def pinned_relation(
    dsn: str,
    name: str,
    connection: duckdb.DuckDBPyConnection | None = None,
    columns: Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    ttl: str = TTL,
) -> AbstractContextManager[duckdb.DuckDBPyRelation]: ...


@overload
def pinned_relation(
    connection: duckdb.DuckDBPyConnection,
    dsn: str,
    name: str,
    columns: Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    ttl: str = TTL,
) -> AbstractContextManager[duckdb.DuckDBPyRelation]: ...


def pinned_relation(*given: Any, **named: Any) -> AbstractContextManager[duckdb.DuckDBPyRelation]:
    """The table ``name`` (``schema.table``) as one relation, readable as often as you like inside the block.

    ``connection`` is a DuckDB connection of yours, to join the relation with your tables; without one there is a fresh database in memory.
    It may come first, as Spark's session does in ``pinned_table``. ``columns`` narrows what is read. The lake's place comes from
    ``settings``, by default those of the environment.
    """
    return _pinned_relation(**_by_name(given, "name", "columns"), **named)


@overload
def pinned_relations(
    dsn: str,
    names: Sequence[str],
    connection: duckdb.DuckDBPyConnection | None = None,
    *,
    settings: Settings | None = None,
    ttl: str = TTL,
) -> AbstractContextManager[dict[str, duckdb.DuckDBPyRelation]]: ...


@overload
def pinned_relations(
    connection: duckdb.DuckDBPyConnection, dsn: str, names: Sequence[str], *, settings: Settings | None = None, ttl: str = TTL
) -> AbstractContextManager[dict[str, duckdb.DuckDBPyRelation]]: ...


def pinned_relations(*given: Any, **named: Any) -> AbstractContextManager[dict[str, duckdb.DuckDBPyRelation]]:
    """Several mirrored tables at one moment, by the names given: joined, they show the boundary of one transaction.

    The rows are the lake's, a little behind Postgres; columns are those the lake had then. A DuckDB ``connection`` of yours may come first.
    """
    return _pinned_relations(**_by_name(given, "names"), **named)


def _by_name(given: Sequence[Any], what: str, *more: str) -> dict[str, Any]:
    """Arguments by their names, in either of the two orders they are known in."""
    is_first = bool(given) and isinstance(given[0], duckdb.DuckDBPyConnection)
    order = ("connection", "dsn", what, *more) if is_first else ("dsn", what, "connection", *more)
    if len(given) > len(order):
        raise TypeError(f"at most {len(order)} arguments by their place: {', '.join(order)}")
    return dict(zip(order, given, strict=False))


@contextlib.contextmanager
def _pinned_relation(
    dsn: str,
    name: str,
    connection: duckdb.DuckDBPyConnection | None = None,
    columns: Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    ttl: str = TTL,
) -> Iterator[duckdb.DuckDBPyRelation]:
    chosen = replace(settings or configuration.load(os.environ), dsn=dsn)
    with contextlib.ExitStack() as stack:
        seam, reading = stack.enter_context(pinned(dsn, name, ttl=ttl))
        wanted = seam.columns if columns is None else seam.named(columns)
        if not wanted:
            raise UsageError("a relation needs at least one column", hint="leave `columns` out for all of them")
        engine = connection if connection is not None else _own_database()
        read = _Read(seam, App(chosen).storage(seam.profile), engine, stack)
        relation = _bind(engine, read.statement(dsn, reading, wanted), read.streams)
        try:
            yield relation.set_alias(seam.table.table_name)
        except duckdb.Error as error:
            failure = next((rows.failure for rows in read.streams.values() if rows.failure is not None), None)
            if failure is None:
                raise
            raise failure from error


@contextlib.contextmanager
def _pinned_relations(
    dsn: str,
    names: Sequence[str],
    connection: duckdb.DuckDBPyConnection | None = None,
    *,
    settings: Settings | None = None,
    ttl: str = TTL,
) -> Iterator[dict[str, duckdb.DuckDBPyRelation]]:
    app = App(replace(settings or configuration.load(os.environ), dsn=dsn))
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(moment(dsn, names, ttl=ttl))
        engine = connection if connection is not None else _own_database()
        relations, kept = {}, list[Snapshot]()
        for name, member in zip(names, found.members, strict=True):
            # Deletes are kept in the engine for as long as the snapshot is.
            source, snapshot = _lake_source(engine, app.storage(member.profile), member.pin, stack)
            kept.append(snapshot)
            relations[name] = engine.sql(f"SELECT * FROM {source}").set_alias(member.table.table_name)  # noqa: S608
        yield relations


def _lake_source(engine: duckdb.DuckDBPyConnection, storage: Storage, pin: Pin, stack: contextlib.ExitStack) -> tuple[str, Snapshot]:
    """The lake's rows at a pinned snapshot, whole, as an expression for FROM."""
    if pin.metadata_location is None:
        raise UsageError("the table has no metadata in the lake yet", hint="`modak mirror` publishes it", table_id=pin.table_id)
    with contextlib.closing(Snapshots()) as snapshots:
        snapshot = snapshots.get(pin.metadata_location, pin.lake_snapshot_id, io_properties(storage))
    return _relation(engine, storage, stack, snapshot, snapshot.files, [field.name for field in snapshot.fields]), snapshot


def _own_database() -> duckdb.DuckDBPyConnection:
    """It goes with the last thing that refers to it. Closed at the end of the block, a reader still open would see an early end of rows
    instead of an error."""
    database = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    database.execute("SET TimeZone = 'UTC'")
    return database


def _bind(engine: duckdb.DuckDBPyConnection, statement: str, streams: Mapping[str, ArrowRows]) -> duckdb.DuckDBPyRelation:
    """DuckDB finds the streams as variables of this function, and the relation keeps them.

    Views of them would have to be dropped at the end of the block, and a statement on a connection ends whatever still reads there,
    as if there were no more rows.
    """
    modak_pinned_hot, modak_pinned_corrected, modak_pinned_keys = (streams.get(kind) for kind in ("hot", "corrected", "keys"))  # noqa: RUF059
    try:
        return engine.sql(statement)
    except duckdb.CatalogException as cause:
        hint = "the relation's streams are Python objects: set python_enable_replacements = true on your connection"
        raise UsageError(f"DuckDB does not see the rows of Postgres: {cause}".splitlines()[0], hint=hint) from cause


class _Read:
    """One relation in the making; what it puts into the engine goes with the stack."""

    def __init__(self, seam: Seam, storage: Storage, engine: duckdb.DuckDBPyConnection, stack: contextlib.ExitStack) -> None:
        self._seam, self._storage, self._engine, self._stack = seam, storage, engine, stack
        self.streams: dict[str, ArrowRows] = {}
        # Deletes are kept in the engine for as long as this object is.
        self._snapshot: Snapshot | None = None

    def statement(self, dsn: str, reading: Connection, columns: Sequence[SeamColumn]) -> str:
        names = [column.name for column in columns]
        shown = ", ".join(map(quoted, names))
        hot = self._stream("hot", dsn, self._hot_queries(reading, columns), columns)
        arms = [f"SELECT {shown} FROM {hot}"]  # noqa: S608
        keys = None
        if self._seam.delta_rows:
            rows = self._stream("corrected", dsn, [corrected_rows(self._seam, columns, by_copy, names, bad=True)], columns)
            arms.append(f"SELECT {shown} FROM {rows}")  # noqa: S608
            key_names = [key.name for key in self._seam.keys]
            keys = self._stream("keys", dsn, [corrected_keys(self._seam, by_copy, key_names, bad=True)], self._seam.keys)
        if self._seam.pin.lake_snapshot_id is not None:
            arms.append(self._cold(columns, keys))
        return " UNION ALL ".join(arms)

    def _hot_queries(self, reading: Connection, columns: Sequence[SeamColumn]) -> list[str]:
        names = [part.name for part in self._seam.parts]
        wanted = readers_wanted() * CHUNKS_PER_READER
        cut = heap.chunks(reading, names, bytes_min=CHUNK_BYTES_MIN, bytes_max=CHUNK_BYTES_MAX, wanted=wanted)
        return [hot_rows(self._seam, columns, chunk) for chunk in cut]

    def _stream(self, kind: str, dsn: str, queries: Sequence[str], columns: Sequence[SeamColumn]) -> str:
        """An expression for FROM."""
        rows = ArrowRows(dsn, self._seam.snapshot, queries, columns)
        self.streams[kind] = rows
        self._stack.callback(rows.close)
        return f"(SELECT * FROM modak_pinned_{kind} {_BARRIER})"  # noqa: S608

    def _cold(self, columns: Sequence[SeamColumn], keys: str | None) -> str:
        snapshot, files = self._plan()
        names = self._seam.lake_names({field.id: field.name for field in snapshot.fields})
        needed = dict.fromkeys([*columns, self._seam.tier_key, *(self._seam.keys if keys else ())])
        there = [name for column in needed if (name := names[column.name]) is not None]
        source = f"{_relation(self._engine, self._storage, self._stack, snapshot, files, there)} AS cold"
        shown = ", ".join(f"{_cold_value(column, names)} AS {quoted(column.name)}" for column in columns)
        tier_key = _cold_value(self._seam.tier_key, names)
        if keys is not None:
            matches = " AND ".join(f"{_cold_value(key, names)} = corrected.{quoted(key.name)}" for key in self._seam.keys)
            source += f" ANTI JOIN {keys} AS corrected ON {matches}"
        # A mirrored table's lake holds hot rows as well; of those the heap speaks.
        return f"SELECT {shown} FROM {source} WHERE {_below_line(self._seam, tier_key)}"  # noqa: S608

    def _plan(self) -> tuple[Snapshot, list[DataFile]]:
        pin = self._seam.pin
        if pin.metadata_location is None:
            raise UsageError("the cut-line names no metadata of its snapshot", hint="`modak tier` publishes both", table_id=pin.table_id)
        snapshots = Snapshots()
        try:
            found = snapshots.get(pin.metadata_location, pin.lake_snapshot_id, io_properties(self._storage))
        finally:
            snapshots.close()
        self._snapshot = found
        self._stack.callback(setattr, self, "_snapshot", None)
        lake_key = self._seam.lake_names({field.id: field.name for field in found.fields})[self._seam.tier_key.name]
        return found, prune(found, (), KeyRange(lake_key, high=pin.tier_key_hi) if lake_key else None)


def _relation(
    engine: duckdb.DuckDBPyConnection,
    storage: Storage,
    stack: contextlib.ExitStack,
    snapshot: Snapshot,
    files: Sequence[DataFile],
    columns: Sequence[str],
) -> str:
    if storage.is_remote:
        _reach_remote_files(engine, storage)
    if not any(file.deletes for file in files):
        return relation_sql(snapshot, files, columns)
    scratch = _Scratch(engine)
    stack.callback(scratch.close)
    bitmaps = Deletes(cast(Engine, scratch)).prepare(snapshot, files)
    assert bitmaps is not None
    return relation_sql(snapshot, files, columns, replace(bitmaps, table=f"{scratch.name}.main.{bitmaps.table}"))


def _reach_remote_files(engine: duckdb.DuckDBPyConnection, storage: Storage) -> None:
    with engine.cursor() as cursor:
        for extension in ("httpfs",) if "s3.access-key-id" in storage.config else ("httpfs", "aws"):
            cursor.execute(f"LOAD {string(str(extension_path(extension)))}")
        cursor.execute(secret_sql(storage.catalog_name, readable(storage.scope), storage.config))


class _Scratch:
    """A database in memory beside the user's own, which stays clean. ``Deletes`` asks an engine for nothing but cursors."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.name = f"modak_scratch_{uuid.uuid4().hex[:12]}"
        # One for attaching and detaching: see _bind on statements in the user's own.
        self._connection = connection.cursor()
        self._connection.execute(f"ATTACH ':memory:' AS {self.name}")

    def cursor(self) -> Cursor:
        cursor = self._connection.cursor()
        cursor.execute(f"USE {self.name}")
        return cursor

    def close(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self._connection.execute(f"DETACH {self.name}")


def _cold_value(column: SeamColumn, names: dict[str, str | None]) -> str:
    """A column of the lake; rows from before it was added have none."""
    name = names[column.name]
    kind = column.lake.type.duckdb
    return f"cold.{quoted(name)}::{kind}" if name is not None else f"NULL::{kind}"


def _below_line(seam: Seam, tier_key: str) -> str:
    """A condition on a cold row: its tier key lies below T."""
    line, key_type = seam.pin.tier_key_hi, seam.table.key_type
    bound = key_type.encode_bound(line)
    if bound in ("MINVALUE", "MAXVALUE"):
        return "true" if bound == "MAXVALUE" else "false"
    values = {
        TierKeyType.DATE: f"DATE '1970-01-01' + {line}",
        TierKeyType.TIMESTAMP: f"make_timestamp({line})",
        TierKeyType.TIMESTAMPTZ: f"make_timestamptz({line})",
    }
    return f"{tier_key} < {values.get(key_type, str(line))}"
