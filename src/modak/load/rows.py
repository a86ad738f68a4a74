"""Rows of any kind as chunks of COPY text: lists and iterators of dicts, Arrow tables and readers.

Chunks are cut by what the rows are and not by how they arrive, so the digest of the same rows is the same from a list and from an iterator.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pyarrow as pa

from modak.errors import ModakError
from modak.load.arrow_columns import texts_of_array
from modak.load.columns import content, joined, texts_of_values
from modak.load.errors import LoadRejected, shown
from modak.load.request import COLUMN_SETS_MAX, RowFile, Rows
from modak.load.values import Form

CHUNK_ROWS = 2000
FIRST_CHUNK_ROWS = 20
# A chunk of text is about so large at most: rows of a megabyte come a few at a time.
CHUNK_BYTES = 8 * 1024 * 1024
ARROW_CHUNK_ROWS = 16_384


@dataclass
class ColumnSets:
    """The sets of columns that rows of a batch gave, numbered as they appear. ``known`` maps each loadable column to its form."""

    known: Mapping[str, Form]
    refused: Callable[[str, int], ModakError]
    keys: Sequence[str]
    sets: list[tuple[str, ...]] = field(default_factory=list)
    _numbers: dict[frozenset[str], int] = field(default_factory=dict)

    def number(self, names: frozenset[str], line: int) -> int:
        found = self._numbers.get(names)
        if found is None:
            found = self._numbers[names] = self._add(names, line)
        return found

    def _add(self, names: frozenset[str], line: int) -> int:
        strange = next((name for name in names if name not in self.known), None)
        if strange is not None:
            raise self.refused(strange, line)
        missing = next((name for name in self.keys if name not in names), None)
        if missing is not None:
            raise LoadRejected(
                f'line {line}: key column "{missing}" is missing', hint=f"every row needs {', '.join(self.keys)}", line=line, column=missing
            )
        if len(self.sets) == COLUMN_SETS_MAX:
            raise LoadRejected(
                f"line {line}: rows of one batch name more than {COLUMN_SETS_MAX} different sets of columns",
                hint="give every column, with null where there is no value, or make several batches",
                line=line,
            )
        self.sets.append(tuple(name for name in self.known if name in names))
        return len(self.sets) - 1

    def whole(self, columns: Sequence[str]) -> int:
        """The number of the set of all these columns, which rows get when their missing values were found."""
        names = frozenset(columns)
        if names not in self._numbers:
            self._numbers[names] = len(self.sets)
            self.sets.append(tuple(columns))
        return self._numbers[names]


@dataclass(frozen=True)
class Chunk:
    """Some rows of a batch as text. ``sets`` is the one number of all rows, or a number for each; ``gaps`` are the numbers of the lines
    where some of these were passed over."""

    first_line: int
    count: int
    columns: tuple[str, ...]
    texts: tuple[pa.Array, ...]
    sets: int | pa.Array
    value: Callable[[int, str], object]  # of a row (from 0) and a column, as it was given
    gaps: pa.Array | None = None

    @functools.cached_property
    def lines(self) -> pa.Array:
        """The rows as lines of a COPY of these columns."""
        return joined(self.texts, end="\n")

    def numbered(self) -> pa.Buffer:
        """The same for the staging table: with the rows' numbers, and those of their sets."""
        return content(joined([*self._prefix(0, self.count), self.lines]))

    def part(self, start: int, stop: int, columns: Sequence[str]) -> pa.Buffer:
        """As ``numbered``, of some rows and some columns."""
        texts = [text.slice(start, stop - start) for name, text in zip(self.columns, self.texts, strict=True) if name in columns]
        return content(joined([*self._prefix(start, stop), *texts], end="\n"))

    def line(self, index: int) -> int:
        return self.first_line + index if self.gaps is None else int(self.gaps[index].as_py())

    def _prefix(self, start: int, stop: int) -> list[pa.Array | pa.Scalar]:
        first = self.first_line
        lines = pa.array(range(first + start, first + stop), pa.int64()) if self.gaps is None else self.gaps.slice(start, stop - start)
        numbers = pa.scalar(str(self.sets)) if isinstance(self.sets, int) else self.sets.slice(start, stop - start).cast(pa.string())
        return [lines.cast(pa.string()), numbers]


