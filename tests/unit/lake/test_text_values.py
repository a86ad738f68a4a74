"""Postgres's text of values, read for the lake."""

from __future__ import annotations

import pyarrow as pa
import pytest

from modak.errors import ValueRefused
from modak.lake.text_values import arrow_column


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-15 12:00:00+00", 1768478400),
        ("2026-01-15 13:00:00+01", 1768478400),
        ("2026-01-15 17:30:00+05:30", 1768478400),
        ("2026-01-15 08:30:00-03:30", 1768478400),
        ("1880-01-01 00:53:28+00:53:28", -2840140800),
        ("0044-03-15 00:53:28+00:53:28 BC", -63517824000),
        ("10000-01-01 00:00:00+01", 253402297200),
    ],
)
def test_a_moment_is_read_in_the_zone_it_was_written_in(text: str, seconds: int) -> None:
    alone = arrow_column([text.encode(), None], "timestamptz", "timestamptz", "at")
    assert alone.type == pa.timestamp("us", "UTC")
    assert alone.cast(pa.int64()).to_pylist() == [seconds * 1_000_000, None]
    # Beside one that Arrow does not read itself, each is read by our own rules.
    beside = arrow_column([text.encode(), b"0001-01-01 00:00:00+00 BC"], "timestamptz", "timestamptz", "at")
    assert beside.cast(pa.int64())[0].as_py() == seconds * 1_000_000


@pytest.mark.parametrize("text", [b"infinity", b"294276-01-01 00:00:00+00"])
def test_what_is_no_moment_of_the_lake_is_refused(text: bytes) -> None:
    with pytest.raises(ValueRefused):
        arrow_column([text], "timestamptz", "timestamptz", "at")
