"""Decoupled tables for one session of postgres_fdw: its statements, its transaction, its end."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from modak.errors import ModakError
from modak.gateway.decoupled import committing, orders, reading
from modak.gateway.decoupled.evaluation import Evaluation
from modak.gateway.decoupled.intake import Intake
from modak.gateway.decoupled.parcels import Parcel
from modak.gateway.decoupled.serializable import Conflict
from modak.gateway.decoupled.settled import Journaled
from modak.gateway.decoupled.statements import Insert, is_order, locked_in, parse_write, tables_in
from modak.gateway.decoupled.transaction import SERIALIZABLE, LakeTransaction
from modak.gateway.decoupled.world import World
from modak.gateway.decoupled.writing import Written, write
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.remote import parse_remote, substitute
from modak.gateway.failures import Cancelled, EngineFailed
from modak.gateway.fdw.cursor import BatchCursor, LakeRows, engine_errors
from modak.gateway.wire.packed import Packed
from modak.scan.estimate import Estimate

log = logging.getLogger("modak.gateway")


class DecoupledSession:
    """Every method belongs to the session's one thread at a time, except ``cancel`` and ``explain``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._transaction: LakeTransaction | None = None
        self._intake: Intake | None = None
        self._settling: threading.Thread | None = None
        self._is_closed = False
        self.is_serializable = False
        """Whether Postgres said so when its transaction began. Of other isolations it tells with the first write."""
        self._beginning = threading.Lock()

    @property
    def transaction(self) -> LakeTransaction:
        """Begins one if there is none. Never two: the second would take the place of one that has been written to."""
        with self._beginning:
            if self._transaction is None:
                if self._is_closed:
                    raise Cancelled("the session has ended")
                self.wait()
                self._transaction = LakeTransaction(self._world, isolation=SERIALIZABLE if self.is_serializable else None)
            return self._transaction

    def cancel(self) -> None:
        transaction = self._transaction
        if transaction is not None:
            transaction.cancel()

    def open(self, sql: str, values: Sequence[str | None]) -> BatchCursor:
        if is_order(sql):
            return BatchCursor(_Answer(self._order(sql, values)), 1)
        transaction = self.transaction
        self._hold()
        for table_id in locked_in(sql):
            if not transaction.lock(table_id):
                raise Conflict(
                    f"could not serialize access to {transaction.definition(table_id).name} due to concurrent update",
                    hint="run the transaction again; one that locks a table before it reads any does not meet this",
                )
        op = transaction.op

        def in_postgres() -> _Evaluated:
            pendings = [transaction.pending(table_id) for table_id in tables_in(sql)]
            return _Evaluated(Evaluation(self._world.dsn, pendings, op), sql, values)

        try:
            scan = reading.scan(transaction, sql, values)
        except Untranslatable:
            return BatchCursor(in_postgres(), None)
        return BatchCursor(_InEngine(LakeRows(self._world.tables.engine, scan), in_postgres), scan.columns)

    def explain(self, sql: str, values: Sequence[str | None]) -> Estimate:
        """From any thread: whoever asks may give up, and the session goes on while this still runs. It begins and changes nothing."""
        return reading.guess(self._world, self._transaction, tables_in(sql), sql, values)

    def facts(self, relation: str) -> tuple[int, int]:
        known = [reading.recent_definition(self._world, self._transaction, table_id) for table_id in tables_in(relation)]
        found = [self._world.likely_base(definition).snapshot for definition in known]
        return sum(one.rows for one in found), sum(one.bytes for one in found)

    def takes_packed(self, sql: str) -> bool:
        """Whether the values of this statement may come as they are: those of an INSERT into a table that the catalog knows already."""
        transaction = self._transaction
        try:
            statement = parse_write(sql)
        except ModakError:
            return False  # told when it runs
        return (
            transaction is not None and isinstance(statement, Insert) and statement.is_plain and not transaction.is_new(statement.table_id)
        )

    def write(self, sql: str, values: Sequence[bytes | None]) -> Written:
        with engine_errors():
            self._hold()
            return write(self.transaction, parse_write(sql), values)

    # Rows that are on their way.

    def has_room(self, sql: str) -> bool:
        """Whether ``put`` only has to keep what it gets."""
        statement = parse_write(sql)
        return self._intake is not None and isinstance(statement, Insert) and self._intake.suits(statement) and self._intake.has_room

    def put(self, sql: str, values: Packed) -> Written:
        """Rows of an INSERT that takes them packed."""
        statement = parse_write(sql)
        assert isinstance(statement, Insert)
        with self._dropped_if_wrong(), engine_errors():
            if self._intake is None or not self._intake.suits(statement):
                self._hold()
                self._intake = Intake(Parcel(self.transaction.pending(statement.table_id).definition, self._world))
            self._intake.put(statement, values)
        return Written("INSERT", len(values) // len(statement.columns))

    def arrive(self) -> None:
        """The statement that brought the rows ends: what is wrong with them is told now."""
        if self._intake is not None:
            with self._dropped_if_wrong(), engine_errors():
                self._intake.arrive()

    def _hold(self) -> None:
        """Before anybody looks, and before a savepoint: what came is the transaction's, as one operation."""
        if self._intake is not None:
            with self._dropped_if_wrong():
                parcel = self._intake.close()
            self._intake = None
            self.transaction.take(parcel)

    @contextlib.contextmanager
    def _dropped_if_wrong(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        intake, self._intake = self._intake, None
        if intake is not None:
            intake.drop()

    def _order(self, sql: str, values: Sequence[str | None]) -> str:
        wanted = {}
        for node in substitute(parse_remote(sql), values).conjuncts:
            if isinstance(node, exp.EQ) and isinstance(node.this, exp.Column):
                literal = next(iter(node.expression.find_all(exp.Literal)), None)
                wanted[node.this.name] = str(literal.this) if literal is not None else ""
        request = json.loads(bytes.fromhex(wanted.get("request", "")).decode() or "{}")
        if wanted.get("verb") == "begin":
            self.transaction.begin_write(request["xid"], request["isolation"], int(request["table_id"]), request["operation"])
            return "{}"
        if wanted.get("verb") == "parcel":
            self._hold()
            with engine_errors():
                self.transaction.take(self._world.parcels.ask(request["id"], int(request["table_id"])))
            return "{}"
        self._hold()
        return json.dumps(orders.carry_out(wanted.get("verb", ""), request, self.transaction))

    # The transaction's course.

    @property
    def is_idle(self) -> bool:
        """Whether no decoupled table has been spoken of yet: then a transaction's course means nothing here."""
        return self._transaction is None

    def savepoint(self, name: str) -> None:
        """One from before the first word of a decoupled table is not noted: whoever goes back to it goes back to nothing."""
        if self._transaction is not None:
            self._hold()
            self._transaction.savepoint(name)

    def release(self, name: str) -> None:
        if self._transaction is not None:
            self._transaction.release(name)

    def roll_back_to(self, name: str) -> None:
        if self._transaction is not None:
            # Before a savepoint rows are held, so what is on its way came after it.
            self._drop()
            self._transaction.cancelled.clear()
            self._transaction.roll_back_to(name)

    def commit(self) -> None:
        """Everything is in the lake when this returns. What Postgres makes of it is found out beside the session."""
        try:
            with engine_errors():
                self._hold()
        except BaseException:
            self.roll_back()
            raise
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return
        try:
            with engine_errors():
                intention = committing.commit(transaction)
        except BaseException:
            transaction.end()
            transaction.release_claims()
            raise
        transaction.end()
        if intention is None:
            transaction.release_claims()
            return
        self._settling = self._world.beside(lambda: _settle(self._world, intention, transaction))

    def roll_back(self) -> None:
        self._drop()
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.end()
            transaction.release_claims()

    def wait(self) -> None:
        """Until the transaction before is settled: its own session must see it, or that it is not there."""
        settling, self._settling = self._settling, None
        if settling is not None:
            settling.join()

    def close(self) -> None:
        self._is_closed = True
        self.roll_back()


def _settle(world: World, intention: Journaled, transaction: LakeTransaction) -> None:
    try:
        world.settled.settle(intention, world.stopping)
    except Exception:
        log.exception("commit %s is left to be settled later", intention.commit_id)
    finally:
        world.settled.running.discard(intention.commit_id)
        transaction.release_claims()


class _InEngine:
    """The engine's rows, or Postgres's where the engine meets a limit of its own before it has given any."""

    def __init__(self, rows: LakeRows, in_postgres: Callable[[], _Evaluated]) -> None:
        self._rows: LakeRows | _Evaluated = rows
        self._in_postgres = in_postgres

    def batches(self) -> Iterator[Any]:
        is_begun = False
        try:
            for batch in self._rows.batches():
                is_begun = True
                yield batch
        except EngineFailed as failure:
            if is_begun or isinstance(self._rows, _Evaluated):
                raise
            log.info("Postgres evaluates what the engine could not: %s", failure)
            self._rows = self._in_postgres()
            yield from self._rows.batches()

    def cancel(self) -> None:
        self._rows.cancel()


class _Evaluated:
    def __init__(self, evaluation: Evaluation, sql: str, values: Sequence[str | None]) -> None:
        self._evaluation, self._sql, self._values = evaluation, sql, values

    def batches(self) -> Iterator[Any]:
        with engine_errors():
            yield from self._evaluation.rows(self._sql, self._values)

    def cancel(self) -> None:
        self._evaluation.cancel()


class _Answer:
    def __init__(self, text: str) -> None:
        self._text = text

    def batches(self) -> Iterator[Any]:
        yield pa.record_batch([pa.array([self._text], pa.string())], names=["answer"])

    def cancel(self) -> None:
        pass
