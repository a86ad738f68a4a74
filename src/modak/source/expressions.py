"""SQL expressions over one row of a user's table: its canonical tier key, its encoded primary key, its image for the delta."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from modak.core import primary_key
from modak.core.lake_table import LakeColumn, Shape
from modak.core.tier_key import TierKeyType
from modak.sqlfiles import trusted


def reference(column: str, row: str | None = None) -> str:
    """A quoted column, behind ``row.`` if given (new, old, an alias)."""
    quoted = sql.Identifier(column).as_string()
    return f"{row}.{quoted}" if row else quoted


def canonical_key(key_type: TierKeyType, column: str) -> str:
    """The tier key as the bigint that the catalog compares; ``column`` is quoted already. extract() is exact: it yields numeric."""
    if key_type is TierKeyType.DATE:
        return f"({column} - date '1970-01-01')::bigint"
    if key_type.is_time:
        return f"(extract(epoch from {column}) * 1000000)::bigint"
    return f"{column}::bigint"


def is_finite(key_type: TierKeyType, column: str) -> str:
    return f"isfinite({column})" if key_type.is_time else "true"


def encoded_key(columns: Sequence[str], row: str | None = None) -> str:
    return primary_key.sql_expression([reference(column, row) for column in columns])


def key_texts(columns: Sequence[str], row: str) -> list[str]:
    """The parts of an encoded key, as texts: the other way round of ``encoded_key``. The row has it as pk."""
    if len(columns) == 1:
        return [f"{row}.pk"]
    return [f"(modak.pk_parts({row}.pk))[{place}]" for place in range(1, len(columns) + 1)]


def row_image(columns: Sequence[LakeColumn], row: str) -> str:
    """The row as jsonb. A sub-select instead of jsonb_build_object, whose arguments end at fifty columns."""
    items = ", ".join(
        f"{column.type.image_sql.format(column=reference(column.name, row))} as {reference(column.name)}" for column in columns
    )
    # image.*, because a bare image would be the column of that name where there is one.
    return f"(select to_jsonb(image.*) from (select {items}) image)"


def raw(text: str) -> sql.SQL:
    """An expression built in this module, for a template."""
    return trusted(text)


def row_parts(shape: Shape) -> dict[str, sql.Composable]:
    """What the templates of row triggers say about ``old`` and ``new``. A tombstone's image holds the key only."""
    keys = [column for column in shape.columns if column.name in shape.primary_key]
    return {
        "table_id": sql.Literal(shape.table_id),
        "table_text": sql.Literal(str(shape.registered)),
        "column_count": sql.Literal(len(shape.columns)),
        "canonical_old": raw(canonical_key(shape.key_type, reference(shape.tier_key, "old"))),
        "canonical_new": raw(canonical_key(shape.key_type, reference(shape.tier_key, "new"))),
        "pk_old": raw(encoded_key(shape.primary_key, "old")),
        "pk_new": raw(encoded_key(shape.primary_key, "new")),
        "key_image_old": raw(row_image(keys, "old")),
        "image_new": raw(row_image(shape.columns, "new")),
    }
