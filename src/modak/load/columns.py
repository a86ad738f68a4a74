"""Columns of rows as Arrow arrays of COPY text: the hot loop of a load, with as little Python per row as can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from modak.load.errors import LoadRejected
from modak.load.values import Form, json_texts, text_of

NULL = "\\N"
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_NONE = type(None)
_TEXT = pa.string()
# What turning a value into text may end in.
FAILURES = (ValueError, TypeError, RecursionError, UnicodeError, OverflowError, pa.ArrowException)


def texts_of_values(values: Sequence[Any], form: Form, column: str, lines: Sequence[int]) -> pa.Array:
    """The texts of one column's Python values, ready for COPY; ``lines`` says where each value stands, for errors."""
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if not kinds:
        return pa.nulls(len(values), _TEXT)
    quick = _by_kind(values, kinds, form)
    if quick is not None:
        return quick
    try:
        texts = json_texts(values) if form.kind == "json" else [text_of(value, form) for value in values]
        return escaped(pa.array(texts, _TEXT))
    except FAILURES:
        raise _first_failure(values, form, column, lines) from None


def _by_kind(values: Sequence[Any], kinds: set[type], form: Form) -> pa.Array | None:
    """Columns of one Python type, which most are. Arrow bends values of other types to the one it is told, so the kinds are exact."""
    if form.kind == "json":
        return None
    try:
        if kinds == {str}:
            return escaped(pa.array(values, _TEXT))
        if kinds == {int}:
            return pa.array(values, pa.int64()).cast(_TEXT)
        if kinds == {bool}:
            return pa.array(values, pa.bool_()).cast(_TEXT)
        if kinds == {float} and form.is_number:
            return pa.array(values, pa.float64()).cast(_TEXT)
    except (OverflowError, UnicodeError, pa.ArrowException):
        return None
    return None


def _first_failure(values: Sequence[Any], form: Form, column: str, lines: Sequence[int]) -> LoadRejected:
    for value, line in zip(values, lines, strict=True):
        try:
            text = text_of(value, form)
            pa.array([text], _TEXT)
        except RecursionError:
            return _refusal("it is nested too deep, or contains itself", line, column, "…")
        except UnicodeError:
            return _refusal("its text has half a character (a lone surrogate)", line, column, ascii(value))
        except FAILURES as cause:
            return _refusal(str(cause), line, column, value)
    raise AssertionError("a column that failed as a whole failed in no row")


def _refusal(why: str, line: int, column: str, value: object) -> LoadRejected:
    return LoadRejected(f'line {line}, column "{column}": {why}', line=line, column=column, value=value)


def escaped(texts: pa.Array) -> pa.Array:
    """Texts with COPY's special characters escaped; most columns have none, and looking is much cheaper."""
    data = texts.buffers()[2]
    found = data.to_pybytes() if data is not None else b""
    for special, escape in _ESCAPES:
        if special.encode() in found:
            texts = pc.replace_substring(texts, special, escape)
    return texts


def joined(texts: Iterable[pa.Array | pa.Scalar], end: str = "") -> pa.Array:
    """Columns of texts as lines, at least one of which is an array; ``end`` stands behind each line."""
    *others, last = texts
    if end:
        # The separator before an empty text: it is behind the last one.
        last = pc.binary_join_element_wise(last, pa.scalar(""), pa.scalar(end), null_handling="replace", null_replacement=NULL)
    return pc.binary_join_element_wise(*others, last, pa.scalar("\t"), null_handling="replace", null_replacement=NULL)


def content(lines: pa.Array) -> pa.Buffer:
    """The bytes of a fresh array of texts, which lie one after the other."""
    data = lines.buffers()[2]
    return data if data is not None else pa.py_buffer(b"")
