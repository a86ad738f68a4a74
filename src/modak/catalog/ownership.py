"""Which database this catalog belongs to, and its claim on the lake.

A dump carries the catalog to another database, and a copy has it from the start. The row of ``modak.ownership`` says where the catalog
was at work; where that is not here, nothing may be written to the lake before somebody has said whose it is.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import psycopg

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.errors import DatabaseMoved


@dataclass(frozen=True)
class Home:
    """A database as only it can be named. ``system_id`` is empty where the server does not tell."""

    system_id: str
    database_id: int
    database_name: str

    def is_same(self, other: Home) -> bool:
        """By what cannot be changed; a database may be renamed."""
        return (self.system_id, self.database_id) == (other.system_id, other.database_id)

    def __str__(self) -> str:
        return f"{self.database_name} ({self.database_id} of server {self.system_id or 'unknown'})"


@dataclass(frozen=True)
class Ownership:
    """``claim`` is None in a copy that leaves the lake to the other database."""

    claim: str | None
    home: Home


def check_lake(connection: Connection) -> None:
    """Before anything is written to the lake of a decoupled table: raises in a database that was restored or copied."""
    try:
        connection.execute("select modak.check_lake_owner()")
    except psycopg.errors.ObjectNotInPrerequisiteState as cause:
        raise DatabaseMoved(str(cause.diag.message_primary), hint=str(cause.diag.message_hint)) from cause


def here(connection: Connection) -> Home:
    row = connection.execute(SQL.query("may_read_system")).fetchone()
    system = connection.execute(SQL.query("read_system")).fetchone() if row and row["may"] else None
    found = connection.execute(SQL.query("read_database")).fetchone()
    assert found is not None
    return Home(str(system["system_id"]) if system else "", found["database_id"], found["database_name"])


def find(connection: Connection) -> Ownership | None:
    row = connection.execute(SQL.query("read_ownership")).fetchone()
    if row is None:
        return None
    return Ownership(row["claim"], Home(row["system_id"], row["database_id"], row["database_name"]))


def claim(connection: Connection) -> Ownership:
    """What is claimed already, or a claim of this database."""
    found = find(connection)
    if found is None:
        connection.execute(SQL.query("claim_ownership"), _values(new_claim(), here(connection)))
        found = find(connection)
    assert found is not None
    return found


def is_home(connection: Connection) -> bool:
    """Whether this is the very database that the catalog was claimed in: what it says of OIDs is true here."""
    found = find(connection)
    return found is not None and found.home.is_same(here(connection))


def change(connection: Connection, claimed: str | None) -> None:
    """From now on the catalog belongs to this database: with a claim on the lake, or without one."""
    connection.execute(SQL.query("change_ownership"), _values(claimed, here(connection)))


def new_claim() -> str:
    return uuid.uuid4().hex


def _values(claimed: str | None, home: Home) -> dict[str, object]:
    return {"claim": claimed, "system_id": home.system_id, "database_id": home.database_id, "database_name": home.database_name}
