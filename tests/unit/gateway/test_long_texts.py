"""What people write is read in a time that grows with its length and no faster: while a pattern tries, the whole gateway waits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from modak.core.decoupled import PartitionField
from modak.errors import Refused
from modak.gateway.decoupled.bulk import recognise
from modak.gateway.decoupled.statements import locked_in, without_locks
from modak.gateway.dialect.datetimes import parse_interval
from modak.gateway.dialect.errors import Untranslatable

LONG = 100_000


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (recognise, "insert into x" + " " * LONG + "z"),
        (recognise, "insert into x (" + "a , " * (LONG // 4) + "z"),
        (recognise, 'insert into "' + '""' * (LONG // 2)),
        (parse_interval, " " * LONG),
        (parse_interval, "1 day" + " " * LONG),
        (parse_interval, "1 d" * (LONG // 3) + "!"),
        (PartitionField.parse, "day(" + " " * LONG + "x"),
        (PartitionField.parse, "bucket(a" + " " * LONG + "x)"),
        (PartitionField.parse, "bucket(a" + " , 1" * (LONG // 4) + "x)"),
        (locked_in, "SELECT '" + " FOR UPDATE" * (LONG // 11) + "'"),
        (without_locks, "SELECT '" + " FOR UPDATE OF r1" * (LONG // 17) + "x'"),
    ],
)
def test_no_text_takes_long(read: Callable[[str], object], text: str) -> None:
    began = time.monotonic()
    with contextlib.suppress(Untranslatable, Refused):
        read(text)
    assert time.monotonic() - began < 5


def test_locks_stand_behind_everything_else() -> None:
    sql = """SELECT a1 FROM iceberg."7" r1, iceberg."8" r2 WHERE a2 = ' FOR UPDATE'"""
    assert (locked_in(sql), without_locks(sql)) == ((), sql)
    assert (locked_in(sql + " FOR SHARE OF r2"), without_locks(sql + " FOR SHARE OF r2")) == ((8,), sql)
    assert (locked_in(sql + " FOR UPDATE OF r1 FOR SHARE OF r2 "), without_locks(sql + " FOR UPDATE")) == ((7, 8), sql)
    assert locked_in('SELECT a1 FROM iceberg."7" FOR UPDATE') == (7,)


@pytest.mark.parametrize("text", ["1 day", " 1day ", "1 d 2 h", "+1 day\n-2hours", "1d2h"])
def test_intervals_are_read_with_few_blanks_and_with_many(text: str) -> None:
    assert parse_interval(text).sql == parse_interval(text.replace(" ", "   ")).sql


@pytest.mark.parametrize("text", ["", " ", "1", "day", "1 day 2", "day 1", "1234567890 days", "1 - day", "1.5 days"])
def test_no_intervals(text: str) -> None:
    with pytest.raises(Untranslatable):
        parse_interval(text)
