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
from modak.source.view import delta_name, from_lake


def function_names(table_id: int) -> tuple[str, str]:
    return f"taken_{table_id}", f"check_keys_{table_id}"


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
    taken, check = function_names(shape.table_id)
    keys = [column for column in shape.columns if column.name in shape.primary_key]
    connection.execute(
        SQL.template(
            "taken",
            **parts(relation, shape, heap, text_columns, build),
            function=sql.Identifier(taken),
            schema_text=sql.Literal(shape.registered.schema),
            name_text=sql.Literal(shape.registered.name),
            tier_key=sql.Identifier(shape.tier_key),
            is_finite=raw(is_finite(shape.key_type, reference(shape.tier_key, "made"))),
            pk_made=raw(encoded_key(shape.primary_key, "made")),
            canonical_made=raw(canonical_key(shape.key_type, reference(shape.tier_key, "made"))),
            key_image_made=raw(row_image(keys, "made")),
            key_text=sql.Literal(", ".join(shape.primary_key)),
            made_keys=key_references(shape, "made"),
            lake_has_key=in_lake(relation, shape.primary_key, text_columns, "made"),
        )
    )
    connection.execute(
        SQL.template(
            "check_keys",
            function=sql.Identifier(check),
            taken=sql.Identifier(taken),
            heap=identifier(heap),
            old_keys=key_references(shape, "old"),
            new_keys=key_references(shape, "new"),
            new_columns=references(relation.columns, "new"),
        )
    )


def key_references(shape: Shape, row: str) -> sql.SQL:
    return raw(", ".join(reference(name, row) for name in shape.primary_key))


def references(columns: Iterable[Column], row: str | None = None) -> sql.SQL:
    return raw(", ".join(reference(column.name, row) for column in columns))


def attach(connection: Connection, table_id: int, spill: Name, *, inserts: bool) -> None:
    """Put the check on a spill: for rows whose key changes, and for new ones where the registration asks for it."""
    events = "insert or update" if inserts else "update"
    connection.execute(
        sql.SQL("create trigger modak_keys after {} on {} for each row execute function modak.{}()").format(
            raw(events), identifier(spill), sql.Identifier(function_names(table_id)[1])
        )
    )