class Digest:
    """Of the rows in their order and in their spelling; what the columns are is said whenever it changes."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()
        self._said: object = None

    def add(self, chunk: Chunk, sets: Sequence[tuple[str, ...]]) -> None:
        if isinstance(chunk.sets, int):
            self._say(chunk.columns)
        else:
            self._say(("mixed", *chunk.columns, *sets))
            self._sum.update(chunk.sets.buffers()[1])
        self._sum.update(content(chunk.lines))

    def _say(self, what: tuple[object, ...]) -> None:
        if what != self._said:
            self._said = what
            self._sum.update(repr(what).encode())

    def text(self) -> str:
        return f"sha256:{self._sum.hexdigest()}"


class Source:
    """The rows of a request. ``replayable``: they can be read again from the start, as those of a list can."""

    def __init__(self, rows: Rows, rows_max: int) -> None:
        self._rows: Any = rows
        self._rows_max = rows_max
        self._file = rows if isinstance(rows, RowFile) else None
        self.replayable = self._file is not None or isinstance(rows, pa.Table | pa.RecordBatch | Sequence)
        self.started = False
        kinds = pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable | RowFile
        if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, kinds):
            raise LoadRejected(
                f"rows of a load cannot be a {type(rows).__name__}", hint="give dicts, one for each row, or an Arrow table or reader"
            )

    @property
    def is_empty(self) -> bool:
        """Known of what has a length."""
        if self._file is not None:
            return self._file.is_empty
        if isinstance(self._rows, pa.Table | pa.RecordBatch):
            return int(self._rows.num_rows) == 0
        return isinstance(self._rows, Sequence) and len(self._rows) == 0

    def chunks(self, sets: ColumnSets) -> Iterator[Chunk]:
        """Every row, in order. Only once for rows that come one by one."""
        if self.started and not self.replayable:
            raise AssertionError("an iterator of rows cannot be read twice")
        self.started = True
        count = 0
        for chunk in self._all(sets):
            count += chunk.count
            if count > self._rows_max:
                raise LoadRejected(f"a batch has {self._rows_max} rows at most", hint="make several batches, each with a label of its own")
            yield chunk

    def _all(self, sets: ColumnSets) -> Iterator[Chunk]:
        if self._file is not None:
            return self._file.chunks(sets)
        if isinstance(self._rows, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
            return arrow_chunks(self._rows.schema, batches_of(self._rows), sets)
        return _dict_chunks(self._rows, sets)


def _dict_chunks(rows: Iterable[Mapping[str, Any]], sets: ColumnSets) -> Iterator[Chunk]:
    supply = iter(rows)
    line, wanted = 1, FIRST_CHUNK_ROWS
    while part := list(itertools.islice(supply, wanted)):
        chunk = _dict_chunk(part, line, sets)
        line += len(part)
        size = sum(text.nbytes for text in chunk.texts)
        wanted = max(1, min(CHUNK_ROWS, CHUNK_BYTES * len(part) // max(size, 1)))
        yield chunk


def _dict_chunk(rows: Sequence[Mapping[str, Any]], line: int, sets: ColumnSets) -> Chunk:
    """Columns of rows that mostly have the same keys: then none of them is looked at twice."""
    lines = range(line, line + len(rows))
    for number, row in zip(lines, rows, strict=True) if set(map(type, rows)) != {dict} else ():
        if not isinstance(row, Mapping):
            raise LoadRejected(
                f"line {number} is no row but a {type(row).__name__}", hint="a row is a dict of column names", line=number, value=shown(row)
            )

    def value(index: int, column: str) -> object:
        return rows[index].get(column)

    if len(set(map(len, rows))) == 1:
        number = sets.number(frozenset(rows[0]), line)
        names = sets.sets[number]
        try:
            columns = [list(map(itemgetter(name), rows)) for name in names]
        except KeyError:
            pass
        else:
            texts = [texts_of_values(values, sets.known[name], name, lines) for name, values in zip(names, columns, strict=True)]
            return Chunk(line, len(rows), names, tuple(texts), number, value)
    numbers = [sets.number(frozenset(row), at) for at, row in zip(lines, rows, strict=True)]
    given = {name for number in set(numbers) for name in sets.sets[number]}
    names = tuple(name for name in sets.known if name in given)
    texts = [texts_of_values([row.get(name) for row in rows], sets.known[name], name, lines) for name in names]
    return Chunk(line, len(rows), names, tuple(texts), pa.array(numbers, pa.int32()), value)


def arrow_chunks(schema: pa.Schema, batches: Iterable[pa.RecordBatch], sets: ColumnSets) -> Iterator[Chunk]:
    names = list(schema.names)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise LoadRejected(f'column "{twice}" stands twice in the Arrow schema', column=twice)
    line = 1
    for batch in cut(batches):
        number = sets.number(frozenset(names), line)
        columns = sets.sets[number]
        texts = tuple(texts_of_array(batch.column(names.index(name)), sets.known[name], name, line) for name in columns)
        yield Chunk(line, batch.num_rows, columns, texts, number, _arrow_value(batch, names))
        line += batch.num_rows


def batches_of(rows: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> Iterable[pa.RecordBatch]:
    return [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches() if isinstance(rows, pa.Table) else rows


def cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of bounded size."""
    for batch in batches:
        wanted = max(1, min(ARROW_CHUNK_ROWS, CHUNK_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        for start in range(0, batch.num_rows, wanted):
            yield batch.slice(start, wanted)


def _arrow_value(batch: pa.RecordBatch, names: Sequence[str]) -> Callable[[int, str], object]:
    return lambda index, column: batch.column(names.index(column))[index].as_py()
