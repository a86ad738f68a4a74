"""The one table of types: Postgres ⇄ Iceberg ⇄ Spark ⇄ DuckDB.

A column is **native** when its values survive in an Iceberg type of their own, and **text** when Postgres's text form is what goes to the
lake and is cast back on the way out. A type whose text form does not come back as the same value is refused.

Values cross from Postgres to Spark as what ``read_sql`` yields (integers for times, text for the rest that JDBC would bend), and
Spark turns them into the lake's type with ``spark_sql``. JDBC's own dates use the Julian calendar before 1582; integers do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from modak.errors import Problem


@dataclass(frozen=True)
class PgType:
    """A column's type as Postgres describes it.

    ``display`` is format_type's text, ``base`` the name of the type under any domains and ``namespace`` its schema, ``kind`` its
    pg_type.typtype (b, e, r, m, c, p), ``modifier`` the typmod of the column or the innermost domain, ``element`` an array's element type.
    """

    display: str
    base: str
    namespace: str = "pg_catalog"
    kind: str = "b"
    modifier: int = -1
    element: PgType | None = None


@dataclass(frozen=True)
class LakeType:
    """How one column is kept in the lake, and how it gets there and back."""

    iceberg: str
    spark: str
    duckdb: str
    as_text: bool = False
    read_sql: str = "{column}"
    spark_sql: str = "{column}"
    # A condition that is true for values the lake type holds exactly; None: all of them.
    holds_sql: str | None = None
    limits: str | None = None
    # What a binary COPY carries for the flush; Arrow's own types hold times and dates exactly, so those cross as they are.
    copy_sql: str = "{column}::text"
    # How a value stands in a row image of the delta: as JSON where JSON keeps it exactly, as Postgres text otherwise.
    image_sql: str = "{column}::text"


def _plain(iceberg: str, spark: str, duckdb: str, base: str) -> LakeType:
    """Domains reach here by their base type; the cast says so to the reader of the copy, and is free otherwise."""
    return LakeType(iceberg, spark, duckdb, image_sql="{column}", copy_sql=f"{{column}}::pg_catalog.{base}")


TEXT = LakeType("string", "string", "VARCHAR", as_text=True, read_sql="{column}::text")
# A user may give a type of his own a cast to text, which says anything and runs as whoever casts. concat() takes the output function,
# which is the value.
_OUTPUT = "(case when {column} is null then null else pg_catalog.concat({column}) end)"
USER_TEXT = LakeType("string", "string", "VARCHAR", as_text=True, read_sql=_OUTPUT, copy_sql=_OUTPUT, image_sql=_OUTPUT)
# So has xml: a cast to text keeps the declaration of an encoding, which is gone from what clients, dumps and streams are given.
_OUTPUT_ONLY = frozenset({"xml"})

_STRING = LakeType("string", "string", "VARCHAR", read_sql="{column}::text")
# Iceberg counts microseconds from 1970 in 64 bits; Postgres counts from 2000, so its last decades do not fit.
_READ_MICROS = "(extract(epoch from {column}) * 1000000)::bigint"

NATIVE: Mapping[str, LakeType] = {
    "bool": _plain("boolean", "boolean", "BOOLEAN", "bool"),
    "int2": _plain("int", "int", "INTEGER", "int2"),
    "int4": _plain("int", "int", "INTEGER", "int4"),
    "int8": _plain("long", "bigint", "BIGINT", "int8"),
    "float4": LakeType("float", "float", "FLOAT", copy_sql="{column}::pg_catalog.float4"),
    "float8": LakeType("double", "double", "DOUBLE", copy_sql="{column}::pg_catalog.float8"),
    "oid": LakeType("long", "bigint", "BIGINT", read_sql="{column}::bigint", copy_sql="{column}::bigint"),
    "uuid": LakeType("uuid", "string", "UUID", read_sql="{column}::text", copy_sql="pg_catalog.uuid_send({column})"),
    "bytea": LakeType("binary", "binary", "BLOB", copy_sql="{column}::pg_catalog.bytea"),
    "text": _STRING,
    "varchar": _STRING,
    "bpchar": _STRING,
    "json": _STRING,
    "jsonb": _STRING,
    "interval": _STRING,
    # Spark refuses to open a table with an Iceberg time column, and Iceberg has no 24:00: see docs/decisions/0007.
    "time": _STRING,
    "date": LakeType(
        "date",
        "date",
        "DATE",
        read_sql="({column} - date '1970-01-01')",
        spark_sql="date_from_unix_date({column})",
        holds_sql="pg_catalog.isfinite({column})",
        copy_sql="{column}::pg_catalog.date",
        limits="infinite dates",
    ),
    "timestamptz": LakeType(
        "timestamptz",
        "timestamp",
        "TIMESTAMP WITH TIME ZONE",
        read_sql=_READ_MICROS,
        spark_sql="timestamp_micros({column})",
        holds_sql="(pg_catalog.isfinite({column}) and {column} < timestamptz '294247-01-10 04:00:54+00')",
        copy_sql="{column}::pg_catalog.timestamptz",
        limits="infinite timestamps and those after 294247-01-10",
    ),
    "timestamp": LakeType(
        "timestamp",
        "timestamp_ntz",
        "TIMESTAMP",
        read_sql=_READ_MICROS,
        spark_sql="cast(timestamp_micros({column}) as timestamp_ntz)",
        holds_sql="(pg_catalog.isfinite({column}) and {column} < timestamp '294247-01-10 04:00:54')",
        copy_sql="{column}::pg_catalog.timestamp",
        limits="infinite timestamps and those after 294247-01-10",
    ),
}

# Types whose text form is not the value: it depends on the server's locale, on objects that may be renamed, or cannot be read back.
NO_TEXT_ROUND_TRIP: Mapping[str, str] = {
    "money": "its text depends on lc_monetary",
    "aclitem": "its text depends on roles that may be renamed",
    "pg_node_tree": "Postgres cannot read it back",
    "pg_ndistinct": "Postgres cannot read it back",
    "pg_dependencies": "Postgres cannot read it back",
    "pg_mcv_list": "Postgres cannot read it back",
    "gtsvector": "Postgres cannot read it back",
    "tid": "a row's place is not a value",
    "refcursor": "a cursor lives only in its session",
    **dict.fromkeys(
        ("regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator", "regproc", "regprocedure"),
        "its text depends on objects that may be renamed",
    ),
    **dict.fromkeys(("regrole", "regtype"), "its text depends on objects that may be renamed"),
}

SUPPORTED = (
    "boolean, smallint, integer, bigint, real, double precision, numeric, text, varchar, char, bytea, uuid, date, time, timestamp, "
    "timestamptz, interval, json, jsonb, oid natively; enums, domains, arrays, ranges, inet, cidr, timetz, hstore and every other type "
    "with an exact text form as text"
)

_MAX_DECIMAL_DIGITS = 38


def lake_type(pg: PgType, *, force_text: bool = False) -> LakeType | Problem:
    """The lake's type for a Postgres type, or why there is none."""
    refusal = _refusal(pg)
    if refusal:
        return Problem("type", f"type {pg.display} cannot be kept exactly: {refusal}", f"supported: {SUPPORTED}")
    if _is_users(pg) or (pg.base in _OUTPUT_ONLY and pg.element is None):
        return USER_TEXT
    if force_text or pg.element is not None or pg.kind != "b":
        return TEXT
    if pg.base == "numeric":
        return _numeric(pg)
    return NATIVE.get(pg.base, TEXT)


