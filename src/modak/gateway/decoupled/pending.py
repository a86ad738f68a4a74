"""One decoupled table inside one transaction: the snapshot it reads, the rows it added, the rows that are gone for it.

Rows have numbers that hold for the whole transaction: those of the snapshot by their files' order, added ones after them. What a
statement did carries the number of its operation, so that a savepoint takes back exactly what came after it, and a cursor sees what was
there when it was opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile as WrittenFile
from pyiceberg.table.metadata import TableMetadata

from modak.core.decoupled import DecoupledColumn, Definition
from modak.failpoints import failpoint
from modak.gateway.decoupled.base import Base, Numbers, RowSet
from modak.gateway.decoupled.in_engine import BATCH, from_arrow, in_one_go, made, registered, to_arrow
from modak.gateway.decoupled.parcels import Parcel
from modak.gateway.decoupled.values import Values, array, engine_type, remote_name
from modak.lake.delete_files import Doomed
from modak.scan.engine import Cursor
from modak.scan.predicate import Predicate
from modak.scan.prune import prune
from modak.scan.snapshot import Snapshot
from modak.scan.sqltext import quoted
from modak.scan.table import ColdTables

_BUFFERED_ROWS_MAX, _BUFFERED_BYTES_MAX = 50_000, 32 * 1024 * 1024
# What the engine gives at a time: many rows, or as many as have so many bytes; fewer than a vector of its own it does not.
_BATCH_ROWS, _BATCH_BYTES, _VECTOR_ROWS = 100_000, 64 * 1024 * 1024, 2048
OP_MAX = 2**31 - 1
# What a statement met, in a table that only its cursor has.
HIT = '"modak_hit"'


@dataclass
class Pending:
    """Used from one thread at a time. ``base`` is None for a table that this transaction makes."""

    definition: Definition
    tables: ColdTables
    base: Base | None
    emptied: list[int] = field(default_factory=list)
    _batches: list[tuple[int, Any]] = field(default_factory=list)
    _updates: list[tuple[int, int, tuple[str, ...], Values]] = field(default_factory=list)
    _removals: list[tuple[int, int]] = field(default_factory=list)
    _parcels: list[tuple[int, Parcel]] = field(default_factory=list)
    _met: RowSet = field(default_factory=RowSet)
    _buffered: int = 0
    _buffered_bytes: int = 0
    _seen: tuple[int, int] = (0, 0)
    _added: str | None = None
    _gone: str | None = None
    _next: int = 0
    _active: list[Cursor] = field(default_factory=list)
    is_numbered: bool = False  # somebody has been told the numbers of its rows
    is_read: bool = False
    is_steady: bool = False  # nobody could change the table since it was looked at first

    @property
    def columns(self) -> dict[str, DecoupledColumn]:
        return {remote_name(column): column for column in self.definition.columns}

    @property
    def has_changes(self) -> bool:
        return bool(self._batches or self._parcels or self._updates or self._removals or self._added or self._gone or self.emptied)

    @property
    def only_adds(self) -> bool:
        """Then it may as well read a newer snapshot: no row of the one it reads has been chosen for anything."""
        return self._gone is None and not (self._updates or self._removals or self.emptied)

    @property
    def parcel_ids(self) -> list[str]:
        """What the files of parcels that are held are named by."""
        return [parcel.id for _, parcel in self._parcels]

    @property
    def last(self) -> int:
        """The number of the row that was added last."""
        return (self.base.rows if self.base else 0) + self._next - 1

    # Writing.

    def add(self, batch: Any, op: int) -> None:
        """Rows with every column by its remote name, in the order of the definition."""
        self._batches.append((op, batch))
        self._note(batch.num_rows, batch.nbytes)

    def hold(self, parcel: Parcel, op: int) -> None:
        """All rows of a parcel. What is in files stays there until somebody wants to see it."""
        if not parcel.is_small:
            self._parcels.append((op, parcel))
            return
        for batch in parcel.batches():
            self.add(batch, op)

    def update(self, rid: int, names: tuple[str, ...], values: Values, op: int) -> bool:
        """One row by its number; what is not named stays as it was. False: it has been changed already, and stays as it is.

        A statement whose join meets a row several times names it as often, and changes it once: Postgres's rule is that the first wins.
        """
        if not self._met.add(rid):
            return False
        self._updates.append((op, rid, names, values))
        self._note(1, sum(map(len, filter(None, values))))
        return True

    def remove(self, rids: Sequence[int], op: int) -> int:
        """How many of them were there still."""
        present = [(op, rid) for rid in rids if self._met.add(rid)]
        self._removals += present
        self._note(len(present), 0)
        return len(present)

    def _note(self, rows: int, size: int) -> None:
        self._buffered += rows
        self._buffered_bytes += size
        self._seen = self._seen[0] + rows, self._seen[1] + size
        if self._buffered > _BUFFERED_ROWS_MAX or self._buffered_bytes > _BUFFERED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Into the engine, set by set: row by row it would take a thousand times as long. All of it or nothing: it may be a later statement
        that fails here, and what was acknowledged before must be there when the transaction goes on from a savepoint."""
        if not (self._batches or self._updates or self._removals or self._parcels):
            return
        with self.cursor() as cursor:
            # Before the engine's transaction, which sees no table that came later: those of the rows, and of deletes in the lake's files.
            self._make_tables(cursor)
            sets = [self._update_set(names) for names in dict.fromkeys(names for _, _, names, _ in self._updates)]
            before = self._next
            try:
                with in_one_go(cursor):
                    failpoint("decoupled.in_flush")
                    self._flush_added(cursor)
                    for one in sets:
                        self._flush_updates(cursor, *one)
                        failpoint("decoupled.in_flush")
                    self._flush_removals(cursor)
            except BaseException:
                self._next = before
                raise
        parcels = self._parcels
        self._batches, self._updates, self._removals, self._parcels = [], [], [], []
        self._buffered = self._buffered_bytes = 0
        for _, parcel in parcels:
            parcel.drop()

    def _make_tables(self, cursor: Cursor) -> None:
        if self._batches or self._updates or self._parcels:
            self._added_table(cursor)
        if self._updates or self._removals:
            self._gone_table(cursor)

    def _flush_added(self, cursor: Cursor) -> None:
        for op, parcel in self._parcels:
            for batch in parcel.batches():
                self._flush_batches(cursor, [(op, batch)])
                failpoint("decoupled.in_flush")
        if self._batches:
            self._flush_batches(cursor, self._batches)

    def _flush_batches(self, cursor: Cursor, batches: Sequence[tuple[int, Any]]) -> None:
        ops = np.concatenate([np.full(batch.num_rows, op, dtype=np.int32) for op, batch in batches])
        rows = pa.Table.from_batches([batch for _, batch in batches])
        numbers = np.arange(self._next, self._next + rows.num_rows, dtype=np.int64)
        self._next += rows.num_rows
        items = ", ".join(f"CAST({from_arrow(column)} AS {engine_type(column)})" for column in self.definition.columns)
        added = self._added_table(cursor)
        with registered(cursor, rows.append_column("op", pa.array(ops)).append_column("seq", pa.array(numbers))) as batch:
            cursor.execute(f"INSERT INTO {added} SELECT op, seq, {items} FROM {batch}")  # noqa: S608

    def _update_set(self, names: tuple[str, ...]) -> tuple[Any, str]:
        """Updates of these columns, as a table, and the query that makes the rows of them."""
        updates = [one for one in self._updates if one[2] == names]
        ops, rids = pa.array([one[0] for one in updates], pa.int32()), pa.array([one[1] for one in updates], pa.int64())
        given = {name: array(self.definition, self.columns[name], [one[3][n] for one in updates]) for n, name in enumerate(names)}
        items = ", ".join(
            f"CAST({from_arrow(column, 'change')} AS {engine_type(column)}) AS {quoted(name)}" if name in given else f"live.{quoted(name)}"
            for name, column in self.columns.items()
        )
        source = self._source(list(self.columns), numbered=True, rids=rids.to_numpy())
        query = f"SELECT live.rid, change.op, {items} FROM {source} AS live JOIN {BATCH} AS change ON change.rid = live.rid"  # noqa: S608
        return pa.table({"rid": rids, "op": ops, **given}), query

    def _flush_updates(self, cursor: Cursor, rows: Any, query: str) -> None:
        with registered(cursor, rows):
            cursor.execute(f"CREATE TEMP TABLE {HIT} AS {query}")
        self.replace(cursor, added=True)
        cursor.execute(f"DROP TABLE {HIT}")

    def _flush_removals(self, cursor: Cursor) -> None:
        if not self._removals:
            return
        ops, rids = zip(*self._removals, strict=True)
        gone = self._gone_table(cursor)
        with registered(cursor, pa.table({"rid": pa.array(rids, pa.int64()), "op": pa.array(ops, pa.int32())})) as batch:
            cursor.execute(f"INSERT INTO {gone} SELECT rid, op FROM {batch}")  # noqa: S608
        failpoint("decoupled.in_flush")

    def replace(self, cursor: Cursor, *, added: bool) -> None:
        """Rows of the cursor's table HIT are gone by their ``rid`` as of ``op``; ``added``: and come anew with the values that it has."""
        gone = self._gone_table(cursor)
        cursor.execute(f"INSERT INTO {gone} SELECT rid, op FROM {HIT}")  # noqa: S608
        if not added:
            return
        rows = self._added_table(cursor)
        items = ", ".join(quoted(name) for name in self.columns)
        counted = cursor.execute(
            f"INSERT INTO {rows} SELECT op, {self._next} + row_number() OVER () - 1, {items} FROM {HIT}"  # noqa: S608
        ).fetchone()
        self._next += counted[0] if counted else 0

    def empty(self, op: int) -> None:
        """TRUNCATE: the files of the snapshot go as a whole, what was added goes row by row."""
        self.flush()
        if self._added is not None:
            with self.cursor() as cursor:
                first = self.base.rows if self.base else 0
                gone = self._gone_table(cursor)
                cursor.execute(f"INSERT INTO {gone} SELECT {first} + seq, {op} FROM {self._added}")  # noqa: S608
        self.emptied.append(op)

    def roll_back(self, op: int) -> None:
        """Everything after this operation never was."""
        self._batches = [(number, batch) for number, batch in self._batches if number <= op]
        for number, parcel in self._parcels:
            if number > op:
                parcel.drop()
        self._parcels = [(number, parcel) for number, parcel in self._parcels if number <= op]
        self._updates = [one for one in self._updates if one[0] <= op]
        self._removals = [one for one in self._removals if one[0] <= op]
        # Of what has been flushed, nothing is met again: later statements know those rows by other numbers, or not at all.
        self._met.clear()
        for rid in (*(one[1] for one in self._updates), *(rid for _, rid in self._removals)):
            self._met.add(rid)
        self._buffered = sum(batch.num_rows for _, batch in self._batches) + len(self._updates) + len(self._removals)
        self.emptied = [number for number in self.emptied if number <= op]
        with self.cursor() as cursor:
            for table in filter(None, (self._added, self._gone)):
                cursor.execute(f"DELETE FROM {table} WHERE op > {op}")  # noqa: S608

    def close(self) -> None:
        while self._parcels:
            self._parcels.pop()[1].drop()
        tables = [table for table in (self._added, self._gone) if table is not None]
        self._added = self._gone = None
        if tables:
            with self.cursor() as cursor:
                for table in tables:
                    cursor.execute(f"DROP TABLE IF EXISTS {table}")

    # Reading.

    def source(self, names: Sequence[str], predicates: Sequence[Predicate] = (), *, numbered: bool = False, upto: int = OP_MAX) -> str:
        """A FROM item with these columns by their remote names; ``numbered``: and ``rid``. ``upto``: as of that operation."""
        self.flush()
        self.look(numbered=numbered)
        return self._source(names, predicates, numbered=numbered, upto=upto)

    def look(self, *, numbered: bool) -> None:
        """A statement is about to read it; ``numbered``: and is told the numbers of rows."""
        self.is_read, self.is_numbered = True, self.is_numbered or numbered

    def _source(
        self,
        names: Sequence[str],
        predicates: Sequence[Predicate] = (),
        *,
        numbered: bool = False,
        upto: int = OP_MAX,
        rids: Numbers | None = None,
    ) -> str:
        """``rids``: files without any of these rows need not be read."""
        rid = ["rid"] if numbered else []
        arms = []
        if self.base is not None and not any(op <= upto for op in self.emptied):
            arms.append(self._base_arm(self.base, names, predicates, numbered, upto, rids))
        if self._added is not None:
            first = self.base.rows if self.base else 0
            rows = f"SELECT *, {first} + seq AS rid FROM {self._added} WHERE op <= {upto}"  # noqa: S608
            items = ", ".join([*map(quoted, names), *rid]) or "1"
            arms.append(f"SELECT {items} FROM ({rows}) AS added{self._still_there('added', upto)}")  # noqa: S608
        if not arms:
            nothing = [f"NULL::{engine_type(self.columns[name])} AS {quoted(name)}" for name in names]
            arms.append(f"SELECT {', '.join([*nothing, *(['NULL::BIGINT AS rid'] if numbered else [])]) or '1'} WHERE false")
        return "(" + " UNION ALL ".join(arms) + ")"

    def _base_arm(
        self, base: Base, names: Sequence[str], predicates: Sequence[Predicate], numbered: bool, upto: int, rids: Numbers | None
    ) -> str:
        lake_names = self.lake_names(base.snapshot)
        known = [lake_names[name] for name in names if name in lake_names]
        narrowed = [Predicate(lake_names[p.column], p.operator, p.values) for p in predicates if p.column in lake_names]
        if numbered or self._gone is not None:
            files = prune(base.snapshot, narrowed) if rids is None else [base.snapshot.files[place] for place in base.places(rids)]
            rows = self.tables.numbered(base.snapshot, files, known, base.firsts_of(files))
        else:
            rows, _ = self.tables.relation(base.snapshot, known, narrowed)
        items = []
        for name in names:
            value = quoted(lake_names[name]) if name in lake_names else "NULL"
            items.append(f"CAST({value} AS {engine_type(self.columns[name])}) AS {quoted(name)}")
        items += ["rid"] if numbered else []
        return f"SELECT {', '.join(items) or '1'} FROM {rows} AS files{self._still_there('files', upto)}"  # noqa: S608

    def lake_names(self, snapshot: Snapshot) -> dict[str, str]:
        by_id = {one.id: one.name for one in snapshot.fields}
        return {name: by_id[column.field_id] for name, column in self.columns.items() if column.field_id in by_id}

    def _still_there(self, alias: str, upto: int) -> str:
        if self._gone is None:
            return ""
        return f" WHERE NOT EXISTS (SELECT 1 FROM {self._gone} AS gone WHERE gone.rid = {alias}.rid AND gone.op <= {upto})"  # noqa: S608

    # Committing.

    def ready_files(self, metadata: TableMetadata) -> list[WrittenFile]:
        """Files of parcels that nobody has looked into, for a commit as they are. Others become rows among rows."""
        found: list[WrittenFile] = []
        others: list[tuple[int, Parcel]] = []
        for op, parcel in self._parcels:
            files = parcel.files(metadata)
            if files is None:
                others.append((op, parcel))
            else:
                found += files
        self._parcels = others
        if others:
            self.flush()
        return found

    def added_rows(self, cursor: Cursor) -> Iterator[Any]:
        """Arrow tables of the rows that a commit adds, by the lake's own names, in the order they came."""
        columns = self.definition.columns
        if self._updates or self._removals:
            self.flush()
        if self._added is None:
            for _, batch in self._batches:
                yield pa.Table.from_arrays(batch.columns, names=[column.name for column in columns])
            return
        self.flush()
        first = self.base.rows if self.base else 0
        items = ", ".join(f"{to_arrow(column)} AS {quoted(column.name)}" for column in columns)
        rows = f"SELECT *, {first} + seq AS rid FROM {self._added}"  # noqa: S608
        query = f"SELECT {items} FROM ({rows}) AS added{self._still_there('added', OP_MAX)} ORDER BY seq"  # noqa: S608
        fitting = _BATCH_BYTES * self._seen[0] // max(self._seen[1], 1)
        reader = cursor.execute(query).to_arrow_reader(max(_VECTOR_ROWS, min(_BATCH_ROWS, fitting or _BATCH_ROWS)))
        for batch in reader:
            if batch.num_rows:
                yield pa.Table.from_batches([batch])

    def doomed(self) -> list[Doomed]:
        """Rows of the snapshot that go, file by file; empty where all of its files go."""
        if self._updates or self._removals:
            self.flush()
        if self._gone is None or self.base is None or self.emptied:
            return []
        with self.cursor() as cursor:
            query = f"SELECT DISTINCT rid FROM {self._gone} WHERE rid < {self.base.rows} ORDER BY rid"  # noqa: S608
            rids: Numbers = cursor.execute(query).to_arrow_table().column(0).to_numpy()
        return self.base.doomed(rids)

    @contextlib.contextmanager
    def cursor(self) -> Iterator[Cursor]:
        with contextlib.closing(self.tables.engine.cursor()) as cursor:
            self._active.append(cursor)
            try:
                yield cursor
            finally:
                self._active.remove(cursor)

    def interrupt(self) -> None:
        """From any thread."""
        for cursor in list(self._active):
            with contextlib.suppress(duckdb.ConnectionException):  # it ended meanwhile
                cursor.interrupt()

    def _added_table(self, cursor: Cursor) -> str:
        if self._added is None:
            columns = ", ".join(f"{quoted(remote_name(column))} {engine_type(column)}" for column in self.definition.columns)
            self._added = made(cursor, "added", f"op INTEGER, seq BIGINT, {columns}")
        return self._added

    def _gone_table(self, cursor: Cursor) -> str:
        if self._gone is None:
            self._gone = made(cursor, "gone", "rid BIGINT, op INTEGER")
        return self._gone
