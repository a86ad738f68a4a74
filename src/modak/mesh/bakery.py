"""Mutual exclusion of the writers of one Iceberg table, on this node and on its peers, in the order of their tickets.

Each claim has a session of its own, and lives no longer than that session: a process that dies gives its claims back. A writer of several
tables claims them in one order (sorted names), like any locks; nothing here finds a circle over several nodes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

import psycopg

from modak.catalog import claims
from modak.connection import Connection, connect, open_connection
from modak.errors import ClaimCancelled, ClaimLost, ConnectionFailed, MeshSplit, ModakError
from modak.mesh import joining
from modak.mesh.line import Line

log = logging.getLogger("modak.mesh")

CHANNEL = "modak_mesh"
# Answers and releases wake who waits. These are for what wakes nobody: a writer that died, a peer that fell silent, a cancelled statement.
_LOOK_SECONDS = 1.0
_POLL_SECONDS = 0.5
_CANCEL_SECONDS = 0.1
_TEND_SECONDS = 1.0
_IDLE_SESSIONS_MAX = 8
# Without enough nodes a writer waits for one more window: a short cut heals in that time, and a long one should be known.
_SPLIT_WINDOWS = 1


class Claim:
    """A turn at one table. Ends with ``release``, with the block it is used in, or with the process."""

    def __init__(self, bakery: Bakery, connection: Connection, table: str, drawn: claims.Drawn, place: threading.Event) -> None:
        self.table = table
        self.ticket = drawn.ticket
        self.node = drawn.node
        self._bakery = bakery
        self._connection: Connection | None = connection
        self._place = place
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Claim({self.table!r}, ticket={self.ticket}, node={self.node!r})"

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def check(self) -> None:
        """Just before what must not be done by two: raises where the session is gone, or the others may have gone on without this node."""
        with self._lock:
            held = False
            if self._connection is not None:
                with contextlib.suppress(psycopg.Error):
                    held = claims.holds(self._connection, self.table, self.ticket)
        if not held:
            raise ClaimLost(
                "the turn at the Iceberg table is lost: the node does not hear enough of its mesh, or its Postgres was restarted",
                hint="run the transaction again",
                table=self.table,
                ticket=self.ticket,
                node=self.node,
            )

    def release(self) -> None:
        """Idempotent. A session that cannot say it any more is closed, which says the same."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            claims.release(connection, self.table, self.ticket)
        except psycopg.Error:
            connection.close()
        finally:
            self._bakery._served(self.table, self._place, connection)


