"""Why a job of a table does not get on: shown by ``modak status`` until the job succeeds."""

from __future__ import annotations

from psycopg.types.json import Jsonb

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.errors import ModakError


def report(connection: Connection, table_id: int, job: str, error: ModakError) -> None:
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
