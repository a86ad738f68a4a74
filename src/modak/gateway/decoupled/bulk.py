"""INSERT … SELECT into a decoupled table as a COPY of the same rows: what is suited, and the SQL for it. Pure.

Every doubt means None, and Postgres does the statement its own way. What the rows are is decided by Postgres in either case: the user's
query runs as it stands, and a value becomes one of its column's type by the very functions that an assignment uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from modak.core.decoupled import DecoupledColumn, Definition
from modak.gateway.decoupled.values import kind_of, remote_name
from modak.scan.sqltext import quoted, regclass

_STATEMENT_CHARS_MAX = 200_000
_NAME = r'(?:"(?:[^"]|"")+"|[a-z_][a-z0-9_$]*(?![a-z0-9_$]))'
# Blanks are never given back: how many of them stand where decides nothing, and trying it out is work of the third power of their number.
_COLUMNS = rf"\(\s*+({_NAME}(?:\s*+,\s*+{_NAME})*+)\s*+\)"
_HEAD = re.compile(
    rf"\s*+insert\s++into\s++({_NAME})(?:\s*+\.\s*+({_NAME}))?\s*+(?:{_COLUMNS})?\s*+(?=[\s(]*+(?:select|with|table)\b)",
    re.IGNORECASE | re.ASCII,
)
_PARTS = re.compile(_NAME, re.IGNORECASE | re.ASCII)

# OIDs of types, which are the same on every server.
_BASES: Final[Mapping[int, str]] = {
    16: "bool",
    17: "bytea",
    20: "int8",
    21: "int2",
    23: "int4",
    25: "text",
    114: "json",
    700: "float4",
    701: "float8",
    1042: "bpchar",
    1043: "varchar",
    1082: "date",
    1083: "time",
    1114: "timestamp",
    1184: "timestamptz",
    1186: "interval",
    1700: "numeric",
    2950: "uuid",
    3802: "jsonb",
}
_NUMBERS = frozenset(("int2", "int4", "int8", "float4", "float8", "numeric"))
_TEXTS = frozenset(("text", "varchar", "bpchar"))
_MOMENTS = frozenset(("date", "timestamp", "timestamptz"))
_JSON = frozenset(("json", "jsonb"))
# Their text is the same in every session.
_PLAIN = frozenset(("int2", "int4", "int8", "numeric", "bool", "uuid"))


@dataclass(frozen=True)
class Statement:
    """``columns`` is None where the statement names none; ``query`` is its SELECT, in its own words."""

    name: tuple[str, ...]
    columns: tuple[str, ...] | None
    query: str


@dataclass(frozen=True)
class Column:
    """A column of the foreign table as the client's session knows it."""

    name: str
    remote: str | None
    base: str
    modifier: int
    display: str
    default: str | None
    is_generated: bool


@dataclass(frozen=True)
class Source:
    """The type of a value that comes for a column, as Postgres describes it."""

    oid: int
    modifier: int = -1


@dataclass(frozen=True)
class Relation:
    """The foreign table, and whether it and the session are such that this way and the plain one are the same."""

    table_id: int
    columns: tuple[Column, ...]
    is_suited: bool
    floats_are_exact: bool


def recognise(sql: str) -> Statement | None:
    """Quick for everything that is not INSERT … SELECT."""
    head = _HEAD.match(sql)
    if head is None or len(sql) > _STATEMENT_CHARS_MAX:
        return None
    columns = tuple(_folded(part) for part in _PARTS.findall(head[3])) if head[3] else None
    name = tuple(_folded(part) for part in (head[1], head[2]) if part)
    query = sql[head.end() :].rstrip().rstrip(";").rstrip()
    return Statement(name, columns, query)


def is_plain_query(sql: str) -> bool:
    """One INSERT of a query that changes nothing and locks nothing, with nothing after it."""
    try:
        trees = sqlglot.parse(sql, read="postgres")
    except (SqlglotError, RecursionError):
        return False
    if len(trees) != 1 or not isinstance(trees[0], exp.Insert):
        return False
    insert = trees[0]
    if insert.args.get("returning") or insert.args.get("conflict") or not isinstance(insert.expression, exp.Query):
        return False
    return insert.expression.find(exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Lock, exp.Into, exp.Command) is None


