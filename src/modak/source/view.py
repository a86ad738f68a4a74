"""The two-tier view: what it selects from heap, cold relation and delta."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psycopg import sql

from modak.connection import Connection
from modak.core import primary_key
from modak.core.lake_table import Shape
from modak.core.table import Column, Name, Relation
from modak.core.tier_key import TierKeyType
from modak.source import cold
from modak.source.expressions import raw, reference
from modak.source.relation import SQL
from modak.source.spill import identifier

_LINES = {
    TierKeyType.TIMESTAMPTZ: "modak.line_timestamptz({})",
    TierKeyType.TIMESTAMP: "modak.line_timestamp({})",
    TierKeyType.DATE: "modak.line_date({})",
}


def delta_name(table_id: int) -> Name:
    return Name("modak", f"delta_{table_id}")


def create_delta(connection: Connection, table_id: int) -> None:
    connection.execute("select modak.open_delta(%s)", [table_id])


def drop_delta(connection: Connection, table_id: int) -> None:
    connection.execute("select modak.close_delta(%s)", [table_id])


def define(
    connection: Connection, relation: Relation, shape: Shape, heap: Name, view: Name, text_columns: Sequence[str], build: int
) -> None:
    """Create or replace the view over the given build of the cold relation."""
    columns = relation.columns
    connection.execute(
        SQL.template(
            "two_tier_view",
            view=identifier(view),
            columns=_joined(f"u.{reference(column.name)}" for column in columns),
            hot=_joined(reference(column.name, "h") for column in columns),
            cold=_joined(_from_lake(column, text_columns) for column in columns),
            corrected=corrected_columns(relation),
            heap=identifier(heap),
            cold_table=identifier(cold.parent_name(relation.oid, build)),
            delta=identifier(delta_name(relation.oid)),
            tier_key=sql.Identifier(shape.tier_key),
            line=raw(_line(shape)),
            table_id=sql.Literal(relation.oid),
            pk=raw(_key_text([column for name in shape.primary_key if (column := relation.column(name))])),
        )
    )


def corrected_columns(relation: Relation) -> sql.SQL:
    """The columns of a correction's image, in their own types; the delta's row is called d."""
    return _joined(image_value(column) for column in relation.columns)


def _joined(parts: Iterable[str]) -> sql.SQL:
    return raw(", ".join(parts))


def _line(shape: Shape) -> str:
    """T in the type of the tier key, refused where the statement's plan does not reach it."""
    bound = f"modak.cold_bound({int(shape.table_id)}::bigint)"
    seen = f"case when s.tier_key_hi > {bound} then modak.line_moved(s.tier_key_hi) else s.tier_key_hi end"
    return _LINES.get(shape.key_type, "{}").format(seen)


# The key's text as the delta has it, whatever the session's DateStyle, TimeZone and bytea_output.
_TEXTS = {
    "date": "modak.date_text({})",
    "timestamp": "modak.timestamp_text({}, '')",
    "timestamptz": "modak.timestamp_text({} at time zone 'UTC', '+00')",
    "bytea": "('\\x' || pg_catalog.encode({}, 'hex'))",
    **dict.fromkeys(("int2", "int4", "int8", "uuid", "text", "varchar", "numeric"), "({})::text"),
}


def _key_text(columns: Sequence[Column]) -> str:
    texts = []
    for column in columns:
        form = _TEXTS.get(column.type.base, "pg_catalog.concat({})") if column.type.namespace == "pg_catalog" else "pg_catalog.concat({})"
        texts.append(form.format(reference(column.name, "u")))
    return primary_key.join_texts(texts)


def _from_lake(column: Column, text_columns: Sequence[str]) -> str:
    name = reference(column.name, "c")
    return name if cold.column_ships(column, text_columns) else f"{name}::{column.type.display}{_collate(column)}"


def image_value(column: Column) -> str:
    """A column of a correction's image in its own type; the delta's row is called d."""
    key = sql.Literal(column.name).as_string()
    return f"(d.payload ->> {key})::{column.type.display}{_collate(column)}"


def _collate(column: Column) -> str:
    return f" collate {sql.Identifier(*column.collation).as_string()}" if column.collation else ""
