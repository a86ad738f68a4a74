"""Columns of raw JSON values as COPY text, by the rules of ``modak.load.values`` and without turning a value into a Python object.

What helps: COPY reads the escapes of JSON's strings as JSON does, all but ``\\u``. So a string without that one goes on as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from modak.load.columns import escaped
from modak.load.errors import LoadRejected
from modak.load.values import Form

TOO_DEEP = "it is nested too deep"
_TEXT = pa.string()
_QUOTE, _NULL, _LIST, _OBJECT, _LINE_END = b'"n[{\n'
_strings = msgspec.json.Decoder(str)
_lists = msgspec.json.Decoder(list[msgspec.Raw])
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def texts_of_raws(raws: Sequence[msgspec.Raw], form: Form, column: str, lines: Sequence[int]) -> pa.Array:
    """The texts of one column, ready for COPY; ``lines`` says where each value stands, for errors."""
    # No value holds a line end: so one between two values says how long they are, without a look at each.
    data = b"\n".join(cast("Sequence[bytes]", raws))
    offsets = np.empty(len(raws) + 1, np.int64)
    offsets[0], offsets[-1] = 0, len(data) + 1
    offsets[1:-1] = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_END) + 1
    heads = np.frombuffer(data, np.uint8)[offsets[:-1]]
    nulls = heads == _NULL
    offsets -= np.arange(len(offsets))
    data = data.replace(b"\n", b"")
    if form.kind == "json":
        return escaped(_array(data, offsets, nulls))
    nested = bool(((heads == _LIST) | (heads == _OBJECT)).any())
    quoted = heads == _QUOTE
    if nested or (b"\\u" in data and quoted.any()):
        return _one_by_one(raws, form, column, lines)
    if not quoted.any():
        return _array(data, offsets, nulls)
    if b"\\" not in data:
        # Then every quote is one around a string.
        offsets[1:] -= 2 * np.cumsum(quoted)
        return _array(data.replace(b'"', b""), offsets, nulls)
    return _unquoted(data, offsets, quoted, nulls)


def _array(data: bytes, offsets: Numbers, nulls: Flags) -> pa.Array:
    some = bool(nulls.any())
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes()) if some else None
    return pa.Array.from_buffers(_TEXT, len(nulls), [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)])


def _unquoted(data: bytes, offsets: Numbers, quoted: Flags, nulls: Flags) -> pa.Array:
    """Without the first and the last character where these are quotes."""
    kept = np.ones(len(data), np.bool_)
    kept[offsets[:-1][quoted]] = kept[offsets[1:][quoted] - 1] = False
    offsets[1:] -= 2 * np.cumsum(quoted)
    return _array(np.frombuffer(data, np.uint8)[kept].tobytes(), offsets, nulls)


def _one_by_one(raws: Sequence[msgspec.Raw], form: Form, column: str, lines: Sequence[int]) -> pa.Array:
    texts: list[str | None] = []
    for raw, line in zip(raws, lines, strict=True):
        try:
            text = _text(bytes(raw), form)
        except RecursionError:
            raise LoadRejected(f'line {line}, column "{column}": {TOO_DEEP}', line=line, column=column) from None
        except (msgspec.DecodeError, UnicodeError):
            why = "its text has half a character (a lone surrogate)"
            raise LoadRejected(f'line {line}, column "{column}": {why}', line=line, column=column, value=_plain(raw)) from None
        if text is not None and "\0" in text:
            why = "Postgres has no text with the character NUL"
            raise LoadRejected(f'line {line}, column "{column}": {why}', line=line, column=column, value=_plain(raw)) from None
        texts.append(text)
    return escaped(pa.array(texts, _TEXT))


def _text(raw: bytes, form: Form) -> str | None:
    """The text of one value, not escaped for COPY."""
    head = raw[0]
    if head == _NULL:
        return None
    if form.kind == "json":
        return raw.decode()
    if head == _QUOTE:
        return _string(raw)
    if head == _LIST and form.element is not None:
        return _list(raw, form.element, form.delimiter)
    return raw.decode()


def _string(raw: bytes) -> str:
    text = _strings.decode(raw)
    # Half a pair that the parser let pass is found by encoding it.
    text.encode()
    return text


def _list(raw: bytes, element: Form, delimiter: str) -> str:
    return "{" + delimiter.join(_element(bytes(one), element, delimiter) for one in _lists.decode(raw)) + "}"


def _element(raw: bytes, element: Form, delimiter: str) -> str:
    if raw[0] == _LIST and element.kind != "json":
        return _list(raw, element, delimiter)
    text = _text(raw, element)
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plain(raw: msgspec.Raw) -> str:
    return bytes(raw).decode(errors="replace")


def shown_value(raw: msgspec.Raw) -> object:
    """A value for an error: a string without its quotes, everything else as the file has it."""
    text = bytes(raw)
    if text[0] != _QUOTE:
        return None if text == b"null" else _plain(raw)
    try:
        return _string(text)
    except (msgspec.DecodeError, UnicodeError):
        return _plain(raw)
