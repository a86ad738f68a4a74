"""Explicit casts, where both databases round, cut and refuse alike."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from modak.gateway.dialect.arithmetic import numeric_text, small
from modak.gateway.dialect.coerce import as_float8, as_numeric, coerced
from modak.gateway.dialect.datetimes import parse_interval, to_timestamp
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.literals import is_utc, literal
from modak.gateway.dialect.parse import only
from modak.gateway.dialect.scope import At, Handlers, Scope, Typed, guarded
from modak.gateway.dialect.types import INTEGERS, STRINGS, TEXT, SqlType, declared_type, duckdb_name, numeric_digits


def _cast(at: At) -> Typed:
    node, scope, visit = at.node, at.scope, at.visit
    only(node, "this", "to")
    return cast(visit(node.this), declared_type(node.args["to"]), scope)


def cast(value: Typed, wanted: SqlType, scope: Scope) -> Typed:
    """A value under an explicit cast."""
    if value.null:
        shown = wanted if wanted.name != "numeric" or wanted.digits else replace(wanted, digits=(1, 0))
        return Typed(f"CAST(NULL AS {duckdb_name(shown)})", shown)
    if wanted.name == "interval":
        if not value.unknown or value.text is None:
            raise Untranslatable("a cast to interval")
        return parse_interval(value.text)
    if value.unknown:
        return _literal(value, wanted, scope)
    if value.text is not None and value.type.name in (*INTEGERS, "numeric") and wanted.name in ("float4", "float8"):
        read = literal(value.text, wanted)
        return Typed(read.sql, wanted, value.text)
    given, name = value.type.name, wanted.name
    if name in STRINGS:
        return _string(value, wanted)
    if name == "numeric":
        return _numeric(value, wanted)
    if name in INTEGERS:
        return _integer(value, wanted)
    if given == name:
        return replace(value, type=wanted)
    if name == "bool" and given == "int4":
        return Typed(f"({value.sql} <> 0)", wanted)
    if name == "float8":
        return as_float8(value) if given in (*INTEGERS, "numeric", "float4") else _refused(given, name)
    if name == "float4" and given in ("int2", "int4", "int8"):
        return Typed(f"CAST({value.sql} AS FLOAT)", wanted)
    return _time(value, wanted, scope)


def _refused(given: str, name: str) -> Typed:
    raise Untranslatable(f"a cast from {given} to {name}")


def _literal(value: Typed, wanted: SqlType, scope: Scope) -> Typed:
    if wanted.name in STRINGS:
        return _string(Typed(coerced(value, TEXT, scope).sql, TEXT, value.text), wanted)
    read = literal(value.text or "", wanted, scope.timezone)
    return Typed(read.sql, read.type, read.text)


def _string(value: Typed, wanted: SqlType) -> Typed:
    given = value.type.name
    if given in STRINGS:
        sql = value.sql
    elif given in (*INTEGERS, "uuid"):
        sql = f"CAST({value.sql} AS VARCHAR)"
    elif given == "numeric":
        sql = numeric_text(value)
    elif given == "bool":
        sql = f"(CASE WHEN {value.sql} THEN 'true' WHEN NOT {value.sql} THEN 'false' END)"
    elif given == "enum":
        sql = value.sql
    else:
        return _refused(given, wanted.name)
    if wanted.modifier >= 4:
        sql = f"substring({sql}, 1, {wanted.modifier - 4})"
    if wanted.name == "bpchar":
        sql = f"rtrim({sql}, ' ')"
    return Typed(sql, wanted)


def _numeric(value: Typed, wanted: SqlType) -> Typed:
    given = value.type.name
    if given not in (*INTEGERS, "numeric") or (given == "numeric" and value.type.digits is None):
        return _refused(given, "numeric")
    value = as_numeric(value)
    digits = numeric_digits(wanted.modifier)
    if digits is None:
        return replace(value, type=value.type.plain())
    of = replace(wanted, digits=digits)
    # DuckDB rounds half away from zero as Postgres does, and complains about what is too large.
    return Typed(guarded(f"CAST({value.sql} AS {duckdb_name(of)})"), of, None)


def _integer(value: Typed, wanted: SqlType) -> Typed:
    given, sql = value.type.name, value.sql
    if given in INTEGERS and value.text is not None:
        read = literal(value.text, wanted)
        return Typed(read.sql, wanted, read.text)
    if given in ("float4", "float8"):
        # Through bigint: DuckDB checks the range of a narrower type before it rounds, and wraps around.
        sql = f"CAST({sql} AS BIGINT)"
    elif given == "bool" and wanted.name == "int4":
        return Typed(f"CAST({sql} AS INTEGER)", wanted)
    elif given == "numeric" and value.type.digits:
        sql = f"CAST({sql} AS BIGINT)"
    elif given not in INTEGERS:
        return _refused(given, wanted.name)
    if wanted.name == "int2":
        return Typed(small(sql) if given != "int2" else sql, wanted)
    return Typed(sql if duckdb_name(value.type) == duckdb_name(wanted) else guarded(f"CAST({sql} AS {duckdb_name(wanted)})"), wanted)


def _time(value: Typed, wanted: SqlType, scope: Scope) -> Typed:
    given, name = value.type.name, wanted.name
    if "timestamptz" in (given, name) and not is_utc(scope.timezone):
        raise Untranslatable(f"a cast from {given} to {name} in time zone {scope.timezone}")
    if given in ("timestamp", "timestamptz") and name == "date":
        return Typed(f"CAST({to_timestamp(value).sql} AS DATE)", wanted)
    if given == "timestamptz" and name == "timestamp":
        return replace(to_timestamp(value), type=wanted)
    if (given, name) in (("date", "timestamp"), ("date", "timestamptz"), ("timestamp", "timestamptz")):
        return replace(coerced(value, wanted, scope), type=wanted)
    return _refused(given, name)


HANDLERS: Handlers = {exp.Cast: _cast}
