"""SQL expressions over one row of a user's table: its canonical tier key, its encoded primary key, its image for the delta."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from modak.core import primary_key
from modak.core.lake_table import LakeColumn
from modak.core.table import Name
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


def row_parts(
    table_id: int, registered: Name, tier_key: str, key_type: TierKeyType, primary_key: Sequence[str], columns: Sequence[LakeColumn]
) -> dict[str, sql.Composable]:
    """What the templates of row triggers say about ``old`` and ``new``. A tombstone's image holds the key only."""
    keys = [column for column in columns if column.name in primary_key]
    old, new = reference(tier_key, "old"), reference(tier_key, "new")
    return {
        "table_id": sql.Literal(table_id),
        "table_text": sql.Literal(str(registered)),
        "column_count": sql.Literal(len(columns)),
        "canonical_old": raw(canonical_key(key_type, old)),
        "canonical_new": raw(canonical_key(key_type, new)),
        "pk_old": raw(encoded_key(primary_key, "old")),
        "pk_new": raw(encoded_key(primary_key, "new")),
        "key_image_old": raw(row_image(keys, "old")),
        "image_new": raw(row_image(columns, "new")),
    }
