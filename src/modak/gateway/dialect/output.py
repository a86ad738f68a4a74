"""Values as the text Postgres sends: DateStyle ISO, IntervalStyle postgres, extra_float_digits 1 or more, bytea_output hex."""

from __future__ import annotations

from modak.core.type_map import PgType
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.literals import is_utc
from modak.gateway.dialect.types import MAX_DIGITS, SqlType

# Where Postgres changes from 100000000000000 to 1e+15. Above it digits are chosen by a stricter rule than DuckDB's, by a function of ours.
_FLOAT8_PLAIN = "1e15"
_FLOAT4_PLAIN = "1e6"


def text_sql(sql: str, type: SqlType, timezone: str) -> str:
    """DuckDB SQL for a value's Postgres text. ``sql`` is repeated, so let it be a column's name where speed matters."""
    match type.name:
        case "int2" | "int4" | "int8" | "oid" | "uuid":
            return f"CAST({sql} AS VARCHAR)"
        case "numeric":
            return decimal_text(sql, type)
        case "text" | "varchar" | "enum" | "unknown":
            return sql
        case "bpchar":
            return f"rpad({sql}, {type.modifier - 4}, ' ')" if type.modifier >= 4 else sql
        case "bool":
            return f"CASE WHEN {sql} THEN 't' WHEN NOT {sql} THEN 'f' END"
        case "date":
            return _era(f"CAST({sql} AS VARCHAR)", f"{sql} < DATE '0001-01-01'", "")
        case "timestamp":
            return _era(f"CAST({sql} AS VARCHAR)", f"{sql} < TIMESTAMP '0001-01-01'", "")
        case "timestamptz":
            return _timestamptz(sql, timezone)
        case "float8":
            return _float(sql, "modak_float8_text", _FLOAT8_PLAIN)
        case "float4":
            return _float(sql, "modak_float4_text", _FLOAT4_PLAIN)
        case "bytea":
            return f"'\\x' || lower(hex({sql}))"
        case "opaque":
            return _opaque(sql, type.pg, timezone)
    raise Untranslatable(f"output of type {type.name}")


def decimal_text(sql: str, of: SqlType) -> str:
    """A decimal's digits. Where all of them are decimals DuckDB leaves out the zero before the point."""
    if of.digits is None:
        return sql
    precision, scale = of.digits
    if precision > scale:
        return f"CAST({sql} AS VARCHAR)"
    if precision < MAX_DIGITS:
        return f"CAST(CAST({sql} AS DECIMAL({precision + 1},{scale})) AS VARCHAR)"
    return f"replace('0' || CAST({sql} AS VARCHAR), '0-.', '-0.')"


def _era(text: str, before: str, suffix: str) -> str:
    """DuckDB writes ``0044-03-15 (BC) 01:02:03``, Postgres ``0044-03-15 01:02:03 BC``."""
    after = f"{text} || '{suffix}'" if suffix else text
    return f"CASE WHEN {before} THEN replace({text}, ' (BC)', '') || '{suffix} BC' ELSE {after} END"


def _timestamptz(sql: str, timezone: str) -> str:
    if not is_utc(timezone):
        # DuckDB's ICU and Postgres disagree on 95 zones before 1970 and on four after.
        raise Untranslatable(f"timestamptz as text in time zone {timezone}")
    return _era(f"CAST(make_timestamp(epoch_us({sql})) AS VARCHAR)", f"epoch_us({sql}) < -62135596800000000", "+00")


def _float(sql: str, function: str, plain_below: str) -> str:
    """Whole numbers and the sizes on which both agree are DuckDB's work; a float4 has ties that DuckDB prints in full."""
    fraction = f"CAST({sql} AS VARCHAR)" if function == "modak_float8_text" else f"{function}({sql})"
    return (
        f"CASE WHEN abs({sql}) < {plain_below} THEN CASE WHEN {sql} = trunc({sql}) "
        f"THEN CASE WHEN {sql} = 0 AND signbit({sql}) THEN '-0' ELSE CAST(CAST({sql} AS BIGINT) AS VARCHAR) END ELSE {fraction} END "
        f"WHEN isnan({sql}) THEN 'NaN' WHEN isinf({sql}) THEN CASE WHEN {sql} > 0 THEN 'Infinity' ELSE '-Infinity' END "
        f"ELSE {function}({sql}) END"
    )


def _opaque(sql: str, pg: PgType | None, timezone: str) -> str:
    """The lake keeps Postgres's own text, written in UTC; some types' text would read differently in another zone."""
    if pg is None or is_utc(timezone):
        return sql
    innermost = pg.element or pg
    if innermost.base.startswith(("timestamptz", "tstz")) or innermost.kind in ("r", "m", "c"):
        raise Untranslatable(f"{pg.display} as text in time zone {timezone}")
    return sql
