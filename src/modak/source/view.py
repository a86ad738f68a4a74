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

# A canonical key in the tier key's own type, whatever the session's time zone. Written out: a function would be called, or read and
# inlined, with every statement (decision 0020). modak.index_delta has the same words.
_SINCE_1970 = "timestamp '1970-01-01' + ({key} / 86400000000) * interval '1 day' + ({key} % 86400000000) * interval '1 microsecond'"
_VALUES = {
    TierKeyType.TIMESTAMPTZ: f"(({_SINCE_1970}) at time zone 'UTC')",
    TierKeyType.TIMESTAMP: f"({_SINCE_1970})",
    TierKeyType.DATE: "(date '1970-01-01' + {key}::integer)",
}
# Lines that lie beyond what the type holds are open ends.
_ENDS = {
    TierKeyType.TIMESTAMPTZ: ("{key} < -210866803200000000", "{key} = 9223372036854775807"),
    TierKeyType.TIMESTAMP: ("{key} < -210866803200000000", "{key} = 9223372036854775807"),
    TierKeyType.DATE: ("{key} < -2440588", "{key} > 2145042905"),
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
            cold=_joined(from_lake(column, text_columns) for column in columns),
            corrected=_joined(_corrected(column, shape) for column in columns),
            heap=identifier(heap),
            cold_table=identifier(cold.parent_name(relation.oid, build)),
            delta=identifier(delta_name(relation.oid)),
            tier_key=sql.Identifier(shape.tier_key),
            line=raw(_line(shape)),
            table_id=sql.Literal(relation.oid),
            pk=raw(_key_text([column for name in shape.primary_key if (column := relation.column(name))])),
        )
    )
    other = next((name for name in shape.primary_key if name != shape.tier_key), None)
    connection.execute("select modak.index_delta(%s, %s, %s)", [relation.oid, shape.tier_key, other])


def corrected_columns(relation: Relation) -> sql.SQL:
    """The columns of a correction's image, in their own types; the delta's row is called d."""
    return _joined(image_value(column) for column in relation.columns)


def _corrected(column: Column, shape: Shape) -> str:
    """The tier key from the correction's own column and not from its image: by that, unlike by a text, there can be an index."""
    if column.name != shape.tier_key:
        return image_value(column)
    return f"{key_value(shape.key_type, 'd.tier_key')}::{column.type.display}"


def _joined(parts: Iterable[str]) -> sql.SQL:
    return raw(", ".join(parts))


def _line(shape: Shape) -> str:
    """T in the type of the tier key, refused where the statement's plan does not reach it."""
    low, bound = (f"modak.{one}_bound({int(shape.table_id)}::bigint)" for one in ("heap", "cold"))
    moved = "modak.line_moved(s.tier_key_hi)"
    if shape.key_type.is_time:
        moved += f"::text::{shape.key_type.value}"
    return f"case when s.tier_key_hi > {bound} or s.tier_key_hi < {low} then {moved} else {line_value(shape.key_type, 's.tier_key_hi')} end"


def line_value(key_type: TierKeyType, key: str) -> str:
    """An expression for T as a value of the tier key's type."""
    if key_type not in _ENDS:
        return key
    low, high = (condition.format(key=key) for condition in _ENDS[key_type])
    kind = key_type.value
    return f"case when {low} then {kind} '-infinity' when {high} then {kind} 'infinity' else {key_value(key_type, key)} end"


def key_value(key_type: TierKeyType, key: str) -> str:
    """An expression for the canonical key of a row as a value of the tier key's type."""
    return _VALUES.get(key_type, "({key})").format(key=key)


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


def from_lake(column: Column, text_columns: Sequence[str]) -> str:
    """A column of the cold relation in its own type; the cold row is called c."""
    name = reference(column.name, "c")
    return name if cold.column_ships(column, text_columns) else f"{name}::{column.type.display}{_collate(column)}"


def image_value(column: Column, *, otherwise: str | None = None) -> str:
    """A column of a correction's image in its own type, or of a text where the image has none; the delta's row is called d."""
    found = f"(d.payload ->> {sql.Literal(column.name).as_string()})"
    text = found if otherwise is None else f"coalesce({found}, {otherwise})"
    return f"{text}::{column.type.display}{_collate(column)}"


def _collate(column: Column) -> str:
    return f" collate {sql.Identifier(*column.collation).as_string()}" if column.collation else ""
