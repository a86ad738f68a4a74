"""Cold rows from end to end: a published snapshot, the files a query needs of it, and the SQL that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modak.scan.deletes import Deletes
from modak.scan.engine import Engine
from modak.scan.predicate import Predicate
from modak.scan.prune import KeyRange, prune
from modak.scan.relation import numbered_sql, relation_sql
from modak.scan.snapshot import DataFile, Snapshot
from modak.scan.snapshots import Snapshots


class ColdTables:
    """One per engine; every method may be called from any thread."""

    def __init__(self, engine: Engine, snapshots: Snapshots | None = None) -> None:
        self.engine = engine
        self.snapshots = snapshots or Snapshots()
        self._deletes = Deletes(engine)

    def snapshot(self, metadata_location: str, sequence_number: int | None, io_properties: Mapping[str, str]) -> Snapshot:
        return self.snapshots.get(metadata_location, sequence_number, io_properties)

    def relation(
        self, snapshot: Snapshot, columns: Sequence[str], predicates: Sequence[Predicate] = (), keys: KeyRange | None = None
    ) -> tuple[str, list[DataFile]]:
        """An expression for FROM with these columns, and the files it reads. The conditions only choose files: apply them as well.

        Hold the snapshot while the query runs.
        """
        files = prune(snapshot, predicates, keys)
        return relation_sql(snapshot, files, columns, self._deletes.prepare(snapshot, files)), files

    def numbered(self, snapshot: Snapshot, files: Sequence[DataFile], columns: Sequence[str], firsts: Sequence[int]) -> str:
        """Like ``relation`` for files chosen already, with each row's number (``rid``)."""
        return numbered_sql(snapshot, files, columns, firsts, self._deletes.prepare(snapshot, files))

    def select_sql(
        self, snapshot: Snapshot, columns: Sequence[str], predicates: Sequence[Predicate] = (), keys: KeyRange | None = None
    ) -> tuple[str, list[DataFile]]:
        """Like ``relation``, as a whole statement."""
        relation, files = self.relation(snapshot, columns, predicates, keys)
        return f"SELECT * FROM {relation} AS cold", files  # noqa: S608
