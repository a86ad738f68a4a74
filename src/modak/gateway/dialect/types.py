"""Postgres types as the translator sees them: a name, a modifier, and what is statically known of a numeric's digits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from modak.core.type_map import PgType
from modak.gateway.dialect.errors import Untranslatable
from modak.scan.predicate import ColumnType

MAX_DIGITS = 38


@dataclass(frozen=True)
class SqlType:
    """The type of an expression.

    ``name`` is Postgres's internal name (int4, timestamptz, …), ``unknown`` for an untyped literal, ``enum`` for any enum, ``opaque`` for
    what the lake keeps as text and nothing may be computed with. ``modifier`` is the typmod, -1 for none. ``digits`` are the precision and
    the display scale every value of a numeric is known to have, None for a numeric that DuckDB holds as text. ``pg`` is the column's
    full type where the name does not say it all.
    """

    name: str
    modifier: int = -1
    digits: tuple[int, int] | None = None
    pg: PgType | None = None

    def plain(self) -> SqlType:
        """The type a computed value has: Postgres drops the modifier. A char(n)'s blanks are put back by it, so there it stays."""
        return replace(self, modifier=-1, pg=None) if self.name not in ("enum", "opaque", "bpchar") else self


BOOL = SqlType("bool")
INT2 = SqlType("int2")
INT4 = SqlType("int4")
INT8 = SqlType("int8")
FLOAT4 = SqlType("float4")
FLOAT8 = SqlType("float8")
TEXT = SqlType("text")
DATE = SqlType("date")
TIMESTAMP = SqlType("timestamp")
TIMESTAMPTZ = SqlType("timestamptz")
INTERVAL = SqlType("interval")
UNKNOWN = SqlType("unknown")
NUMERIC_TEXT = SqlType("numeric")

INTEGERS = ("int2", "int4", "int8")
FLOATS = ("float4", "float8")
NUMBERS = ("int2", "int4", "int8", "numeric", "float4", "float8")
STRINGS = ("text", "varchar", "bpchar")
INTEGER_RANGE = {"int2": (-(2**15), 2**15 - 1), "int4": (-(2**31), 2**31 - 1), "int8": (-(2**63), 2**63 - 1), "oid": (0, 2**32 - 1)}
INTEGER_DIGITS = {"int2": 5, "int4": 10, "int8": 19}

# The types of the lake that DuckDB computes with, and the name it has for each. A smallint is an integer there.
DUCKDB = {
    "bool": "BOOLEAN",
    "int2": "INTEGER",
    "int4": "INTEGER",
    "int8": "BIGINT",
    "oid": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "text": "VARCHAR",
    "varchar": "VARCHAR",
    "bpchar": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "uuid": "UUID",
    "bytea": "BLOB",
    "interval": "INTERVAL",
}


def numeric(precision: int, scale: int) -> SqlType:
    """A numeric of known digits; what does not fit DuckDB's decimals is refused."""
    if not 0 <= scale <= MAX_DIGITS:
        raise Untranslatable(f"numeric with {scale} decimals")
    return SqlType("numeric", digits=(min(max(precision, scale + 1), MAX_DIGITS), scale))


def duckdb_name(of: SqlType) -> str:
    """The DuckDB type that holds values of a type."""
    if of.name == "numeric":
        return f"DECIMAL({of.digits[0]},{of.digits[1]})" if of.digits else "VARCHAR"
    if of.name not in DUCKDB:
        return "VARCHAR"
    return DUCKDB[of.name]


def numeric_modifier(precision: int, scale: int) -> int:
    """Postgres packs P above 16 bits and an 11-bit signed S below, plus 4."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


def numeric_digits(modifier: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric's typmod."""
    if modifier < 4:
        return None
    packed = modifier - 4
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def column_type(column: ColumnType) -> SqlType:
    """What the translator may do with a registered table's column."""
    pg, lake = column.pg, column.lake
    if pg.kind == "e" and pg.element is None:
        return SqlType("enum", pg=pg)
    if lake.as_text or pg.element is not None or pg.kind != "b" or pg.namespace != "pg_catalog":
        return SqlType("opaque", pg.modifier, pg=pg)
    if pg.base == "numeric":
        digits = numeric_digits(pg.modifier)
        if digits is None or lake.duckdb.upper() != f"DECIMAL({digits[0]},{digits[1]})":
            return SqlType("opaque", pg.modifier, pg=pg)
        return SqlType("numeric", pg.modifier, digits, pg)
    if pg.base not in DUCKDB or pg.base == "interval":
        return SqlType("opaque", pg.modifier, pg=pg)
    return SqlType(pg.base, pg.modifier, pg=pg)


_SIMPLE = {
    "BOOLEAN": "bool",
    "SMALLINT": "int2",
    "INT": "int4",
    "BIGINT": "int8",
    "FLOAT": "float4",
    "DOUBLE": "float8",
    "TEXT": "text",
    "DATE": "date",
    "UUID": "uuid",
    "VARBINARY": "bytea",
    "INTERVAL": "interval",
}


def declared_type(node: exp.Expr | None) -> SqlType:
    """The type a cast names. Modifiers are kept only where a cast to them is known exactly."""
    if not isinstance(node, exp.DataType):
        raise Untranslatable("a cast to a type by another name")
    kind = node.this.value if isinstance(node.this, exp.DType) else str(node.this)
    extra = {key for key, value in node.args.items() if value} - {"this", "expressions", "nested"}
    parameters = node.expressions
    if extra or node.args.get("nested"):
        raise Untranslatable(f"type {node.sql('postgres')}")
    if kind in _SIMPLE and not parameters:
        return SqlType(_SIMPLE[kind])
    numbers = [_type_parameter(item) for item in parameters]
    if kind == "DECIMAL" and len(numbers) <= 2:
        return _declared_numeric(numbers)
    if kind in ("VARCHAR", "CHAR", "BPCHAR") and len(numbers) <= 1:
        return _declared_string(kind, numbers)
    if kind in ("TIMESTAMP", "TIMESTAMPTZ") and (not numbers or numbers == [6]):
        return SqlType(kind.lower(), numbers[0] if numbers else -1)
    raise Untranslatable(f"type {node.sql('postgres')}")


def _declared_numeric(numbers: list[int]) -> SqlType:
    if not numbers:
        return NUMERIC_TEXT
    precision, scale = (*numbers, 0)[:2]
    if not 1 <= precision <= MAX_DIGITS or not 0 <= scale <= precision:
        raise Untranslatable(f"numeric({precision},{scale})")
    return SqlType("numeric", numeric_modifier(precision, scale), (precision, scale))


def _declared_string(kind: str, numbers: list[int]) -> SqlType:
    if kind == "VARCHAR":
        return SqlType("varchar", numbers[0] + 4 if numbers else -1)
    if kind == "BPCHAR" and not numbers:
        return SqlType("bpchar")
    return SqlType("bpchar", (numbers[0] if numbers else 1) + 4)


def _type_parameter(node: exp.Expr) -> int:
    literal = node.this if isinstance(node, exp.DataTypeParam) and not node.args.get("expression") else None
    if isinstance(literal, exp.Literal) and not literal.is_string and literal.this.isdigit():
        return int(literal.this)
    raise Untranslatable(f"type parameter {node.sql('postgres')}")
