"""Commits whose outcome Postgres has not told yet: who reads past them, how they are confirmed or taken back.

The lake commits a moment before Postgres does. An intention is journaled first, with Postgres's name of the transaction; afterwards
``pg_xact_status`` says what became of it, also to a gateway that starts after a crash. A commit that Postgres rolled back is taken out of
the lake again, and until it is clear, readers of this database see the table as it was before it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg
from psycopg.types.json import Jsonb
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from modak.catalog import ownership
from modak.catalog.migrate import SQL
from modak.errors import LakeError, ModakError
from modak.failpoints import failpoint
from modak.gateway.decoupled import taking_back
from modak.gateway.decoupled.arrivals import Arrivals
from modak.gateway.decoupled.taking_back import COMMIT_ID, Journaled
from modak.lake import commits
from modak.lake.undo import knows_parent

if TYPE_CHECKING:
    from modak.gateway.decoupled.world import World

log = logging.getLogger("modak.gateway")

__all__ = ["COMMIT_ID", "Journaled", "Settled", "TransactionGone", "claim_name"]
_KNOWN_MAX = 10_000
_POLL_SECONDS = (0.0005, 0.05)
_TURN_SECONDS = 1.0


class TransactionGone(ModakError):
    code = "transaction_gone"
    sqlstate = "40000"


class Settled:
    """Every method may be called from any thread."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[str, None] = {}
        self.running: set[str] = set()
        """What sessions of this gateway are at; each settles its own."""
        self.arrivals = Arrivals(world)
        self._lock = threading.Lock()

    def visible(self, table: Table) -> IcebergSnapshot | None:
        return newest_settled(table, self._is_settled, table.current_snapshot())

    def is_certain(self, table: Table) -> bool:
        """Whether the table itself is there to stay: it was not made by a transaction of this database that may yet be taken back."""
        stamp = table.properties.get(COMMIT_ID)
        return stamp is None or self._is_settled(stamp)

    def _is_settled(self, commit_id: str) -> bool:
        with self._lock:
            if commit_id in self._known:
                return True
        with self._world.connection() as connection:
            row = connection.execute(SQL.query("lake_commit_status"), {"commit_id": commit_id}).fetchone()
        if row is not None and row["status"] != "committed":
            return False
        self._note(commit_id)
        return True

    def _note(self, commit_id: str) -> None:
        with self._lock:
            self._known[commit_id] = None
            while len(self._known) > _KNOWN_MAX:
                del self._known[next(iter(self._known))]

    def journal(self, intention: Journaled) -> None:
        """Only while Postgres still has the transaction: one that has ended meanwhile must not come to the lake at all."""
        with self._world.connection() as connection:
            given = {"commit_id": intention.commit_id, "xid": intention.xid, "changes": Jsonb(list(intention.changes))}
            self.running.add(intention.commit_id)
            written = connection.execute(SQL.query("journal_lake_commit"), given).rowcount
        if not written:
            self.running.discard(intention.commit_id)
            raise TransactionGone("Postgres has given this transaction up already", hint="nothing of it came to the lake")

    def check_open(self, intention: Journaled) -> None:
        """With the turns in hand: whoever settles for another needs them too, and has not been here if the journal still knows it."""
        with self._world.connection() as connection:
            row = connection.execute(SQL.query("lake_commit_status"), {"commit_id": intention.commit_id}).fetchone()
        if row is None or row["status"] != "in progress":
            raise TransactionGone("Postgres has given this transaction up already", hint="nothing of it came to the lake")

    def settle(self, intention: Journaled, stop: threading.Event | None = None, *, answered: bool = True) -> bool:
        """Wait for Postgres, then confirm or take back. False if it had to be left for later.

        ``answered``: the lake said of every commit that it was made. Otherwise one that is not there may arrive yet.
        """
        pause = _POLL_SECONDS[0]
        while (status := self._status(intention)) == "in progress":
            if stop is not None and stop.is_set():
                return False
            time.sleep(pause)
            pause = min(pause * 2, _POLL_SECONDS[1])
        if status == "committed":
            self.confirm(intention)
        elif status == "aborted":
            return self.take_back(intention, answered=answered)
        else:
            # Too long ago for Postgres to remember, and others have lived with it since.
            self._keep(intention, taking_back.leave(self._world, intention))
        return True

    def _status(self, intention: Journaled) -> str | None:
        with self._world.connection() as connection:
            row = connection.execute(SQL.query("transaction_status"), {"xid": intention.xid}).fetchone()
        return row["status"] if row is not None else None

    def confirm(self, intention: Journaled) -> None:
        failpoint("decoupled.before_confirm")
        self._note(intention.commit_id)
        for change in intention.changes:
            if change["kind"] == "drop":
                lake = self._world.lake(change["profile"])
                found = lake.find_table(change["ref"])
                if found is not None and str(found.metadata.table_uuid) == change["uuid"]:
                    lake.drop(change["ref"], purge=change["purge"])
        failpoint("decoupled.before_forget")
        self._forget(intention)

    def take_back(self, intention: Journaled, *, answered: bool = True) -> bool:
        """Nothing of it is left in the lake, or, where others built upon it, all of it, and everybody is told. May be done twice.

        False where some of it may arrive yet, and has to be waited for.
        """
        changes = [change for change in intention.changes if change["kind"] != "drop"]
        awaited = None if answered else self.arrivals.awaited(intention.commit_id, changes)
        try:
            kept = taking_back.take_back(self._world, intention, awaited)
        except BaseException:
            # It counts from the first look that succeeded.
            self.arrivals.forget(intention.commit_id)
            raise
        if kept is None:
            return False
        self._keep(intention, kept)
        return True

    def _keep(self, intention: Journaled, kept: list[taking_back.Kept]) -> None:
        with self._world.connection() as connection:
            taking_back.tell(connection, intention, kept)
        self._forget(intention)

    def _forget(self, intention: Journaled) -> None:
        self.running.discard(intention.commit_id)
        self.arrivals.forget(intention.commit_id)
        with self._world.connection() as connection:
            connection.execute(SQL.query("forget_lake_commit"), {"commit_id": intention.commit_id})

    def open_intentions(self) -> list[Journaled]:
        with self._world.connection() as connection:
            rows = connection.execute(SQL.query("open_lake_commits")).fetchall()
        return [Journaled(row["commit_id"], row["xid"], tuple(row["changes"])) for row in rows]

    def settle_all(self) -> int:
        """What an earlier gateway, or a lake that did not answer, left behind; how many are settled now. Never waits for Postgres."""
        done = 0
        found = self.open_intentions()
        self.arrivals.limit(intention.commit_id for intention in found)
        if found:
            # A copy of a database knows the numbers of transactions that were another server's.
            with self._world.connection() as connection:
                ownership.check_lake(connection)
        for intention in found:
            if intention.commit_id in self.running or not self.arrivals.is_due(intention.commit_id):
                continue
            try:
                done += self._settle_anothers(intention)
            except (ModakError, psycopg.Error) as cause:
                log.warning("commit %s cannot be settled yet: %s", intention.commit_id, cause)
            except Exception:
                # Whatever it is, the ones after it must not wait for it.
                log.exception("commit %s cannot be settled yet", intention.commit_id)
        return done

    def _settle_anothers(self, intention: Journaled) -> bool:
        """With the turns of its tables: a gateway that is still at it has them itself."""
        stopped = threading.Event()
        stopped.set()
        until = time.monotonic() + _TURN_SECONDS
        with contextlib.ExitStack() as stack:
            # One that was only made has no name to others yet.
            for name in sorted({claim_name(change["uuid"]) for change in intention.changes if "uuid" in change}):
                stack.enter_context(self._world.bakery.claim(name, cancelled=lambda: time.monotonic() > until))
            return self.settle(intention, stopped, answered=False)


def newest_settled(table: Table, is_settled: Callable[[str], bool], current: IcebergSnapshot | None) -> IcebergSnapshot | None:
    """The newest snapshot, from ``current`` back, that is sure to stay, by what is known of the commits of ours that made them."""
    while current is not None:
        stamp = commits.stamps_of(current).get(COMMIT_ID)
        if stamp is None or is_settled(stamp):
            return current
        current = _parent(table, current, stamp)
    return None


def _parent(table: Table, snapshot: IcebergSnapshot, stamp: str) -> IcebergSnapshot | None:
    if not knows_parent(table, snapshot):
        raise LakeError(
            "the newest commit of the lake table is in doubt, and the snapshot before it has expired",
            hint="try again in a moment: the gateway asks Postgres what became of it; modak.lake_commits has what is open",
            commit_id=stamp,
        )
    return table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None


def claim_name(identity: object) -> str:
    """The same on every node that writes to the same Iceberg table, however it reaches the catalog: the table's UUID."""
    return str(identity)
