"""Mirrored tables on the gateway's port. Their heap is complete, and by default Postgres answers; a session may choose the lake.

``modak.mirrored_reads`` says so: ``lake`` takes the newest moment that all tables of the statement have in common, however old, and
``hybrid`` waits, not for long, until that moment is not older than the statement. Either way a notice says which moment it was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from modak.connection import Connection, connect
from modak.core.mirror_reads import HEAP, HYBRID, LAKE
from modak.gateway.analytics.reader import Reader
from modak.gateway.analytics.relations import RegisteredRelation
from modak.sqlfiles import trusted

CHOICES = (HEAP, LAKE, HYBRID)
WAIT_STEP_SECONDS = 0.03
_NOW = "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint as lsn"
_PARKED = "select exists (select from modak.mirrors m where m.table_id = any (%(ids)s) and m.parked_at is not null) as found"


@dataclass(frozen=True)
class Found:
    """A table at the statement's moment; ``behind_bytes`` of WAL came since, and it is ``behind_seconds`` old: 0 if nothing came."""

    lsn: int
    sequence_number: int | None
    metadata_location: str
    behind_bytes: int
    behind_seconds: float


def choice(reads: str, relations: Sequence[RegisteredRelation]) -> str:
    """What the session says, or else the tables' registration."""
    if reads:
        return reads if reads in CHOICES else HEAP
    return HYBRID if all(relation.is_hybrid for relation in relations) else HEAP


def passes(dsn: str, ids: Sequence[int], seconds_max: float) -> int | None:
    """Wait until these tables have in the lake, at one moment, what is committed now, and return what that is; None if it takes too long.

    Each of them being further on is not enough: in the midst of a pass they are so at different places.
    """
    until = time.monotonic() + seconds_max
    with connect(dsn, application="modak-gateway", autocommit=True) as connection:
        now = connection.execute(_NOW).fetchone()
        while now is not None:
            moment = connection.execute(trusted(moment_sql(ids))).fetchone()
            if moment is not None and moment["lsn"] >= now["lsn"] and not _is_parked(connection, ids):
                return int(now["lsn"])
            if time.monotonic() >= until:
                return None
            time.sleep(WAIT_STEP_SECONDS)
    return None


def _is_parked(connection: Connection, ids: Sequence[int]) -> bool:
    row = connection.execute(_PARKED, {"ids": list(ids)}).fetchone()
    return row is None or bool(row["found"])


def moment_sql(ids: Sequence[int]) -> str:
    """The newest place in the WAL that all of these tables have in the lake: where they stand, or where they were tagged."""
    wanted = ", ".join(f"({int(one)})" for one in ids)
    return (
        f"with wanted (table_id) as (values {wanted}), known as ("  # noqa: S608
        "select c.table_id, c.replicated_lsn as lsn, c.lake_snapshot_id, c.lake_props, coalesce(m.as_of, m.updated_at) as as_of "
        "from modak.cutline c join modak.mirrors m using (table_id) join wanted using (table_id) "
        "where c.replicated_lsn is not null union all "
        "select g.table_id, g.lsn, g.lake_snapshot_id, g.lake_props, coalesce((g.lake_props ->> 'as_of')::timestamptz, g.created_at) "
        "from modak.mirror_tags g join wanted using (table_id)"
        "), common as (select lsn from known group by lsn having count(distinct table_id) = (select count(*) from wanted) "
        "order by lsn desc limit 1) "
        "select distinct on (k.table_id) k.table_id::int8, k.lsn, k.lake_snapshot_id, k.lake_props ->> 'metadata_location', "
        "(pg_catalog.pg_current_wal_insert_lsn() - '0/0'::pg_catalog.pg_lsn)::int8 - k.lsn, "
        "extract(epoch from clock_timestamp() - k.as_of)::float8 "
        "from known k join common using (lsn) order by k.table_id, k.lake_snapshot_id desc nulls last"
    )


def read_moment(reader: Reader, relations: Sequence[RegisteredRelation]) -> dict[int, Found]:
    """By table; empty where the tables have no moment in common."""
    rows = reader.planned_rows(moment_sql([relation.table_id for relation in relations]))
    return {row[0]: _found(*row[1:]) for row in rows}


def _found(lsn: int, sequence_number: int | None, location: str | None, behind_bytes: int, seconds: float) -> Found:
    # Where nothing was written since, nothing is late.
    return Found(lsn, sequence_number, location or "", max(0, behind_bytes), max(0.0, seconds) if behind_bytes > 0 else 0.0)


def told(found: Found, relations: Sequence[RegisteredRelation]) -> str:
    names = ", ".join(sorted(str(relation.name) for relation in relations))
    place = f"{found.lsn >> 32:X}/{found.lsn & 0xFFFFFFFF:X}"
    return f"{names} read from the lake as of {place}, {found.behind_bytes} bytes of WAL and {found.behind_seconds:.1f} s ago"
