"""Rows of modak.mirrors and modak.copy_progress: how far a mirrored table is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from modak.catalog.migrate import SQL
from modak.catalog.tables import Registered
from modak.connection import Connection
from modak.errors import CutlineMoved, NotRegistered, PartialRegistration

# A table that does not get on and keeps so much WAL is parked, unless its policy says otherwise; a warning comes at half of it.
WAL_BYTES_MAX = 16 * 1024**3


@dataclass(frozen=True)
class Mirror:
    """``copied_lsn``: where the copy stood. Without one, and without a copy under way, registration broke off."""

    table_id: int
    applied_lsn: int
    copied_lsn: int | None
    shapes: Sequence[Mapping[str, Any]]
    leaves: Sequence[Mapping[str, Any]]
    published: str | None
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
    leaves: Sequence[Mapping[str, Any]]
    published: str | None


def insert(connection: Connection, table_id: int) -> None:
    """From now on the slot keeps what this table needs. Again for the same table: it starts over."""
    connection.execute(SQL.query("insert_mirror"), {"table_id": table_id})


def get(connection: Connection, table_id: int) -> Mirror:
    row = connection.execute(SQL.query("read_mirror"), {"table_id": table_id}).fetchone()
    if row is None:
        raise NotRegistered("the table is not mirrored, or was unregistered meanwhile", table_id=table_id)
    return Mirror(
        row["table_id"],
        row["applied_lsn"],
        row["copied_lsn"],
        row["shapes"],
        row["leaves"],
        row["published"],
        row["parked_at"] is not None,
        row["copying"],
    )


def check_registration(connection: Connection, table: Registered) -> None:
    """Raises PartialRegistration where there is neither a frontier nor a copy under way: whoever registered it was killed."""
    row = connection.execute(SQL.query("read_mirror"), {"table_id": table.table_id}).fetchone()
    if row is not None and (row["copied_lsn"] is not None or row["copying"]):
        return
    raise PartialRegistration(
        f"partial registration: {table.name} is registered as mirrored, and was never copied",
        hint=f"`modak register {table.name} …` with the same settings copies it, `modak unregister {table.name}` takes it back",
    )


def lowest_applied(connection: Connection, slot: str) -> int | None:
    row = connection.execute(SQL.query("lowest_applied"), {"slot": slot}).fetchone()
    return row["lsn"] if row else None


def promotion(connection: Connection, table_id: int) -> str | None:
    """What became of the server since the copy, in words; None if it is the same."""
    row = connection.execute(SQL.query("find_promotion"), {"table_id": table_id}).fetchone()
    if row is None:
        return None
    if row["is_other"]:
        return "this is another server than the one it was copied on"
    if row["timeline"] != row["timeline_now"]:
        return f"a standby was promoted (timeline {row['timeline']}, now {row['timeline_now']}), and slots stay behind with the old primary"
    return None


def lags(connection: Connection) -> list[dict[str, Any]]:
    """Every mirrored table: its F, how far it is behind, and what its slot keeps."""
    rows = connection.execute(SQL.query("list_mirror_lags")).fetchall()
    return [{**row, "limit_bytes": wal_limit(row["wal_limit"])} for row in rows]


def wal_limit(chosen: int | None, default: int = WAL_BYTES_MAX) -> int:
    """Bytes of WAL at which a table that does not get on is parked; 0: never."""
    return default if chosen is None else chosen


def follow(connection: Connection, mirror: Mirror, lsn: int, as_of: float | None = None) -> None:
    """The table is at ``lsn`` now, which stands for this time (since 1970; None: now), and F says so. Within the caller's transaction."""
    values = {"table_id": mirror.table_id, "lsn": lsn, "expected": mirror.applied_lsn, "as_of": as_of}
    if connection.execute(SQL.query("follow_stream"), values).rowcount != 1:
        raise CutlineMoved("the mirror moved during the operation", expected=mirror.applied_lsn)
    connection.execute(SQL.query("set_frontier"), values)


def start_following(connection: Connection, table_id: int, *, lsn: int, leaves: list[Any], shapes: list[Any], published: str) -> None:
    """The copy is complete, as of ``lsn``, and F says so."""
    values = {"table_id": table_id, "lsn": lsn, "leaves": Jsonb(leaves), "shapes": Jsonb(shapes), "published": published}
    connection.execute(SQL.query("start_following"), values)
    connection.execute(SQL.query("set_frontier"), values)


