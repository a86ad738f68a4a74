"""Snapshot reads of the heap, cut into chunks: one exported snapshot over many connections."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from modak.connection import Connection, connect
from modak.core.lake_table import LakeColumn, Shape
from modak.core.table import Name, Relation
from modak.source.expressions import canonical_key, encoded_key, reference, row_image
from modak.source.relation import SQL
from modak.source.spill import identifier
from modak.source.view import delta_name, image_value
from modak.sqlfiles import trusted

PAGE_BYTES = 8192


@dataclass(frozen=True)
class Snapshot:
    """An exported snapshot: ``name`` for other sessions to adopt, ``text`` to ask later what it saw."""

    name: str
    text: str


@dataclass(frozen=True)
class Chunk:
    """Pages [first, last) of one partition; the last chunk of a partition has no end."""

    partition: Name
    first_page: int
    last_page: int | None
    filenode: int | None = None  # the read fails if the partition has been rewritten: its rows stand on other pages then


@contextlib.contextmanager
def exported_snapshot(dsn: str) -> Iterator[Snapshot]:
    """A snapshot that stays importable for the length of the block, on a connection of its own."""
    with connect(dsn, application="modak-snapshot", unhurried=True) as connection:
        connection.execute("set transaction isolation level repeatable read, read only")
        row = connection.execute("select pg_export_snapshot() as name, pg_current_snapshot()::text as text").fetchone()
        assert row is not None
        yield Snapshot(row["name"], row["text"])
        connection.rollback()


def chunks(connection: Connection, partitions: Sequence[Name], *, bytes_min: int, bytes_max: int, wanted: int) -> list[Chunk]:
    """Cut partitions into page ranges: as many as are wanted to keep every core busy, but neither tiny files nor endless tasks."""
    pages = {partition: _pages(connection, partition) for partition in partitions}
    total = sum(pages.values())
    per_chunk = max(bytes_min // PAGE_BYTES, min(bytes_max // PAGE_BYTES, -(-total // max(1, wanted))), 1)
    found = []
    for partition, number in pages.items():
        starts = range(0, number, per_chunk)  # none where no row ever stood
        found += [Chunk(partition, start, start + per_chunk if start + per_chunk < number else None) for start in starts]
    return found


def _pages(connection: Connection, partition: Name) -> int:
    row = connection.execute(
        sql.SQL("select pg_relation_size({}::regclass) / current_setting('block_size')::bigint as pages").format(
            sql.Literal(identifier(partition).as_string())
        )
    ).fetchone()
    return int(row["pages"]) if row else 0


def select(columns: Sequence[LakeColumn], chunk: Chunk) -> str:
    """SQL that reads a chunk: the columns as the copy wants them, and ``modak_bad``."""
    table = identifier(chunk.partition).as_string()
    upper = f" and ctid < '({chunk.last_page},0)'::tid" if chunk.last_page is not None else ""
    # Looked at once, before the scan and under its lock; a division by zero is the one error that plain SQL can raise.
    file = f"pg_catalog.pg_relation_filenode({sql.Literal(table).as_string()}::pg_catalog.regclass)"
    same = f" and (select 1 / ({file} = {chunk.filenode})::int) = 1" if chunk.filenode is not None else ""
    return f"select {projection(columns)} from only {table} where ctid >= '({chunk.first_page},0)'::tid{upper}{same}"  # noqa: S608


def projection(columns: Sequence[LakeColumn]) -> str:
    """The columns as the copy wants them, and which one does not fit.

    ``modak_bad`` names the first column whose value the lake cannot hold; it is NULL for every row that can go.
    """
    items = [f"{column.type.copy_sql.format(column=reference(column.name))} as {reference(column.name)}" for column in columns]
    checks = [
        f"when {reference(column.name)} is not null and not {column.type.holds_sql.format(column=reference(column.name))} "
        f"then {sql.Literal(column.name).as_string()}"
        for column in columns
        if column.type.holds_sql is not None
    ]
    bad = f"case {' '.join(checks)} end" if checks else "null::text"
    return ", ".join([*items, f"{bad} as modak_bad"])


def find_bad_value(connection: Connection, partition: Name, column: LakeColumn, primary_key: Sequence[str]) -> tuple[str, str] | None:
    """(key, value) of one row whose value the lake's type cannot hold."""
    if column.type.holds_sql is None:
        return None
    name = reference(column.name)
    row = connection.execute(
        sql.SQL("select {} as pk, {}::text as value from only {} where {} is not null and not {} limit 1").format(
            sql.SQL(encoded_key(primary_key)),
            sql.Identifier(column.name),
            identifier(partition),
            sql.Identifier(column.name),
            sql.SQL(column.type.holds_sql.format(column=name)),
        )
    ).fetchone()
    return (row["pk"], row["value"]) if row else None


