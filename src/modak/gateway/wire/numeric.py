"""Postgres's binary numeric: groups of four decimal digits around the point, without leading and trailing zero groups."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from modak.gateway.wire.cells import Cells, Mask, Unsupported, packed, valid_mask

_BASE: Final = 10_000
_NEGATIVE: Final = 0x4000
# Groups left of the point: of a 64-bit number (19 digits), and of the longest decimal there is (38).
_GROUPS_SHORT: Final = 5
_GROUPS_LONG: Final = 10

Groups = NDArray[np.uint16]


def numeric(column: Any) -> Cells:
    """Decimals and integers. Vectorised where the unscaled number fits in 64 bits, which is most of what there is."""
    column = _decimal(column)
    scale: int = column.type.scale
    valid = valid_mask(column)
    halves = np.frombuffer(column.buffers()[1], dtype="<i8", count=2 * len(column), offset=column.offset * 16).reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    long = high != low >> 63
    if valid is not None:
        long &= valid
    groups = _short_groups(low, scale, _GROUPS_LONG if long.any() else _GROUPS_SHORT)
    for row in np.flatnonzero(long):
        number = int(high[row]) << 64 | int(low[row]) & 0xFFFF_FFFF_FFFF_FFFF
        groups[row] = _long_groups(abs(number), scale, groups.shape[1])
    return _assemble(groups, high < 0, scale, valid)


def _decimal(column: Any) -> Any:
    kind = column.type
    if pa.types.is_decimal128(kind):
        return column
    if pa.types.is_integer(kind):
        return column.cast(pa.decimal128(20, 0))
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    raise Unsupported("no binary numeric from this column", arrow=kind)


def _fraction_groups(scale: int) -> tuple[int, int]:
    """How many groups stand right of the point, and how many digits of the last of them are real."""
    count = -(-scale // 4)
    return count, scale - 4 * (count - 1)


def _short_groups(low: NDArray[np.int64], scale: int, whole: int) -> Groups:
    magnitude = np.abs(low).view(np.uint64)  # the least number is its own abs, and right as unsigned
    count, last_digits = _fraction_groups(scale)
    groups: Groups = np.zeros((len(low), whole + count), dtype=np.uint16)
    # Nothing in 63 bits reaches 10^19, so with such a scale all digits stand right of the point.
    left, right = np.divmod(magnitude, np.uint64(10**scale)) if scale < 19 else (np.zeros_like(magnitude), magnitude)
    for at in range(whole - 1, whole - 1 - _GROUPS_SHORT, -1):
        left, groups[:, at] = np.divmod(left, np.uint64(_BASE))
    for at in range(whole + count - 1, whole - 1, -1):
        digits = last_digits if at == whole + count - 1 else 4
        right, group = np.divmod(right, np.uint64(10**digits))
        groups[:, at] = group * np.uint64(10 ** (4 - digits))
    return groups


def _long_groups(magnitude: int, scale: int, width: int) -> list[int]:
    count, last_digits = _fraction_groups(scale)
    left = magnitude * 10 ** (4 - last_digits) if count else magnitude
    found = [0] * width
    for at in range(width - 1, -1, -1):
        left, found[at] = divmod(left, _BASE)
    return found


def _assemble(groups: Groups, negative: Mask, scale: int, valid: Mask | None) -> Cells:
    width = groups.shape[1]
    whole = width - _fraction_groups(scale)[0]
    there = groups != 0
    zero = ~there.any(axis=1)
    first = np.where(zero, 0, there.argmax(axis=1))
    end = np.where(zero, 0, width - there[:, ::-1].argmax(axis=1))
    head = (end - first, np.where(zero, 0, whole - 1 - first), np.where(negative, _NEGATIVE, 0), np.full(len(groups), scale))
    # Concatenating would turn the bytes round to this machine's order; so that comes last.
    words = np.concatenate([np.stack(head, axis=1).astype(np.uint16), groups], axis=1).astype(">u2")
    places = np.arange(width)
    kept = np.ones(words.shape, dtype=np.bool_)
    kept[:, 4:] = (places >= first[:, None]) & (places < end[:, None])
    if valid is not None:
        kept &= valid[:, None]
    sizes = (2 * kept.sum(axis=1)).astype(np.int32)
    lengths = sizes if valid is None else np.where(valid, sizes, np.int32(-1))
    return Cells(lengths, data=packed(words[kept], sizes))