def _folded(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()


def probe(name: Sequence[str]) -> str:
    """Asks the client's own session what the name means there; no rows if it is not a decoupled table."""
    return f"""
        select (select pg_catalog.substr(o, 12) from pg_catalog.unnest(f.ftoptions) o where o like 'table\\_name=%'), a.attname,
               (select pg_catalog.substr(o, 13) from pg_catalog.unnest(a.attfdwoptions) o where o like 'column\\_name=%'),
               t.typname, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod), pg_catalog.pg_get_expr(d.adbin, d.adrelid),
               a.attgenerated::text || a.attidentity::text,
               not c.relispartition and not c.relhasrules
               and pg_catalog.current_setting('transaction_read_only') = 'off'
               and pg_catalog.current_setting('session_replication_role') = 'origin'
               and (select pg_catalog.count(*) = 1
                           and pg_catalog.bool_and(g.tgenabled in ('O', 'A') and p.proname = 'begin_lake_write' and n.nspname = 'modak')
                      from pg_catalog.pg_trigger g join pg_catalog.pg_proc p on p.oid = g.tgfoid
                      join pg_catalog.pg_namespace n on n.oid = p.pronamespace
                     where g.tgrelid = c.oid),
               pg_catalog.current_setting('extra_float_digits')::int > 0
          from pg_catalog.pg_class c
          join pg_catalog.pg_foreign_table f on f.ftrelid = c.oid
          join pg_catalog.pg_foreign_server s on s.oid = f.ftserver
          join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
          join pg_catalog.pg_type t on t.oid = a.atttypid
          left join pg_catalog.pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
         where c.oid = pg_catalog.to_regclass({regclass(name)})
           and s.srvname = 'modak_gateway' and 'schema_name=iceberg' = any (f.ftoptions)
         order by a.attnum"""  # noqa: S608


def relation_of(rows: Sequence[Sequence[str | None]]) -> Relation | None:
    if not rows or not (rows[0][0] or "").isdigit():
        return None
    columns = tuple(
        Column(str(name), remote, str(base), int(modifier or -1), str(display), default, bool(generated))
        for _, name, remote, base, modifier, display, default, generated, *_ in rows
    )
    return Relation(int(rows[0][0] or 0), columns, rows[0][-2] == "t", rows[0][-1] == "t")


def targets(statement: Statement, relation: Relation, width: int) -> tuple[Column, ...] | None:
    """The columns that the query's columns go to."""
    if any(column.is_generated for column in relation.columns):
        return None
    if statement.columns is None:
        return relation.columns[:width] if width <= len(relation.columns) else None
    by_name = {column.name: column for column in relation.columns}
    found = tuple(by_name[name] for name in statement.columns if name in by_name)
    return found if len(found) == len(statement.columns) == width and len(set(found)) == width else None


def absent(relation: Relation, given: Sequence[Column]) -> tuple[Column, ...]:
    """Columns that take their default."""
    return tuple(column for column in relation.columns if column not in given and column.default is not None)


def copy_sql(
    statement: Statement,
    definition: Definition,
    relation: Relation,
    given: Sequence[tuple[Column, Source]],
    defaults: Sequence[tuple[Column, Source]],
) -> str | None:
    """``given`` and ``defaults`` are columns with what comes for them. Every column of the definition, in its order."""
    values: dict[str, str] = {}
    sources = [(column, source, f"q.c{place}") for place, (column, source) in enumerate(given)]
    sources += [(column, source, f"({column.default})") for column, source in defaults]
    for column, source, text in sources:
        assigned = _assigned(text, source, column)
        if assigned is None or column.remote is None:
            return None
        values[column.remote] = assigned
    known = {column.remote: column for column in relation.columns}
    items = []
    for kept in definition.columns:
        seen = known.pop(remote_name(kept), None)
        if seen is not None and (seen.base, seen.modifier) != (kept.pg.base, kept.pg.modifier):
            return None
        items.append(_printed(values.get(remote_name(kept), "null"), kept))
    if known:
        return None
    names = ", ".join(f"c{place}" for place in range(len(given)))
    return f"copy (select {', '.join(items)} from (\n{statement.query}\n) q({names})) to stdout (format csv)"  # noqa: S608


def _assigned(value: str, source: Source, column: Column) -> str | None:
    """As an assignment to the column has it. A cast that is written would cut a text that is too long; the functions behind it do not."""
    wanted, base = column.base, _BASES.get(source.oid)
    if base == wanted and column.modifier in (-1, source.modifier):
        return value
    if wanted in ("varchar", "bpchar") and base in _TEXTS | _PLAIN:
        text = f"({value})::pg_catalog.{wanted}"
        return text if column.modifier < 0 else f'pg_catalog."{wanted}"({text}, {column.modifier}, false)'
    families = (_NUMBERS, _MOMENTS, _JSON)
    if base == wanted or any(base in family and wanted in family for family in families) or (wanted == "text" and base in _TEXTS | _PLAIN):
        return f"({value})::{column.display}"
    return None


def _printed(value: str, column: DecoupledColumn) -> str:
    """A text that no setting of the session changes; see ``suits``."""
    kind = kind_of(column)
    if value == "null":
        return value
    if column.pg.base == "bpchar":
        return f"({value})::pg_catalog.text"
    if kind == "timestamptz":
        return f"pg_catalog.timezone(interval '0', {value})"
    return f"pg_catalog.encode({value}, 'hex')" if kind == "binary" else value


def suits(definition: Definition, relation: Relation, *, date_style: str | None, interval_style: str | None) -> bool:
    """Whether this session prints dates, intervals and fractions the way they are read here."""
    bases = {column.pg.base for column in definition.columns}
    return (
        relation.is_suited
        and (relation.floats_are_exact or not bases & {"float4", "float8"})
        and ((date_style or "").startswith("ISO") or not bases & _MOMENTS)
        and (interval_style == "postgres" or "interval" not in bases)
    )


def zero_rows(statement: Statement, given: Sequence[Column]) -> str:
    """The statement without its rows: rights are checked and the table's trigger fires as in the whole one."""
    names = ", ".join(quoted(column.name) for column in given)
    nulls = ", ".join(["null"] * len(given))
    return f"insert into {'.'.join(map(quoted, statement.name))} ({names}) select {nulls} where false"
