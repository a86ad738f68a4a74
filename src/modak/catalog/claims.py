"""Claims of writers on Iceberg tables: tickets, answers, grants. What each function keeps true is in decision 0038."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from modak.catalog.migrate import SQL
from modak.connection import Connection


@dataclass(frozen=True)
class Drawn:
    """A ticket. Not granted, it has to be waited for."""

    ticket: int
    node: str
    is_granted: bool


@dataclass(frozen=True)
class Verdict:
    """``state`` is granted, behind, waiting, split or lost; ``missing`` are peers whose answer is waited for."""

    state: str
    missing: tuple[str, ...]


def settle(connection: Connection) -> None:
    """Make a session fit to hold claims, whatever the database's own settings are."""
    connection.execute(SQL.query("settle_session"))


def draw(connection: Connection, table: str) -> Drawn:
    return Drawn(**_one(connection, "draw_ticket", iceberg_table=table))


def grant(connection: Connection, table: str, ticket: int, *, look: bool) -> Verdict:
    """``look`` also for dead writers and silent peers, which costs more than looking for answers."""
    row = _one(connection, "grant_claim", iceberg_table=table, ticket=ticket, look=look)
    return Verdict(row["state"], tuple(row["missing"]))


def ask_again(connection: Connection, table: str, ticket: int) -> None:
    _one(connection, "ask_again", iceberg_table=table, ticket=ticket)


def release(connection: Connection, table: str, ticket: int) -> bool:
    """False where the claim was gone already."""
    return bool(_one(connection, "release_claim", iceberg_table=table, ticket=ticket)["was_there"])


def holds(connection: Connection, table: str, ticket: int) -> bool:
    return bool(_one(connection, "holds_claim", iceberg_table=table, ticket=ticket)["held"])


def tend(connection: Connection) -> list[str]:
    """Look at the peers, reap what dead writers left; the subscriptions that still wait for their peer."""
    return [row["subscription"] for row in connection.execute(SQL.query("tend_node")).fetchall()]


def alive_window(connection: Connection) -> float:
    """Seconds."""
    return float(_one(connection, "read_alive_window")["seconds"])


def _one(connection: Connection, query: str, **parameters: Any) -> dict[str, Any]:
    row = connection.execute(SQL.query(query), parameters).fetchone()
    assert row is not None
    return row
