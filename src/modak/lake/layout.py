"""Iceberg's partition transforms over canonical keys, for whole arrays at once."""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.int64]]

_MICROSECONDS = {"hour": 3_600_000_000, "day": 86_400_000_000}


def partition_numbers(keys: Numbers, layout: str, *, is_date: bool) -> Numbers:
    """The partition each key belongs to: hours, days, months or years since 1970, or the lower end of its band."""
    if layout.isdigit():
        return keys - np.mod(keys, int(layout))
    if layout in ("month", "year"):
        moments = keys.astype("datetime64[D]" if is_date else "datetime64[us]")
        return np.asarray(moments.astype(f"datetime64[{layout[0].upper()}]").astype(np.int64))
    if is_date:
        return keys
    return np.floor_divide(keys, _MICROSECONDS[layout])
