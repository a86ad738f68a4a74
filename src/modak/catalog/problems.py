"""Why a job of a table does not get on: shown by ``modak status`` until the job succeeds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
from psycopg.types.json import Jsonb

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.core.schedule import backoff_seconds
from modak.errors import LeadershipLost, ModakError


@contextlib.contextmanager
def reported(connection: Connection, table_id: int, job: str) -> Iterator[None]:
    """A pass of a job: what fails is written down and raised, and what succeeds ends the problem."""
    try:
        yield
    except ModakError as error:
        report(connection, table_id, job, error)
        raise
    clear(connection, table_id, job)


def report(connection: Connection, table_id: int, job: str, error: ModakError) -> None:
    if isinstance(error, LeadershipLost):
        # Nobody's problem: the worker that leads now does it.
        return
    connection.execute(
        SQL.query("report_problem"),
        {
            "table_id": table_id,
            "job": job,
            "code": error.code,
            "message": str(error),
            "hint": error.hint,
            "details": Jsonb({name: str(value) for name, value in error.facts.items()}),
        },
    )


def clear(connection: Connection, table_id: int, job: str) -> None:
    connection.execute(SQL.query("clear_problem"), {"table_id": table_id, "job": job})


def postpone(connection: Connection, table_id: int, job: str, error: ModakError, seconds: float) -> None:
    """A worker backs off. The job has written down why it failed, unless it could not; then ``error`` is all that is known."""
    found = connection.execute(SQL.query("postpone_problem"), {"table_id": table_id, "job": job, "seconds": seconds}).fetchone()
    if found is None:
        report(connection, table_id, job, error)
        connection.execute(SQL.query("postpone_problem"), {"table_id": table_id, "job": job, "seconds": seconds})


def as_ours(cause: Exception) -> ModakError:
    """Whatever a job raised, as an error that can be written down."""
    if isinstance(cause, ModakError):
        return cause
    kind = "Postgres refused" if isinstance(cause, psycopg.Error) else type(cause).__name__
    return ModakError(f"{kind}: {str(cause).strip()}", hint="the worker's log has the rest")


def back_off(connection: Connection, table_id: int, job: str, cycle_seconds: float, most: float) -> None:
    """What was reported just now is not tried again for a while, longer with each failure of its kind in a row."""
    row = connection.execute(SQL.query("count_attempts"), {"table_id": table_id, "job": job}).fetchone()
    seconds = backoff_seconds(int(row["attempts"]) if row else 0, cycle_seconds, most)
    connection.execute(SQL.query("postpone_problem"), {"table_id": table_id, "job": job, "seconds": seconds})


def postponed(connection: Connection, table_id: int, job: str) -> str | None:
    """Why the job is not tried now, and until when; None if it may be."""
    row = connection.execute(SQL.query("find_postponed"), {"table_id": table_id, "job": job}).fetchone()
    return f"not tried again before {row['next_attempt']:%H:%M:%S} UTC: {row['message']}" if row else None
