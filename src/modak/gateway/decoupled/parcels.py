"""Many rows for a decoupled table, by the gateway's port or by postgres_fdw, until the transaction they belong to takes them.

A small parcel is kept in memory. A large one is in the lake's files already, which nobody sees: the commit only has to add them, and
whoever drops the parcel removes them.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata

from modak.core.decoupled import Definition
from modak.errors import ModakError, Retry
from modak.gateway.decoupled.columns import check_writable
from modak.gateway.decoupled.values import NullRefused, kept, kind_of, remote_name
from modak.lake.any_files import AnyWriter, any_target
from modak.lake.csv_values import read_csv
from modak.lake.data_files import ROW_GROUP_ROWS, in_whole_groups
from modak.lake.failures import failures
from modak.lake.storage import io_properties

if TYPE_CHECKING:
    from modak.gateway.decoupled.world import World

log = logging.getLogger("modak.gateway")
_MEMORY_BYTES_MAX = 32 * 1024 * 1024
# Files that no snapshot has are swept when they are a day old.
_COMMIT_SECONDS_MAX = 20 * 3600.0


class TooLate(ModakError):
    """A transaction kept rows so long that their files may have been taken for leftovers."""

    code = "bulk_insert_too_old"
    sqlstate = "25P04"
    retry = Retry.NOW


class Parcel:
    """Filled by one thread at a time, then taken by another one. ``met``: the client's own transaction has asked for it."""

    def __init__(self, definition: Definition, world: World) -> None:
        self.id = secrets.token_hex(16)
        self.definition = definition
        self.rows = 0
        self._since = time.monotonic()
        self.met = self.filled = self.taken = False
        self._world = world
        self._storage = world.lake(definition.profile).storage
        self._names = [remote_name(column) for column in definition.columns]
        self._kinds = [kind_of(column) for column in definition.columns]
        self._batches: list[Any] = []
        self._held_rows = self._held_bytes = 0
        self._writer: AnyWriter | None = None
        self._metadata: TableMetadata | None = None
        self._files: list[DataFile] = []
        self._places: list[int] = []
        # Who is stopped may still be at work on a thread, while somebody else drops what there is.
        self._lock = threading.Lock()

    def feed(self, block: bytes) -> None:
        """Whole rows as COPY writes them in CSV."""
        with self._lock:
            self._feed(block)

    def add(self, batch: Any) -> None:
        """Rows with every column by its remote name, in the order of the definition."""
        with self._lock:
            self._add(batch)

    def _feed(self, block: bytes) -> None:
        with kept():
            # What is wrong with a value is told by its column's own name.
            batch = read_csv(block, [column.name for column in self.definition.columns], self._kinds)
        self._add(batch.rename_columns(self._names))

    def _add(self, batch: Any) -> None:
        for column, values in zip(self.definition.columns, batch.columns, strict=True):
            if column.required and values.null_count:
                raise NullRefused.of(self.definition, column)
        self.rows += batch.num_rows
        self._batches.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self._held_bytes >= _MEMORY_BYTES_MAX:
            self._write()

    def close(self) -> None:
        """No more rows come."""
        with self._lock:
            if self._writer is not None:
                self._write(in_full=True)
                with failures(self.definition.ref, self._storage):
                    self._files = self._writer.close()
                self._writer = None
            self.filled = True

    def _write(self, *, in_full: bool = False) -> None:
        """What makes whole row groups, unless ``in_full``: many small ones would be slow to read for as long as the file is there."""
        if not self._batches:
            return
        held = pa.Table.from_batches(self._batches)
        whole = held.num_rows if in_full else in_whole_groups(held.num_rows)
        rows, rest = held.slice(0, whole), held.slice(whole)
        self._batches, self._held_rows, self._held_bytes = rest.to_batches(), rest.num_rows, rest.nbytes
        with failures(self.definition.ref, self._storage):
            if self._writer is None:
                base = self._world.base(self.definition)
                check_writable(self.definition, base, updates=False)
                self._metadata = base.metadata
                self._writer = AnyWriter(any_target(self._metadata, io_properties(self._storage), self.definition.field_ids), self.id)
                self._places = self._writer.places
            self._writer.write(rows)

    def files(self, metadata: TableMetadata) -> list[DataFile] | None:
        """What a commit to such a table adds, and from then on not ours any more; None if the rows have to be written anew for it."""
        known = self._metadata
        if self._batches or known is None:
            return None
        made_for = (known.location, known.current_schema_id, known.default_spec_id)
        if made_for != (metadata.location, metadata.current_schema_id, metadata.default_spec_id):
            return None
        if time.monotonic() - self._since > _COMMIT_SECONDS_MAX:
            raise TooLate(
                f"rows were inserted into {self.definition.name} too long ago to be committed now",
                hint="run the transaction again, and commit within twenty hours",
            )
        files, self._files = self._files, []
        return files

    @property
    def is_small(self) -> bool:
        return not self._files

    def batches(self) -> Iterator[Any]:
        """The rows, by the columns' remote names."""
        yield from self._batches
        for file in self._files:
            with failures(self.definition.ref, self._storage), self._io().new_input(file.file_path).open() as stream:
                for batch in pq.ParquetFile(stream).iter_batches(ROW_GROUP_ROWS):
                    yield pa.record_batch([batch.column(place) for place in self._places], names=self._names)

    def drop(self) -> None:
        """Nothing of it is left."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._batches = []
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._files = self._writer.close()
            self._writer = None
        files, self._files = self._files, []
        for file in files:
            try:
                self._io().delete(file.file_path)
            except FileNotFoundError:
                # A commit that failed has taken its files along.
                continue
            except Exception:
                log.warning("a file that belongs to no snapshot could not be removed: %s", file.file_path, exc_info=True)

    def _io(self) -> FileIO:
        assert self._metadata is not None
        return load_file_io(dict(io_properties(self._storage)), self._metadata.location)


class Parcels:
    """By their ids, which cannot be guessed: who knows one has it from the session that filled it."""

    def __init__(self) -> None:
        self._open: dict[str, Parcel] = {}
        self._lock = threading.Lock()
        self.carried = 0
        """How many were taken since the gateway started."""

    @contextlib.contextmanager
    def lend(self, parcel: Parcel) -> Iterator[Parcel]:
        """Within the block the parcel can be asked for; if nobody took it by then, it is gone."""
        with self._lock:
            self._open[parcel.id] = parcel
        try:
            yield parcel
        finally:
            with self._lock:
                self._open.pop(parcel.id, None)

    def ask(self, number: str, table_id: int) -> Parcel | None:
        """A parcel of this gateway's that is full, to have it. One that is not yet only learns that its transaction is here."""
        with self._lock:
            parcel = self._open.get(number)
            if parcel is None or parcel.definition.table_id != table_id:
                return None
            parcel.met = True
            if not parcel.filled or parcel.taken:
                return None
            parcel.taken = True
            self.carried += 1
            return parcel
