"""INSERT, UPDATE, DELETE and TRUNCATE of postgres_fdw on decoupled tables. Nothing reaches the lake before the commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp

from modak.gateway.decoupled.columns import check_writable
from modak.gateway.decoupled.evaluation import Evaluation
from modak.gateway.decoupled.pending import HIT, Pending
from modak.gateway.decoupled.reading import UTC, Columns, needed
from modak.gateway.decoupled.statements import DeleteRow, Direct, Insert, Truncate, UpdateRow, Write, row_number, tables_in
from modak.gateway.decoupled.transaction import LakeTransaction
from modak.gateway.decoupled.values import NullRefused, Values, batch, check, remote_name
from modak.gateway.dialect.coerce import as_numeric, coerced
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.expression import translate
from modak.gateway.dialect.output import text_sql
from modak.gateway.dialect.parse import identifier, only, parse
from modak.gateway.dialect.predicates import predicates
from modak.gateway.dialect.remote import conjuncts, with_values
from modak.gateway.dialect.scope import Scope, Typed
from modak.gateway.dialect.types import INTEGERS, MAX_DIGITS, SqlType, column_type
from modak.gateway.failures import known_failure
from modak.scan.engine import Cursor
from modak.scan.predicate import ColumnType
from modak.scan.sqltext import quoted

_MICROSECOND_DIGITS = 6
# Postgres counts from 2000 on, and rounds by that.
_EPOCH_MICROSECONDS = 946_684_800_000_000


@dataclass(frozen=True)
class Written:
    """How many rows, and, for RETURNING, batches of their texts."""

    verb: str
    rows: int
    returned: Sequence[Any] | None = None

    @property
    def tag(self) -> str:
        return {"INSERT": f"INSERT 0 {self.rows}", "TRUNCATE": "TRUNCATE TABLE"}.get(self.verb, f"{self.verb} {self.rows}")


def write(transaction: LakeTransaction, statement: Write, values: Values) -> Written:
    op = transaction.next_op()
    if isinstance(statement, Truncate):
        transaction.begin_truncate(statement.table_ids)
        for table_id in statement.table_ids:
            transaction.pending(table_id).empty(op)
        return Written("TRUNCATE", 0)
    pending = transaction.pending(statement.table_id)
    removes = isinstance(statement, DeleteRow) or (isinstance(statement, Direct) and statement.kind.upper() == "DELETE")
    if pending.base is not None and not removes:
        check_writable(pending.definition, pending.base, updates=not isinstance(statement, Insert))
    match statement:
        case Insert():
            return _insert(pending, statement, values, op)
        case UpdateRow():
            return _update_row(pending, statement, values, op)
        case DeleteRow():
            return _delete_row(pending, statement, values, op)
        case Direct():
            return _direct(transaction, pending, statement, [None if value is None else value.decode() for value in values], op)


def _insert(pending: Pending, statement: Insert, values: Values, op: int) -> Written:
    width = len(statement.columns)
    rows = len(values) // width if width else 1
    given = {f"a{number}": values[place::width] for place, number in enumerate(statement.columns)}
    pending.add(batch(pending.definition, given, rows), op)
    if not statement.returning:
        return Written("INSERT", rows)
    nothing: Values = [None] * rows
    texts = [pa.array(given.get(f"a{number}", nothing), pa.binary()) for number in statement.returning]
    return Written("INSERT", rows, [pa.record_batch(texts, names=[f"c{place}" for place in range(len(texts))])])


def _place(ctid: bytes | None) -> int:
    return row_number((ctid or b"").decode())


def _delete_row(pending: Pending, statement: DeleteRow, values: Values, op: int) -> Written:
    rid = _place(values[0])
    if not statement.returning:
        return Written("DELETE", pending.remove([rid], op))
    found = _look_up(pending, [rid], statement.returning, op - 1)
    removed = pending.remove([rid], op)
    return Written("DELETE", removed, found if removed else [])


def _update_row(pending: Pending, statement: UpdateRow, values: Values, op: int) -> Written:
    """One row by its place. It waits for the others of its statement, unless what became of it is asked for."""
    rid = _place(values[0])
    names = tuple(f"a{number}" for number in statement.columns)
    for name, value in zip(names, values[1:], strict=True):
        # What the lake does not keep is an error of this statement, and not of the one that makes all of them into rows.
        check(pending.definition, pending.columns[name], value)
    if not statement.returning:
        return Written("UPDATE", int(pending.update(rid, names, values[1:], op)))
    pending.flush()
    last = pending.last
    pending.update(rid, names, values[1:], op)
    pending.flush()
    if pending.last == last:
        return Written("UPDATE", 0, [])
    return Written("UPDATE", 1, _look_up(pending, [pending.last], statement.returning, op))


def _of_rows(pending: Pending, names: Sequence[str], rids: Sequence[int], upto: int) -> str:
    source = pending.source(names, numbered=True, upto=upto)
    return f"(SELECT * FROM {source} AS numbered WHERE rid IN ({', '.join(map(str, rids))}))"  # noqa: S608


def _look_up(pending: Pending, rids: Sequence[int], returning: Sequence[int], upto: int) -> list[Any]:
    names = [f"a{number}" for number in returning]
    with pending.cursor() as cursor:
        source = _of_rows(pending, list(dict.fromkeys(names)), rids, upto)
        return _texts(pending, cursor, source, names)


def _texts(pending: Pending, cursor: Cursor, source: str, names: Sequence[str]) -> list[Any]:
    types = Columns(pending).types
    items = ", ".join(f"{text_sql(quoted(name), column_type(types[name]), UTC)} AS c{place}" for place, name in enumerate(names))
    return list(cursor.execute(f"SELECT {items} FROM {source} AS rows").to_arrow_table().to_batches())  # noqa: S608


def _taken(pending: Pending, cursor: Cursor, verb: str, returning: Sequence[str]) -> Written:
    """What the table ``modak_hit`` of this cursor holds becomes the transaction's."""
    counted = cursor.execute(f"SELECT count(*) FROM {HIT}").fetchone()  # noqa: S608
    rows = int(counted[0]) if counted else 0
    if rows:
        if verb == "UPDATE":
            _check_required(pending, cursor)
        pending.replace(cursor, added=verb == "UPDATE")
    returned = _texts(pending, cursor, HIT, returning) if returning else None
    cursor.execute(f"DROP TABLE {HIT}")
    return Written(verb, rows, returned)


