"""What an ingest does on Spark's workers: read a piece of a file, let Postgres check its rows, and write them as the lake's files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, cast

from pyiceberg.io import load_file_io

from modak.catalog import migrate
from modak.connection import connect
from modak.jobs.tasks import reporting_session
from modak.load.bulk import Bulk
from modak.load.errors import LoadRejected
from modak.load.files import ParquetRows
from modak.load.jsonl import JsonLines
from modak.load.spool import Spool

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile

    from modak.core.lake_table import LakeColumn
    from modak.core.table import Name
    from modak.lake.data_files import Target
    from modak.lake.storage import Storage
    from modak.load.request import Rows

ROWS_MAX = 100_000_000
_BLOCK = 1024 * 1024


@dataclass(frozen=True)
class Piece:
    """Row groups of a Parquet file, or a stretch of a JSONL file from ``start`` on, whole lines only."""

    location: str
    kind: str  # parquet, jsonl
    start: int
    stop: int


@dataclass(frozen=True)
class Ingested:
    """What a piece became. ``refused`` says why it was not taken; the line is the file's, where lines mean something."""

    files: tuple[IcebergFile, ...] = ()
    rows: int = 0
    low: int | None = None
    high: int | None = None
    refused: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class IngestTask:
    """Everything the tasks of one ingest need; goes to the executors as it is."""

    dsn: str = field(repr=False)
    op_id: str
    name: Name
    target: Target
    storage: Storage
    columns: tuple[LakeColumn, ...]
    line: int
    floor: int | None
    pieces: tuple[Piece, ...]

    def run(self, number: int) -> Ingested:
        piece = self.pieces[number]
        done = self._take(piece, number)
        with reporting_session(self.dsn) as session:
            session.execute(migrate.SQL.query("report_progress"), {"op_id": self.op_id, "task": number, "rows_done": done.rows})
        return done

    def _take(self, piece: Piece, number: int) -> Ingested:
        spool = Spool(self.target, self.storage, self.columns, f"{self.op_id}-{number}")
        source = load_file_io(dict(self.target.io_properties), piece.location).new_input(piece.location)
        with connect(self.dsn, application="modak-ingest", autocommit=True, unhurried=True) as connection, source.open() as file:
            bulk = Bulk(connection, self.name, line=self.line, floor=self.floor)
            try:
                taken = bulk.take(_rows(piece, cast(BinaryIO, file)), spool, ROWS_MAX)
            except LoadRejected as refusal:
                return Ingested(refused=_told(refusal, piece, cast(BinaryIO, file)), hint=refusal.hint)
        return Ingested(taken.files, taken.rows, taken.low, taken.high)


def _rows(piece: Piece, file: BinaryIO) -> Rows:
    if piece.kind == "parquet":
        return ParquetRows(file, range(piece.start, piece.stop))
    return JsonLines(cast(BinaryIO, io.BufferedReader(Stretch(file, piece.start, piece.stop), _BLOCK)))


def _told(refusal: LoadRejected, piece: Piece, file: BinaryIO) -> str:
    """With the line as it is counted in the whole file."""
    if refusal.line is None or piece.start == 0:
        return refusal.message
    if piece.kind == "parquet":
        place = f"row {refusal.line} of row group {piece.start}"
    else:
        place = f"line {_lines_before(file, _next_line(file, piece.start)) + refusal.line}"
    return refusal.message.replace(f"line {refusal.line}", place, 1)


def _lines_before(file: BinaryIO, stop: int) -> int:
    file.seek(0)
    lines, left = 0, stop
    while left and (part := file.read(min(_BLOCK, left))):
        lines += part.count(b"\n")
        left -= len(part)
    return lines


class Stretch(io.RawIOBase):
    """The lines of a file that begin at ``start`` or behind it and before ``stop``, as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, stop: int) -> None:
        super().__init__()
        self._file = file
        self._start = _next_line(file, start)
        self._stop = max(self._start, _next_line(file, stop))
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        bases: Mapping[int, int] = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._stop - self._start}
        self._place = max(0, bases[whence] + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        wanted = min(len(view), self._stop - self._start - self._place)
        if wanted <= 0:
            return 0
        self._file.seek(self._start + self._place)
        found = self._file.read(wanted)
        view[: len(found)] = found
        self._place += len(found)
        return len(found)


def _next_line(file: BinaryIO, place: int) -> int:
    """Where the first line begins that does not begin before ``place``."""
    if place == 0:
        return 0
    file.seek(place - 1)
    at = place - 1
    while part := file.read(_BLOCK):
        found = part.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(part)
    return at
