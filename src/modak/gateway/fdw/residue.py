"""What only Postgres can evaluate: the rows go to a temporary table there, and the statement runs on them as it was written.

postgres_fdw ships every built-in immutable function, and DuckDB is known to agree on the common ones only. This way the rest is exact
too, at the price of a detour. A standby has no temporary tables, so there it is an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.rows import tuple_row

from modak.connection import Connection, open_connection
from modak.errors import ModakError
from modak.gateway.analytics.relations import RegisteredRelation
from modak.gateway.fdw.request import PIN, Request
from modak.source.cold import ships

_FETCH_ROWS = 5_000
_TABLE = "pg_temp.modak_residue"


class ResidueFailed(ModakError):
    """Postgres could not finish what the lake could not evaluate."""

    code = "residue_failed"
    sqlstate = "0A000"


class Rows(Protocol):
    """Arrow batches of text columns."""

    def batches(self) -> Iterator[Any]: ...

    def cancel(self) -> None: ...


class Residue:
    def __init__(self, dsn: str, relation_of: Callable[[Request], RegisteredRelation]) -> None:
        self._dsn = dsn
        self._relation_of = relation_of

    def rows(self, request: Request, source: Rows) -> ResidueRows:
        return ResidueRows(self._dsn, self._relation_of(request), request, source)


class ResidueRows:
    def __init__(self, dsn: str, relation: RegisteredRelation, request: Request, source: Rows) -> None:
        self._dsn = dsn
        self._relation = relation
        self._request = request
        self._source = source
        self._connection: Connection | None = None

    def batches(self) -> Iterator[Any]:
        connection = self._connection = open_connection(self._dsn, application="modak-gateway")
        try:
            self._load(connection)
            text = self._request.sql.replace(self._request.quoted_name, _TABLE, 1)
            yield from text_rows(connection, text, self._request.values)
        except psycopg.Error as cause:
            failed = ResidueFailed(
                str(cause.diag.message_primary or cause),
                hint="Postgres evaluates this condition itself, in a temporary table; on a standby, which has none, simplify it",
            )
            failed.sqlstate = cause.sqlstate or failed.sqlstate
            raise failed from cause
        finally:
            self._connection = None
            connection.close()

    def _load(self, connection: Connection) -> None:
        columns: list[sql.Composable] = [sql.SQL("{} bigint default 0").format(sql.Identifier(PIN))]
        names = [f"a{column.number}" for column in self._relation.columns]
        for column, name in zip(self._relation.columns, names, strict=True):
            columns.append(
                sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(column.pg.display if ships(column.pg, column.lake) else "text"))
            )
        connection.execute(sql.SQL("create temporary table modak_residue ({}) on commit drop").format(sql.SQL(", ").join(columns)))
        listed = sql.SQL(", ").join(map(sql.Identifier, names))
        with connection.cursor().copy(sql.SQL("copy pg_temp.modak_residue ({}) from stdin").format(listed)) as copy:
            for batch in self._source.batches():
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    copy.write_row(row)

    def cancel(self) -> None:
        self._source.cancel()
        if self._connection is not None:
            self._connection.cancel()


def text_rows(connection: Connection, text: str, values: Sequence[str | None]) -> Iterator[Any]:
    """A query's answer in Arrow batches, every value as text by its type's output function: what postgres_fdw expects."""
    empty = psycopg.RawCursor(connection).execute(sql.SQL("select * from ({}) q limit 0").format(sql.SQL(text)), values)
    names = [sql.Identifier(f"c{place}") for place in range(len(empty.description or []))]
    outputs = sql.SQL(", ").join(map(as_text, names))
    cursor = psycopg.RawServerCursor(connection, "modak_residue", row_factory=tuple_row)
    cursor.execute(sql.SQL("select {} from ({}) q({})").format(outputs, sql.SQL(text), sql.SQL(", ").join(names)), list(values))
    while rows := cursor.fetchmany(_FETCH_ROWS):
        columns = list(zip(*rows, strict=True))
        yield pa.record_batch([pa.array(column, pa.string()) for column in columns], names=[str(place) for place in range(len(columns))])


def as_text(name: sql.Composable) -> sql.Composable:
    return sql.SQL("case when {0} is not null then pg_catalog.concat({0}) end").format(name)
