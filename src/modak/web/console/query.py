"""The SQL page's engine: one query, in a read-only transaction, with limits on time, rows and bytes; by the gateway where it is reached.

What keeps it read only is Postgres: the transaction is, and with a snapshot from before the query it cannot be made writable any more. The
query goes by the extended protocol, which takes one statement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import psycopg
from psycopg import conninfo
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.rows import tuple_row

from modak.app import App
from modak.catalog import console_login
from modak.catalog.explain import Route, route
from modak.connection import Connection, connect
from modak.core.opening import is_query
from modak.errors import ConnectionFailed, ModakError, UsageError

STATEMENT_CHARACTERS_MAX = 20_000
ROWS_MAX = 500
SECONDS_MAX = 30.0
CELL_CHARACTERS_MAX = 1000
RESULT_BYTES_MAX = 8 * 1024 * 1024
# What a value costs besides its text, in memory and on the page: a million empty ones are not nothing.
_CELL_BYTES = 64
# By which psycopg finds what reads the types that it does not know.
_UNKNOWN_TYPE = 0
_CONNECT_SECONDS = 5


Row = tuple[str | None, ...]
Limit = Literal["rows", "bytes"]


class QueryFailed(ModakError):
    """The query itself is wrong, or took too long."""

    code = "query_failed"


@dataclass(frozen=True)
class Outcome:
    """``engine`` is gateway or postgres; ``truncated_by``: there are more rows than these, which are enough by their number or their size.

    ``values_cut`` are longer than a page shows, and only their beginnings are here.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    truncated_by: Limit | None = None
    values_cut: int = 0
    seconds: float = 0.0
    engine: str = "postgres"
    note: str | None = None
    tiers: tuple[str, ...] = ()
    route: tuple[str, ...] = field(default=())


def check(statement: str) -> str:
    """One query, and nothing that is not one. What the words do is Postgres's to refuse."""
    text = statement.strip().rstrip(";").strip()
    if not text:
        raise UsageError("there is no query", hint="such as: select count(*) from public.orders")
    if len(text) > STATEMENT_CHARACTERS_MAX:
        raise UsageError(f"a query has {STATEMENT_CHARACTERS_MAX:,} characters at most here")
    if "\0" in text:
        raise UsageError("a query cannot hold the character NUL")
    if not is_query(text):
        raise UsageError("only queries run here: SELECT, WITH, VALUES or TABLE", hint="for everything else there is psql")
    return text