def _check_required(pending: Pending, cursor: Cursor) -> None:
    required = [column for column in pending.definition.columns if column.required]
    if not required:
        return
    tests = ", ".join(f"bool_or({quoted(remote_name(column))} IS NULL)" for column in required)
    found = cursor.execute(f"SELECT {tests} FROM {HIT}").fetchone() or ()  # noqa: S608
    for column, is_null in zip(required, found, strict=True):
        if is_null:
            raise NullRefused.of(pending.definition, column)


def _direct(transaction: LakeTransaction, pending: Pending, statement: Direct, values: Sequence[str | None], op: int) -> Written:
    try:
        return _in_engine(transaction, pending, statement, values, op)
    except Untranslatable:
        return _in_postgres(transaction, pending, statement, values, op)


def _in_engine(transaction: LakeTransaction, pending: Pending, statement: Direct, values: Sequence[str | None], op: int) -> Written:
    tree = with_values(parse(statement.body), values)  # type: ignore[arg-type]
    types = Columns(pending).types
    scope = Scope.of_table(types, collation_is_c=transaction.world.collation_is_c, timezone=UTC, may_fail_over=False)
    only(tree, "this", "expressions", "where")
    assignments = _assignments(tree, types, scope) if statement.kind == "UPDATE" else {}
    where = tree.args.get("where")
    nodes = list(conjuncts(where.this if where else None))
    conditions = [translate(node, scope).sql for node in nodes]
    if not set(statement.returning) <= types.keys():
        raise Untranslatable("RETURNING of more than the table's own columns")
    names = list(pending.columns) if statement.kind == "UPDATE" or statement.returning else needed(tree, types)[0]
    source = pending.source(names, predicates(nodes, types), numbered=True, upto=op - 1)
    items = ", ".join(f"{assignments.get(name, quoted(name))} AS {quoted(name)}" for name in names)
    test = f" WHERE {' AND '.join(f'({one})' for one in conditions)}" if conditions else ""
    with pending.cursor() as cursor:
        try:
            cursor.execute(f"CREATE TEMP TABLE {HIT} AS SELECT rid, {op} AS op, {items} FROM {source} AS live{test}")  # noqa: S608
        except duckdb.Error as cause:
            if known_failure(str(cause)) is None:
                raise Untranslatable("a limit of the engine's own") from cause
            raise
        return _taken(pending, cursor, statement.kind, statement.returning)


def _assignments(tree: exp.Expr, types: dict[str, ColumnType], scope: Scope) -> dict[str, str]:
    found = {}
    for node in tree.expressions:
        if not isinstance(node, exp.EQ) or not isinstance(node.this, exp.Column):
            raise Untranslatable("an assignment of another shape")
        name = identifier(node.this.this)
        if name not in types:
            raise Untranslatable(f"no column {name}")
        found[name] = _stored(translate(node.expression, scope), types[name], scope)
    return found


