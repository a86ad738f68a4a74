"""SERIALIZABLE on decoupled tables: what a transaction read must be there still when it commits what it wrote.

Nobody keeps track of the rows that were read, so it goes by whole tables. With the turns of all of them in hand nobody of the mesh commits
between the look and the commit: the transaction is as if it had happened then, all at once. One that only reads is as of its moment.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from modak.errors import ModakError, Retry
from modak.gateway.decoupled.base import Base
from modak.gateway.decoupled.pending import Pending
from modak.gateway.decoupled.transaction import LakeTransaction, WriterWaits
from modak.gateway.decoupled.waiting import Deadlock

# Two that wait for each other are a conflict. One of them gives up first, and the other goes on.
_PATIENCE_SECONDS = (2.0, 6.0)


class Conflict(ModakError):
    """What this transaction read or changed was changed by another one that committed first."""

    code = "serialization_failure"
    sqlstate = "40001"
    retry = Retry.NOW

    @classmethod
    def on(cls, pending: Pending) -> Conflict:
        return cls(f"could not serialize access to {pending.definition.name} due to concurrent update", hint="run the transaction again")


def read_tables(transaction: LakeTransaction) -> list[Pending]:
    """Those whose rows it has seen, and that were there before it; none where it did not ask for so much."""
    if not transaction.is_serializable:
        return []
    found = [pending for pending in transaction.pendings.values() if pending.is_read and pending.base is not None]
    return [pending for pending in found if not transaction.is_dropped(pending.definition.table_id)]


def claim(transaction: LakeTransaction, pendings: Sequence[Pending], *, read: Sequence[Pending]) -> None:
    """The turns at these tables, in an order that is everybody's, and at those that were only ``read``."""
    wanted = {pending.definition.ref: pending for pending in (*read, *pendings)}
    writing = {pending.definition.ref for pending in pendings}
    for ref in sorted(wanted):
        patience = None if ref in writing else random.uniform(*_PATIENCE_SECONDS)  # noqa: S311
        try:
            transaction.claim(wanted[ref].definition, patience)
        except (WriterWaits, Deadlock) as cause:
            if patience is None and not (transaction.is_serializable and isinstance(cause, Deadlock)):
                raise
            raise Conflict.on(wanted[ref]) from cause


def check(transaction: LakeTransaction, read: Sequence[Pending]) -> None:
    for pending in read:
        table = transaction.world.lake(pending.definition.profile).load(pending.definition.ref)
        if pending.base is not None and not has_stayed(table, pending.base):
            raise Conflict.on(pending)


def has_stayed(table: Table, base: Base) -> bool:
    """Whether the rows are those that were read: since then files were written anew at most."""
    current = table.current_snapshot()
    while current is not None and current.snapshot_id != base.snapshot_id:
        if current.summary is None or current.summary.operation != Operation.REPLACE:
            return False
        current = table.snapshot_by_id(current.parent_snapshot_id) if current.parent_snapshot_id is not None else None
    return (current.snapshot_id if current is not None else None) == base.snapshot_id
