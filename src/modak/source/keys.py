"""Looking a key up in the cold tier: for writers whose statement may be behind the lake, and for keys that only one row may have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psycopg import sql

from modak.connection import Connection
from modak.core.lake_table import Shape
from modak.core.table import Column, Name, Relation
from modak.source import cold
from modak.source.expressions import canonical_key, encoded_key, is_finite, raw, reference, row_image
from modak.source.relation import SQL
from modak.source.spill import identifier
from modak.source.view import delta_name, from_lake, line_value

ON_SPILL = "modak_keys"  # fires before modak_mirror
ON_PARTITION = "modak_before_capture"  # and this one before modak_capture: both look for corrections that are not the row's own
AFTERWARDS = "modak_older"  # after modak_mirror and modak_capture: by then the delta has let one of two writers through


def function_names(table_id: int) -> tuple[str, str, str]:
    return f"taken_{table_id}", f"check_keys_{table_id}", f"older_{table_id}"


def parts(relation: Relation, shape: Shape, heap: Name, text_columns: Sequence[str], build: int) -> dict[str, sql.Composable]:
    """What templates say about the table, its corrections and its rows in the lake."""
    return {
        "heap": identifier(heap),
        "delta": identifier(delta_name(shape.table_id)),
        "cold": identifier(cold.parent_name(shape.table_id, build)),
        "table_id": sql.Literal(shape.table_id),
        "table_text": sql.Literal(str(shape.registered)),
        "lake_columns": raw(", ".join(from_lake(column, text_columns) for column in relation.columns)),
    }


def in_lake(relation: Relation, names: Iterable[str], text_columns: Sequence[str], row: str) -> sql.SQL:
    """The cold row c has the values that a row has in these columns."""
    columns = [column for name in names if (column := relation.column(name))]
    return raw(" and ".join(f"{from_lake(column, text_columns)} = {reference(column.name, row)}" for column in columns))


def define(connection: Connection, relation: Relation, shape: Shape, heap: Name, text_columns: Sequence[str], build: int) -> None:
    """(Re)create the functions that refuse a key which a cold row has."""
    taken, check, older = function_names(shape.table_id)
    for name in (taken, older):
        # Earlier releases had them with one argument.
        connection.execute(sql.SQL("drop function if exists modak.{}({})").format(sql.Identifier(name), identifier(heap)))
    keys = [column for column in shape.columns if column.name in shape.primary_key]
    shared: dict[str, sql.Composable] = {
        "schema_text": sql.Literal(shape.registered.schema),
        "name_text": sql.Literal(shape.registered.name),
        "tier_key": sql.Identifier(shape.tier_key),
        "canonical_made": raw(canonical_key(shape.key_type, reference(shape.tier_key, "made"))),
        "key_text": sql.Literal(", ".join(shape.primary_key)),
        "made_keys": key_references(shape, "made"),
        "heap_has_key": raw(" and ".join(f"{reference(name, 'h')} = {reference(name, 'made')}" for name in shape.primary_key)),
        # A key that holds the tier key is in the tier that this says.
        "key_is_anywhere": raw("false" if shape.tier_key in shape.primary_key else "true"),
    }
    connection.execute(
        SQL.template(
            "taken",
            **parts(relation, shape, heap, text_columns, build),
            **shared,
            function=sql.Identifier(taken),
            is_finite=raw(is_finite(shape.key_type, reference(shape.tier_key, "made"))),
            pk_made=raw(encoded_key(shape.primary_key, "made")),
            pk_heap=raw(encoded_key(shape.primary_key, "h")),
            key_image_made=raw(row_image(keys, "made")),
            lake_has_key=in_lake(relation, shape.primary_key, text_columns, "made"),
            line_value=raw(line_value(shape.key_type, "held.line")),
        )
    )
    connection.execute(
        SQL.template(
            "older",
            **shared,
            function=sql.Identifier(older),
            heap=identifier(heap),
            table_id=sql.Literal(shape.table_id),
            table_text=sql.Literal(str(shape.registered)),
            key_is_indexed=key_is_indexed(shape),
            line_value=raw(line_value(shape.key_type, "line")),
        )
    )
    connection.execute(
        SQL.template(
            "check_keys",
            function=sql.Identifier(check),
            taken=sql.Identifier(taken),
            older=sql.Identifier(older),
            heap=identifier(heap),
            table_id=sql.Literal(shape.table_id),
            old_keys=key_references(shape, "old"),
            new_keys=key_references(shape, "new"),
            new_columns=references(relation.columns, "new"),
        )
    )


def key_is_indexed(shape: Shape) -> sql.Composed:
    """A condition: the heap's key can be looked up in every partition without reading it."""
    names, count = sql.Literal(list(shape.primary_key)), sql.Literal(len(shape.primary_key))
    return SQL.template("key_is_indexed", table_id=sql.Literal(shape.table_id), key_names=names, key_count=count)


def key_references(shape: Shape, row: str) -> sql.SQL:
    return raw(", ".join(reference(name, row) for name in shape.primary_key))


def references(columns: Iterable[Column], row: str | None = None) -> sql.SQL:
    return raw(", ".join(reference(column.name, row) for column in columns))


def attach(connection: Connection, table_id: int, leaf: Name, trigger: str, *, replaces: bool, checks: bool) -> None:
    """Put the checks on a spill or on a partition that is about to be cold: for rows whose key changes. For new ones as well where the
    registration asks for it (``checks``), or where the row that one replaces may still stand in the heap (``replaces``)."""
    for name, also_new, task in ((trigger, checks, "check" if checks else ""), (AFTERWARDS, replaces, "older")):
        connection.execute(
            sql.SQL("create or replace trigger {} after {} on {} for each row execute function modak.{}({})").format(
                sql.Identifier(name),
                raw("insert or update" if also_new else "update"),
                identifier(leaf),
                sql.Identifier(function_names(table_id)[1]),
                sql.Literal(task),
            )
        )
        # ALWAYS: a replication role's writes must be seen too.
        connection.execute(sql.SQL("alter table {} enable always trigger {}").format(identifier(leaf), sql.Identifier(name)))
