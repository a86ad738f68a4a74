"""Why a statement is not run in DuckDB, and what DuckDB's own run-time errors mean to a Postgres client."""

from __future__ import annotations

import re
from dataclasses import dataclass


class Untranslatable(Exception):
    """DuckDB is not known to answer this exactly as Postgres does; whoever asked runs it in Postgres."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class RuntimeProblem:
    """A failed DuckDB query in Postgres's words.

    ``sqlstate`` is None where DuckDB met a limit of its own (38 decimal digits, the year 294247): Postgres has an answer, so the
    statement is run there instead.
    """

    sqlstate: str | None
    message: str


_RAISED = re.compile(r"(?P<sqlstate>[0-9A-Z]{5}): (?P<message>[^\n]*)")
_INTEGER = {"INT16": "smallint", "INT32": "integer", "INT64": "bigint"}
_OVERFLOW = re.compile(r"Overflow (?:in \w+ of (?P<type>INT16|INT32|INT64)\b|in \w+ of (?:numeric value|-?\d+ / -?\d+)|on abs)")
_NARROWING = re.compile(
    r"Type (?:INT\d+|DOUBLE|FLOAT|DECIMAL\S*|\w*INT) with value \S+ can't be cast .*destination type (?P<type>INT16|INT32|INT64)", re.DOTALL
)
# How translated SQL says that DuckDB cannot give this row's value exactly.
NEEDS_POSTGRES = "MODAK"


def runtime_problem(message: str) -> RuntimeProblem:
    """What DuckDB's message of a failed translated query means. Anything unknown is a limit of DuckDB's, never an answer."""
    text = message.split("Error: ", 1)[-1]
    raised = _RAISED.match(text)
    if raised:
        sqlstate = raised["sqlstate"]
        return RuntimeProblem(None if sqlstate == NEEDS_POSTGRES else sqlstate, raised["message"])
    overflow = _OVERFLOW.search(text) or _NARROWING.search(text)
    if overflow:
        return RuntimeProblem("22003", f"{_INTEGER.get(overflow['type'] or '', 'value')} out of range")
    if "More than one row returned by a subquery" in text:
        return RuntimeProblem("21000", "more than one row returned by a subquery used as an expression")
    return RuntimeProblem(None, text)
