"""Position deletes as bitmaps inside the engine: one bit per row of a data file, loaded when a query first needs the file.

A bitmap is a hundredth of the data, and testing a bit is half the price of an anti-join. Each snapshot has a table of its own, which
goes when the snapshot object goes; a query that outlives it fails instead of showing deleted rows.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from modak.errors import LakeError
from modak.scan.engine import Cursor, Engine
from modak.scan.paths import readable, without_globs
from modak.scan.snapshot import DataFile, Snapshot
from modak.scan.sqltext import quoted, string

# Reserved by Iceberg for the two columns of a position-delete file.
_SCHEMA = (
    "MAP {2147483546: {name: 'file_path', type: 'VARCHAR', default_value: NULL}, "
    "2147483545: {name: 'pos', type: 'BIGINT', default_value: NULL}}"
)
_Key = tuple[str, tuple[str, ...]]
Positions = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Bitmaps:
    """Where the bitmaps of a snapshot's files are: the quoted name of a table, and a number in it for each path."""

    table: str
    numbers: Mapping[str, int]


@dataclass
class _Prepared:
    table: str
    numbers: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Deletes:
    """``prepare`` may be called from any thread; run the query in a transaction that begins after it."""

    def __init__(self, engine: Engine, *, bytes_max: int = 256 * 1024 * 1024) -> None:
        self._engine = engine
        self._bytes_max = bytes_max
        self._bitmaps: OrderedDict[_Key, bytes] = OrderedDict()
        self._prepared: weakref.WeakKeyDictionary[Snapshot, _Prepared] = weakref.WeakKeyDictionary()
        self._garbage: deque[str] = deque()
        self._names = (f"modak_deletes_{number}" for number in itertools.count(1))
        self._lock = threading.Lock()

    def prepare(self, snapshot: Snapshot, files: Sequence[DataFile]) -> Bitmaps | None:
        """Bring the deletes of these files into the engine; None if they have none."""
        touched = [file for file in files if file.deletes]
        if not touched:
            return None
        cursor = self._engine.cursor()
        try:
            prepared = self._table_of(snapshot, cursor)
            with prepared.lock:
                self._add(prepared, [file for file in touched if file.path not in prepared.numbers], cursor)
                return Bitmaps(prepared.table, dict(prepared.numbers))
        finally:
            cursor.close()

    def _table_of(self, snapshot: Snapshot, cursor: Cursor) -> _Prepared:
        with self._lock:
            # Dropped here and not by the collector, which may run inside any call, one of the engine's included.
            while self._garbage:
                cursor.execute(f"DROP TABLE IF EXISTS {self._garbage.popleft()}")
            if snapshot not in self._prepared:
                table = quoted(next(self._names))
                cursor.execute(f"CREATE TABLE {table} (number INTEGER, bits BIT)")
                self._prepared[snapshot] = _Prepared(table)
                weakref.finalize(snapshot, self._garbage.append, table)
            return self._prepared[snapshot]

    def _add(self, prepared: _Prepared, files: Sequence[DataFile], cursor: Cursor) -> None:
        if not files:
            return
        bitmaps = self._load(files, cursor)
        first = len(prepared.numbers)
        batch = pa.table({"number": pa.array(range(first, first + len(files)), pa.int32()), "raw": pa.array(bitmaps, pa.large_binary())})
        cursor.register("modak_batch", batch)
        cursor.execute(f"INSERT INTO {prepared.table} SELECT number, raw::BIT FROM modak_batch")  # noqa: S608
        cursor.unregister("modak_batch")
        prepared.numbers.update({file.path: first + place for place, file in enumerate(files)})

    def _load(self, files: Sequence[DataFile], cursor: Cursor) -> list[bytes]:
        keys: list[_Key] = [(file.path, tuple(delete.path for delete in file.deletes)) for file in files]
        with self._lock:
            found = {key: self._bitmaps[key] for key in keys if key in self._bitmaps}
        missing = [(key, file) for key, file in zip(keys, files, strict=True) if key not in found]
        positions = deleted_positions(sorted({path for (_, paths), _ in missing for path in paths}), cursor)
        for key, file in missing:
            found[key] = _bitmap(file.rows, [positions[path].get(file.path) for path in key[1]])
        with self._lock:
            self._keep(found)
        return [found[key] for key in keys]

    def _keep(self, found: Mapping[_Key, bytes]) -> None:
        for key, bitmap in found.items():
            self._bitmaps[key] = bitmap
            self._bitmaps.move_to_end(key)
        size = sum(map(len, self._bitmaps.values()))
        while self._bitmaps and size > self._bytes_max:
            size -= len(self._bitmaps.popitem(last=False)[1])


def deleted_positions(paths: Sequence[str], cursor: Cursor) -> dict[str, dict[str, Positions]]:
    """What each delete file says, by the data file it speaks of."""
    found: dict[str, dict[str, Positions]] = {path: {} for path in paths}
    if not paths:
        return found
    files = ", ".join(string(without_globs(path)) for path in paths)
    rows = cursor.execute(
        "SELECT file_index, file_path, list(pos) AS positions, count(*) - count(pos) AS unreadable "  # noqa: S608
        f"FROM read_parquet([{files}], schema => {_SCHEMA}, hive_partitioning => false) GROUP BY ALL"
    ).to_arrow_table()
    for place, target, positions, unreadable in zip(*(rows.column(name) for name in rows.column_names), strict=True):
        delete_path = paths[place.as_py()]
        if not target.is_valid or unreadable.as_py():
            raise LakeError("a delete file does not name its rows", hint="it was not written as Iceberg v2 asks", file=delete_path)
        found[delete_path][readable(target.as_py())] = positions.values.to_numpy()
    return found


def _bitmap(rows: int, positions: Sequence[Positions | None]) -> bytes:
    flags = np.zeros(rows, dtype=np.uint8)
    for deleted in positions:
        if deleted is not None:
            flags[deleted[deleted < rows]] = 1
    return np.packbits(flags).tobytes()
