"""Rows of modak.decoupled: tables whose rows are in the lake only."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.core.decoupled import Definition
from modak.core.table import Name
from modak.errors import ModakError


def get(connection: Connection, table_id: int) -> Definition | None:
    """By the number in the foreign table's options."""
    row = connection.execute(SQL.query("find_decoupled"), {"table_id": table_id}).fetchone()
    return Definition.parse(row) if row else None


def listing(connection: Connection) -> list[Definition]:
    """Those that there is a foreign table of, by its name of now."""
    return [Definition.parse(row) for row in connection.execute(SQL.query("list_decoupled")).fetchall()]


def find(connection: Connection, name: Name) -> Definition | None:
    return next((definition for definition in listing(connection) if definition.name == name), None)


def problems(connection: Connection, definition: Definition) -> list[dict[str, Any]]:
    """Jobs that do not get on, and commits that Postgres rolled back and that stay in the lake."""
    return connection.execute(SQL.query("list_lake_problems"), {"ref": definition.ref, "profile": definition.profile}).fetchall()


def not_followed(connection: Connection) -> list[dict[str, Any]]:
    """Tables that other nodes of the mesh made, or dropped, and why that is not so here."""
    return connection.execute(SQL.query("list_not_followed")).fetchall()


def report(connection: Connection, table_id: int, job: str, error: ModakError, seconds: float) -> None:
    """Why a job did not get on, until ``clear``; it is tried again after so many seconds."""
    known = {"code": error.code, "message": str(error), "hint": error.hint}
    connection.execute(SQL.query("report_upkeep_problem"), {"table_id": table_id, "job": job, "seconds": seconds, **known})


def clear(connection: Connection, table_id: int, job: str) -> None:
    connection.execute(SQL.query("clear_upkeep_problem"), {"table_id": table_id, "job": job})


def clear_others(connection: Connection, ids: Collection[int], job: str) -> None:
    connection.execute(SQL.query("keep_upkeep_problems"), {"ids": list(ids), "job": job})
