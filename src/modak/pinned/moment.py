"""One moment of several mirrored tables: a place in the WAL that all of them have in the lake, with a pin on each.

Where all of them stand at the same F, that is it. While a pass is publishing one after the other, it is the newest place that has tags.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from modak.catalog import migrate, profiles, tables
from modak.catalog.tables import Registered
from modak.connection import Connection, connect
from modak.core.profile import Profile
from modak.errors import ModakError, Refused, Retry, UsageError
from modak.pinned.pin import TTL, Pin, kept
from modak.source.relation import parse_name

ATTEMPTS_MAX = 5

# The newest place first. A table's F has no tag before the pass ends.
_FIND = """
with wanted as (select unnest(%(ids)s::bigint[]) as table_id), known as (
    select c.table_id, c.replicated_lsn as lsn, c.lake_snapshot_id, c.lake_props from modak.cutline c join wanted using (table_id)
     where c.replicated_lsn is not null
    union
    select g.table_id, g.lsn, g.lake_snapshot_id, g.lake_props from modak.mirror_tags g join wanted using (table_id)
), common as (
    select lsn from known group by lsn having count(distinct table_id) = (select count(*) from wanted) order by lsn desc limit 1
)
select distinct on (k.table_id) k.* from known k join common using (lsn) order by k.table_id, k.lake_snapshot_id desc nulls last
"""
_PIN = """
insert into modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at, holds_delta)
select c.table_id, %(snapshot)s, c.tier_key_hi, now() + %(ttl)s::interval, false from modak.cutline c where c.table_id = %(table_id)s
returning pin_id, pinned_tier_key_hi as t, extract(epoch from expires_at - now())::float8 as seconds
"""


class NoMoment(ModakError):
    """The tables have no place in the WAL in common yet."""

    code = "no_moment"
    retry = Retry.LATER


@dataclass(frozen=True)
class Member:
    """A table at the moment. ``pin`` points to the snapshot; it has none if the table never had a row."""

    table: Registered
    profile: Profile
    pin: Pin


@dataclass(frozen=True)
class Moment:
    """``lsn``: every transaction that committed before this place is in all of the members, and no other is in any."""

    lsn: int
    members: tuple[Member, ...]


@contextlib.contextmanager
def moment(dsn: str, names: Sequence[str], *, ttl: str = TTL) -> Iterator[Moment]:
    """Hold several mirrored tables at one moment for the length of the block."""
    with connect(dsn, application="modak-pin", autocommit=True) as connection, contextlib.ExitStack() as stack:
        migrate.require_current(connection)
        listed = [tables.get(connection, parse_name(name)) for name in names]
        _refuse(listed)
        found = _pin(connection, listed, ttl)
        for member in found.members:
            stack.enter_context(kept(dsn, connection, member.pin, ttl))
        yield found


def _refuse(listed: Sequence[Registered]) -> None:
    if not listed or len({table.table_id for table in listed}) < len(listed):
        raise UsageError("a moment needs tables, each named once")
    for table in listed:
        if table.mode != "mirrored":
            raise UsageError(f"{table.name} is tiered: its lake has no place in the WAL", hint="pinned_table reads it at its seam")
        if table.has_seam:
            hint = "pinned_table reads it at its seam"
            raise UsageError(f"{table.name} sheds partitions: corrections of its older rows are not of one moment with the rest", hint=hint)


def _pin(connection: Connection, listed: Sequence[Registered], ttl: str) -> Moment:
    """Found and pinned in one snapshot of the catalog; whoever decides later what may go sees the pins."""
    ids = [table.table_id for table in listed]
    for _ in range(ATTEMPTS_MAX):
        try:
            with connection.transaction():
                connection.execute("set transaction isolation level repeatable read")
                rows = {row["table_id"]: row for row in connection.execute(_FIND, {"ids": ids}).fetchall()}
                if len(rows) < len(ids):
                    raise NoMoment(
                        "the tables have no place in the WAL in common",
                        hint="`modak mirror` brings them to one; `modak status` says which of them is parked or being copied",
                    )
                members = tuple(
                    Member(table, profiles.get(connection, table.storage_profile), _pin_one(connection, rows[table.table_id], ttl))
                    for table in listed
                )
        except psycopg.errors.InsufficientPrivilege as cause:
            hint = "a reader needs SELECT on modak's tables, and SELECT, INSERT, UPDATE and DELETE on modak.read_pins"
            raise Refused(f"this role may not pin: {cause.diag.message_primary}", hint=hint) from cause
        lsn = int(next(iter(rows.values()))["lsn"])
        # Not what a pass has let go between our snapshot and our commit.
        again = connection.execute(_FIND, {"ids": ids}).fetchall()
        if again and again[0]["lsn"] >= lsn:
            return Moment(lsn, members)
    raise NoMoment("the tables moved at every attempt to pin them", hint="try again")


def _pin_one(connection: Connection, row: dict[str, Any], ttl: str) -> Pin:
    keys = {"table_id": row["table_id"], "snapshot": row["lake_snapshot_id"], "ttl": ttl}
    pinned = connection.execute(_PIN, keys).fetchone()
    assert pinned is not None
    snapshot = row["lake_props"].get("snapshot_id")
    return Pin(
        pin_id=pinned["pin_id"],
        table_id=row["table_id"],
        tier_key_hi=pinned["t"],
        lake_snapshot_id=row["lake_snapshot_id"],
        metadata_location=row["lake_props"].get("metadata_location"),
        snapshot_id=int(snapshot) if snapshot is not None else None,
        ttl_seconds=pinned["seconds"],
    )
