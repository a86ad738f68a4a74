"""One transaction of Postgres on decoupled tables, from its first statement to its end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from modak.catalog import ownership
from modak.catalog.migrate import SQL
from modak.core.decoupled import Definition
from modak.errors import ClaimCancelled, ModakError, Retry
from modak.gateway.decoupled.base import Base
from modak.gateway.decoupled.moment import Moment
from modak.gateway.decoupled.parcels import Parcel
from modak.gateway.decoupled.pending import Pending
from modak.gateway.decoupled.settled import claim_name
from modak.gateway.decoupled.world import World
from modak.gateway.failures import Cancelled
from modak.lake.iceberg import IcebergLake
from modak.mesh.bakery import Claim

_READ_COMMITTED = "read committed"
_PATIENCE = (0.5, 1.0)
SERIALIZABLE = "serializable"


class WriterWaits(ModakError):
    """Another writer has had the table for too long, or waits for one that this transaction has."""

    code = "writer_waits"
    sqlstate = "55P03"
    retry = Retry.NOW


class TruncateUntold(ModakError):
    """TRUNCATE without a trigger, on a server that gives it no name either."""

    code = "truncate_untold"
    sqlstate = "0A000"


@dataclass(frozen=True)
class Dropped:
    table_id: int
    ref: str
    profile: str
    purge: bool
    op: int


@dataclass(eq=False)
class LakeTransaction:
    """``xid`` is Postgres's name for it and ``isolation`` what the client chose, both known from the first write on, SERIALIZABLE before.

    ``moment`` is when it looked at the first table of the embedded catalog: it reads all of them as they were then.
    """

    world: World
    xid: str | None = None
    isolation: str | None = None
    moment: Moment | None = None
    op: int = 0
    pendings: dict[int, Pending] = field(default_factory=dict)
    made: dict[int, tuple[int, Definition]] = field(default_factory=dict)
    widened: dict[int, list[tuple[int, Definition]]] = field(default_factory=dict)
    """Tables with columns that Postgres will tell others of when it commits."""
    dropped: list[Dropped] = field(default_factory=list)
    claims: dict[str, Claim] = field(default_factory=dict)
    in_flight: bool = False
    """A commit was sent to the lake, and nobody knows what became of it."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    cancels: list[Callable[[], None]] = field(default_factory=list)
    """How to end what other servers are doing for it right now."""
    _savepoints: list[tuple[str, int]] = field(default_factory=list)

    @property
    def is_serializable(self) -> bool:
        return self.isolation == SERIALIZABLE

    def next_op(self) -> int:
        self.op += 1
        return self.op

    def definition(self, table_id: int) -> Definition:
        return self.known_definition(table_id) or self.world.definition(table_id)

    def known_definition(self, table_id: int) -> Definition | None:
        """As it is for this transaction, once that is settled."""
        if table_id in self.made:
            return self.made[table_id][1]
        if table_id in self.widened:
            return self.widened[table_id][-1][1]
        return self.pendings[table_id].definition if table_id in self.pendings else None

    def pending(self, table_id: int) -> Pending:
        """The table as this transaction sees it; the first look at any decides which snapshot that is."""
        if table_id not in self.pendings:
            definition = self.definition(table_id)
            base = None if self.is_new(table_id) else self._base(definition)
            is_steady = base is None or claim_name(base.metadata.table_uuid) in self.claims
            self.pendings[table_id] = Pending(definition, self.world.tables, base, is_steady=is_steady)
        return self.pendings[table_id]

    def is_new(self, table_id: int) -> bool:
        """Made by this transaction: the catalog does not know it yet."""
        return table_id in self.made and not self.definition(table_id).is_attached

    def _base(self, definition: Definition) -> Base:
        """A REST catalog has no moment for several tables, and one that this transaction attaches or widens was not known, or not so."""
        if definition.table_id in self.made or definition.table_id in self.widened or self.world.lake(definition.profile).storage.is_rest:
            return self.world.base(definition)
        self.moment = self.moment or Moment.now(self.world)
        return self.moment.base(definition)

    def begin_write(self, xid: str, isolation: str, table_id: int, operation: str) -> None:
        """Before a statement that writes. Rows that are added need nobody's leave until the end; changes do, and see the newest rows."""
        self.xid, self.isolation = xid, isolation
        if operation not in ("UPDATE", "DELETE", "TRUNCATE") or table_id in self.made:
            return
        definition = self.definition(table_id)
        turns = len(self.claims)
        self.claim(definition)
        # In other isolations what it has seen is what it changes; the commit finds out whether others were there meanwhile.
        if isolation == _READ_COMMITTED:
            self._look_again(table_id if len(self.claims) > turns else None)

    def _look_again(self, claimed: int | None) -> None:
        """A statement sees what is there when it begins: the table whose turn it was given now, and those that it may be joined with."""
        self.moment = None
        for known in self.pendings.values():
            # A statement further out may be going through others by their rows' numbers.
            if known.base is not None and known.only_adds and (known.definition.table_id == claimed or not known.is_numbered):
                known.base = self._base(known.definition)

    def begin_truncate(self, table_ids: Sequence[int]) -> None:
        """Triggers for it come with Postgres 16. Before, the lock that TRUNCATE holds tells who it is, and nothing tells the isolation."""
        told = self.isolation
        for table_id in table_ids:
            if self.xid is None:
                with self.world.connection() as connection:
                    row = connection.execute(SQL.query("truncating_transaction"), {"table_id": table_id}).fetchone()
                    ownership.check_lake(connection)
                if row is None:
                    raise TruncateUntold(
                        "the gateway cannot tell which transaction this TRUNCATE belongs to",
                        hint="DELETE FROM the table instead; on Postgres 15 TRUNCATE needs wal_level replica or logical",
                    )
                self.xid = row["xid"]
            self.begin_write(str(self.xid), told or _READ_COMMITTED, table_id, "TRUNCATE")
        self.isolation = told

    def lock(self, table_id: int) -> bool:
        """SELECT … FOR UPDATE: be its writer, and read what is there now. False if rows have changed since the transaction's moment.

        Postgres tells READ COMMITTED with the first write only. Until then all tables stay as they were, as in REPEATABLE READ: rows
        that are locked must be those that a look at the moment would have shown. Who has only looked at tables whose turns he had can be
        taken to the next moment, where they are the same.
        """
        if table_id in self.made:
            return True
        definition, turns = self.definition(table_id), len(self.claims)
        self.claim(definition)
        if self.isolation == _READ_COMMITTED:
            # With the turn in hand before, what it has read since is what there is.
            if len(self.claims) > turns:
                self._look_again(table_id)
            return True
        if all(known.is_steady for known in self.pendings.values()):
            self.moment = None
        seen, newest = self.pending(table_id).base, self.world.base(definition)
        present = {file.location: file.deletes for file in newest.snapshot.files}
        return seen is None or all(present.get(file.location) == file.deletes for file in seen.snapshot.files)

    def take(self, parcel: Parcel | None) -> None:
        """Rows that came by the port become this transaction's; nothing, if it is no parcel of this gateway's or not yet full."""
        if parcel is not None:
            self.pending(parcel.definition.table_id).hold(parcel, self.next_op())

    def claim(self, definition: Definition, seconds: float | None = None) -> None:
        """Be the only writer of a table, on all nodes, until the transaction has ended. ``seconds``: so long it waits for others."""
        known = self.pendings.get(definition.table_id)
        base = known.base if known is not None and known.base is not None else self.world.recent_base(definition)
        name = claim_name(base.metadata.table_uuid)
        if name in self.claims:
            return
        patience = self.world.claim_seconds if seconds is None else seconds
        if self.claims:
            # Whoever waits with turns in hand may wait for somebody of another node who waits for him: one of them is to give up first.
            patience *= random.uniform(*_PATIENCE)  # noqa: S311
        until = time.monotonic() + patience
        try:
            with self.world.waiting.turn(self, name):
                self.claims[name] = self.world.bakery.claim(name, cancelled=lambda: self.cancelled.is_set() or time.monotonic() > until)
        except ClaimCancelled as cause:
            if self.cancelled.is_set():
                raise Cancelled("canceling statement due to user request") from cause
            raise WriterWaits(
                f"another transaction has been writing to {definition.name} for too long",
                hint="run the transaction again; two that write to the same tables in another order wait for each other",
                seconds=self.world.claim_seconds,
            ) from cause

    def cancel(self) -> None:
        """From any thread: what waits gives up, what the engine works at ends."""
        self.cancelled.set()
        for pending in list(self.pendings.values()):
            pending.interrupt()
        for cancel in list(self.cancels):
            cancel()

    # What orders of modak.create_iceberg_table and its kin ask for.

    def lake(self, profile: str) -> IcebergLake:
        return self.world.lake(profile)

    def create(self, definition: Definition) -> None:
        self.made[definition.table_id] = self.next_op(), definition

    attach = create

    def widen(self, definition: Definition) -> None:
        """The table has these columns from now on."""
        self.widened.setdefault(definition.table_id, []).append((self.next_op(), definition))

    def has_looked_at(self, table_id: int) -> bool:
        return table_id in self.pendings

    def drop(self, table_id: int, ref: str, profile: str, purge: bool) -> None:
        self.dropped.append(Dropped(table_id, ref, profile, purge, self.next_op()))

    # Savepoints.

    def savepoint(self, name: str) -> None:
        self._savepoints.append((name, self.op))

    def release(self, name: str) -> None:
        while self._savepoints:
            if self._savepoints.pop()[0] == name:
                return

    def roll_back_to(self, name: str) -> None:
        """The savepoint itself stays."""
        while self._savepoints and self._savepoints[-1][0] != name:
            self._savepoints.pop()
        op = self._savepoints[-1][1] if self._savepoints else 0
        for table_id, (number, _) in list(self.made.items()):
            if number > op:
                del self.made[table_id]
                self._forget(table_id)
        for table_id, steps in list(self.widened.items()):
            kept = [step for step in steps if step[0] <= op]
            if len(kept) < len(steps):
                self._forget(table_id)  # looked at since, or not at all
            self.widened[table_id] = kept
            if not kept:
                del self.widened[table_id]
        self.dropped = [one for one in self.dropped if one.op <= op]
        for pending in self.pendings.values():
            pending.roll_back(op)

    def end(self) -> None:
        """Nothing of it is left in the engine. Claims are the commit's to release."""
        while self.pendings:
            self.pendings.popitem()[1].close()
        self.made.clear()
        self.widened.clear()
        self.dropped.clear()
        self._savepoints.clear()

    def is_dropped(self, table_id: int) -> bool:
        return any(one.table_id == table_id for one in self.dropped)

    def release_claims(self) -> None:
        while self.claims:
            name, claim = self.claims.popitem()
            self.world.waiting.let_go(self, name)
            claim.release()

    def _forget(self, table_id: int) -> None:
        pending = self.pendings.pop(table_id, None)
        if pending is not None:
            pending.close()
