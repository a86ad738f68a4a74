"""Rows of modak.mirrors and modak.copy_progress: how far a mirrored table is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from modak.catalog.migrate import SQL
from modak.connection import Connection
from modak.errors import CutlineMoved, NotRegistered


@dataclass(frozen=True)
class Mirror:
    """``copied_lsn``: where the copy stood. Without one, and without a copy under way, registration broke off."""

    table_id: int
    applied_lsn: int
    copied_lsn: int | None
    shapes: Sequence[Mapping[str, Any]]
    leaves: Sequence[Mapping[str, Any]]
    is_parked: bool
    is_copying: bool

    @property
    def is_followed(self) -> bool:
        return self.copied_lsn is not None and not self.is_parked and not self.is_copying


@dataclass(frozen=True)
class Copy:
    """An initial copy under way. ``ranges`` say of each chunk whether it is done."""

    consistent_lsn: int
    ranges: Sequence[Mapping[str, Any]]


def _from_row(row: Mapping[str, Any]) -> Mirror:
    return Mirror(
        row["table_id"],
        row["applied_lsn"],
        row["copied_lsn"],
        row["shapes"],
        row["leaves"],
        row["parked_at"] is not None,
        row["copying"],
    )


def insert(connection: Connection, table_id: int) -> None:
    """From now on the slot keeps what this table needs. Again for the same table: it starts over."""
    connection.execute(SQL.query("insert_mirror"), {"table_id": table_id})


def get(connection: Connection, table_id: int) -> Mirror:
    row = connection.execute(SQL.query("read_mirror"), {"table_id": table_id}).fetchone()
    if row is None:
        raise NotRegistered("the table is not mirrored, or was unregistered meanwhile", table_id=table_id)
    return _from_row(row)


def listing(connection: Connection, slot: str) -> list[Mirror]:
    return [_from_row(row) for row in connection.execute(SQL.query("list_mirrors"), {"slot": slot}).fetchall()]


def lowest_applied(connection: Connection, slot: str) -> int | None:
    row = connection.execute(SQL.query("lowest_applied"), {"slot": slot}).fetchone()
    return row["lsn"] if row else None


def lags(connection: Connection) -> list[dict[str, Any]]:
    """Every mirrored table: its F, how far it is behind, and what its slot keeps."""
    return connection.execute(SQL.query("list_mirror_lags")).fetchall()


def follow(connection: Connection, mirror: Mirror, lsn: int) -> None:
    """The table is at ``lsn`` now, and F says so. Within the caller's transaction."""
    values = {"table_id": mirror.table_id, "lsn": lsn, "expected": mirror.applied_lsn}
    if connection.execute(SQL.query("follow_stream"), values).rowcount != 1:
        raise CutlineMoved("the mirror moved during the operation", expected=mirror.applied_lsn)
    connection.execute(SQL.query("set_frontier"), values)


def start_following(connection: Connection, table_id: int, *, lsn: int, leaves: list[Any], shapes: list[Any]) -> None:
    """The copy is complete, as of ``lsn``, and F says so."""
    values = {"table_id": table_id, "lsn": lsn, "leaves": Jsonb(leaves), "shapes": Jsonb(shapes)}
    connection.execute(SQL.query("start_following"), values)
    connection.execute(SQL.query("set_frontier"), values)


def save_shapes(connection: Connection, table_id: int, shapes: Sequence[Any]) -> None:
    connection.execute(SQL.query("save_shapes"), {"table_id": table_id, "shapes": Jsonb(list(shapes))})


def save_leaves(connection: Connection, table_id: int, leaves: Sequence[Any]) -> None:
    connection.execute(SQL.query("save_leaves"), {"table_id": table_id, "leaves": Jsonb(list(leaves))})


def park(connection: Connection, table_id: int) -> None:
    connection.execute(SQL.query("park_mirror"), {"table_id": table_id})


def start_copy(connection: Connection, table_id: int, lsn: int, ranges: list[Any]) -> None:
    connection.execute(SQL.query("start_copy"), {"table_id": table_id, "lsn": lsn, "ranges": Jsonb(ranges)})
    connection.execute(SQL.query("set_frontier"), {"table_id": table_id, "lsn": None})


def find_copy(connection: Connection, table_id: int) -> Copy | None:
    row = connection.execute(SQL.query("read_copy"), {"table_id": table_id}).fetchone()
    return Copy(row["consistent_lsn"], row["ranges"]) if row else None


def note_chunks(connection: Connection, table_id: int, numbers: Sequence[int]) -> None:
    """These chunks are in the lake. Within the caller's transaction."""
    copy = find_copy(connection, table_id)
    if copy is None:
        raise CutlineMoved("the copy was given up meanwhile", table_id=table_id)
    ranges = [{**one, "done": one["done"] or number in set(numbers)} for number, one in enumerate(copy.ranges)]
    done = sum(bool(one["done"]) for one in ranges)
    connection.execute(SQL.query("note_chunks"), {"table_id": table_id, "ranges": Jsonb(ranges), "chunks_done": done})


def end_copy(connection: Connection, table_id: int) -> None:
    connection.execute(SQL.query("end_copy"), {"table_id": table_id})