def _is_users(pg: PgType) -> bool:
    return _is_users(pg.element) if pg.element is not None else pg.namespace != "pg_catalog"


def _refusal(pg: PgType) -> str | None:
    if pg.element is not None:
        return _refusal(pg.element)
    if pg.kind == "c":
        return "composite types have no stable text form; split it into columns"
    if pg.kind == "p":
        return "it is a pseudo-type"
    if pg.namespace == "pg_catalog":
        return NO_TEXT_ROUND_TRIP.get(pg.base)
    return None


def _numeric(pg: PgType) -> LakeType:
    """A bounded numeric is an Iceberg decimal; an unbounded one, or one Iceberg cannot bound, stays exact as text."""
    match = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", numeric_display(pg.modifier) or "")
    if match is None:
        return TEXT
    digits, scale = int(match[1]), int(match[2])
    if digits > _MAX_DECIMAL_DIGITS or not 0 <= scale <= digits:
        return TEXT
    name = f"decimal({digits},{scale})"
    # The copy carries text, which is the default: the copy's reader would make text of a binary numeric too, more slowly than Postgres.
    return LakeType(name, name, name.upper(), holds_sql="({column} <> 'NaN'::numeric)", limits="NaN")


def numeric_display(modifier: int) -> str | None:
    """``numeric(P,S)`` from a typmod; Postgres packs P above 16 bits and an 11-bit signed S below."""
    if modifier < 4:
        return None
    packed = modifier - 4
    scale = ((packed & 0x7FF) ^ 1024) - 1024
    return f"numeric({(packed >> 16) & 0xFFFF},{scale})"


_DISPLAYED = {
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "character varying": "varchar",
    "character": "bpchar",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
    "time with time zone": "timetz",
    "time without time zone": "time",
}


def is_plain(pg: PgType) -> bool:
    """Whether a type is one of Postgres's own and no domain over it: a domain shows its own name, never its base type's."""
    return pg.namespace == "pg_catalog" and pg.element is None and base_of(pg.display) == pg.base


def base_of(display: str) -> str:
    """The name of the type below a text of format_type, which is that of one of Postgres's own."""
    displayed = re.sub(r"\(.*?\)|(?<=^interval) [a-z ]+", "", display)
    return _DISPLAYED.get(displayed, displayed)


# Types with one text per value: two equal values never read differently. Keys are compared as text.
_ONE_TEXT = frozenset({"bool", "int2", "int4", "int8", "oid", "uuid", "bytea", "text", "varchar", "bpchar", "name", "char"})
_ONE_TEXT |= {"date", "time", "timestamp", "timestamptz", "inet", "cidr", "macaddr", "macaddr8", "pg_lsn"}


def has_one_text(pg: PgType) -> bool:
    """Whether a column may be part of a key. Bounded numeric has a fixed scale; unbounded has 1.0 and 1.00, and floats have -0."""
    if pg.element is not None:
        return False
    if pg.kind == "e":
        return True
    if pg.namespace != "pg_catalog" or pg.kind != "b":
        return False
    return pg.base in _ONE_TEXT or (pg.base == "numeric" and numeric_display(pg.modifier) is not None)