def save_shapes(connection: Connection, table_id: int, shapes: Sequence[Any]) -> None:
    connection.execute(SQL.query("save_shapes"), {"table_id": table_id, "shapes": Jsonb(list(shapes))})


def save_leaves(connection: Connection, table_id: int, leaves: Sequence[Any]) -> None:
    connection.execute(SQL.query("save_leaves"), {"table_id": table_id, "leaves": Jsonb(list(leaves))})


def save_published(connection: Connection, table_id: int, published: str) -> None:
    connection.execute(SQL.query("save_published"), {"table_id": table_id, "published": published})


def forget_leaf(connection: Connection, table_id: int, partition_id: int) -> None:
    """Within the transaction that drops the partition."""
    connection.execute(SQL.query("forget_leaf"), {"table_id": table_id, "partition_id": partition_id})


def shed_leaves(connection: Connection, table_id: int, ids: Iterable[int]) -> set[int]:
    """Those of the partitions, by OID, that we dropped."""
    rows = connection.execute(SQL.query("list_shed_leaves"), {"table_id": table_id, "ids": list(ids)}).fetchall()
    return {int(row["partition_id"]) for row in rows}


def is_news(connection: Connection, ids: Sequence[int], lsn: int) -> bool:
    """Whether one of these tables changed since the last moment that has a name."""
    row = connection.execute(SQL.query("has_news"), {"ids": list(ids), "lsn": lsn}).fetchone()
    return bool(row and row["found"])


def kept_tags(connection: Connection, ids: Sequence[int], limit: int) -> list[str]:
    """The newest ones, and those that stay longer: modak.mirror_moments says which."""
    return [row["tag"] for row in connection.execute(SQL.query("kept_tags"), {"ids": list(ids), "limit": limit}).fetchall()]


def tagged(connection: Connection, ids: Sequence[int]) -> set[int]:
    """Those of the tables that have a moment with a name."""
    return {row["table_id"] for row in connection.execute(SQL.query("list_tagged"), {"ids": list(ids)}).fetchall()} if ids else set()


def at_rest(connection: Connection, table_id: int) -> tuple[int | None, int | None]:
    """F, and the Iceberg id of S."""
    row = connection.execute(SQL.query("mirror_at_rest"), {"table_id": table_id}).fetchone()
    return (row["lsn"], row["snapshot"]) if row else (None, None)


def save_tags(connection: Connection, ids: Sequence[int], lsn: int, tag: str) -> None:
    """These tables are at one moment. Within the caller's transaction."""
    connection.execute(SQL.query("save_tags"), {"ids": list(ids), "lsn": lsn, "tag": tag})


def drop_tags(connection: Connection, ids: Sequence[int], keep: int) -> None:
    connection.execute(SQL.query("drop_tags"), {"ids": list(ids), "limit": keep})


def forget_tags(connection: Connection, table_id: int) -> None:
    connection.execute(SQL.query("forget_tags"), {"table_id": table_id})


def park(connection: Connection, table_id: int) -> None:
    connection.execute(SQL.query("park_mirror"), {"table_id": table_id})


def start_copy(connection: Connection, table_id: int, lsn: int, ranges: list[Any], *, leaves: list[Any], published: str) -> None:
    values = {"table_id": table_id, "lsn": lsn, "ranges": Jsonb(ranges), "leaves": Jsonb(leaves), "published": published}
    connection.execute(SQL.query("start_copy"), values)
    connection.execute(SQL.query("set_frontier"), {"table_id": table_id, "lsn": None})


def find_copy(connection: Connection, table_id: int) -> Copy | None:
    row = connection.execute(SQL.query("read_copy"), {"table_id": table_id}).fetchone()
    return Copy(row["consistent_lsn"], row["ranges"], row["leaves"], row["published"]) if row else None


def note_chunks(connection: Connection, table_id: int, numbers: Sequence[int]) -> None:
    """These chunks are in the lake. Within the caller's transaction."""
    copy = find_copy(connection, table_id)
    if copy is None:
        raise CutlineMoved("the copy was given up meanwhile", table_id=table_id)
    now = set(numbers)
    ranges = [{**one, "done": one["done"] or number in now} for number, one in enumerate(copy.ranges)]
    done = sum(bool(one["done"]) for one in ranges)
    connection.execute(SQL.query("note_chunks"), {"table_id": table_id, "ranges": Jsonb(ranges), "chunks_done": done})


def end_copy(connection: Connection, table_id: int) -> None:
    connection.execute(SQL.query("end_copy"), {"table_id": table_id})
