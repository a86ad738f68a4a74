"""What a transaction reads of a decoupled table: one snapshot, whose rows have numbers by the order of their files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from modak.lake.delete_files import Doomed
from modak.scan.snapshot import DataFile, Snapshot

Numbers = np.ndarray[Any, np.dtype[np.int64]]


_CHUNK = 65_536


class RowSet:
    """Numbers of rows at a bit each: a statement that goes row by row may meet millions."""

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}

    def add(self, rid: int) -> bool:
        """False if it was there already."""
        chunk, place = divmod(rid, _CHUNK)
        bits = self._chunks.setdefault(chunk, bytearray())
        byte, bit = divmod(place, 8)
        if len(bits) <= byte:
            bits.extend(bytes(max(byte + 1, min(2 * len(bits), _CHUNK // 8)) - len(bits)))
        if bits[byte] >> bit & 1:
            return False
        bits[byte] |= 1 << bit
        return True

    def clear(self) -> None:
        self._chunks.clear()


@dataclass(frozen=True)
class Base:
    """``firsts`` has the number of each file's first row. Sessions share it, so nothing of it ever changes."""

    metadata: TableMetadata
    location: str
    snapshot: Snapshot
    firsts: tuple[int, ...]
    rows: int
    _table: Table

    @classmethod
    def of(cls, table: Table, snapshot: Snapshot) -> Base:
        ends = list(itertools.accumulate((file.rows for file in snapshot.files), initial=0))
        return cls(table.metadata, table.metadata_location, snapshot, tuple(ends[:-1]), ends[-1], table)

    @property
    def table(self) -> Table:
        """A table of the caller's own, as it was read: PyIceberg's change with their commits."""
        return Table(self._table.name(), self.metadata, self.location, self._table.io, self._table.catalog, self._table.config)

    @property
    def is_newest(self) -> bool:
        """Whether no later snapshot was there when it was read."""
        return self.metadata.current_snapshot_id == self.snapshot.snapshot_id

    @property
    def snapshot_id(self) -> int | None:
        return self.snapshot.snapshot_id

    def places_of(self, rids: Numbers) -> Numbers:
        """The place of each row's file."""
        return np.searchsorted(np.asarray(self.firsts, dtype=np.int64), rids, side="right") - 1

    def places(self, rids: Numbers) -> list[int]:
        """The files that these rows are in, added rows aside."""
        return [int(place) for place in np.unique(self.places_of(rids[rids < self.rows]))]

    def firsts_of(self, files: Sequence[DataFile]) -> list[int]:
        by_path = dict(zip((file.path for file in self.snapshot.files), self.firsts, strict=True))
        return [by_path[file.path] for file in files]

    def doomed(self, rids: Numbers) -> list[Doomed]:
        """These rows, file by file."""
        places = self.places_of(rids)
        found = []
        for place in np.unique(places):
            file = self.snapshot.files[int(place)]
            positions = rids[places == place] - self.firsts[int(place)]
            found.append(Doomed(file.location, file.spec_id, file.partition, positions))
        return found
