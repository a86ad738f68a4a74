"""``modak.query`` and ``modak_explain`` inside Postgres: a foreign table whose rows are the answer to the query it is asked for.

Postgres asks twice: for the columns, to know what to cast to, and for the rows, each an array of texts. No columns means that the lake
declined, and then the function runs the statement in Postgres itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor

import pyarrow as pa
from sqlglot import exp

from modak.errors import ModakError, Retry
from modak.gateway.analytics.interceptor import LakeInterceptor
from modak.gateway.dialect.remote import parse_remote, substitute
from modak.gateway.fdw.authority import COLUMN
from modak.gateway.interception import Answer, Caller
from modak.gateway.own_session import OwnSession
from modak.gateway.wire.messages import Decoder, parse_data_row
from modak.gateway.wire.rows import encode_text

_FROM = re.compile(r"\bFROM\s+modak\.query\b")
_ROW_BYTES_MAX = (1 << 31) - 1


class Unasked(ModakError):
    """Somebody reads modak.query without saying what."""

    code = "unasked_query"
    sqlstate = "55000"


def asked(sql: str, values: Sequence[str | None]) -> dict[str, str] | None:
    """What a remote SELECT on modak.query asks for, which comes as hexadecimal digits; None for any other table."""
    if not _FROM.search(sql):
        return None
    found: dict[str, str] = {}
    for node in substitute(parse_remote(sql), values).conjuncts:
        if isinstance(node, exp.EQ) and isinstance(node.this, exp.Column):
            text = next(iter(node.expression.find_all(exp.Literal)), None)
            if text is not None:
                told = str(text.this) if node.this.name in ("kind", COLUMN) else bytes.fromhex(str(text.this)).decode()
                if found.setdefault(node.this.name, told) != told:
                    raise Unasked(f"modak.query was asked with two values for {node.this.name}")
    return found


class Overtaken(ModakError):
    """What could be answered a moment ago cannot be now."""

    code = "overtaken_query"
    sqlstate = "40001"
    retry = Retry.NOW


def _caller(role: str, path: str) -> Caller:
    """``path``: the schemas that the caller's names are looked up in, as JSON, and what he chose about mirrored tables."""
    schemas, reads, wait = [*path.split("\x1f"), "", ""][:3]
    try:
        found = json.loads(schemas)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) and "\0" not in one for one in found):
        raise Unasked("modak.query was read without a list of schemas", hint="run `modak migrate`, and call modak.query itself")
    return Caller(role, tuple(found), reads, wait)


class WholeQueries:
    def __init__(self, dsn: str, interceptor: LakeInterceptor, executor: Executor) -> None:
        self._dsn = dsn
        self._interceptor = interceptor
        self._executor = executor

    async def open(self, wanted: dict[str, str]) -> WholeCursor:
        if not {"kind", "sql", "caller", "path"} <= wanted.keys():
            raise Unasked("modak.query was read without a query", hint="select * from modak.query('select …') as t(…)")
        caller = _caller(wanted["caller"], wanted["path"])
        session = OwnSession(self._dsn, caller, self._executor)
        if caller.reads:
            self._interceptor.note_choice()
        try:
            return await self._answered(wanted["kind"], wanted["sql"], session)
        except BaseException:
            session.close()
            raise

    async def _answered(self, kind: str, sql: str, session: OwnSession) -> WholeCursor:
        if kind == "explain":
            route = await self._interceptor.describe_route(sql, session)
            lines = [f"engine: {route.engine}"] + ([f"reason: {route.reason}"] if route.reason else [])
            for relation in route.relations:
                lines.append(
                    f"{relation.name}: T = {relation.tier_key_hi}, S = {relation.snapshot}; cold {relation.cold_rows} rows in "
                    f"{relation.cold_files} files ({relation.cold_bytes} bytes), hot about {relation.hot_rows} rows, "
                    f"{relation.delta_rows} corrections"
                )
            return WholeCursor(session, None, [[line] for line in lines])
        candidate = self._interceptor.candidate(sql)
        answer = await self._interceptor.answer(candidate, session, ()) if candidate is not None else None
        if answer is None and kind == "rows":
            # It was there when the columns were asked for; nothing at all would be taken for no rows.
            raise Overtaken("the lake cannot answer this any more", hint="run the statement again")
        if answer is None:
            return WholeCursor(session, None, [])
        if kind == "columns":
            names = session.type_names(answer.fields)
            answer.close()
            return WholeCursor(session, None, [names])
        return WholeCursor(session, answer, [])


class WholeCursor:
    """Rows of arrays. One pass: a rescan of modak.query materialises in Postgres."""

    def __init__(self, session: OwnSession | None, answer: Answer | None, rows: Sequence[Sequence[str | None]]) -> None:
        self._session = session
        self._answer = answer
        self._rows: Iterator[str] = map(array_text, rows) if answer is None else self._answered(answer)
        self.columns = 1

    def _answered(self, answer: Answer) -> Iterator[str]:
        decoder = Decoder(_ROW_BYTES_MAX)
        for block in answer.encoded(()):
            decoder.feed(block)
            while (message := decoder.next()) is not None:
                yield array_text([None if value is None else value.decode() for value in parse_data_row(message)])

    def fetch(self, count: int) -> tuple[list[memoryview], int, int]:
        taken = [row for row, _ in zip(self._rows, range(count), strict=False)]
        if not taken:
            return [], 0, 1
        return [encode_text(pa.record_batch([pa.array(taken, pa.string())], names=["vals"]))], len(taken), 1

    def rewind(self) -> None:
        raise Unasked("modak.query cannot be read twice", hint="put it into a materialized CTE")

    def cancel(self) -> None:
        if self._answer is not None:
            self._answer.cancel()

    def close(self) -> None:
        try:
            if self._answer is not None:
                self._answer.close()
        finally:
            if self._session is not None:
                self._session.close()


def array_text(values: Sequence[str | None]) -> str:
    """A one-dimensional array of texts in Postgres's own spelling."""

    def element(value: str | None) -> str:
        if value is None:
            return "NULL"
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + ",".join(map(element, values)) + "}"
