"""What only Postgres can evaluate: the rows go to temporary tables there, and the statement runs on them as it was written.

Reading, the answer comes back; writing, the rows as the statement left them, which are then those of this transaction. So every function,
every operator of jsonb and every rule of assignment is Postgres's own, at the price of a detour.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from modak.connection import Connection, open_connection
from modak.core.decoupled import DecoupledColumn
from modak.errors import ModakError
from modak.gateway.decoupled.pending import Pending
from modak.gateway.decoupled.reading import CTID, Columns
from modak.gateway.decoupled.statements import Direct, ctid_sql, quoted_name, without_locks
from modak.gateway.decoupled.values import remote_name
from modak.gateway.dialect.output import text_sql
from modak.gateway.dialect.types import column_type
from modak.gateway.failures import Cancelled
from modak.gateway.fdw.residue import as_text, text_rows
from modak.scan.sqltext import quoted

Texts = list[list[str | None]]
_FETCH_ROWS, _FETCH_BYTES = 5_000, 16 * 1024 * 1024
_READ_ROWS = 2_048
# In place of the names that Postgres keeps for itself.
_PLACE, _NUMBER = "modak_ctid", "modak_rid"
_QUOTES = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")""")


class EvaluationFailed(ModakError):
    """Postgres could not evaluate what was left to it; its own message and state."""

    code = "evaluation_failed"
    sqlstate = "0A000"


class Evaluation:
    """One statement. Used from one thread; ``cancel`` from any."""

    def __init__(self, dsn: str, pendings: Sequence[Pending], upto: int) -> None:
        self._dsn = dsn
        self._pendings = pendings
        self._upto = upto
        self._connection: Connection | None = None
        self._cancelled = False

    def rows(self, text: str, values: Sequence[str | None]) -> Iterator[Any]:
        """The answer of a SELECT, in Arrow batches of texts."""
        with self._loaded() as connection:
            yield from text_rows(connection, self._renamed(without_locks(text)), values)

    def changed(self, wanted: Direct, target: Pending, values: Sequence[str | None]) -> Iterator[tuple[list[int], Texts, Texts]]:
        """Rows that an UPDATE or DELETE met: their numbers, their columns' texts as it left them, and those of what it returns."""
        prefix = sql.Identifier(wanted.alias) + sql.SQL(".") if wanted.alias else sql.SQL("")
        width = len(target.definition.columns)
        listed: list[sql.Composable] = [prefix + sql.Identifier(_NUMBER)]
        listed += [prefix + sql.Identifier(remote_name(column)) for column in target.definition.columns]
        listed += [sql.SQL(self._renamed(item)) for item in wanted.returning]
        # Names of its own: columns of several tables may share theirs.
        names = [sql.Identifier(f"c{place}") for place in range(len(listed))]
        statement = sql.SQL("with changed({}) as ({} returning {}) select {} from changed").format(
            sql.SQL(", ").join(names),
            sql.SQL(self._renamed(wanted.body)),
            sql.SQL(", ").join(listed),
            sql.SQL(", ").join([names[0], *map(as_text, names[1:])]),
        )
        with self._loaded() as connection:
            for rows in _bounded(psycopg.RawCursor(connection, row_factory=tuple_row).stream(statement, list(values))):
                numbers, *columns = zip(*rows, strict=True)
                texts = [list(column) for column in columns]
                yield list(numbers), texts[:width], texts[width:]

    def cancel(self) -> None:
        self._cancelled = True
        if self._connection is not None:
            self._connection.cancel()

    @contextlib.contextmanager
    def _loaded(self) -> Iterator[Connection]:
        connection = self._connection = open_connection(self._dsn, application="modak-gateway")
        try:
            for pending in self._pendings:
                self._load(connection, pending)
                if self._cancelled:
                    raise Cancelled("canceling statement due to user request")
            yield connection
        except psycopg.Error as cause:
            hint = "Postgres evaluates this itself, in a temporary table; on a standby, which has none, simplify it"
            failed = EvaluationFailed(str(cause.diag.message_primary or cause), hint=str(cause.diag.message_hint or hint))
            failed.sqlstate = cause.sqlstate or failed.sqlstate
            raise failed from cause
        finally:
            self._connection = None
            connection.close()

    def _load(self, connection: Connection, pending: Pending) -> None:
        table = sql.Identifier(_temporary(pending))
        columns: list[sql.Composable] = [
            sql.SQL("{} bigint").format(sql.Identifier(_NUMBER)),
            sql.SQL("{} tid").format(sql.Identifier(_PLACE)),
        ]
        columns += [_definition(column) for column in pending.definition.columns]
        connection.execute(sql.SQL("create temporary table {} ({}) on commit drop").format(table, sql.SQL(", ").join(columns)))
        types = Columns(pending).types
        names = [remote_name(column) for column in pending.definition.columns]
        items = ", ".join([f"rid, {ctid_sql('rid')}", *(text_sql(quoted(name), column_type(types[name]), "UTC") for name in names)])
        source = pending.source(names, numbered=True, upto=self._upto)
        with pending.cursor() as engine, connection.cursor().copy(sql.SQL("copy pg_temp.{} from stdin").format(table)) as copy:
            for batch in engine.execute(f"SELECT {items} FROM {source} AS live").to_arrow_reader(_READ_ROWS):  # noqa: S608
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    copy.write_row(row)

    def _renamed(self, text: str) -> str:
        for pending in self._pendings:
            text = text.replace(quoted_name(pending.definition.table_id), f"pg_temp.{_temporary(pending)}")
        parts = _QUOTES.split(text)
        parts[::2] = [re.sub(rf"\b{CTID}\b", _PLACE, part) for part in parts[::2]]
        return "".join(parts)


def _bounded(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """One by one as they come from the server, a cursor of which cannot change rows; together until they are enough."""
    found: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        found.append(row)
        size += sum(len(value) for value in row if isinstance(value, str))
        if len(found) >= _FETCH_ROWS or size >= _FETCH_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found


def _temporary(pending: Pending) -> str:
    return f"modak_{pending.definition.table_id}"


def _definition(column: DecoupledColumn) -> sql.Composable:
    """Without NOT NULL, which is told by the table's own names when the rows come back."""
    return sql.Identifier(remote_name(column)) + sql.SQL(" ") + sql.SQL(column.pg.display)
