"""Rows as JSON lines, one object each, read from a file in blocks and again from the start when they are needed again.

Values stay what the file says: nothing is turned into a Python number or string on the way. A block whose rows all have the same keys, as
most have, costs no look at a single row. Of a key that stands twice in one object the last counts, as jsonb has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import BinaryIO

import msgspec
import numpy as np
import pyarrow as pa

from modak.load.errors import LoadRejected
from modak.load.json_columns import TOO_DEEP, shown_value, texts_of_raws
from modak.load.rows import Chunk, ColumnSets

BLOCK_BYTES = 256 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024
_MEBIBYTE = 1024 * 1024
_NEWLINE, _OPEN, _CLOSE = b"\n{}"
_NULL = msgspec.Raw(b"null")
_HINT = "every line is one JSON object, its keys are column names"
Row = dict[str, msgspec.Raw]
_rows = msgspec.json.Decoder(Row)


class JsonLines:
    """Lines of a seekable binary file. Blank ones are passed over, and counted: errors name the line as an editor does."""

    def __init__(self, file: BinaryIO, *, line_bytes_max: int = LINE_BYTES_MAX, block_bytes: int = BLOCK_BYTES) -> None:
        self._file = file
        self._line_bytes_max = line_bytes_max
        self._block_bytes = block_bytes

    @property
    def is_empty(self) -> bool:
        """Also of blank lines only."""
        self._file.seek(0)
        while part := self._file.read(self._block_bytes):
            if not part.isspace():
                return False
        return True

    def chunks(self, sets: ColumnSets) -> Iterator[Chunk]:
        line = 1
        for block in self._blocks():
            _check_text(block, line)
            chunk = _same_keys(block, line, sets) or _line_by_line(block, line, sets)
            if chunk is not None:
                yield chunk
            line += block.count(b"\n")

    def _blocks(self) -> Iterator[bytes]:
        """Whole lines, each with its end; the last one gets one if it has none."""
        self._file.seek(0)
        rest, lines = b"", 0
        while part := self._file.read(self._block_bytes):
            end = part.rfind(b"\n") + 1
            if not end:
                rest += part
                if len(rest) > self._line_bytes_max:
                    raise self._too_long(lines + 1)
                continue
            block, rest = rest + part[:end], part[end:]
            if block.find(b"\n") > self._line_bytes_max:
                raise self._too_long(lines + 1)
            lines += block.count(b"\n")
            yield block
        if rest:
            yield rest + b"\n"

    def _too_long(self, line: int) -> LoadRejected:
        most = f"{self._line_bytes_max / _MEBIBYTE:g} MiB"
        return LoadRejected(f"line {line} is longer than {most}", hint="is there a line end behind every row?", line=line)


def _check_text(block: bytes, line: int) -> None:
    """UTF-8 all through. The parser does not look at what it passes over."""
    if block.isascii():
        return
    try:
        block.decode()
    except UnicodeDecodeError as cause:
        at = line + block.count(b"\n", 0, cause.start)
        near = block[max(0, cause.start - 20) : cause.start + 20].split(b"\n")[0 if cause.start < 20 else -1]
        raise LoadRejected(f"line {at} is not UTF-8: {cause.reason}", hint="JSON is text in UTF-8", line=at, value=repr(near)) from None


def _same_keys(block: bytes, line: int, sets: ColumnSets) -> Chunk | None:
    """The block as columns if every line is one object and every object has the keys of the first; None otherwise."""
    count = _count_objects(block)
    if count is None:
        return None
    try:
        names = frozenset(_rows.decode(block[: block.index(b"\n")]))
        rows = _decoder(names).decode_lines(block)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    # Two objects in a line.
    if len(rows) != count:
        return None
    number = sets.number(names, line)
    columns = sets.sets[number]
    fields = _fields(names)
    raws = {name: list(map(attrgetter(fields[name]), rows)) for name in columns}
    return _chunk(raws, range(line, line + len(rows)), columns, number, sets)


def _count_objects(block: bytes) -> int | None:
    """How many lines there are, if each begins with { and ends with }. Then no object goes on in the next line: behind the } of a value
    inside of an object there is never a {."""
    text = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(text == _NEWLINE)
    last = ends - 1 - (text[ends - 1] == 13)
    starts = np.concatenate(([0], ends[:-1] + 1))
    regular = (text[starts] == _OPEN).all() and (text[last] == _CLOSE).all()
    return len(ends) if regular else None


@functools.lru_cache(maxsize=256)
def _fields(names: frozenset[str]) -> dict[str, str]:
    return {name: f"c{number}" for number, name in enumerate(sorted(names))}


@functools.lru_cache(maxsize=256)
def _decoder(names: frozenset[str]) -> msgspec.json.Decoder[msgspec.Struct]:
    """For objects with exactly these keys. Half the time that dicts take."""
    fields = _fields(names)
    kind = msgspec.defstruct(
        "Row",
        [(field, msgspec.Raw) for field in fields.values()],
        rename={field: name for name, field in fields.items()},
        forbid_unknown_fields=True,
        gc=False,
    )
    return msgspec.json.Decoder(kind)


def _line_by_line(block: bytes, first: int, sets: ColumnSets) -> Chunk | None:
    """Blank lines, rows with different keys, and whatever is wrong; None where there is no row at all."""
    numbered = [(number, text) for number, text in enumerate(block.split(b"\n")[:-1], first) if text.strip()]
    if not numbered:
        return None
    lines = [number for number, _ in numbered]
    rows = [_row(text, number) for number, text in numbered]
    numbers = [sets.number(frozenset(row), number) for row, number in zip(rows, lines, strict=True)]
    given = {name for number in set(numbers) for name in sets.sets[number]}
    columns = tuple(name for name in sets.known if name in given)
    raws = {name: [row.get(name, _NULL) for row in rows] for name in columns}
    same = len(set(numbers)) == 1
    return _chunk(raws, lines, columns, numbers[0] if same else pa.array(numbers, pa.int32()), sets)


def _row(text: bytes, line: int) -> Row:
    try:
        return _rows.decode(text)
    except RecursionError:
        raise LoadRejected(f"line {line}: {TOO_DEEP}", line=line) from None
    except msgspec.ValidationError:
        raise LoadRejected(f"line {line} is no JSON object", hint=_HINT, line=line, value=text.strip().decode()) from None
    except (msgspec.DecodeError, UnicodeError) as cause:
        why = str(cause).removeprefix("JSON is malformed: ")
        raise LoadRejected(f"line {line} is no JSON: {why}", hint=_HINT, line=line, value=text.strip().decode()) from None


def _chunk(
    raws: dict[str, list[msgspec.Raw]], lines: Sequence[int], columns: tuple[str, ...], number: int | pa.Array, sets: ColumnSets
) -> Chunk:
    texts = tuple(texts_of_raws(raws[name], sets.known[name], name, lines) for name in columns)
    # Only where a line was passed over.
    gaps = None if lines[-1] - lines[0] + 1 == len(lines) else pa.array(lines, pa.int64())
    return Chunk(lines[0], len(lines), columns, texts, number, _value(raws), gaps)


def _value(raws: dict[str, list[msgspec.Raw]]) -> Callable[[int, str], object]:
    return lambda index, column: shown_value(raws[column][index])
