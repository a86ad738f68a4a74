"""A row's digest, written so that Postgres and Spark compute the same one.

Each column becomes a text that both engines agree on (times as microseconds, floats as their bits), with its length before it, so that no
two rows share a text; the first 60 bits of its MD5 are the row's digest, and a range's is the sum. MD5 is here for speed and presence in
both engines, not against an adversary.
"""

from __future__ import annotations

from collections.abc import Sequence

from modak.core.lake_table import LakeColumn

# iceberg type → (Postgres, Spark); {column} is a quoted reference.
_TEXTS = {
    "boolean": ("{column}::boolean::text", "cast({column} as string)"),
    "int": ("{column}::bigint::text", "cast({column} as string)"),
    "long": ("{column}::bigint::text", "cast({column} as string)"),
    "float": (
        "('x' || encode(float4send({column}::real), 'hex'))::bit(32)::integer::text",
        "reflect('java.lang.Float', 'floatToIntBits', {column})",
    ),
    "double": (
        "('x' || encode(float8send({column}::double precision), 'hex'))::bit(64)::bigint::text",
        "reflect('java.lang.Double', 'doubleToLongBits', {column})",
    ),
    "date": ("({column}::date - date '1970-01-01')::text", "cast(unix_date({column}) as string)"),
    "timestamp": ("(extract(epoch from {column}) * 1000000)::bigint::text", "cast(unix_micros(cast({column} as timestamp)) as string)"),
    "timestamptz": ("(extract(epoch from {column}) * 1000000)::bigint::text", "cast(unix_micros({column}) as string)"),
    "uuid": ("{column}::text", "lower({column})"),
    "binary": ("encode({column}::bytea, 'hex')", "lower(hex({column}))"),
    "string": ("{column}::text", "{column}"),
}
_DECIMAL = ("{column}::numeric::text", "cast({column} as string)")


def _text(column: LakeColumn, reference: str, engine: int) -> str:
    name = column.type.iceberg
    templates = _DECIMAL if name.startswith("decimal(") else _TEXTS[name]
    return templates[engine].format(column=reference)


def postgres_key(columns: Sequence[LakeColumn], references: Sequence[str]) -> str:
    """The concatenated texts of some columns; NULL and '' differ."""
    parts = []
    for column, reference in zip(columns, references, strict=True):
        text = _text(column, reference, 0)
        parts.append(f"coalesce(length({text})::text || ':' || {text}, '-')")
    return " || ".join(parts)


def spark_key(columns: Sequence[LakeColumn], references: Sequence[str]) -> str:
    parts = []
    for column, reference in zip(columns, references, strict=True):
        text = _text(column, reference, 1)
        # reflect() turns NULL into an error or a text of its own; ask the column first.
        parts.append(f"case when {reference} is null then '-' else concat(cast(length({text}) as string), ':', {text}) end")
    return f"concat({', '.join(parts)})"


def postgres_digest(text: str) -> str:
    return f"('x' || substr(md5({text}), 1, 15))::bit(60)::bigint"


def spark_digest(text: str) -> str:
    return f"cast(conv(substr(md5({text}), 1, 15), 16, 10) as bigint)"
