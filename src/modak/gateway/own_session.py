"""A session of the gateway's own that stands for somebody: what ``modak.query`` is planned in, on behalf of its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from modak.connection import open_connection
from modak.errors import ModakError
from modak.gateway.interception import Caller
from modak.gateway.wire.messages import FieldDescription

T = TypeVar("T")


class QueryRefused(ModakError):
    """Postgres would not take the statement."""

    code = "query_refused"


_STATUSES = {pq.TransactionStatus.IDLE: b"I", pq.TransactionStatus.INERROR: b"E"}


class OwnSession:
    """Implements ``interception.ClientSession``, under the settings of every connection of ours: results are in UTC and ISO.

    It stays the gateway's own, with the gateway's role and a search path of built-in things: whatever runs in a session can take its
    first role back, so taking the caller's on would bind only those who do not want to. Who asks goes into the questions instead.
    """

    # Never in a transaction block, so neither matters.
    in_savepoint = False
    exported: str | None = None

    def __init__(self, dsn: str, caller: Caller, executor: Executor) -> None:
        self.stands_for = caller
        self._executor = executor
        self._connection = open_connection(dsn, application="modak-gateway", autocommit=True)

    @property
    def transaction_status(self) -> bytes:
        return _STATUSES.get(pq.TransactionStatus(self._connection.pgconn.transaction_status), b"T")

    def setting(self, name: str) -> str | None:
        found = self._connection.pgconn.parameter_status(name.encode())
        return found.decode() if found is not None else None

    def notify(self, text: str) -> None:
        """Nobody is there to read it."""

    async def query(self, text: str) -> list[tuple[str | None, ...]]:
        return await self._run(lambda: self._query(text))

    async def describe(self, text: str, oids: Sequence[int]) -> tuple[tuple[int, ...], tuple[FieldDescription, ...]]:
        return await self._run(lambda: self._describe(text, oids))

    def close(self) -> None:
        self._connection.close()

    def _query(self, text: str) -> list[tuple[str | None, ...]]:
        result = self._connection.pgconn.exec_(text.encode())
        _check(result)
        return [
            tuple(None if (value := result.get_value(row, column)) is None else value.decode() for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def _describe(self, text: str, oids: Sequence[int]) -> tuple[tuple[int, ...], tuple[FieldDescription, ...]]:
        connection = self._connection.pgconn
        _check(connection.prepare(b"", text.encode(), list(oids)))
        found = connection.describe_prepared(b"")
        _check(found)
        fields = tuple(
            FieldDescription(
                (found.fname(n) or b"").decode(), found.ftable(n), found.ftablecol(n), found.ftype(n), found.fsize(n), found.fmod(n)
            )
            for n in range(found.nfields)
        )
        return tuple(found.param_type(n) for n in range(found.nparams)), fields

    def type_names(self, fields: Sequence[FieldDescription]) -> list[str]:
        cursor = self._connection.cursor(row_factory=tuple_row)
        query = "select format_type(t, m) from unnest(%s::oid[], %s::int[]) with ordinality x(t, m, n) order by n"
        return [row[0] for row in cursor.execute(query, [[f.type_oid for f in fields], [f.typmod for f in fields]]).fetchall()]

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except psycopg.Error as cause:
            failed = QueryRefused(str(cause.diag.message_primary or cause), hint=cause.diag.message_hint)
            failed.sqlstate = cause.sqlstate or failed.sqlstate
            raise failed from cause


def _check(result: pq.abc.PGresult) -> None:
    if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        return
    primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"unknown error"
    hint = result.error_field(pq.DiagnosticField.MESSAGE_HINT)
    failed = QueryRefused(primary.decode(errors="replace"), hint=hint.decode(errors="replace") if hint else None)
    failed.sqlstate = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"XX000").decode()
    raise failed