def is_corrected(table_id: int, primary_key: Sequence[str]) -> str:
    """A condition on a heap row: the delta knows its key."""
    return f"exists (select from modak.delta d where d.table_id = {int(table_id)} and d.pk = {encoded_key(primary_key)})"


def has_rows(connection: Connection, partition: Name) -> bool:
    row = connection.execute(sql.SQL("select exists (select from only {}) as holds").format(identifier(partition))).fetchone()
    return bool(row and row["holds"])


@contextlib.contextmanager
def within(dsn: str, snapshot: Snapshot) -> Iterator[Connection]:
    """A transaction of its own that sees what ``snapshot`` saw, and commits with the block."""
    with connect(dsn, application="modak-flush", unhurried=True) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot.name)))
        yield connection


@dataclass(frozen=True)
class SharedKey:
    """Two rows with one key: in the heap, and below the cut-line. At most one of them would be left in the lake."""

    pk: str
    partition: Name
    hot: int
    cold: int


def record_corrected(dsn: str, snapshot: Snapshot, partitions: Sequence[tuple[int, Name]], shape: Shape) -> SharedKey | None:
    """Record the rows of ``snapshot`` whose key has a tombstone, with a negative sequence: any write recorded later is newer.

    Returns the first row that shares its key with a cold one.
    """
    with within(dsn, snapshot) as connection:
        for oid, name in partitions:
            found = connection.execute(
                SQL.template(
                    "record_corrected",
                    table_id=sql.Literal(shape.table_id),
                    partition_id=sql.Literal(oid),
                    partition=identifier(name),
                    pk=trusted(encoded_key(shape.primary_key, "r")),
                    tier_key=trusted(canonical_key(shape.key_type, reference(shape.tier_key, "r"))),
                    image=trusted(row_image(shape.columns, "r")),
                )
            ).fetchone()
            if found is not None:
                return SharedKey(found["pk"], name, found["hot"], found["cold"])
    return None


def shared_key(connection: Connection, partitions: Sequence[Name], shape: Shape, relation: Relation, since: int) -> SharedKey | None:
    """A row of these partitions whose key a cold one has that was corrected by transaction ``since`` or a later one."""
    shared: dict[str, sql.Composable] = {
        "delta": identifier(delta_name(shape.table_id)),
        "table_id": sql.Literal(shape.table_id),
        "since": sql.Literal(str(since % 2**32)),
    }
    if connection.execute(SQL.template("corrected_since", **shared)).fetchone() != {"found": True}:
        return None
    columns = [column for name in shape.primary_key if (column := relation.column(name))]
    for partition in partitions:
        found = connection.execute(
            SQL.template(
                "shared_keys",
                **shared,
                partition=identifier(partition),
                same_key=trusted(" and ".join(f"{reference(column.name, 'r')} = {image_value(column)}" for column in columns)),
                pk=trusted(encoded_key(shape.primary_key, "r")),
                tier_key=trusted(canonical_key(shape.key_type, reference(shape.tier_key, "r"))),
            )
        ).fetchone()
        if found is not None:
            return SharedKey(found["pk"], partition, found["hot"], found["cold"])
    return None