class Bakery:
    """One per gateway; thread-safe. Its sessions must be Postgres's own, or a pooler's in session mode."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._idle: list[Connection] = []
        self._line = Line()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._tender = threading.Thread(target=self._tend, name="modak-mesh", daemon=True)
        self._tender.start()

    def claim(self, table: str, *, cancelled: Callable[[], bool] = lambda: False) -> Claim:
        """Waits for the turn. Raises ClaimCancelled, or MeshSplit where this node is cut off from the rest."""

        def gives_up() -> bool:
            return self._closed.is_set() or cancelled()

        place = self._line.enter(table, gives_up)
        if place is None:
            raise ClaimCancelled("the wait for the turn was cancelled", table=table)
        try:
            connection, drawn = self._draw(table)
        except BaseException:
            self._line.leave(table, place)
            raise
        claim = Claim(self, connection, table, drawn, place)
        if not drawn.is_granted:
            try:
                _Wait(connection, claim, gives_up).run()
            except psycopg.OperationalError as cause:
                claim.release()
                raise ConnectionFailed(
                    f"Postgres was lost while waiting for the turn: {str(cause).strip()}", hint="run the transaction again"
                ) from cause
            except BaseException:
                claim.release()
                raise
        return claim

    def close(self) -> None:
        """Claims that are held stay until they are released; those that wait are cancelled."""
        self._closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._tender.join(timeout=10)

    def _draw(self, table: str) -> tuple[Connection, claims.Drawn]:
        while True:
            if self._closed.is_set():
                raise ClaimCancelled("the bakery is closed", hint="run the transaction again", table=table)
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            connection = kept or self._open()
            try:
                return connection, claims.draw(connection, table)
            except psycopg.OperationalError as cause:
                connection.close()
                # A session that was kept may have ended since; what it drew ended with it.
                if kept is None:
                    raise ConnectionFailed(f"Postgres was lost: {str(cause).strip()}", hint="run the transaction again") from cause
            except BaseException:
                connection.close()
                raise

    def _open(self) -> Connection:
        connection = open_connection(self._dsn, application="modak claim", autocommit=True)
        try:
            claims.settle(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _served(self, table: str, place: threading.Event, connection: Connection) -> None:
        self._line.leave(table, place)
        with self._lock:
            if not connection.closed and not self._closed.is_set() and len(self._idle) < _IDLE_SESSIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _tend(self) -> None:
        """Also on a node where nobody writes: dead writers are cleared away, peers looked at, subscriptions completed."""
        connection: Connection | None = None
        completing: threading.Thread | None = None
        while True:
            try:
                connection = connection or self._open()
                incomplete = claims.tend(connection)
                if incomplete and (completing is None or not completing.is_alive()):
                    # A peer that does not answer may take minutes not to, and the node must be looked after meanwhile.
                    completing = threading.Thread(target=self._complete, args=(incomplete,), name="modak-mesh-joining", daemon=True)
                    completing.start()
            except (psycopg.Error, ModakError) as cause:
                log.debug("the node could not be looked after: %s", cause)
                if connection is not None:
                    connection.close()
                connection = None
            if self._closed.wait(_TEND_SECONDS):
                break
        if connection is not None:
            connection.close()

    def _complete(self, subscriptions: list[str]) -> None:
        try:
            with connect(self._dsn, application="modak mesh", autocommit=True) as connection:
                for name in joining.complete(connection, subscriptions):
                    log.info("subscription %s is complete", name)
        except (psycopg.Error, ModakError) as cause:
            log.debug("the node could not join: %s", cause)


class _Wait:
    """One wait for one turn, on the claim's own session."""

    def __init__(self, connection: Connection, claim: Claim, cancelled: Callable[[], bool]) -> None:
        self._connection, self._claim, self._cancelled = connection, claim, cancelled
        self._split_since: float | None = None

    def run(self) -> None:
        self._connection.execute(f"listen {CHANNEL}")
        try:
            self._run()
        finally:
            # A session that listens and is not read would hold up everybody's notifications.
            with contextlib.suppress(psycopg.Error):
                self._connection.execute(f"unlisten {CHANNEL}")

    def _run(self) -> None:
        window = claims.alive_window(self._connection)
        every = min(_LOOK_SECONDS, window / 5)
        # What peers say of a silent one counts for a quarter of the window: so long they may take to answer.
        asking = max(every, window / 4)
        ask_at, asked = time.monotonic() + every, False
        while True:
            ask = time.monotonic() >= ask_at
            # An answer to what was asked is looked at when it comes: it counts while it is fresh.
            look = ask or asked
            verdict = claims.grant(self._connection, self._claim.table, self._claim.ticket, look=look)
            if verdict.state == "granted":
                return
            if verdict.state == "lost":
                raise ClaimLost("the claim is gone", hint="run the transaction again", table=self._claim.table, ticket=self._claim.ticket)
            if look:
                self._judge(verdict, window)
            if ask and verdict.state != "behind":
                claims.ask_again(self._connection, self._claim.table, self._claim.ticket)
            if ask:
                ask_at, asked = time.monotonic() + asking, verdict.state != "behind"
            self._sleep(min(_POLL_SECONDS, every))

    def _judge(self, verdict: claims.Verdict, window: float) -> None:
        if verdict.state != "split":
            self._split_since = None
            return
        self._split_since = self._split_since or time.monotonic()
        if time.monotonic() - self._split_since > window * _SPLIT_WINDOWS:
            raise MeshSplit(
                "this node hears too few of the other nodes to know that nobody else writes",
                hint="mend the network or the nodes; see modak.nodes, and docs/guides/mesh.md for what modak.mesh_quorum allows",
                table=self._claim.table,
                node=self._claim.node,
                silent=", ".join(verdict.missing),
            )

    def _sleep(self, seconds: float) -> None:
        """Until somebody is answered or released, or for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._cancelled():
                raise ClaimCancelled("the wait for the turn was cancelled", table=self._claim.table, ticket=self._claim.ticket)
            for _ in self._connection.notifies(timeout=min(left, _CANCEL_SECONDS), stop_after=1):
                return
