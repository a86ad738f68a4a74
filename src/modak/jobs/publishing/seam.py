"""What every publication shares: the locks, the cut-line's row, and the pins that hold it back.

Writers of the partitions in question are kept out for its length, readers never. Whoever read T before, through a path that acts on it,
holds the shared seam lock and is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from modak.catalog import migrate, operations
from modak.catalog.operations import Operation
from modak.core.cutline import Cutline, advance, retire
from modak.core.operation import Phase
from modak.core.table import Name
from modak.errors import CutlineMoved, ModakError, Retry
from modak.jobs.context import JobContext
from modak.lake.commits import Commit
from modak.source.locks import GiveWay
from modak.source.spill import identifier

SEAM_LOCK = 0x6D64 << 32
PIN_LOCK = 0x6D70 << 32  # as in modak.hold_pin

SQL = migrate.SQL


@dataclass(frozen=True)
class Sealed:
    """A partition of a tiering operation."""

    oid: int
    name: Name
    lower: int
    upper: int

    def as_json(self) -> dict[str, Any]:
        return {"oid": self.oid, "schema": self.name.schema, "name": self.name.name, "lower": self.lower, "upper": self.upper}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sealed:
        return cls(data["oid"], Name(data["schema"], data["name"]), data["lower"], data["upper"])


class Pinned(ModakError):
    """A reader holds the corrections as they are; folding waits for it."""

    code = "pinned"
    retry = Retry.LATER


def refuse_pinned(context: JobContext) -> None:
    """A pinned reader fetches the corrections apart from the snapshot it pinned: clearing them would show it older rows."""
    pin = context.connection.execute(SQL.query("find_pin_on_delta"), {"table_id": context.table_id}).fetchone()
    if pin is not None:
        raise Pinned(
            f"a pin of {pin['holder']} holds the corrections of {context.table.name}",
            hint="it waits until the pin is released or expires",
            expires=str(pin["expires_at"]),
        )
    making = context.connection.execute(
        SQL.query("find_pin_in_the_making"), {"space": PIN_LOCK >> 32, "table_id": context.table_id}
    ).fetchone()
    if making is not None:
        raise _unfinished_pin(context, f"process {making['pid']} ({making['application_name'] or 'without a name'})")


def _unfinished_pin(context: JobContext, who: str) -> Pinned:
    return Pinned(
        f"a transaction of {who} has pinned {context.table.name} and is still open", hint="it waits until that transaction has ended"
    )


def transaction_id(context: JobContext) -> dict[str, int]:
    """The publishing transaction: what it made unreachable waits for everybody who began before it."""
    row = context.connection.execute(SQL.query("current_transaction")).fetchone()
    return {"advance_xid": int(row["xid"]) if row else 0}


def write_line(
    context: JobContext,
    row: Mapping[str, Any],
    tier_key_hi: int,
    commit: Commit | None,
    *,
    changed: bool,
    retention_line: int | None = None,
    move: Callable[..., Cutline] = advance,
) -> None:
    """Write the cut-line's row. ``changed``: rows of the cold tier are others than before. Without a ``retention_line`` R stays."""
    before = Cutline(row["tier_key_hi"], row["lake_snapshot_id"], row["retention_line"], row["replicated_lsn"])
    after = move(before, tier_key_hi=tier_key_hi, snapshot=commit.sequence_number if commit else before.snapshot)
    after = after if retention_line is None else retire(after, retention_line)
    props = {"metadata_location": commit.metadata_location, "snapshot_id": str(commit.snapshot_id)} if commit else row["lake_props"]
    context.connection.execute(
        SQL.query("publish_cutline"),
        {
            "table_id": context.table_id,
            "tier_key_hi": after.tier_key_hi,
            "lake_snapshot_id": after.snapshot,
            "lake_props": Jsonb(props),
            "retention_line": after.retention_line,
            "changed": int(changed),
        },
    )


def hold_seam(context: JobContext) -> None:
    """Alone, and still the one that may: whoever acts on T and S as they are shares this lock."""
    context.fence()
    context.connection.execute("select pg_advisory_xact_lock(%s)", [SEAM_LOCK + context.table_id])


def lock_seam(context: JobContext, names: Sequence[Name]) -> None:
    """The seam, the heap against new partitions, and these partitions against writers."""
    execute = context.connection.execute
    hold_seam(context)
    # Nobody may attach a partition below the new line meanwhile; rows in it would be in neither tier.
    execute(sql.SQL("lock table only {} in share update exclusive mode").format(identifier(context.table.heap)))
    for name in names:
        execute(sql.SQL("lock table {} in share row exclusive mode").format(identifier(name)))


def locked_line(context: JobContext, operation: Operation) -> dict[str, Any]:
    """The cut-line's row, ours until the end of the transaction, and still where the operation found it."""
    row = context.connection.execute(SQL.query("lock_cutline"), {"table_id": context.table_id}).fetchone()
    expected = (operation.details["old_tier_key_hi"], operation.details["old_snapshot"])
    found = (row["tier_key_hi"], row["lake_snapshot_id"]) if row else None
    if row is None or found != expected:
        raise CutlineMoved("the cut-line moved during the operation", table=str(context.table.name), expected=expected, found=found)
    return row


def published(context: JobContext, operation: Operation, details: Mapping[str, Any]) -> Operation:
    """The journal says so in the same transaction; the lake's commit may not have been noted yet."""
    ready = operation if operation.phase is Phase.COMMITTED else operations.move(context.connection, operation, Phase.COMMITTED)
    return operations.move(context.connection, ready, Phase.ADVANCED, details={**details, **transaction_id(context)})


def let_pins_pass(context: JobContext) -> None:
    """Last in a publication, because readers' pins wait here: one that is being made now is seen or sees the result."""
    row = context.connection.execute("select pg_try_advisory_xact_lock(%s) as mine", [PIN_LOCK + context.table_id]).fetchone()
    if row is None or not row["mine"]:
        raise GiveWay(_unfinished_pin(context, "somebody"))
    refuse_pinned(context)