@dataclass
class Queries:
    """At most ``together`` at a time; the next one is told to come back."""

    app: App
    rows_max: int = ROWS_MAX
    bytes_max: int = RESULT_BYTES_MAX
    seconds_max: float = SECONDS_MAX
    together: int = 3

    def __post_init__(self) -> None:
        self._places = threading.BoundedSemaphore(self.together)
        self._login: str | None = None
        self._making = threading.Lock()

    @property
    def dsn(self) -> str:
        """What the worker logs in with may see passwords and reach outside of the transaction: it is for nobody to type queries at."""
        given = self.app.settings.console_dsn or self._made_login()
        parts = conninfo.conninfo_to_dict(given)
        return given if "host" in parts or "hostaddr" in parts else conninfo.make_conninfo(self.app.dsn, **parts)

    def _made_login(self) -> str:
        """A login that may only read, made when it is first needed, where the worker's role may make one and there is a secret for it."""
        lacking = UsageError(
            "the SQL page has no role to run queries as",
            hint="set MODAK_CONSOLE_DSN to a login that may only read, or MODAK_CONSOLE_PASSWORD for a worker whose role may create one",
        )
        if not self.app.settings.console_password:
            raise lacking
        with self._making:
            if self._login is None:
                try:
                    with self.app.connection() as connection:
                        self._login = console_login.make(connection, self.app.settings.console_password)
                except psycopg.errors.InsufficientPrivilege as cause:
                    raise lacking from cause
            return self._login

    def run(self, statement: str) -> Outcome:
        text = check(statement)
        if not self._places.acquire(blocking=False):
            raise QueryFailed(f"{self.together} queries run already", hint="try again when one of them has ended")
        try:
            outcome = self._run(text)
            found = self._route(text)
            return replace(outcome, tiers=tuple(found.tiers), route=found.lines)
        finally:
            self._places.release()

    def explain(self, statement: str) -> Route:
        return self._route(check(statement))

    def _run(self, text: str) -> Outcome:
        try:
            with self._opened(self._gateway_dsn()) as connection:
                return replace(self._read(connection, text), engine="gateway")
        except ConnectionFailed:
            note = "the gateway does not answer, so Postgres ran it alone; cold rows need the gateway"
        with self._opened(self.dsn) as connection:
            return replace(self._read(connection, text), engine="postgres", note=note)

    def _gateway_dsn(self) -> str:
        host, port = self.app.settings.gateway
        near = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
        return conninfo.make_conninfo(self.dsn, host=near, port=port, hostaddr=None)

    @contextmanager
    def _opened(self, dsn: str) -> Iterator[Connection]:
        with connect(dsn, application="modak-console", autocommit=True, connect_timeout=_CONNECT_SECONDS) as connection:
            yield connection

    def _read(self, connection: Connection, text: str) -> Outcome:
        began = time.monotonic()
        timer = threading.Timer(self.seconds_max, lambda: connection.cancel_safe(timeout=5))
        timer.daemon = True
        timer.start()
        try:
            self._begin(connection)
            return replace(self._rows(connection, text), seconds=time.monotonic() - began)
        except psycopg.errors.QueryCanceled as cause:
            raise QueryFailed(f"the query was ended after {self.seconds_max:g} s", hint="narrow it down, or run it in psql") from cause
        except psycopg.Error as cause:
            raise _failed(cause) from cause
        finally:
            timer.cancel()

    def _begin(self, connection: Connection) -> None:
        connection.execute("begin transaction isolation level repeatable read read only")
        connection.execute(f"set local statement_timeout = {int(self.seconds_max * 1000)}")
        connection.execute("set local search_path = public, pg_catalog")
        # With a snapshot the transaction stays read only, whatever the query says.
        connection.execute("select 1 from pg_catalog.pg_class limit 1")

    def _rows(self, connection: Connection, text: str) -> Outcome:
        found: list[Row] = []
        size = 0
        ended_by: Limit | None = None
        with connection.cursor(row_factory=tuple_row) as cursor:
            _as_text(cursor)
            stream = cursor.stream(text.encode())
            try:
                for row in stream:
                    size += sum(map(_bytes, row))
                    ended_by = "rows" if len(found) == self.rows_max else "bytes" if size > self.bytes_max else None
                    if ended_by is not None:
                        break
                    found.append(row)
            finally:
                stream.close()  # type: ignore[attr-defined]
            cut = sum(_is_cut(value) for row in found for value in row)
            return Outcome(_columns(cursor), tuple(found), ended_by, cut)

    def _route(self, text: str) -> Route:
        """By what ``modak explain`` prints; without a gateway that is Postgres's own plan."""
        try:
            with self._opened(self.dsn) as connection:
                self._begin(connection)
                return route(connection, text)
        except UsageError:
            raise
        except (ModakError, psycopg.Error) as cause:
            return Route((f"no route: {str(cause).splitlines()[0]}",))


def _as_text(cursor: psycopg.Cursor[Any]) -> None:
    """Values as Postgres prints them: Python has no dates before our era, nor infinite ones."""
    cursor.adapters.register_loader(_UNKNOWN_TYPE, _Text)
    for known in psycopg.adapters.types:
        for oid in (known.oid, known.array_oid):
            cursor.adapters.register_loader(oid, _Text)


class _Text(Loader):
    """As much of a value as is shown. The rest is not kept: a few hundred large ones would be all of the leader's memory."""

    def load(self, data: Buffer) -> str:
        # A character has four bytes at most, so that the last one shown is whole.
        text = bytes(data[: 4 * (CELL_CHARACTERS_MAX + 1)]).decode(errors="replace")
        return text if len(text) <= CELL_CHARACTERS_MAX else text[:CELL_CHARACTERS_MAX] + "…"


def _is_cut(value: str | None) -> bool:
    return value is not None and len(value) > CELL_CHARACTERS_MAX


def _bytes(value: str | None) -> int:
    return _CELL_BYTES + (len(value.encode()) if value is not None else 0)


def _columns(cursor: psycopg.Cursor[Any]) -> tuple[str, ...]:
    return tuple(column.name for column in cursor.description or ())


def _failed(cause: psycopg.Error) -> QueryFailed:
    diagnosis = cause.diag
    message = diagnosis.message_primary or str(cause).strip() or type(cause).__name__
    more = {"sqlstate": diagnosis.sqlstate, "detail": diagnosis.message_detail, "position": diagnosis.statement_position}
    return QueryFailed(message, hint=diagnosis.message_hint, **{name: value for name, value in more.items() if value})