def _stored(value: Typed, column: ColumnType, scope: Scope) -> str:
    """A value as its column keeps it, where an assignment changes nothing else about it."""
    wanted = column_type(column)
    if wanted.name == "opaque" and not value.null:
        raise Untranslatable("a value that only Postgres can write")
    if wanted.name in ("varchar", "bpchar", "text") and not value.null:
        text = coerced(value, wanted, scope).sql if value.unknown else value.sql
        if value.type.name not in ("text", "varchar", "bpchar", "unknown"):
            raise Untranslatable("text of something else")
        return _cut(text, wanted.modifier - 4, wanted.name)
    if wanted.name == "numeric" and wanted.digits is not None and not value.null and not value.unknown:
        return _rounded(as_numeric(value) if value.type.name in INTEGERS else value, wanted.digits)
    if wanted.name in ("timestamp", "timestamptz") and 0 <= wanted.modifier < _MICROSECOND_DIGITS and not value.null:
        return _rounded_moment(coerced(value, wanted, scope).sql, wanted)
    return f"CAST({coerced(value, wanted, scope).sql} AS {column.lake.duckdb})"


def _rounded_moment(moment: str, wanted: SqlType) -> str:
    """With the digits of its column: Postgres leaves its own rounding out of what it sends. Halves go away from its year 2000."""
    unit = 10 ** (_MICROSECOND_DIGITS - wanted.modifier)
    since = f"(epoch_us({moment}) - {_EPOCH_MICROSECONDS})"
    ahead, back = (f"(({sign}{since} + {unit // 2}) // {unit}) * {unit}" for sign in ("", "-"))
    return f"make_{wanted.name}({_EPOCH_MICROSECONDS} + CASE WHEN {since} >= 0 THEN {ahead} ELSE -({back}) END)"


def _rounded(value: Typed, wanted: tuple[int, int]) -> str:
    """A numeric with its column's scale, rounded away from zero as Postgres does it; what has too many digits then is an error."""
    digits, scale = wanted
    given = value.type.digits if value.type.name == "numeric" else None
    if given is None or value.scale is not None:
        raise Untranslatable("a number of unknown digits")
    sql = f"round({value.sql}, {scale})" if given[1] > scale else value.sql
    if given[0] - given[1] + (given[1] > scale) <= digits - scale:
        return f"CAST({sql} AS DECIMAL({digits},{scale}))"
    limit = f"CAST('1{'0' * (digits - scale)}' AS DECIMAL({min(MAX_DIGITS, digits - scale + 1)},0))"
    return f"CASE WHEN abs({sql}) >= {limit} THEN error('22003: numeric field overflow') ELSE CAST({sql} AS DECIMAL({digits},{scale})) END"


def _cut(text: str, length: int, kind: str) -> str:
    """Longer than declared is an error, unless only blanks are too much; the lake keeps a char(n) without its padding."""
    bare = f"rtrim({text}, ' ')"
    if length < 0:
        return text
    told = "character" if kind == "bpchar" else "character varying"
    fitting = bare if kind == "bpchar" else f"CASE WHEN length({text}) <= {length} THEN {text} ELSE left({text}, {length}) END"
    failed = f"error('22001: value too long for type {told}({length})')"
    return f"CASE WHEN length({bare}) <= {length} THEN {fitting} WHEN {text} IS NOT NULL THEN {failed} END"


def _in_postgres(transaction: LakeTransaction, pending: Pending, statement: Direct, values: Sequence[str | None], op: int) -> Written:
    used = [transaction.pending(table_id) for table_id in tables_in(statement.body)]
    evaluation = Evaluation(transaction.world.dsn, used, op - 1)
    transaction.cancels.append(evaluation.cancel)
    try:
        return _evaluated(evaluation, pending, statement, values, op)
    finally:
        transaction.cancels.remove(evaluation.cancel)


def _evaluated(evaluation: Evaluation, pending: Pending, statement: Direct, values: Sequence[str | None], op: int) -> Written:
    returned: list[Any] = []
    count = 0
    for rids, columns, answers in evaluation.changed(statement, pending, values):
        count += len(rids)
        pending.remove(rids, op)
        texts = dict(zip(pending.columns, columns, strict=True))
        encoded: dict[str, Values] = {name: [None if one is None else one.encode() for one in column] for name, column in texts.items()}
        if statement.kind == "UPDATE":
            pending.add(batch(pending.definition, encoded, len(rids)), op)
        if statement.returning:
            arrays = [pa.array(answer, pa.string()) for answer in answers]
            returned.append(pa.record_batch(arrays, names=[f"c{place}" for place in range(len(arrays))]))
    return Written(statement.kind, count, returned if statement.returning else None)
