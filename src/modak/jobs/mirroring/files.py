"""Collapsed changes as files of the lake: new rows beside, old ones deleted by position. Nobody sees them before they are committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from modak.core.changes import UNCHANGED, Key, Last, Row
from modak.jobs.context import JobContext
from modak.jobs.mirroring.follower import Follower, cannot_follow, lake_names
from modak.jobs.tasks import write_found
from modak.lake.data_files import Writer, conform
from modak.lake.text_values import Values, arrow_column
from modak.scan.engine import Cursor
from modak.scan.positions import positions_of_keys
from modak.scan.snapshot import DataFile, Snapshot
from modak.scan.values_of_keys import first_unlike, places_of_keys, values_at

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import Table as LakeTable

    from modak.lake.change import PositionDeletes

# So many rows become Arrow at a time: Python's own copy of them is large enough.
CHUNK_ROWS = 100_000


@dataclass(frozen=True)
class Made:
    """``removed`` names data files that go as a whole."""

    added: tuple[IcebergFile, ...] = ()
    deletes: tuple[PositionDeletes, ...] = ()
    removed: frozenset[str] = frozenset()

    @property
    def rows_deleted(self) -> int:
        return sum(one.file.record_count for one in self.deletes)

    @property
    def rows_written(self) -> int:
        return sum(file.record_count for file in self.added)


def make(context: JobContext, follower: Follower, table: LakeTable, head: Snapshot, cursor: Cursor, op_id: str) -> Made:
    """Files for everything that was collected. ``head`` is what they are made on top of."""
    collapse = follower.collapse
    if collapse is None:
        return Made()
    work = _Work(context, follower, table, head, cursor, op_id)
    before = () if collapse.truncated else head.files
    deletes = work.deletes(before, list(collapse.gone())) if before else ()
    added = work.rows(before, list(collapse.rows()))
    removed = frozenset(file.location for file in head.files) if collapse.truncated else frozenset[str]()
    return Made(added, deletes, removed)


def lacking(context: JobContext, follower: Follower, table: LakeTable, head: Snapshot, cursor: Cursor, keys: Sequence[Key]) -> list[Key]:
    """Those of the keys that no row of ``head`` has."""
    work = _Work(context, follower, table, head, cursor, "")
    wanted = work._keys(keys)
    found = set(places_of_keys(cursor, work._near(head.files, wanted), work.key_fields, wanted).numbers.tolist())
    return [key for number, key in enumerate(keys) if number not in found]


@dataclass
class _Work:
    context: JobContext
    follower: Follower
    table: LakeTable
    head: Snapshot
    cursor: Cursor
    op_id: str

    def __post_init__(self) -> None:
        self.target = self.context.target(self.table)
        self.writer = Writer(self.target, self.op_id)
        self.places = lake_names(self.follower, self.context)
        self.key_fields = tuple(self.head.field(name) for name in self.follower.table.primary_key_cols)

    def deletes(self, files: Sequence[DataFile], keys: Sequence[Key]) -> tuple[PositionDeletes, ...]:
        if not keys:
            return ()
        wanted = self._keys(keys)
        near = self._near(files, wanted)
        return write_found(self.target, self.op_id, near, positions_of_keys(self.cursor, near, self.key_fields, wanted))

    def rows(self, files: Sequence[DataFile], rows: Sequence[tuple[Key, Last]]) -> tuple[IcebergFile, ...]:
        for start in range(0, len(rows), CHUNK_ROWS):
            part = rows[start : start + CHUNK_ROWS]
            # Only a row that keeps values of an older one knows where that was.
            whole = [(key, last) for key, last in part if last.origin is None]
            if whole:
                self.writer.write(self._table(whole, {}))
            if len(whole) < len(part):
                self._incomplete(files, [(key, last) for key, last in part if last.origin is not None])
        return tuple(self.writer.close())

    def _incomplete(self, files: Sequence[DataFile], rows: Sequence[tuple[Key, Last]]) -> None:
        """Rows that keep large values, which the lake has: as many of them at a time as memory is meant for."""
        by_place = {place: name for name, place in self.places.items()}
        needed = sorted({place for _, last in rows for place, value in enumerate(last.row or ()) if value is UNCHANGED})
        needed = [place for place in needed if place in by_place]
        if not needed:
            self.writer.write(self._table(rows, {}))
            return
        keys = self._keys([last.origin or key for key, last in rows])
        near = self._near(files, keys)
        found = places_of_keys(self.cursor, near, self.key_fields, keys)
        missing = set(range(len(rows))).difference(found.numbers.tolist())
        if missing:
            key = rows[min(missing)][0]
            what = f"an update of key {b', '.join(key).decode(errors='replace')} keeps a value that the lake does not have"
            raise cannot_follow(self.follower.table, what, code="unchanged_value")
        fields = [self.head.field(by_place[place]) for place in needed]
        for numbers, values in values_at(self.cursor, near, fields, found):
            self.writer.write(self._table([rows[number] for number in numbers], dict(zip(needed, values, strict=True))))

    def _table(self, rows: Sequence[tuple[Key, Last]], kept: Mapping[int, pa.Array]) -> pa.Table:
        """``kept``: what the lake has for these rows, by the column's place."""
        columns = []
        values_of = list(zip(*(last.row or () for _, last in rows), strict=True))
        for field, wanted in zip(self.table.schema().fields, self.writer.arrow_schema, strict=True):
            place = self.places.get(field.name)
            if place is None:
                columns.append(pa.nulls(len(rows), wanted.type))
                continue
            base = self.follower.columns[place].type.base
            values = values_of[place]
            if place not in kept:
                columns.append(arrow_column(cast(Values, values), str(field.field_type), base, field.name))
                continue
            stayed = [value is UNCHANGED for value in values]
            told = [None if value is UNCHANGED else value for value in values]
            column = arrow_column(cast(Values, told), str(field.field_type), base, field.name)
            columns.append(pc.if_else(pa.array(stayed, pa.bool_()), kept[place].cast(column.type), column))
        return pa.Table.from_arrays(columns, names=[field.name for field in self.table.schema().fields])

    def _keys(self, keys: Sequence[Key]) -> pa.Table:
        columns, schema = [], []
        for number, field in enumerate(self.key_fields):
            wanted = self.writer.arrow_schema.field(self.writer.names.index(field.name))
            base = self.follower.columns[self.places[field.name]].type.base
            columns.append(arrow_column([key[number] for key in keys], field.type, base, field.name))
            schema.append(wanted)
        names = [field.name for field in self.key_fields]
        return conform(pa.Table.from_arrays(columns, names=names), pa.schema(schema))

    def _near(self, files: Sequence[DataFile], keys: pa.Table) -> list[DataFile]:
        """Files that can hold one of the keys, by what is known of their integers."""
        near = np.ones(len(files), dtype=bool)
        index = {file.path: number for number, file in enumerate(self.head.files)}
        for number, field in enumerate(self.key_fields):
            if field.type not in ("int", "long"):
                continue
            values = np.unique(np.asarray(keys.column(number).to_numpy(), dtype=np.int64))
            ranges = self.head.ranges(field)
            for place, file in enumerate(files):
                known = ranges[index[file.path]]
                if known.low is not None and known.high is not None:
                    first = np.searchsorted(values, known.low)
                    near[place] &= bool(first < len(values) and values[first] <= known.high)
        return [file for file, is_near in zip(files, near, strict=True) if is_near]


class Likeness:
    """Whether rows of ``head`` have the expected values in the columns at ``places`` of the follower's shape."""

    def __init__(
        self, context: JobContext, follower: Follower, table: LakeTable, head: Snapshot, cursor: Cursor, places: Sequence[int]
    ) -> None:
        self._work = _Work(context, follower, table, head, cursor, "")
        by_place = {place: name for name, place in self._work.places.items()}
        self._columns = [(head.field(by_place[place]), follower.columns[place].type.base) for place in places]

    def unlike(self, rows: Sequence[Row]) -> tuple[Key, str | None] | None:
        """A key, and the column in which its row differs; None in its place: no row. ``rows``: the key's values, then the columns'."""
        if not rows:
            return None
        work = self._work
        size = len(work.key_fields)
        keys = [cast(Key, row[:size]) for row in rows]
        wanted = work._keys(keys)
        near = work._near(work.head.files, wanted)
        for (field, base), values in zip(self._columns, list(zip(*rows, strict=True))[size:], strict=True):
            column = arrow_column(cast(Values, values), field.type, base, field.name)
            kind = work.writer.arrow_schema.field(work.writer.names.index(field.name))
            typed = conform(pa.Table.from_arrays([column], names=[field.name]), pa.schema([kind]))
            wanted = wanted.append_column(kind, typed.column(0))
        found = first_unlike(work.cursor, near, work.key_fields, [field for field, _ in self._columns], wanted)
        if found is None:
            return None
        number, other = found
        return keys[number], None if other is None else other.name
